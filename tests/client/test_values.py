"""Typed bodies: what `encode` and `decode` make of them, and what becomes of a message that they cannot read or write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import attrs
import msgspec
import pydantic
import pytest
import trio
from google.protobuf.wrappers_pb2 import StringValue
from trio.testing import MockClock

from ledgermq import aio, blocking
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import InvalidArgument
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.testing.embedded import Embedded, open_virtual, start_embedded
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, open_cluster

FIRST = ConsumeFrom.FIRST


class Order(msgspec.Struct, frozen=True):
    number: int


class Parcel(pydantic.BaseModel):
    number: int


encode_order: Callable[[Order], bytes] = msgspec.json.Encoder().encode
decode_order = msgspec.json.Decoder(Order).decode


@attrs.frozen
class Codec:
    """How one library writes and reads bodies."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    value: object
    wrong: bytes
    """A body that it cannot read."""


CODECS = {
    "msgspec": Codec(encode_order, decode_order, Order(7), b'{"number": "seven"}'),
    "pydantic": Codec(
        lambda parcel: parcel.model_dump_json().encode(), Parcel.model_validate_json, Parcel(number=7), b'{"number": "seven"}'
    ),
    "protobuf": Codec(StringValue.SerializeToString, StringValue.FromString, StringValue(value="7"), b"\xff"),
}


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_a_message_that_cannot_be_decoded_fails_alone(autojump_clock: MockClock, codec: Codec, orderly: bool) -> None:
    """It counts as a failed delivery, with the reason in the log, and the loop goes on; an ordered queue waits for it."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        if orderly:
            cluster.create("%RETRY%g", 1)  # through which it becomes a dead letter
        async with open_producer(NAMESRV, encode=codec.encode, world=cluster.world) as producer:
            await producer.send(Message("t", codec.value))
            broker.put("t", 0, codec.wrong)
            await producer.send_batch([Message("t", codec.value)])
            await producer.send_many([Message("t", codec.value)])
            await producer.send_oneway(Message("t", codec.value))
        seen: list[object] = []
        with capture_logs() as events:
            async with open_consumer(
                NAMESRV,
                "g",
                "t",
                orderly=orderly,
                consume_from=FIRST,
                decode=codec.decode,
                reconsume_times_max=2,
                world=cluster.world,
            ) as consumer:
                with trio.move_on_after(60):
                    await consumer.process(lambda message: seen.append(message.value))
                await consumer.commit()
                assert broker.offsets["g", "t", 0] == 5
    assert seen == [codec.value] * 4
    failed = [event for event in events if event["event"] == "message_not_decoded"]
    assert [(event["queue"], event["offset"]) for event in failed if event["queue"] == "t@b1:0"] == [("t@b1:0", 1)] * (
        3 if orderly else 1
    )


async def test_a_body_that_cannot_be_encoded_is_not_sent(autojump_clock: MockClock) -> None:
    """And those beside it are."""

    def encode(value: int) -> bytes:
        return b"%d" % (10 // value)

    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, encode=encode, world=cluster.world) as producer:
            with pytest.raises(InvalidArgument, match="a message to 't' cannot be encoded: ZeroDivisionError"):
                await producer.send(Message("t", 0))
            outcomes = await producer.send_many([Message("t", 1), Message("t", 0), Message("t", 2)])
            assert isinstance(outcomes[1], InvalidArgument)
        with pytest.raises(InvalidArgument, match="encode must be None or a function"):
            async with open_producer(NAMESRV, encode=cast("Any", b"json"), world=cluster.world):
                pass
    assert broker.bodies("t") == [b"10", b"5"]


class Exit(BaseException):
    """What is no `Exception`, as a `SystemExit` is none."""


@attrs.define
class ExitOnce:
    """A decoder that leaves the program once, at body 2."""

    done: bool = False

    def decode(self, body: bytes) -> int:
        if body == b"2" and not self.done:
            self.done = True
            raise Exit
        return int(body)


@pytest.mark.parametrize("orderly", [False, True])
async def test_an_exit_in_a_decoder_loses_nothing(autojump_clock: MockClock, orderly: bool) -> None:
    """The caller gets it and no messages; the one that was being decoded comes again as a failed delivery."""
    seen: list[tuple[int, int]] = []
    async with open_virtual(settings={"defaultTopicQueueNums": "1"}) as cluster:
        async with open_producer(cluster.namesrv, world=cluster.world) as producer:
            await producer.send_many([Message("t", b"%d" % number) for number in range(5)])
        async with open_consumer(
            cluster.namesrv, "g", "t", decode=ExitOnce().decode, orderly=orderly, consume_from=FIRST, world=cluster.world
        ) as consumer:
            with pytest.raises(Exit) as kept:  # with its traceback, so nothing is given back because it is collected
                await consumer.get_many(5)
            with trio.move_on_after(300):
                await consumer.process(lambda message: seen.append((message.value, message.reconsume_times)))
            assert kept.tb is not None
    expected = [(0, 0), (1, 0), (2, 1), (3, 0), (4, 0)]
    assert (seen if orderly else sorted(seen)) == expected


async def test_without_a_decoder_the_value_is_the_body(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"0")
        async with open_consumer(NAMESRV, "g", "t", consume_from=FIRST, world=cluster.world) as consumer:
            message = await consumer.get_one()
            assert message is not None
            assert message.value == message.body == b"0"


@pytest.fixture(scope="module")
def cluster() -> Any:
    with start_embedded() as embedded:
        yield embedded


def test_values_reach_tasks_of_asyncio(cluster: Embedded) -> None:
    """By concurrent sends too, of which one fails; a wrong body does not end the loop."""

    async def main() -> list[int]:
        async with (
            aio.open_producer(cluster.namesrv, encode=encode_order, send_timeout_seconds=60) as producer,
            aio.open_producer(cluster.namesrv, send_timeout_seconds=60) as plain,
        ):
            await plain.send(Message("a", b"{"))
            await asyncio.gather(*(producer.send(Message("a", Order(number))) for number in range(50)))
        seen: list[int] = []
        async with aio.open_consumer(cluster.namesrv, "ga", "a", consume_from=FIRST, decode=decode_order) as consumer:
            async for message in consumer:
                seen.append(message.value.number)
                if len(seen) == 50:
                    return seen
        raise AssertionError

    assert sorted(asyncio.run(main())) == list(range(50))


def test_an_exit_in_a_hook_reaches_its_thread(cluster: Embedded) -> None:
    """And not that of the client, which goes on."""
    encode = ExitOnce()

    def encoded(value: int) -> bytes:
        return b"%d" % encode.decode(b"%d" % value)

    with blocking.open_producer(cluster.namesrv, encode=encoded, send_timeout_seconds=60) as producer:
        with pytest.raises(Exit):
            producer.send(Message("c", 2))
        producer.send_many([Message("c", 2), Message("c", 3)])
    with blocking.open_consumer(cluster.namesrv, "gc", "c", consume_from=FIRST, decode=ExitOnce().decode) as consumer:
        seen: set[int] = set()
        exits = 0
        while len(seen) < 2:
            try:
                with consumer.take() as messages:
                    seen |= {message.value for message in messages}
            except Exit:
                exits += 1
    assert exits == 1


def test_an_exit_in_a_decoder_reaches_its_task(cluster: Embedded) -> None:
    """And not the thread of the client, which goes on."""

    async def main() -> int:
        async with aio.open_producer(cluster.namesrv, send_timeout_seconds=60) as producer:
            await producer.send(Message("d", b"2"))
        async with aio.open_consumer(cluster.namesrv, "gd", "d", consume_from=FIRST, decode=ExitOnce().decode) as consumer:
            with pytest.raises(Exit):
                await consumer.get_one()
            message = await consumer.get_one()
            assert message is not None
            return message.value

    assert asyncio.run(main()) == 2


def test_values_reach_threads(cluster: Embedded) -> None:
    with blocking.open_producer(cluster.namesrv, encode=encode_order, send_timeout_seconds=60) as producer:
        producer.send(Message("b", Order(1)))
        producer.send_many([Message("b", Order(2)), Message("b", Order(3))], key=lambda message: str(message.body.number))
    seen: set[int] = set()
    with blocking.open_consumer(cluster.namesrv, "gb", "b", consume_from=FIRST, decode=decode_order) as consumer:
        while len(seen) < 3:
            with consumer.take() as messages:
                seen |= {message.value.number for message in messages}
