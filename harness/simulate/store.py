"""One store under seeded faults, which appends, flushes, reads, crashes and recovers repeatedly; checkers judge its history.

In the first part (safety), faults are injected and no promise may be broken. In the second (liveness), the faults end, and the
store must open, accept messages and dispatch them. Everything random is drawn from the seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from math import inf

import attrs
import trio

from ledgermq.message.layout import body_crc, body_size_of, decode_record, encode_host, span_of
from ledgermq.message.message import IncomingMessage, StoredMessage
from ledgermq.message.properties import decode_properties
from ledgermq.store.config import StoreConfig
from ledgermq.store.errors import DamagedLog, NotWritable
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.store.put_side import PutBatch
from ledgermq.store.statuses import GetStatus, PutStatus
from ledgermq.testing.checkers import check_history
from ledgermq.testing.history import End, History, Put, Queue, Read, Snapshot, Stored
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import DiskFaults, SimDisk
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.real import World

from ..outcome import Outcome, describe_error
from ..stored_offsets import queue_offset_faults
from .store_draw import StoreDraw

ROOT = "store"
QUEUES: tuple[Queue, ...] = (("A", 0), ("A", 1), ("B", 0))
PRODUCERS = 3
RESERVED_HOURS, HOUR_MS = 1, 3_600_000
"""How long a segment is kept after its last change."""
CATCH_UP_SECONDS = 20.0
"""Virtual time after which a store without faults must have accepted a message and dispatched everything."""
_REFUSALS = (
    *(PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.DISK_FULL),
    *(PutStatus.MESSAGE_ILLEGAL, PutStatus.CREATE_MAPPED_FILE_FAILED),
)
_BORN_HOST = encode_host("10.0.0.1", 4711)


class LivenessLost(AssertionError):
    """Faults have ended, but the store does not accept or dispatch messages in time."""


@attrs.define(eq=False)
class Ended:
    """One deletion of a topic."""

    epoch: int
    floors: dict[Queue, int]
    """For each queue, the offset of the first message after the deletion."""
    answered: bool = False


@attrs.define(eq=False)
class StoreRun:
    """The run of one seed."""

    draw: StoreDraw
    rng: random.Random
    clock: SimClock
    disk: SimDisk
    history: History
    trace: list[str] = attrs.field(factory=list[str])
    ended: list[Ended] = attrs.field(factory=list[Ended])
    """Deletions, in order."""
    _properties: dict[int, dict[str, str]] = attrs.field(factory=dict[int, dict[str, str]])
    """The properties of each message as it was sent, by its number."""
    _number: int = 0
    _batch: int = 0
    _alive: bool = False

    @classmethod
    def of(cls, draw: StoreDraw) -> StoreRun:
        rng = random.Random(draw.seed ^ 0x5EED)  # noqa: S311 - never secrets
        clock = SimClock(drift=draw.clock_drift)
        disk = SimDisk(random.Random(draw.seed ^ 0xD15C), clock.wall_ms)  # noqa: S311 - never secrets
        history = History(draw.sync_flush, reserved_ms=RESERVED_HOURS * HOUR_MS if draw.expiry else inf)
        return cls(draw, rng, clock, disk, history)

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{trio.current_time():10.4f} {what}")

    @property
    def epoch(self) -> int:
        return len(self.history.ends)

    def world(self, *, delays: bool = True) -> World:
        delay = self.draw.sync_seconds_max if delays else 0.0
        workers = SimWorkers(random.Random(self.rng.getrandbits(32)), delay, self.disk.faults.injected)  # noqa: S311
        return World(self.disk, SimFabric().machine("10.0.0.1"), self.clock, random.Random(self.rng.getrandbits(32)), workers)  # noqa: S311

    def config(self) -> StoreConfig:
        draw = self.draw
        return StoreConfig(
            store_path_root_dir=ROOT,
            mapped_file_size_commit_log=draw.segment_size,
            mapped_file_size_consume_queue=draw.queue_file_size,
            max_hash_slot_num=draw.index_slots,
            max_index_num=draw.index_entries,
            flush_interval_index=draw.index_interval_ms,
            flush_disk_type="SYNC_FLUSH" if draw.sync_flush else "ASYNC_FLUSH",
            delete_when="23",
            file_reserved_time=RESERVED_HOURS,
            disk_max_used_space_ratio=95,
            clean_file_forcibly_enable="false",
            max_msgs_num_batch=1 << 20,
        )

    # ---------------------------------------------------------------- lives

    async def run(self) -> None:
        """Run all lives, then read everything once more."""
        for end in self.draw.ends:
            await self._live(end)
        self._heal()
        await self._live(None)
        if self.draw.bit_rot:
            await self._rot()

    async def _live(self, end: End | None) -> None:
        async with AsyncExitStack() as stack:
            store = await self._open(stack)
            with self.disk.no_faults():
                self.snapshot(store)
            if end is None:
                await self._must_catch_up(store)
                with self.disk.no_faults():
                    self.snapshot(store, after=1)
                return
            announced: set[int] = set()
            store.dispatcher.on_arrival.append(lambda records: announced.update(record[3] for record in records))
            self._alive = True
            with trio.move_on_after(self.draw.life_seconds * (0.2 + self.rng.random())):
                async with trio.open_nursery() as nursery:
                    for producer in range(PRODUCERS):
                        nursery.start_soon(self._produce, store, producer)
                    nursery.start_soon(self._consume, store)
                    nursery.start_soon(self._strike)
                    if self.draw.deletions:
                        nursery.start_soon(self._delete, store)
                    if self.draw.expiry:
                        nursery.start_soon(self._expire, store)
                        nursery.start_soon(self._follow_log, store)
            self._alive = False
            self._check_announced(announced, store.dispatcher.dispatched_offset)
            if end is End.POWER:
                self.history.flushed[self.epoch] = store.log.flushed_offset
            self._end(end)
        self.history.ends.append(end)

    def _check_announced(self, announced: set[int], dispatched_offset: int) -> None:
        """Check that listeners were called with each message of this life that is derived, whatever failed in between."""
        puts = [put for put in self.history.puts if put.acknowledged and put.epoch == self.epoch]
        missing = [
            put.number for put in puts if put.physical_offset < dispatched_offset and put.physical_offset not in announced
        ]
        assert not missing, f"life {self.epoch}: {missing} are derived, and nobody was notified"

    def _end(self, end: End) -> None:
        self.note(f"life {self.epoch} ends by {end.value}")
        self.disk.faults = DiskFaults(injected=self.disk.faults.injected)
        # A store whose machine has no power still runs its closing code, which reaches only the old disk object.
        if end is End.POWER:
            self.disk = self.disk.power_cut(self.rng.getrandbits(32), at_edges=self.draw.cuts_at_edges)
        elif end is End.KILL:
            self.disk = self.disk.kill()

    async def _open(self, stack: AsyncExitStack) -> MessageStore:
        if self.draw.failing_start:
            self.disk.faults.read_error = self.disk.faults.write_error = self.disk.faults.sync_error = 0.05
            self.disk.faults.open_error = self.draw.open_error / 10
            for _ in range(5):
                try:
                    store = await stack.enter_async_context(open_message_store(self.world(), self.config()))
                except OSError as error:
                    self.note(f"open failed: {error}")
                else:
                    self._heal()
                    self.note(f"opened in spite of faults, log ends at {store.log.max_offset}")
                    return store
            self._heal()
        store = await stack.enter_async_context(open_message_store(self.world(), self.config()))
        self.note(f"opened, log ends at {store.log.max_offset}")
        return store

    async def _rot(self) -> None:
        """Flip a bit of a stored body: readers or the next start must detect it by the CRC, and no other message may change."""
        before = self.history.snapshots[-1].queues
        queue, message = self.rng.choice([(queue, message) for queue, messages in before.items() for message in messages])
        start = message.physical_offset - message.physical_offset % self.draw.segment_size
        path = f"{ROOT}/commitlog/{start:020d}"
        view = self.disk.open(path).view()
        span = span_of(view, message.physical_offset - start, len(view))
        assert span is not None
        self.disk.rot(path, span.body_at + self.rng.randrange(body_size_of(view, span)), self.rng.randrange(8))
        try:
            async with open_message_store(self.world(), self.config()) as store:
                for other, messages in before.items():
                    expected = [-1 if one is message else one.number for one in messages]
                    found = [one.number for one in self._read_all(store, other)]
                    assert found == expected, (
                        f"after a bit of {queue}@{message.queue_offset} turned over, {other} holds {found}"
                    )
        except DamagedLog as error:  # the message is among the last ones, which every start checks
            if error.offset != message.physical_offset:
                raise

    def _heal(self) -> None:
        self.disk.faults = DiskFaults(injected=self.disk.faults.injected)

    async def _strike(self) -> None:
        """Inject temporary faults until cancelled."""
        draw, rng = self.draw, self.rng
        while True:
            await trio.sleep(draw.life_seconds * rng.random() * 0.3)
            faults = self.disk.faults
            faults.write_error, faults.sync_error = draw.write_error, draw.sync_error
            faults.read_error, faults.create_error, faults.open_error = draw.read_error, draw.create_error, draw.open_error
            if draw.full_disk:
                used = self.disk.usage("").used
                faults.capacity = used + rng.randrange(20_000)
            if draw.clock_jumps:
                self.clock.jump(rng.choice((-3_600_000, -5000, -1, 1, 60_000)) if not draw.expiry else 60_000)
            await trio.sleep(draw.life_seconds * rng.random() * 0.2)
            self._heal()

    async def _must_catch_up(self, store: MessageStore) -> None:
        """Check liveness: without faults a put succeeds and everything becomes readable."""
        put = self._next_put(PRODUCERS, QUEUES[0])
        status = PutStatus.UNKNOWN_ERROR
        with trio.move_on_after(CATCH_UP_SECONDS):
            while status is not PutStatus.PUT_OK:
                result = await store.put_one(self._message(put, b""))
                status = result.status
                if not status.stored:
                    await trio.sleep(0.5)
                    continue
                put.queue_offset, put.physical_offset = result.queue_offset, result.physical_offset
            while store.dispatch_behind_bytes:  # noqa: ASYNC110 - polled as by a client
                await trio.sleep(0.01)
            put.acknowledged = True
            return
        raise LivenessLost(
            f"{CATCH_UP_SECONDS} s after the faults ended the store answers {status.name} and is "
            f"{store.dispatch_behind_bytes} bytes behind"
        )

    # ---------------------------------------------------------------- clients

    def _next_put(self, producer: int, queue: Queue) -> Put:
        self._number += 1
        key = f"key-{self._number % 7}-{self._number:010}" if self._number % 3 else ""
        put = Put(self._number, producer, queue, self.epoch, key, sent_ms=self.clock.wall_ms())
        self.history.puts.append(put)
        return put

    def _message(self, put: Put, filling: bytes) -> IncomingMessage:
        topic, queue_id = put.queue
        properties = self._properties_of(put)
        self._properties[put.number] = decode_properties(properties)
        body = b"%d;" % put.number + filling
        return IncomingMessage(topic, queue_id, body, properties, 0, 0, self.clock.wall_ms(), _BORN_HOST)

    def _properties_of(self, put: Put) -> str:
        if self.draw.bare and not put.key:
            return ""
        properties = f"TAGS\x01t{put.number % 3}\x02"
        if put.key:
            properties = f"{'KEYS' if put.number % 2 else 'UNIQ_KEY'}\x01{put.key}\x02{properties}"
        if self.draw.properties_bytes_max:
            # All messages of a batch together must fit in a segment.
            count_max = min(self.draw.properties_bytes_max, self.draw.segment_size // 4) // len(f"{put.number},")
            filling = f"{put.number}," * self.rng.randint(1, count_max)
            properties = f"filling\x01{filling}\x02{properties}"
        return properties

    def _number_of(self, message: StoredMessage) -> int:
        """The number in the body, or -1, which is never sent, if body or properties differ from what was sent."""
        number = int(message.body.partition(b";")[0]) if body_crc(message.body) == message.body_crc else -1
        return number if message.properties == self._properties.get(number) else -1

    async def _produce(self, store: MessageStore, producer: int) -> None:
        rng, draw = self.rng, self.draw
        while True:
            count = rng.choice((1, 1, 1, 2, 5))
            together = count > 1 and rng.random() < 0.5
            same = rng.choice(QUEUES)
            puts = [self._next_put(producer, same if together else rng.choice(QUEUES)) for _ in range(count)]
            if together:
                self._batch += 1
                for put in puts:
                    put.batch = self._batch
            messages = [self._message(put, rng.randbytes(rng.randrange(draw.body_bytes_max))) for put in puts]
            batch = store.put(messages, together=together)
            stored = [status.stored for status in batch.statuses]
            for at, put in enumerate(puts):
                put.queue_offset, put.physical_offset = batch.queue_offsets[at], batch.physical_offsets[at]
                put.refused = batch.statuses[at] in _REFUSALS
                put.withdrawn = "could not be written" in batch.remark
            if any(stored):
                status = await self._finished(store, batch)
                self.note(f"producer {producer} put {[put.number for put in puts]} at {batch.physical_offsets}: {status.name}")
                if self._alive and status is PutStatus.PUT_OK:
                    for put, kept in zip(puts, stored, strict=True):
                        put.acknowledged = kept
            else:
                self.note(f"producer {producer} put {[put.number for put in puts]}: refused: {batch.remark}")
            await trio.sleep(rng.choice((0.0, 0.001, 0.02, 0.2)))

    async def _finished(self, store: MessageStore, batch: PutBatch) -> PutStatus:
        if not store.waits:
            return PutStatus.PUT_OK
        finished = trio.Event()
        outcome: list[PutStatus] = []

        def done(status: PutStatus) -> None:
            assert not outcome, "a put was answered twice"
            outcome.append(status)
            finished.set()

        store.when_stored(batch, done)
        await finished.wait()
        return outcome[0]

    async def _consume(self, store: MessageStore) -> None:
        offsets = {queue: store.min_offset(*queue) for queue in QUEUES}
        while True:
            await trio.sleep(self.rng.choice((0.001, 0.05, 0.3)))
            for queue in QUEUES:
                try:
                    result = store.get(*queue, offsets[queue], 32)
                except OSError as error:
                    self.note(f"read of {queue} failed: {error}")
                    continue
                if not self._alive:
                    return
                if result.status is GetStatus.OFFSET_TOO_SMALL:  # the topic was deleted, or messages have expired
                    begins = store.min_offset(*queue)
                    assert result.next_offset == begins, f"{queue} begins at {begins}, readers go on at {result.next_offset}"
                    offsets[queue] = begins
                for record in result.slices:
                    message = decode_record(record)
                    number = self._number_of(message)
                    assert message.queue_offset >= offsets[queue], f"{queue}: {message.queue_offset} at {offsets[queue]}"
                    for skipped in range(offsets[queue], message.queue_offset):
                        unit = store.unit(*queue, skipped)
                        expired = unit is None or unit[0] < store.log.min_offset
                        assert expired, f"a reader of {queue} is given {message.queue_offset}, and {skipped} is there"
                    self.history.reads.append(Read(queue, message.queue_offset, number, self.epoch))
                    offsets[queue] = message.queue_offset + 1

    async def _delete(self, store: MessageStore) -> None:
        while True:
            await trio.sleep(self.draw.life_seconds * self.rng.random())
            topic = self.rng.choice(QUEUES)[0]
            floors = {queue: store.next_offset(*queue) for queue in QUEUES if queue[0] == topic}
            try:
                end = store.delete_topic(topic)
                ended = Ended(self.epoch, floors)
                self.ended.append(ended)
                await store.event_done(end)
            except (OSError, NotWritable) as error:
                self.note(f"deletion of {topic} failed: {error}")
                continue
            ended.answered = self._alive
            self.note(f"{topic} deleted, queues go on at {floors}")

    async def _expire(self, store: MessageStore) -> None:
        while True:
            await trio.sleep(self.draw.life_seconds * self.rng.random() * 0.3)
            self.clock.jump(round(RESERVED_HOURS * HOUR_MS * self.rng.random()))
            begins = store.log.min_offset
            try:
                assert store.cleaner is not None
                await store.cleaner.delete_expired()
            except OSError as error:
                self.note(f"expired segments are not deleted: {error}")
            if store.log.min_offset > begins:
                self.disk.faults.count("expired_segment")
                self.note(f"the log begins at {store.log.min_offset}")

    async def _follow_log(self, store: MessageStore) -> None:
        """Have files of queues deleted, as an operator may request at any time."""
        while True:
            await trio.sleep(self.draw.life_seconds * 0.01)
            assert store.cleaner is not None
            with suppress(OSError):
                await store.cleaner.follow_log()

    # ---------------------------------------------------------------- reading everything

    def snapshot(self, store: MessageStore, after: int = 0) -> None:
        """Read everything that is stored, by offset and by key."""
        queues: dict[Queue, list[Stored]] = {}
        bounds: dict[Queue, tuple[int, int]] = {}
        for queue in sorted(store.queues.table):
            bounds[queue] = (store.min_offset(*queue), store.max_offset(*queue))
            queues[queue] = list(self._read_all(store, queue))
            self._check_deletions(queue, bounds[queue][0], self.epoch + after)
        asked = sorted({put.key for put in self.history.puts if put.key})
        by_key = {key: self._query(store, key) for key in self.rng.sample(asked, min(len(asked), 50))}
        deleted = {queue: max(one.floors.get(queue, 0) for one in self.ended) for queue in bounds if self.ended}
        wall_ms = self.clock.wall_ms()
        self.history.snapshots.append(
            Snapshot(self.epoch + after, queues, bounds, by_key, wall_ms=wall_ms, deleted_below=deleted)
        )
        self.note(f"snapshot {bounds}")

    def _check_deletions(self, queue: Queue, low: int, epoch: int) -> None:
        """Check that deleted messages do not return, and that messages after the deletion are not hidden."""
        floors = [(ended.floors.get(queue, 0), ended) for ended in self.ended]
        least = max((floor for floor, one in floors if one.answered and self.history.survives(one.epoch, epoch)), default=0)
        most = max((floor for floor, _ in floors), default=0)
        assert least <= low <= (inf if self.draw.expiry else most), (
            f"life {epoch}: {queue} begins at {low}; deletions were at {least} to {most}"
        )

    def _read_all(self, store: MessageStore, queue: Queue) -> list[Stored]:
        found: list[Stored] = []
        offset, high = store.min_offset(*queue), store.max_offset(*queue)
        while offset < high:
            result = store.get(*queue, offset, 32)
            for record in result.slices:
                message = decode_record(record)
                number = self._number_of(message)
                found.append(Stored(message.queue_offset, message.physical_offset, number, message.store_timestamp))
            if result.next_offset <= offset:
                break
            offset = result.next_offset
        return found

    def _query(self, store: MessageStore, key: str) -> list[int]:
        numbers: list[int] = []
        for topic in sorted(store.topics()):
            records = store.query(topic, key, 1 << 20, 0, 1 << 60).slices
            numbers += [self._number_of(decode_record(record)) for record in records]
        return numbers


def simulate_store(seed: int, mend: Callable[[StoreDraw], StoreDraw] = lambda draw: draw) -> Outcome:
    """Run one seed; an exception of the store counts as a violation."""
    draw = mend(StoreDraw.of(seed))
    run = StoreRun.of(draw)
    violations: list[str] = []
    try:
        seeded_run(run.run, seed=seed)
    except (Exception, ExceptionGroup) as error:  # noqa: BLE001 - every exception of the store is a finding
        violations.append(describe_error(error))
    with run.disk.no_faults():
        violations += queue_offset_faults(run.disk, ROOT)
    violations += check_history(run.history)
    faults = Counter(run.disk.faults.injected | run.clock.injected)
    return Outcome(run.history, violations, faults, drawn=str(draw), trace=run.trace)
