"""What follows when an attempt to send fails: which broker is tried next, for how long, and which error the caller gets."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.errors import (
    BrokerSystemError,
    InvalidArgument,
    MessageIllegal,
    NoAnswer,
    SendTimeout,
    ServiceNotAvailable,
    Unreachable,
)
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.retry import SEARCH_PAUSE_SECONDS_MAX, SEND_TIMEOUT_SECONDS
from ledgermq.client.sending import SendResult, SendStatus
from ledgermq.message.message import Message, MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, wire_fields
from ledgermq.testing.embedded import open_virtual

from .fake_cluster import NAMESRV, open_cluster
from .test_producer import SEND, sends, silence


async def test_a_chosen_queue_is_kept_through_retries(autojump_clock: MockClock) -> None:
    """Order would be lost on another queue, so the same one is tried again."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        first, second = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 2)
        first.refuse(SEND, ResponseCode.SYSTEM_BUSY, times=3)

        result = await producer.send(Message("t", b""), selector=lambda queues, _: queues[1])

        assert result.queue == MessageQueue("t", "b1", 1)
        assert sends(first, second) == [4, 0]
        with pytest.raises(InvalidArgument, match="at most one"):
            await producer.send(Message("t", b""), key="k", queue=result.queue)
        with pytest.raises(InvalidArgument, match="no queue"):
            await producer.send(Message("t", b""), queue=MessageQueue("t", "elsewhere", 0))


@pytest.mark.parametrize("avoid", [True, False])
async def test_the_next_attempt_goes_to_another_broker(autojump_clock: MockClock, avoid: bool) -> None:
    """Never the same broker twice in a row when there is another, whether or not one that failed is kept away from."""
    async with (
        open_cluster() as cluster,
        open_producer(NAMESRV, world=cluster.world, avoid_slow_brokers=avoid) as producer,
    ):
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2")]
        cluster.create("t", 4)
        for broker in brokers:
            broker.refuse(SEND, ResponseCode.SYSTEM_ERROR)

        await producer.send(Message("t", b"x"))

        assert sorted(sends(*brokers)) == [1, 2]
        assert sum(len(broker.bodies("t")) for broker in brokers) == 1


async def test_a_silent_broker_does_not_use_up_the_time(autojump_clock: MockClock) -> None:
    """With another broker in the route, one that never answers costs a share of the total time only."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        silent, sound = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 1)
        silent.script(SEND, *[silence] * 100)
        started = trio.current_time()

        results = [await producer.send(Message("t", b"")) for _ in range(10)]

        assert {result.queue.broker_name for result in results} == {"b2"}
        assert trio.current_time() - started < 1.5, "one share of 3 s, and then the broker is avoided"
        assert len(silent.requests_of(SEND)) == 1
        assert len(sound.requests_of(SEND)) == 10


@pytest.mark.parametrize("how", ["silent", "unreachable"])
async def test_the_total_time_is_held(autojump_clock: MockClock, how: str) -> None:
    """A lone broker that swallows everything ends a send after its total time, not later."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        getattr(cluster.network, how).add(broker.address)
        started = trio.current_time()

        with pytest.raises((SendTimeout, NoAnswer, Unreachable)) as caught:
            await producer.send(Message("t", b""), timeout_seconds=2)

        assert trio.current_time() - started == pytest.approx(2, abs=0.05)
        assert caught.value.may_have_been_stored is (how == "silent")


async def test_a_send_survives_a_restart_of_its_only_broker(autojump_clock: MockClock) -> None:
    """Refused connections stored nothing, so they are tried again until the time is over."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        await producer.send(Message("t", b"before"))
        cluster.kill(broker)

        async def restart() -> None:
            await trio.sleep(1)
            cluster.network.refusing.clear()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart)
            await producer.send(Message("t", b"after"))

        assert broker.bodies("t") == [b"before", b"after"]


async def test_a_dead_master_is_left_at_once(autojump_clock: MockClock) -> None:
    """While one of two masters is gone, sends go to the other without waiting, and come back with it."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        first, second = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 2)
        await producer.send(Message("t", b""))
        cluster.kill(first)
        started = trio.current_time()

        for _ in range(20):
            assert (await producer.send(Message("t", b""))).queue.broker_name == "b2"
        assert trio.current_time() - started < 0.1

        cluster.network.refusing.clear()
        await trio.sleep(60)
        await producer.send(Message("t", b""))
        await producer.send(Message("t", b""))
        await producer.send(Message("t", b""))
        assert len(first.bodies("t")) >= 1
        assert second.bodies("t")


async def test_retries_that_may_store_twice_are_counted(autojump_clock: MockClock) -> None:
    """After `retries` further failures the last one is raised."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, retries=2) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.refuse(SEND, ResponseCode.SYSTEM_ERROR, times=10)

        with pytest.raises(BrokerSystemError) as caught:
            await producer.send(Message("t", b""))

        assert len(broker.requests_of(SEND)) == 3
        assert caught.value.may_have_been_stored


async def test_two_silent_brokers_of_three_leave_time_for_the_third(autojump_clock: MockClock) -> None:
    """Each costs a share of the total time once, and is kept away from then."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2", "b3")]
        cluster.create("t", 2)
        for broker in brokers[:2]:
            broker.script(SEND, *[silence] * 100)
        started = trio.current_time()

        results = [await producer.send(Message("t", b"")) for _ in range(10)]

        assert {result.queue.broker_name for result in results} == {"b3"}
        assert trio.current_time() - started < 3
        assert sends(*brokers) == [1, 1, 10]


async def test_a_refusal_does_not_hide_that_an_earlier_attempt_may_have_stored(autojump_clock: MockClock) -> None:
    """One broker never answered, the next one refused for good: the error is the refusal, and the message may be in a log."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2")]
        cluster.create("t", 1)

        def silent_then_refusing(request: RemotingCommand) -> RemotingCommand | None:
            asked = sum(sends(*brokers))
            return request.response(ResponseCode.MESSAGE_ILLEGAL, remark="scripted") if asked > 1 else None

        for broker in brokers:
            broker.script(SEND, silent_then_refusing)

        with pytest.raises(MessageIllegal) as caught:
            await producer.send(Message("t", b""))

        assert sends(*brokers) == [1, 1]
        assert caught.value.may_have_been_stored


async def test_what_every_broker_refuses_is_not_retried(autojump_clock: MockClock) -> None:
    """A message that breaks a limit breaks it everywhere."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2")]
        cluster.create("t", 1)
        for broker in brokers:
            broker.refuse(SEND, ResponseCode.MESSAGE_ILLEGAL)

        with pytest.raises(MessageIllegal, match="13"):
            await producer.send(Message("t", b""))

        assert sum(sends(*brokers)) == 1


async def test_a_full_disk_is_named_in_the_error_of_the_producer(autojump_clock: MockClock) -> None:
    """The broker says which disk is how full and what is kept for whom; nobody else can tell the producer's operator."""
    async with open_virtual() as embedded, open_producer(embedded.namesrv, world=embedded.world) as producer:
        broker = embedded.nodes[0].broker
        assert broker is not None
        await producer.send(Message("t", b""))
        broker.store.writability.disk_full = True
        broker.store.writability.disk_state = " (/data: 93.0% used, 90% allowed)"

        with pytest.raises(SendTimeout, match=r"the disk is full \(/data: 93.0% used, 90% allowed\)") as caught:
            await producer.send(Message("t", b""))
        (many,) = await producer.send_many([Message("t", b"")])

        assert "SERVICE_NOT_AVAILABLE" in caught.value.last
        assert "/data: 93.0% used" in str(many)


async def test_a_full_broker_is_distinguished(autojump_clock: MockClock) -> None:
    """A broker that cannot write is asked until the time is over; the error says what it said and that nothing was stored."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.refuse(SEND, ResponseCode.SERVICE_NOT_AVAILABLE, times=1000)

        with pytest.raises(SendTimeout) as caught:
            await producer.send(Message("t", b""))

        assert isinstance(caught.value.__cause__, ServiceNotAvailable)
        assert not caught.value.may_have_been_stored
        # A pause is at least half its mean, and without growth there would be more than twice as many.
        assert caught.value.attempts < 2 * SEND_TIMEOUT_SECONDS / SEARCH_PAUSE_SECONDS_MAX, "pauses grow"


def stored_without_slave(request: RemotingCommand) -> RemotingCommand:
    """Script: store a message, but on no slave."""
    return request.response(ResponseCode.SLAVE_NOT_AVAILABLE, wire_fields({"msgId": "0" * 32, "queueId": 0, "queueOffset": 0}))


@pytest.mark.parametrize("way", ["one", "many", "batch"])
async def test_a_message_that_is_stored_with_less_is_sent_elsewhere_if_asked(autojump_clock: MockClock, way: str) -> None:
    """Until a broker gives all its guarantees; if none does, the first answer counts."""
    async with (
        open_cluster() as cluster,
        open_producer(NAMESRV, world=cluster.world, retry_unless_ok=True) as producer,
        open_producer(NAMESRV, world=cluster.world) as other,
    ):
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2")]
        cluster.create("t", 1)

        async def send(sender: Producer) -> SendResult:
            if way == "one":
                return await sender.send(Message("t", b"x"))
            (result,) = await (sender.send_many if way == "many" else sender.send_batch)([Message("t", b"x")])
            assert isinstance(result, SendResult)
            return result

        for broker in brokers:
            broker.script(SEND, stored_without_slave)
            broker.script(RequestCode.SEND_BATCH_MESSAGE, stored_without_slave)
        statuses = [(await send(producer)).status for _ in range(2)]
        assert statuses == [SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.SEND_OK]

        for broker in brokers:
            broker.script(SEND, stored_without_slave)
            broker.script(RequestCode.SEND_BATCH_MESSAGE, stored_without_slave)
        brokers[0].scripts.clear()
        assert [(await send(producer)).status for _ in range(2)] == [SendStatus.SEND_OK] * 2

        for broker in brokers:
            broker.scripts.clear()
            broker.script(SEND, stored_without_slave)
            broker.script(RequestCode.SEND_BATCH_MESSAGE, stored_without_slave)
        assert [(await send(other)).status for _ in range(2)] == [SendStatus.SLAVE_NOT_AVAILABLE] * 2


async def test_a_chosen_queue_is_kept_although_its_broker_gives_less(autojump_clock: MockClock) -> None:
    """Order counts more there."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, retry_unless_ok=True) as producer:
        first, second = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 1)
        first.script(SEND, stored_without_slave)
        result = await producer.send(Message("t", b""), queue=MessageQueue("t", "b1", 0))

        assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
        assert sends(first, second) == [1, 0]
