"""A client's connections: shared while they come about, replaced when they are dead, closed with the client."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError, Closed, NoAnswer, NoRoute, Unreachable
from ledgermq.client.producer import open_producer
from ledgermq.client.session import open_session
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, FakeBroker, FakeCluster, open_cluster, until

SEND = RequestCode.SEND_MESSAGE_V2


def silence(request: RemotingCommand) -> None:
    """Script: never answer."""


def forget_connections(cluster: FakeCluster, broker: FakeBroker) -> None:
    """What a middlebox does: no end hears of it, and whatever is sent over the connections is lost."""
    cluster.network.forget(broker.address)


async def test_a_connection_that_a_middlebox_forgot_is_replaced(autojump_clock: MockClock) -> None:
    """One send finds out by its deadline, and the connection is given up soon after."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, retries=0) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        await producer.send(Message("t", b"before"))
        forget_connections(cluster, broker)

        failures: list[NoAnswer] = []
        for _ in range(10):
            try:
                await producer.send(Message("t", b"after"))
            except NoAnswer as error:
                failures.append(error)
        # A third send may begin at the moment at which the connection is given up; it fails at once.
        assert [error.may_have_been_stored for error in failures] in ([True], [True] * 2, [True] * 3)
        assert trio.current_time() < 7
        assert broker.bodies("t") == [b"before"] + [b"after"] * (10 - len(failures))


async def test_an_idle_connection_that_was_forgotten_is_replaced_by_its_heartbeat(autojump_clock: MockClock) -> None:
    """A send after a quiet minute does not have to find out."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, retries=0) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        await producer.send(Message("t", b"before"))
        forget_connections(cluster, broker)
        await trio.sleep(40)

        await producer.send(Message("t", b"after"))
        assert broker.bodies("t") == [b"before", b"after"]


async def test_a_consumer_reads_on_after_its_connection_was_forgotten(autojump_clock: MockClock) -> None:
    """The broker has no other member, so the pull that seems to be held and the heartbeat tell."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            broker.put("t", 0, b"before")
            assert await consumer.get_one(10) is not None
            await trio.sleep(1)
            forget_connections(cluster, broker)
            broker.put("t", 0, b"after")
            message = await consumer.get_one(60)
            assert message is not None
            assert message.body == b"after"


async def test_a_slow_broker_keeps_its_connection(autojump_clock: MockClock) -> None:
    """A call that times out closes nothing while heartbeats are answered."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, retries=0) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        await producer.send(Message("t", b""))
        broker.script(SEND, silence)
        with pytest.raises(NoAnswer):
            await producer.send(Message("t", b""))
        await trio.sleep(10)
        await producer.send(Message("t", b""))

        assert cluster.network.opened.count(broker.address) == 1


async def test_all_who_wait_for_a_connection_share_its_failure(autojump_clock: MockClock) -> None:
    """Sixty-four callers hear of an unreachable host together, after one attempt."""
    async with open_cluster() as cluster, open_session(NAMESRV, cluster.world) as session:
        broker = await cluster.start_broker("b1")
        cluster.network.unreachable.add(broker.address)
        failures: list[Unreachable] = []

        async def ask() -> None:
            try:
                await session.call(broker.address, RemotingCommand(RequestCode.GET_MIN_OFFSET), 10)
            except Unreachable as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(ask)

        assert len(failures) == 64
        assert trio.current_time() == pytest.approx(3, abs=0.1)


async def test_an_unreachable_master_holds_up_no_reading_from_its_slave(autojump_clock: MockClock) -> None:
    """Sixty-four queues turn to the slave together, and stay there until the master is back."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 64)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            await until(lambda: len(master.held) == 64)
            cluster.kill(master)
            cluster.network.refusing.clear()
            cluster.network.unreachable.add(master.address)
            started = trio.current_time()
            for number in range(30):
                for queue_id in range(64):
                    slave.put("t", queue_id, b"%d" % number)
                await trio.sleep(1)
            bodies: list[bytes] = []
            while messages := await consumer.get_many(10_000, 5):
                bodies += [message.body for message in messages]

            assert len(bodies) == 64 * 30
            assert trio.current_time() - started < 30 + 10
            assert 3 < cluster.network.tried.count(master.address) < 30, "one attempt at a time finds out whether it is back"


async def test_a_first_send_leaves_a_broker_that_swallows_everything(autojump_clock: MockClock) -> None:
    """It has a share of the time like any attempt."""
    for seed in range(4):
        async with open_cluster(seed) as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
            hole, _ = await cluster.start_broker("b1"), await cluster.start_broker("b2")
            cluster.create("t", 1)
            cluster.network.unreachable.add(hole.address)
            started = trio.current_time()

            assert (await producer.send(Message("t", b""))).queue.broker_name == "b2"
            assert trio.current_time() - started < 1.5


async def test_a_send_that_never_left_is_not_stored_later(autojump_clock: MockClock) -> None:
    """The connection comes about after its deadline: the error said that nothing was stored, and so it is."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.network.connect_seconds[broker.address] = 2.0
        with pytest.raises(ClientError) as failure:
            await producer.send(Message("t", b"given up"), timeout_seconds=1)
        assert not failure.value.may_have_been_stored

        await trio.sleep(2)
        await producer.send(Message("t", b"next"))
        assert broker.bodies("t") == [b"next"]


async def test_the_total_time_of_a_send_includes_its_search_for_the_route(autojump_clock: MockClock) -> None:
    """A name server that takes long leaves less for the broker, and not more for the send."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.route_seconds = 2.5
        cluster.network.silent.add(broker.address)
        with pytest.raises(ClientError):
            await producer.send(Message("t", b""), timeout_seconds=6)
        assert trio.current_time() == pytest.approx(6, abs=0.1)


async def test_a_send_that_is_out_when_its_producer_closes_may_have_been_stored(autojump_clock: MockClock) -> None:
    """Its error says at once that the producer was closed, and what that means for the message."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        closed: list[Closed] = []
        async with trio.open_nursery() as nursery, open_producer(NAMESRV, world=cluster.world) as producer:

            async def send() -> None:
                with pytest.raises(Closed) as caught:
                    await producer.send(Message("t", b"x"))
                closed.append(caught.value)

            await producer.send(Message("t", b"x"))
            broker.script(SEND, silence, silence)
            nursery.start_soon(send)
            nursery.start_soon(send)
            await trio.sleep(0.5)

        assert [error.may_have_been_stored for error in closed] == [True, True]
        assert trio.current_time() < 2
        with pytest.raises(Closed) as later:
            await producer.send(Message("t", b"x"))
        assert not later.value.may_have_been_stored


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_farewell_reaches_the_brokers(autojump_clock: MockClock, cancelled: bool) -> None:
    """Offsets are committed and the member leaves, also when the block is cancelled."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"")
        with trio.move_on_after(1):
            async with open_consumer(
                NAMESRV, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, world=cluster.world
            ) as consumer:
                message = await consumer.get_one()
                assert message is not None
                await message.ack()
                if cancelled:
                    await trio.sleep_forever()

        assert broker.offsets["g", "t", 0] == 1
        assert len(broker.requests_of(RequestCode.UNREGISTER_CLIENT)) == 1
        assert trio.current_time() < 1.5


async def test_a_broker_that_is_given_as_a_name_server_is_told_apart(autojump_clock: MockClock) -> None:
    """Its refusal of a request by a number would say nothing to a new user."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        async with open_session(str(broker.address), cluster.world) as session:
            told = "it is a broker or a controller and no name server; name servers listen on port 9876 by default"
            with pytest.raises(NoRoute, match=told):
                await session.refresh_route("t")


async def test_a_route_that_a_name_server_has_lost_is_logged_once(autojump_clock: MockClock) -> None:
    """Not each time that it is asked for, and again after it was there in between."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            await producer.send(Message("t", b"1"))
            with capture_logs() as events:
                for _ in range(2):
                    topic = cluster.topics.pop("t")
                    await trio.sleep(200)
                    cluster.topics["t"] = topic
                    await trio.sleep(200)

    lost = [event for event in events if event["event"] == "route_not_refreshed" and event["log_level"] == "warning"]
    assert [event["reason"] for event in lost] == ["TOPIC_UNKNOWN"] * 2
