"""Sends messages from plain threads, in order within each queue, and determines what was stored.

Each queue has at most one pending request. If its answer does not come, it is unknown whether the messages were stored. A
broker of ours recognises the repeated request by its number. Elsewhere the queue is read from where the batch began, and
messages found there are not sent again. A delayed message is looked for in the broker's topic of delayed messages too, which
has one queue for each delay level.

Before the first send to a broker of ours, an attempt of a task begins a new epoch there: from then on no request of an earlier
attempt is carried out, however late it is, so what is read afterwards is all that earlier attempts will ever have stored.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping

import attrs

from ..client.route import AUTO_CREATE_QUEUES, AUTO_CREATE_TOPIC
from ..client.unique_id import UniqueIds
from ..message.json import loads
from ..message.message import MessageQueue
from ..message.properties import NAME_END, PROPERTY_END, REAL_TOPIC, UNIQUE_KEY, WAIT
from ..message.send_number import REQUEST_FIELD, SendNumber
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand, wire_fields
from ..world.address import Address
from .batches import Batches
from .broker_client import ACCESS_REFUSED, BUSY_CODES, BrokerCatalog, BrokerClient, is_busy, offset_of, readable, request
from .broker_reader import BrokerReader
from .catalog import Bounds
from .columns import COLUMNS
from .errors import CorruptStore, DataLoss, NotWritten, Replaced
from .link import Link, LinkLost
from .options import TOOLS_GROUP, Content, Pulling, WriteOptions
from .outgoing import TRANSACTION, Outgoing, choose_queue, encode_many, fingerprint, full_properties, written_properties
from .ranges import QueueRange
from .segment_reader import Reader
from .waiting import PAUSE_SECONDS, Wait

PENDING_BYTES_MAX = 8 * 1024 * 1024
"""Above this many bytes all gathered messages are sent before more rows are taken."""
BATCH_MESSAGES_MAX = 1000
SETTLE_SECONDS = 0.5
"""How long after a lost connection a broker may still carry out a request: a Java broker drops requests after 200 ms."""
CLOCK_MARGIN_MS = 600_000
"""The largest assumed difference between the clocks of driver and brokers when a queue is searched from a time on."""
STORED = frozenset(
    (
        ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)  # fmt: skip
_LATER = BUSY_CODES | {ResponseCode.FLOW_CONTROL, ResponseCode.NO_PERMISSION, ResponseCode.NOT_LEADER_FOR_QUEUE}
"""Refusals after which another attempt, perhaps at another member, may succeed."""

_LOOK_COLUMNS = tuple(column for column in COLUMNS if column.name in ("body", "flag", "properties"))


DELAYED_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""The topic in which brokers keep delayed messages until they deliver them, and for some time after."""


@attrs.frozen
class Began:
    """The ends of the destination queues before a batch was first written, and the time when they were read."""

    ends: Mapping[MessageQueue, int]
    timestamp_ms: int
    brokers: tuple[str, ...] = ()
    """The live brokers, if the destination is not known: any of them may have it."""
    note: str | None = None
    """The file in which this is noted."""


@attrs.define(eq=False)
class _Chunk:
    """Messages of one request."""

    queue: MessageQueue
    messages: list[Outgoing]
    sequence: int = 0
    """The number of the first message; the others follow."""

    @property
    def born_ms(self) -> int | None:
        return self.messages[0].born_ms

    @property
    def stored_in(self) -> MessageQueue:
        """The queue in which a broker stores the messages first. A delayed message is alone in its request."""
        level = self.messages[0].delay_level
        return _queue_of_delay(self.queue, level) if level else self.queue


def _queue_of_delay(queue: MessageQueue, level: int) -> MessageQueue:
    return MessageQueue(DELAYED_TOPIC, queue.broker_name, level - 1)


@attrs.define(eq=False)
class Sender:
    """Writes the rows of one task."""

    options: WriteOptions
    began: Began
    transaction: str | None
    """The value of the property `SPARK_TXN`; if None, messages are sent at least once and stored ones are never searched."""
    turn: int = 0
    client: BrokerClient = attrs.field(init=False)
    sent: int = 0
    skipped: int = 0
    pending: dict[MessageQueue, list[Outgoing]] = attrs.field(factory=dict[MessageQueue, list[Outgoing]])
    _pending_bytes: int = 0
    _present: dict[str, Counter[bytes]] = attrs.field(factory=dict[str, Counter[bytes]])
    """For each topic the fingerprints of messages of an earlier attempt that were not matched with a row yet."""
    _delays: set[tuple[str, int]] = attrs.field(factory=set[tuple[str, int]])
    """Topics and delay levels for which delayed messages of an earlier attempt have been counted in `_present`."""
    _delivered: set[str] = attrs.field(factory=set[str])
    """The unique keys of delayed messages that were found in their own topic. The topic of delayed messages has them too."""
    _repeats: bool = False
    _queues: dict[str, list[MessageQueue]] = attrs.field(factory=dict[str, list[MessageQueue]])
    _ids: UniqueIds = attrs.field(init=False)
    _floors: dict[MessageQueue, int] = attrs.field(factory=dict[MessageQueue, int])
    _last_queue: dict[str, MessageQueue] = attrs.field(factory=dict[str, MessageQueue])
    _producer_id: str = attrs.field(init=False)
    _epochs: dict[str, int | None] = attrs.field(factory=dict[str, int | None])
    """By broker name, our epoch there; None if the broker recognises no numbers."""
    _known_at: set[str] = attrs.field(factory=set[str])
    """The brokers where an earlier attempt may have stored messages."""
    _sequence: int = 0
    """The number of the next message."""

    def __attrs_post_init__(self) -> None:
        self.client = BrokerClient(self.options.servers)
        self._ids = UniqueIds("127.0.0.1", os.getpid(), random.SystemRandom().getrandbits(32))
        self._producer_id = (self.transaction or uuid.uuid4().hex).replace(".", "-")

    def look_before_sending(self) -> None:
        """Search each row among the stored messages before sending it, because an earlier attempt may have sent it."""
        self._repeats = self.transaction is not None

    def add(self, messages: Iterable[Outgoing]) -> None:
        """Gather messages, and send them once there are enough.

        Raises:
            NotWritten: a message cannot be sent, or was not stored as promised.
        """
        for message in messages:
            if self.transaction is not None and self._claim(message):
                self.skipped += 1
                continue
            queue = self._queue_of(message)
            self.pending.setdefault(queue, []).append(message)
            self._pending_bytes += message.size
            if self._pending_bytes >= PENDING_BYTES_MAX:
                self.flush()

    def _claim(self, message: Outgoing) -> bool:
        present = self._present.get(message.topic)
        if present is None:
            present = self._present[message.topic] = self._stored(self._searched(message.topic))
        if message.delay_level and (message.topic, message.delay_level) not in self._delays:
            self._delays.add((message.topic, message.delay_level))
            queues = {_queue_of_delay(queue, message.delay_level) for queue in self._searched(message.topic)}
            present += self._stored(sorted(queues))
        if present[message.fingerprint] > 0:
            present[message.fingerprint] -= 1
            return True
        return False

    def _searched(self, topic: str) -> list[MessageQueue]:
        """The queues in which an earlier attempt may have stored messages: those of now, and those when the batch began."""
        queues = {*self._queues_of(topic), *(queue for queue in self.began.ends if queue.topic == topic)}
        queues.update(self._queues_at_begin(topic))
        for queue in queues:
            self._epoch(queue)
        return sorted(queue for queue in queues if self._repeats or queue.broker_name in self._known_at)

    def _queues_at_begin(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic at all brokers, if some were noted. One without a master takes no messages, but may have ours.

        Raises:
            NotWritten: a broker that may have the topic does not come back.
        """
        wait = Wait(self.options.servers.failover_seconds)
        while self.began.brokers:
            route = self.client.retry_route(topic)
            found = [] if route is None else readable(route)
            unseen = {*self.began.brokers} - {queue.broker_name for queue in found}
            away = sorted(name for name in unseen if not self.client.is_deleted(topic, name))
            if not away:
                return found
            if not wait.goes_on(f"no name server knows {', '.join(away)}, which may have the topic {topic!r}"):
                raise self._unsure(f"no name server knows {', '.join(away)} any more")
        return []

    def _unsure(self, reason: str) -> NotWritten:
        """The error for rows that are not sent, because an earlier attempt may have sent them and nobody can tell."""
        note = self.began.note
        again = "Starting the job again" if note is None else f"Deleting the note {note} and starting the query again"
        return NotWritten(
            f"{reason}, so it cannot be known which rows an earlier attempt has stored. No more were sent. "
            f"{again} stores all rows of the batch, those that are stored already too"
        )

    def _epoch(self, queue: MessageQueue) -> int | None:
        """Our epoch at the broker of a queue, which begins with the first call; None if the broker recognises no numbers."""
        name = queue.broker_name
        if name not in self._epochs:
            if self.transaction is None:  # a producer that nobody can replace
                self._epochs[name] = 0
            else:
                self._epochs[name] = self.client.retry(queue, lambda _: self._fence(queue))[0]
        return self._epochs[name]

    def _fence(self, queue: MessageQueue) -> tuple[int | None] | None:
        """Begin an epoch at the master of a broker; returns it in a tuple, or None if that may succeed later.

        Raises:
            NotWritten: the broker refuses it.
        """
        master = self._master(queue)
        if master is None:
            return None
        command = request(RequestCode.FENCE_PRODUCER, {"producer": self._producer_id, "topic": queue.topic})
        answer = self.client.link(master).call(command, self.options.servers.call_seconds)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return (None,)
        if answer.code in _LATER and ACCESS_REFUSED not in (answer.remark or ""):
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise NotWritten(f"{queue.broker_name} began no epoch for this task: code {answer.code}, {answer.remark}")
        # A broker forgets producers, but says since when it has not.
        is_complete = int(answer.ext["completeSince"]) < self.began.timestamp_ms - CLOCK_MARGIN_MS
        if answer.ext["known"] == "true" or not is_complete:
            self._known_at.add(queue.broker_name)
        return (int(answer.ext["epoch"]),)

    def _queue_of(self, message: Outgoing) -> MessageQueue:
        queues = self._queues_of(message.topic)
        if message.queue_id is not None or message.sharding_key:
            return choose_queue(message, queues, 0)
        # Messages without a given queue go to one queue until it has a whole request.
        queue = self._last_queue.get(message.topic)
        if queue is None or len(self.pending.get(queue, ())) % BATCH_MESSAGES_MAX == 0:
            self.turn += 1
            queue = self._last_queue[message.topic] = choose_queue(message, queues, self.turn)
        return queue

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        if topic not in self._queues:
            wait = Wait(self.options.servers.failover_seconds)
            while True:
                route = self.client.retry_route(topic)
                if route is None:
                    raise NotWritten(
                        f"the topic {topic!r} does not exist in {self.options.servers}; create it first. Nothing was sent to it"
                    )
                queues = route.publish_queues()
                if queues:
                    break
                reason = f"the topic {topic!r} cannot be written: {route.why_not_publishable().value}"
                if not wait.goes_on(reason):  # its master may be failing over
                    raise NotWritten(reason)
            self._queues[topic] = queues
        return self._queues[topic]

    def flush(self) -> None:
        """Send all gathered messages, and wait until they are stored.

        Raises:
            NotWritten: as `add`; messages of other queues may have been stored.
        """
        while self.pending:
            chunks = [self._next_chunk(queue) for queue in sorted(self.pending)]
            self._send(chunks)
        self._pending_bytes = 0

    def _next_chunk(self, queue: MessageQueue) -> _Chunk:
        """Return the next messages of a queue that fit into one request."""
        waiting = self.pending[queue]
        size, count = 0, 0
        first = waiting[0]
        for message in waiting:
            if count and (
                size + message.size > self.options.batch_bytes
                or count >= BATCH_MESSAGES_MAX
                or first.delay_level
                or message.delay_level
                or message.born_ms != first.born_ms
            ):
                break
            size += message.size
            count += 1
        chunk = _Chunk(queue, waiting[:count], self._sequence)
        self._sequence += count
        if count == len(waiting):
            del self.pending[queue]
        else:
            del waiting[:count]
        return chunk

    def _send(self, chunks: list[_Chunk]) -> None:
        oldest = min(chunk.sequence for chunk in chunks)
        wait = Wait(self.options.servers.failover_seconds)
        reason = ""
        while chunks:
            failed: list[tuple[_Chunk, bool]] = []
            out: list[tuple[_Chunk, int, Link]] = []
            for chunk in chunks:
                address = self._master(chunk.queue)
                if address is None:
                    reason = f"{chunk.queue.broker_name} has no master"
                    failed.append((chunk, False))
                    continue
                link = self.client.link(address)
                try:
                    command = self._command(chunk, oldest)
                    out.append((chunk, link.submit(command, self.options.servers.failover_seconds), link))
                except LinkLost as error:
                    reason = str(error)
                    failed.append((chunk, True))
            for chunk, opaque, link in out:
                try:
                    answer = link.answer(opaque, self.options.servers.failover_seconds)
                except LinkLost as error:
                    reason = str(error)
                    failed.append((chunk, True))
                    continue
                problem = self._judge(answer, chunk)
                if problem:
                    reason = problem
                    # A node of Apache's DLedger says this too when it has stored an entry that the others did not confirm.
                    failed.append((chunk, answer.code == ResponseCode.SYSTEM_ERROR))
            if not failed:
                return
            awaited = (
                f"{sum(len(chunk.messages) for chunk, _ in failed)} messages for {failed[0][0].queue} were not acknowledged"
            )
            failed = [(chunk, unknown and self._epoch(chunk.queue) is None) for chunk, unknown in failed]
            pause_seconds = SETTLE_SECONDS if any(unknown for _, unknown in failed) else PAUSE_SECONDS
            if not wait.goes_on(f"{awaited} yet: {reason}", pause_seconds):
                raise NotWritten(
                    f"{awaited} within {wait.seconds:g} s ('failoverTimeoutMs'): {reason}. They may have been stored"
                )
            floors = {chunk.stored_in: self._floor(chunk.stored_in) for chunk, unknown in failed if unknown}
            chunks = [self._missing(chunk, floors) if unknown else chunk for chunk, unknown in failed]
            chunks = [chunk for chunk in chunks if chunk.messages]
            for chunk in chunks:
                self.client.routes.forget(chunk.queue.topic)

    def _master(self, queue: MessageQueue) -> Address | None:
        if queue.topic not in self.client.routes.routes:
            self.client.route(queue.topic)
        return self.client.routes.master(queue.broker_name)

    def _command(self, chunk: _Chunk, oldest: int) -> RemotingCommand:
        now = time.time_ns() // 1_000_000
        written = [(message, full_properties(message, self._ids.next(now), self.transaction)) for message in chunk.messages]
        single = len(written) == 1
        message, properties = written[0]
        fields = {
            "a": self.options.group,
            "b": chunk.queue.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": AUTO_CREATE_QUEUES,
            "e": chunk.queue.queue_id,
            "f": 0,
            "g": now if chunk.born_ms is None else chunk.born_ms,
            "h": message.flag if single else 0,
            "i": properties if single else f"{WAIT}{NAME_END}true{PROPERTY_END}",
            "j": 0,
            "k": False,
            "m": not single,
            "n": chunk.queue.broker_name,
        }
        epoch = self._epoch(chunk.queue)
        if epoch is not None:
            fields[REQUEST_FIELD] = str(SendNumber(self._producer_id, epoch, chunk.sequence, oldest))
        code = RequestCode.SEND_MESSAGE_V2 if single else RequestCode.SEND_BATCH_MESSAGE
        return RemotingCommand(code, wire_fields(fields), message.body if single else encode_many(written))

    def _judge(self, answer: RemotingCommand, chunk: _Chunk) -> str:
        """Handle an answer; returns why the chunk must be sent again, or "" if it is stored.

        Raises:
            NotWritten: the broker refuses the messages, or stored them less safely than it promises.
        """
        code = answer.code
        if code in STORED:
            if code != ResponseCode.SUCCESS and self.options.strict_status:
                raise NotWritten(
                    f"{len(chunk.messages)} messages for {chunk.queue} were stored, but not as safely as the broker promises: "
                    f"{ResponseCode(code).name}. The batch is not committed; it is written again when it is retried. "
                    "Set the option 'sendStatus' to 'stored' to accept this"
                )
            self.sent += len(chunk.messages)
            if "queueOffset" in answer.ext:
                self._floors[chunk.stored_in] = int(answer.ext["queueOffset"]) + len(chunk.messages)
            return ""
        if code == ResponseCode.PRODUCER_FENCED:
            raise Replaced(
                f"another attempt of this task has begun, so {len(chunk.messages)} messages for {chunk.queue} were not stored "
                "by this one; the other attempt writes them"
            )
        if code == ResponseCode.SEND_FORGOTTEN:
            raise NotWritten(
                f"whether {len(chunk.messages)} messages for {chunk.queue} were stored is unknown; the next attempt of the "
                f"task looks for them: {answer.remark}"
            )
        if code in _LATER and ACCESS_REFUSED not in (answer.remark or ""):
            return f"code {code}, {answer.remark}"
        raise NotWritten(
            f"the broker refused {len(chunk.messages)} messages for {chunk.queue} and stored none: code {code}, {answer.remark}"
        )

    def _missing(self, chunk: _Chunk, floors: Mapping[MessageQueue, int]) -> _Chunk:
        """Return the messages of a chunk that were not stored, after the answer to it was lost."""
        stored = self._stored([chunk.stored_in], floors)
        missing: list[Outgoing] = []
        for message in chunk.messages:
            if stored[message.fingerprint] > 0:
                stored[message.fingerprint] -= 1
                self.sent += 1
            else:
                missing.append(message)
        return _Chunk(chunk.queue, missing)

    def _floor(self, queue: MessageQueue) -> int:
        """Return an offset before which a queue has no messages of requests that were not acknowledged."""
        if queue not in self._floors:
            self._floors[queue] = self._begin_of(queue)
        return self._floors[queue]

    def _begin_of(self, queue: MessageQueue) -> int:
        """Return where a queue ended before the batch was first written, or an earlier offset.

        Raises:
            NotWritten: messages that were stored since then have expired.
        """
        if queue in self.began.ends:
            return self.began.ends[queue]
        catalog = BrokerCatalog(self.client)
        bounds = catalog.bounds([queue]).get(queue, Bounds(0, 0))
        if bounds.min:
            oldest_ms = int(self.client.retry(queue, lambda _: self._runtime(queue))["earliestMessageTimeStamp"])
            if oldest_ms > self.began.timestamp_ms:
                raise self._unsure(f"{queue}: messages that were stored after the batch began have expired")
        return catalog.offset_at(queue, self.began.timestamp_ms - CLOCK_MARGIN_MS, bounds)

    def _stored(self, queues: list[MessageQueue], begin: Mapping[MessageQueue, int] | None = None) -> Counter[bytes]:
        """Count the fingerprints of stored messages of our transaction, from `begin` or from where the batch began."""
        found: Counter[bytes] = Counter()
        content = Content()
        reader = BrokerReader(
            self.client, Pulling(TOOLS_GROUP), Reader(Batches(_LOOK_COLUMNS), content, fail_on_data_loss=True, warn=_ignore)
        )
        for queue in queues:
            self._wait_until_derived(queue)
            # The end is requested from the master, because a slave may not have everything yet.
            end = self.client.retry(queue, lambda _, queue=queue: self._end_of(queue))  # type: ignore[misc]
            start = self._begin_of(queue) if begin is None else begin[queue]
            self._floors[queue] = end
            if end <= start:
                continue
            try:
                for batch in reader.read([QueueRange(queue, start, end)]):
                    for body, properties, flag in zip(*(batch.column(name).to_pylist() for name in _LOOKED), strict=True):
                        named = dict(properties)
                        if named.get(TRANSACTION) == self.transaction and not self._is_repeated(queue, named):
                            topic = named.get(REAL_TOPIC, queue.topic)
                            found[fingerprint(topic, body, flag, written_properties(named, None, None, None))] += 1
            except (DataLoss, CorruptStore) as error:
                raise self._unsure(error.reason) from error
        return found

    def _is_repeated(self, queue: MessageQueue, properties: Mapping[str, str]) -> bool:
        """Return whether a message in the topic of delayed messages was found in its own topic already."""
        key = properties.get(UNIQUE_KEY, "")
        if queue.topic == DELAYED_TOPIC:
            return key in self._delivered
        if REAL_TOPIC in properties:
            self._delivered.add(key)
        return False

    def _wait_until_derived(self, queue: MessageQueue) -> None:
        """Wait until the consume queues have everything that is in the master's log now.

        Raises:
            Unavailable: this took longer than `failoverTimeoutMs`.
        """
        goal: int | None = None

        def is_derived(_: Link) -> bool | None:
            nonlocal goal
            table = self._runtime(queue)
            if table is None:
                return None
            stored = int(table["commitLogMaxOffset"])
            goal = stored if goal is None else min(goal, stored)  # after a failover, the new master's log counts
            return True if stored - int(table["dispatchBehindBytes"]) >= goal else None

        self.client.retry(queue, is_derived)

    def _runtime(self, queue: MessageQueue) -> Mapping[str, str] | None:
        """What the master of a queue's broker says of itself; None if it may say so later.

        Raises:
            NotWritten: it refuses to.
        """
        master = self._master(queue)
        if master is None:
            return None
        command = request(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        answer = self.client.link(master).call(command, self.options.servers.call_seconds)
        if is_busy(answer):
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise NotWritten(
                f"{queue.broker_name} does not say how far its queues are, so nothing was sent that an earlier attempt may "
                f"have sent: code {answer.code}, {answer.remark}. With access control this needs the right Get for the cluster"
            )
        table: Mapping[str, str] = loads(answer.body)["table"]
        return table

    def _end_of(self, queue: MessageQueue) -> int | None:
        master = self._master(queue)
        if master is None:
            return None
        fields = {"topic": queue.topic, "queueId": queue.queue_id, "bname": queue.broker_name}
        command = request(RequestCode.GET_MAX_OFFSET, fields)
        return offset_of(self.client.link(master).call(command, self.options.servers.call_seconds))


_LOOKED = ("body", "properties", "flag")


def _ignore(_: str) -> None:
    """Ignore warnings; a search that fails on data loss reports none."""
