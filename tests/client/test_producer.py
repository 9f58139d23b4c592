"""The producer against a scripted cluster, on a mock clock where time matters."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.errors import (
    BadAnswer,
    Closed,
    InvalidArgument,
    MessageTooLarge,
    NoRoute,
    NoRouteReason,
)
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.sending import SendStatus
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message, MessageQueue
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand

from .fake_cluster import NAMESRV, FakeBroker, open_cluster, until

SEND = RequestCode.SEND_MESSAGE_V2


def silence(request: RemotingCommand) -> None:
    """Script: never answer."""


def sends(*brokers: FakeBroker) -> list[int]:
    return [len(broker.requests_of(SEND)) for broker in brokers]


async def test_a_sent_message_is_stored_as_given(autojump_clock: MockClock) -> None:
    """Everything of a message arrives, and the result says where it is."""
    async with open_cluster() as cluster, open_producer(NAMESRV, "pg", world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)

        result = await producer.send(Message("t", b"hello", tag="a", keys=["k1", "k2"], flag=7, properties={"größe": "5 µm"}))

        record = decode_record(broker.queues["t", result.queue.queue_id][0])
        assert (record.body, record.flag) == (b"hello", 7)
        assert record.properties == {
            "UNIQ_KEY": result.message_id,
            "WAIT": "true",
            "TAGS": "a",
            "KEYS": "k1 k2",
            "größe": "5 µm",
        }
        assert (result.queue_offset, result.status) == (0, SendStatus.SEND_OK)
        assert result.message_id.startswith("0A000005"), "Java's layout begins with the address"


async def test_sends_go_round_all_queues(autojump_clock: MockClock) -> None:
    """Eight sends to four queues put two into each."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)

        for _ in range(8):
            await producer.send(Message("t", b""))

        assert {queue_id: len(queue) for (_, queue_id), queue in broker.queues.items()} == {0: 2, 1: 2, 2: 2, 3: 2}


async def test_many_sends_are_in_flight_at_once(autojump_clock: MockClock) -> None:
    """A hundred tasks that wait for a broker wait together, on one connection and with one search for the route."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(producer.send, Message("t", str(number).encode()))

        assert sorted(map(int, broker.bodies("t"))) == list(range(100))
        assert cluster.network.opened.count(broker.address) == 1
        assert len(cluster.requests) == 1


async def test_a_batch_lies_together(autojump_clock: MockClock) -> None:
    """All messages of a batch get successive offsets of one queue, and each its own result."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)

        results = await producer.send_batch([Message("t", b"0", tag="a"), Message("t", b"1"), Message("t", b"2")])

        queue = results[0].queue
        assert [decode_record(record).body for record in broker.queues["t", queue.queue_id]] == [b"0", b"1", b"2"]
        assert [result.queue_offset for result in results] == [0, 1, 2]
        assert [result.queue for result in results] == [queue] * 3
        assert len({result.message_id for result in results} | {result.offset_message_id for result in results}) == 6


async def test_one_key_is_one_queue_as_in_java(autojump_clock: MockClock) -> None:
    """The queue is |hash(key)| modulo their number, over the queues sorted by broker and id."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        second, first = await cluster.start_broker("b2"), await cluster.start_broker("b1")
        cluster.create("t", 3)

        results = [await producer.send(Message("t", b""), key="TagA") for _ in range(3)]

        assert 2598919 % 6 == 1
        assert {result.queue for result in results} == {MessageQueue("t", "b1", 1)}
        assert sends(first, second) == [3, 0]


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_stored_but_not_confirmed_is_a_result(autojump_clock: MockClock, code: int) -> None:
    """The three weaker put statuses are no errors; the caller sees which one it was."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.script(SEND, lambda request: request.response(code, {"msgId": "0A", "queueId": 0, "queueOffset": 5}))

        result = await producer.send(Message("t", b""))

        assert (result.status, result.queue_offset) == (SendStatus(code), 5)


async def test_success_without_its_fields_is_not_retried(autojump_clock: MockClock) -> None:
    """The message is stored; storing it again would not help."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.script(SEND, lambda request: request.response())

        with pytest.raises(BadAnswer) as caught:
            await producer.send(Message("t", b""))

        assert caught.value.may_have_been_stored
        assert len(broker.requests_of(SEND)) == 1


async def test_large_bodies_are_compressed(autojump_clock: MockClock) -> None:
    """From 4096 bytes on a body goes out as zlib, with the flags of Java."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)

        await producer.send(Message("t", b"x" * 4095))
        await producer.send(Message("t", b"x" * 4096))

        plain, packed = (decode_record(record) for record in broker.queues["t", 0])
        assert (len(plain.body), plain.sys_flag & 0x701) == (4095, 0)
        assert len(packed.body) < 100
        assert packed.sys_flag & 0x701 == 0x301


async def test_what_cannot_be_sent_is_refused_before_sending(autojump_clock: MockClock) -> None:
    """Topic, size and properties are checked here, with errors that name the limit."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, message_bytes_max=5000) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)

        with pytest.raises(MessageTooLarge, match="5001"):
            await producer.send(Message("t", b"x" * 5001))
        with pytest.raises(MessageTooLarge, match="batch"):
            await producer.send_batch([Message("t", b"x" * 2500)] * 2)
        with pytest.raises(InvalidArgument, match="topic"):
            await producer.send(Message("no spaces", b""))
        with pytest.raises(InvalidArgument, match="bytes"):
            await producer.send(Message("t", "text"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidArgument, match="at least one"):
            await producer.send_batch([])
        with pytest.raises(InvalidArgument, match="exactly one"):
            await producer.send_batch([Message("t", b""), Message("other", b"")])
        with pytest.raises(InvalidArgument, match="U\\+0001"):
            await producer.send(Message("t", b"", properties={"a": "\x01"}))

        assert broker.requests_of(SEND) == []


async def test_a_body_may_be_any_bytes(autojump_clock: MockClock) -> None:
    """What is changed afterwards does not change what is sent."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, compression=None) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        body = bytearray(b"x" * 5000)

        await producer.send(Message("t", body))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

        assert broker.bodies("t") == [bytes(body)]


async def test_a_topic_is_created_by_its_first_send(autojump_clock: MockClock) -> None:
    """An unknown topic goes by the route of the template, with at most four queues."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("TBW102", 8)

        results = [await producer.send(Message("new", b"")) for _ in range(8)]

        assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}
        assert {request.ext["c"] for request in broker.requests_of(SEND)} == {"TBW102"}


async def test_no_route_says_why(autojump_clock: MockClock) -> None:
    """The five reasons are distinguished."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:

        async def reason(topic: str) -> NoRouteReason:
            with pytest.raises(NoRoute) as caught:
                await producer.send(Message(topic, b""))
            return caught.value.reason

        assert await reason("t") is NoRouteReason.NO_BROKER

        await cluster.start_broker("b1")
        assert await reason("t") is NoRouteReason.TOPIC_UNKNOWN

        cluster.create("t", 1)
        cluster.perms["t"] = 4
        assert await reason("t") is NoRouteReason.NO_PERMISSION

        await cluster.start_broker("b2", 1)
        cluster.create("slaves", 1, cluster.brokers[1])
        assert await reason("slaves") is NoRouteReason.NO_MASTER

    async with open_producer("10.0.0.8:9876", world=cluster.world) as producer:
        assert await reason("t") is NoRouteReason.NAME_SERVER_UNREACHABLE


async def test_another_name_server_is_asked_when_one_is_gone(autojump_clock: MockClock) -> None:
    """One address that answers is enough."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        for seed_address in ("10.0.0.7:9876;" + NAMESRV, NAMESRV + ";10.0.0.7:9876"):
            async with open_producer(seed_address, world=cluster.world) as producer:
                await producer.send(Message("t", b""))


async def test_a_vanished_broker_is_dropped(autojump_clock: MockClock) -> None:
    """When routes no longer mention a broker, its connection is closed and nothing is sent there."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        first, second = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 1)
        for _ in range(4):
            await producer.send(Message("t", b""))
        before = sends(first)

        cluster.forget(first)
        await trio.sleep(31)

        assert not first.server.connections
        for _ in range(4):
            await producer.send(Message("t", b""))
        assert sends(first) == before
        assert second.bodies("t")


async def test_brokers_hear_of_the_producer(autojump_clock: MockClock) -> None:
    """A heartbeat follows the first connection and comes every 30 s; leaving is said at the end."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, "pg", world=cluster.world) as producer:
            await producer.send(Message("t", b""))
            await until(lambda: len(broker.requests_of(RequestCode.HEART_BEAT)) == 1)
            await trio.sleep(61)
            assert len(broker.requests_of(RequestCode.HEART_BEAT)) == 3

        (farewell,) = broker.requests_of(RequestCode.UNREGISTER_CLIENT)
        assert farewell.ext["producerGroup"] == "pg"
        assert farewell.ext["clientID"].startswith("10.0.0.5@")


async def test_oneway_waits_for_nobody(autojump_clock: MockClock) -> None:
    """The request says so, and no answer is expected."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)

        await producer.send_oneway(Message("t", b"x"))

        await until(lambda: broker.bodies("t") == [b"x"])
        assert broker.requests_of(SEND)[0].is_oneway


async def test_cancelling_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    """Whatever a producer was doing, after a cancelled scope no task, connection or waiting call of it is left."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.script(SEND, *[silence] * 50)
        tasks = trio.lowlevel.current_statistics().tasks_living
        producers: list[Producer] = []
        with trio.move_on_after(1) as scope:
            async with open_producer(NAMESRV, world=cluster.world) as producer, trio.open_nursery() as nursery:
                producers.append(producer)
                for _ in range(50):
                    nursery.start_soon(producer.send, Message("t", b"x" * 1000))

        assert scope.cancelled_caught
        await until(lambda: cluster.open_connections() == 0)
        assert broker.server.connections == set()
        await until(lambda: trio.lowlevel.current_statistics().tasks_living == tasks)
        with pytest.raises(Closed):
            await producers[0].send(Message("t", b""))


async def test_an_exception_of_the_block_leaves_it_unwrapped(autojump_clock: MockClock) -> None:
    """Users catch what they raised, not a group of it."""
    async with open_cluster() as cluster:
        with pytest.raises(ZeroDivisionError):
            async with open_producer(NAMESRV, world=cluster.world):
                _ = 1 // 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"send_timeout_seconds": 0}, "send_timeout_seconds must be a number of seconds above 0"),
        ({"send_timeout_seconds": float("nan")}, "send_timeout_seconds must be a number of seconds above 0"),
        ({"compression": "zip"}, "compression must be None or one of"),
        ({"namesrv": None}, "give namesrv=HOST:PORT"),
    ],
)
async def test_options_that_cannot_be_are_refused_at_once(options: dict[str, Any], words: str) -> None:
    """Not by the first send, as an error of whatever stumbled over them."""
    given: Any = {"namesrv": NAMESRV, **options}
    with pytest.raises(InvalidArgument, match=words):
        async with open_producer(**given):
            pass
