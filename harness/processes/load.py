"""Load on one broker that may be killed at any moment, and the history of its answers.

Producers record every acknowledgement, and readers every message they got; after each start all queues are read into a
snapshot. A body begins with a unique number. The result of a call whose connection ended is unknown: the broker may or may not
have stored the message.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import attrs
import trio

from ledgermq.message.batch import encode_batch
from ledgermq.message.layout import body_size_of, span_of
from ledgermq.message.properties import KEYS, encode_properties
from ledgermq.remoting.channel import Channel, connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, wire_fields
from ledgermq.remoting.errors import RemotingError
from ledgermq.testing.checkers import Checker, acknowledged_after_a_deletion_is_readable, deleted_messages_never_return
from ledgermq.testing.history import Deletion, History, Put, Queue, Read, Snapshot, Stored
from ledgermq.world.network import Address, Network
from ledgermq.world.real import real_world

TOPIC = "Faults"
QUEUES: tuple[Queue, ...] = tuple((TOPIC, queue_id) for queue_id in range(4))
NUMBER_DIGITS = 12
PRODUCERS = 2
IN_FLIGHT = 16
BATCH_SHARE, BATCH_MAX = 0.1, 8
BODY_BYTES_MAX = 2000
REFUSED_PAUSE_SECONDS = 0.05
"""The pause after a refusal: since a refusal may take no time, most sends of a run would otherwise be refused ones."""
CALL_SECONDS = 60.0
"""The time-out of a call, longer than any pause of a server: a call ends with its answer or with its connection."""
ACKNOWLEDGED_SECONDS = 60.0
KEYS_ASKED = 8
KEY_ANSWERS_MAX = 32
PULL_SETTINGS = {
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
    "maxTransferBytesOnMessageInMemory": 1 << 20,
    "maxTransferBytesOnMessageInDisk": 1 << 20,
}
"""Settings of the broker with which reading everything takes few calls."""
STORED_UNPROMISED = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
"""Answers after which the message is in the log, but less safely than the mode promises."""
DELETION_CHECKERS: tuple[Checker, ...] = (acknowledged_after_a_deletion_is_readable, deleted_messages_never_return)
_READER_GROUP = "watching"
_WAIT, _WITH_SUBSCRIPTION = 2, 4


@attrs.define(eq=False)
class Load:
    """Producers and readers of one broker, for all its lives."""

    history: History
    rng: random.Random
    network: Network = attrs.field(factory=lambda: real_world().network)
    body_bytes_max: int = BODY_BYTES_MAX
    skipped: list[str] = attrs.field(factory=list[str])
    """Offsets that a reader was never given, as sentences."""
    remarks: dict[tuple[int, str], int] = attrs.field(factory=dict[tuple[int, str], int])
    """How many refusals there were, by code and remark."""
    _numbers: Iterator[int] = attrs.field(factory=lambda: count(1))
    _positions: dict[Queue, int] = attrs.field(factory=dict[Queue, int])

    @property
    def epoch(self) -> int:
        return len(self.history.ends)

    async def run(self, address: Address) -> None:
        """Produce and read until the broker is down or the caller cancels."""
        async with trio.open_nursery() as nursery:
            for producer in range(PRODUCERS):
                nursery.start_soon(self.produce, address, producer)
            nursery.start_soon(self._read_all, address)

    async def produce(self, address: Address, producer: int) -> None:
        """Keep `IN_FLIGHT` sends in flight on one connection until it ends."""
        with suppress(RemotingError):
            async with connected(address, network=self.network) as channel, trio.open_nursery() as nursery:
                for _ in range(IN_FLIGHT):
                    nursery.start_soon(self._keep_sending, channel, producer)

    async def _keep_sending(self, channel: Channel, producer: int) -> None:
        while not channel.closed:
            size = self.rng.randint(2, BATCH_MAX) if self.rng.random() < BATCH_SHARE else 1
            puts = self.numbered(self.rng.choice(QUEUES), producer, size)
            with suppress(RemotingError):
                answer = await self.send(channel, puts)
                if answer.code != ResponseCode.SUCCESS:
                    await trio.sleep(REFUSED_PAUSE_SECONDS)

    def numbered(self, queue: Queue, producer: int = 0, size: int = 1) -> list[Put]:
        """Puts of `size` new messages; more than one are a batch."""
        numbers = [next(self._numbers) for _ in range(size)]
        batch = numbers[0] if size > 1 else 0
        return [Put(number, producer, queue, self.epoch, key=f"k{number}", batch=batch) for number in numbers]

    async def acknowledged(self, count: int) -> None:
        """Wait until `count` more puts have been acknowledged.

        Raises:
            trio.TooSlowError: they were not within `ACKNOWLEDGED_SECONDS`.
        """
        wanted = sum(put.acknowledged for put in self.history.puts) + count
        with trio.fail_after(ACKNOWLEDGED_SECONDS):
            while sum(put.acknowledged for put in self.history.puts) < wanted:  # noqa: ASYNC110 - only looking tells
                await trio.sleep(0.02)

    async def send(self, channel: Channel, puts: list[Put]) -> RemotingCommand:
        """Send puts as one request and record the result.

        Raises:
            RemotingError: the connection ended. It is unknown whether the messages are stored.
        """
        for put in puts:
            put.sent_at = trio.current_time()
        self.history.puts += puts  # in order of sending: there is no await before the frame is queued on the connection
        answer = await channel.call(self._request(puts), CALL_SECONDS)
        for put in puts:
            put.answered_at = trio.current_time()
        if answer.code == ResponseCode.SUCCESS:
            ids, first = answer.ext["msgId"].split(","), int(answer.ext["queueOffset"])
            for at, (put, message_id) in enumerate(zip(puts, ids, strict=True)):
                put.acknowledged, put.queue_offset = True, first + at
                put.physical_offset = int(message_id[-16:], 16)
        else:
            stored = answer.code in STORED_UNPROMISED
            for put in puts:
                put.refused = not stored
                put.withdrawn = answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            refusal = (answer.code, answer.remark or "")
            self.remarks[refusal] = self.remarks.get(refusal, 0) + 1
        return answer

    def _request(self, puts: list[Put]) -> RemotingCommand:
        topic, queue_id = puts[0].queue
        bodies = [self._body(put.number) for put in puts]
        properties = [encode_properties({KEYS: put.key}) for put in puts]
        fields = wire_fields(
            {"a": "loading", "b": topic, "c": "TBW102", "d": len(QUEUES), "e": queue_id, "f": 0, "g": 1, "h": 0}
            | {"i": properties[0] if len(puts) == 1 else "", "j": 0, "k": False, "m": len(puts) > 1}
        )
        if len(puts) == 1:
            return RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, bodies[0])
        items = zip(bodies, properties, strict=True)
        batch = encode_batch((0, body, text.encode()) for body, text in items)
        return RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, fields, batch)

    def _body(self, number: int) -> bytes:
        return b"%0*d" % (NUMBER_DIGITS, number) + self.rng.randbytes(self.rng.randint(0, self.body_bytes_max))

    async def delete_topic(self, address: Address) -> None:
        """Delete the topic and create it again, while it is used.

        Raises:
            RemotingError: the broker is down. It is unknown whether the topic is deleted.
        """
        deletion = Deletion(TOPIC, trio.current_time(), self.epoch)
        self.history.deletions.append(deletion)
        async with connected(address, network=self.network) as channel:
            answer = await channel.call(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}), CALL_SECONDS)
        if answer.code == ResponseCode.SUCCESS:
            deletion.answered_at = trio.current_time()
        await create_topic(self.network, address)

    # ------------------------------------------------------------------------------------------------------- reading

    async def _read_all(self, address: Address) -> None:
        with suppress(RemotingError):
            async with connected(address, network=self.network) as channel, trio.open_nursery() as nursery:
                for queue in QUEUES:
                    nursery.start_soon(self._follow, channel, queue)

    async def _follow(self, channel: Channel, queue: Queue) -> None:
        with suppress(RemotingError):
            while not channel.closed:
                if not await self.read_on(channel, queue, wait_ms=5000):
                    await trio.sleep(0.05)  # the first send creates the topic

    async def read_on(self, channel: Channel, queue: Queue, *, wait_ms: int = 0) -> int:
        """Let the reader of `queue` pull once from its position; returns how many messages it got.

        Raises:
            RemotingError: the connection ended.
        """
        position = self._positions.get(queue, 0)
        answer = await pull(channel, queue, position, wait_ms=wait_ms)
        messages = stored_in(answer.body) if answer.code == ResponseCode.SUCCESS else []
        for message in messages:
            if message.queue_offset != position:
                self.skipped.append(f"a reader of {queue} at {position} was given {message.queue_offset} next")
            position = message.queue_offset + 1
            self.history.reads.append(Read(queue, message.queue_offset, message.number, self.epoch))
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            offered = int(answer.ext["nextBeginOffset"])
            # A deletion moves readers on; a promotion moves back those that had read what was not acknowledged.
            if self.history.deletions if offered > position else self.history.promotions:
                position = offered
            else:
                self.skipped.append(f"a reader of {queue} at {position} was sent to {offered}")
        self._positions[queue] = position
        return len(messages)

    async def look(self, address: Address) -> Snapshot:
        """Read everything that a broker holds.

        Raises:
            RemotingError: the broker is down.
        """
        async with connected(address, network=self.network) as channel:
            snapshot = Snapshot(self.epoch, {}, {}, {})
            for queue in QUEUES:
                low, high = await bounds_of(channel, queue)
                snapshot.bounds[queue] = (low, high)
                snapshot.queues[queue] = messages = list[Stored]()
                while low < high:
                    answer = await pull(channel, queue, low)
                    found = stored_in(answer.body) if answer.code == ResponseCode.SUCCESS else []
                    messages += [message for message in found if message.queue_offset < high]
                    if not found:
                        self.skipped.append(f"a look at {queue} at {low} was answered {answer.code}: {answer.remark}")
                        break
                    low = found[-1].queue_offset + 1
            acknowledged = [put.key for put in self.history.puts[-2000:] if put.acknowledged]
            for key in self.rng.sample(acknowledged, min(KEYS_ASKED, len(acknowledged))):
                snapshot.by_key[key] = await numbers_by_key(channel, key)
        return snapshot

    async def read_to_the_end(self, address: Address, snapshot: Snapshot) -> list[str]:
        """Let the readers read to the end; returns the messages of `snapshot` that they never got, as sentences."""
        async with connected(address, network=self.network) as channel:
            for queue in QUEUES:
                while await self.read_on(channel, queue):
                    pass
        given = {(read.queue, read.queue_offset) for read in self.history.reads}
        return [
            f"no reader was given {queue}@{message.queue_offset}"
            for queue, messages in snapshot.queues.items()
            for message in messages
            if (queue, message.queue_offset) not in given
        ]


async def create_topic(network: Network, address: Address) -> None:
    """Create the topic of the load on a broker; one that is there stays as it is.

    Raises:
        RemotingError: the broker is down. It is unknown whether the topic is there.
    """
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": len(QUEUES), "writeQueueNums": len(QUEUES), "perm": 6}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
    async with connected(address, network=network) as channel:
        answer = await channel.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, wire_fields(fields)), CALL_SECONDS)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def pull(channel: Channel, queue: Queue, offset: int, *, wait_ms: int = 0) -> RemotingCommand:
    """Pull messages of `queue` from `offset` on."""
    fields = {
        "consumerGroup": _READER_GROUP,
        "topic": queue[0],
        "queueId": queue[1],
        "queueOffset": offset,
        "maxMsgNums": 1024,
        "sysFlag": _WITH_SUBSCRIPTION | (_WAIT if wait_ms else 0),
        "commitOffset": 0,
        "suspendTimeoutMillis": wait_ms,
        "subscription": "*",
        "subVersion": 0,
    }
    return await channel.call(RemotingCommand(RequestCode.PULL_MESSAGE, wire_fields(fields)), CALL_SECONDS)


def stored_in(body: bytes) -> list[Stored]:
    """The messages of a pull answer."""
    messages: list[Stored] = []
    position = 0
    while position < len(body):
        span = span_of(body, position, len(body))
        assert span is not None, "the body of a pull answer is whole records"
        assert body_size_of(body, span) >= NUMBER_DIGITS, "every body begins with its number"
        number = int(body[span.body_at : span.body_at + NUMBER_DIGITS])
        messages.append(Stored(span.queue_offset, span.physical_offset, number, span.store_timestamp))
        position = span.end
    return messages


async def bounds_of(channel: Channel, queue: Queue) -> tuple[int, int]:
    """The min and max offset of a queue, as the broker answers them."""
    found: list[int] = []
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET):
        fields = wire_fields({"topic": queue[0], "queueId": queue[1]})
        answer = await channel.call(RemotingCommand(code, fields), CALL_SECONDS)
        found.append(int(answer.ext.get("offset", 0)))
    return max(found[0], 0), found[1]


async def numbers_by_key(channel: Channel, key: str) -> list[int]:
    """The numbers of the messages that a query by key finds."""
    fields = {"topic": TOPIC, "key": key, "maxNum": KEY_ANSWERS_MAX, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    answer = await channel.call(RemotingCommand(RequestCode.QUERY_MESSAGE, wire_fields(fields)), CALL_SECONDS)
    return [message.number for message in stored_in(answer.body)]


def message_ids_name_their_messages(history: History) -> Iterator[str]:
    """The id of an acknowledged message contains the physical offset at which the message is stored."""
    acknowledged = {put.number: put for put in history.puts if put.acknowledged}
    for snapshot in history.snapshots:
        for queue, messages in snapshot.queues.items():
            for message in messages:
                put = acknowledged.get(message.number)
                if put is not None and put.physical_offset != message.physical_offset:
                    yield (
                        f"life {snapshot.epoch}: message {put.number} of {queue} lies at {message.physical_offset}, its id "
                        f"says {put.physical_offset}"
                    )
