"""Clients with several name servers, of which some hang, are gone or know nothing."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import Closed, InvalidArgument, NoAnswer, NoRoute, NoRouteReason
from ledgermq.client.name_servers import parse_name_servers
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.pull import open_pull_consumer
from ledgermq.client.route import TopicRoute
from ledgermq.client.session import Session, open_session
from ledgermq.message.message import Message
from ledgermq.remoting.command import RemotingCommand
from ledgermq.world.network import Address

from .fake_cluster import NAMESRV, FakeCluster, open_cluster, until

OTHER = "10.0.0.8:9876"


def both_orders() -> list[str]:
    """The one that is broken may be asked first or second; the seed of the client decides as well."""
    return [f"{OTHER};{NAMESRV}", f"{NAMESRV};{OTHER}"]


async def send_to_each(producer: Producer, topics: list[str]) -> list[float]:
    """Send to all topics at once; returns how long each took."""
    seconds: list[float] = []

    async def send(topic: str) -> None:
        started = trio.current_time()
        await producer.send(Message(topic, b""))
        seconds.append(trio.current_time() - started)

    async with trio.open_nursery() as nursery:
        for topic in topics:
            nursery.start_soon(send, topic)
    return seconds


async def break_other(cluster: FakeCluster, how: str) -> None:
    """Let the other name server hang, swallow connections, refuse them or know nothing."""
    address = Address.parse(OTHER)
    if how != "refusing":
        await cluster.start_name_server(OTHER, empty=how == "empty")
    if how in ("silent", "unreachable"):
        getattr(cluster.network, how).add(address)


@pytest.mark.parametrize("how", ["silent", "unreachable", "refusing", "empty"])
@pytest.mark.parametrize("order", range(2))
async def test_one_name_server_that_works_is_enough(autojump_clock: MockClock, how: str, order: int) -> None:
    """For the first send and for eight topics at once, with time left for the brokers."""
    async with open_cluster(seed=order) as cluster:
        await cluster.start_broker("b1")
        topics = [f"t{number}" for number in range(8)]
        for topic in topics:
            cluster.create(topic, 1)
        await break_other(cluster, how)
        async with open_producer(both_orders()[order], world=cluster.world) as producer:
            first = await send_to_each(producer, topics)
            cluster.create("later", 1)
            (second,) = await send_to_each(producer, ["later"])

        assert len(first) == 8
        assert max(first) < 1
        assert second < 0.1, "the one that answered is asked first from then on"


async def test_a_hung_name_server_and_a_dead_master_leave_time_for_the_other(autojump_clock: MockClock) -> None:
    """A first send finds the route and the master that is left within its total time."""
    for seed in range(4):
        async with open_cluster(seed) as cluster:
            dead, _ = await cluster.start_broker("b1"), await cluster.start_broker("b2")
            cluster.create("t", 2)
            await break_other(cluster, "silent")
            cluster.network.unreachable.add(dead.address)
            async with open_producer(f"{OTHER};{NAMESRV}", world=cluster.world) as producer:
                results = [await producer.send(Message("t", b"")) for _ in range(4)]

        assert {result.queue.broker_name for result in results} == {"b2"}


@pytest.mark.parametrize("order", range(2))
@pytest.mark.parametrize("seed", range(4))
async def test_a_topic_is_created_although_one_name_server_hangs(autojump_clock: MockClock, seed: int, order: int) -> None:
    """One has answered that it does not know the topic, and the other one is not waited for until the send has timed out."""
    async with open_cluster(seed) as cluster:
        await cluster.start_broker("b1")
        cluster.create("TBW102", 4)
        await break_other(cluster, "silent")
        async with open_producer(both_orders()[order], world=cluster.world) as producer:
            assert (await producer.send(Message("new", b""))).status.name == "SEND_OK"


async def test_a_send_whose_time_is_over_before_the_route_is_known_says_so(autojump_clock: MockClock) -> None:
    """The name server may well answer in the next moment."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        cluster.network.silent.add(Address.parse(NAMESRV))
        for seconds in (0.25, 1e-9):
            with pytest.raises(NoRoute, match=r"the time of this call was over after (0\.25|1e-09) s"):
                await producer.send(Message("t", b""), timeout_seconds=seconds)


async def test_a_dead_master_is_left_although_the_only_name_server_hangs(autojump_clock: MockClock) -> None:
    """Nobody can tell what has become of it, and the other master of the route takes the messages."""
    async with open_cluster() as cluster:
        dead, _ = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 2)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            await producer.send(Message("t", b""))
            cluster.network.silent.add(Address.parse(NAMESRV))
            cluster.network.forget(Address.parse(NAMESRV))
            cluster.kill(dead)
            results = [await producer.send(Message("t", b"")) for _ in range(8)]

    assert {result.queue.broker_name for result in results} == {"b2"}


async def test_a_topic_is_unknown_only_if_all_say_so(autojump_clock: MockClock) -> None:
    """And no name server is not the same as an unknown topic."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        await break_other(cluster, "empty")
        async with open_session(f"{OTHER};{NAMESRV}", cluster.world) as session:
            with pytest.raises(NoRoute) as unknown:
                await session.refresh_route("t")
            cluster.network.refusing.update({Address.parse(OTHER), Address.parse(NAMESRV)})
        async with open_session(f"{OTHER};{NAMESRV}", cluster.world) as session:
            with pytest.raises(NoRoute) as unreachable:
                await session.refresh_route("t")

    assert unknown.value.reason is NoRouteReason.TOPIC_UNKNOWN
    assert unreachable.value.reason is NoRouteReason.NAME_SERVER_UNREACHABLE


async def test_all_who_wait_for_a_route_share_one_answer(autojump_clock: MockClock) -> None:
    """Also when the one who asked first gives up."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_session(NAMESRV, cluster.world) as session, trio.open_nursery() as nursery:
            with trio.move_on_after(0):
                await session.refresh_route("t")
            routes: list[str] = []

            async def ask() -> None:
                routes.append((await session.refresh_route("t")).topic)

            for _ in range(20):
                nursery.start_soon(ask)

        assert routes == ["t"] * 20
        assert len(cluster.requests) == 1


async def test_a_wait_for_a_name_server_raises_when_the_client_closes(autojump_clock: MockClock) -> None:
    """With `Closed`, and not after the time-out of the question."""
    async with open_cluster() as cluster:
        cluster.network.silent.add(Address.parse(NAMESRV))
        ended: list[float] = []
        async with trio.open_nursery() as nursery, open_session(NAMESRV, cluster.world) as session:

            async def ask(question: RemotingCommand | None) -> None:
                with pytest.raises(Closed):
                    await (session.refresh_route("t") if question is None else session.ask_name_server(question))
                ended.append(trio.current_time())

            nursery.start_soon(ask, None)
            nursery.start_soon(ask, RemotingCommand(105))
            await trio.sleep(1)

        assert ended == pytest.approx([1, 1], abs=0.1)
        with pytest.raises(Closed):
            await session.refresh_route("t")


async def test_a_name_server_that_dies_in_the_middle_of_a_search_fails_the_search_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer goes on with the topics that it knows."""

    async def fail(_: Session, topic: str) -> TopicRoute:
        raise NoAnswer(NAMESRV, f"scripted, for {topic}")

    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        monkeypatch.setattr(Session, "route_to_create", fail)
        with pytest.raises(NoRoute, match="scripted"):
            await producer.send(Message("new", b""))
        await producer.send(Message("t", b""))


async def test_name_servers_are_changed_at_run_time(autojump_clock: MockClock) -> None:
    """Known routes stay in use, and changes are learnt from the new one; the old one is left for good."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with (
            open_producer(NAMESRV, world=cluster.world) as producer,
            open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer,
            open_admin(NAMESRV, world=cluster.world) as admin,
        ):
            await producer.send(Message("t", b"0"))
            cluster.network.refusing.add(Address.parse(NAMESRV))
            await cluster.start_name_server(OTHER)
            cluster.create("new", 1)
            with pytest.raises(InvalidArgument, match="name server"):
                producer.update_name_servers("a:b")
            for client in (producer, consumer, admin):
                client.update_name_servers([OTHER])

            await producer.send(Message("new", b"1"))
            assert [each.name for each in (await admin.cluster()).brokers] == ["b1"]
            cluster.create("t", 8)
            await until(lambda: len(consumer.queues) > 1)
            async with open_pull_consumer(NAMESRV, "g2", world=cluster.world) as pulling:
                pulling.update_name_servers(OTHER)
                assert len(await pulling.queues("new")) == 1
        with pytest.raises(Closed):
            producer.update_name_servers(OTHER)


async def test_a_question_to_a_name_server_that_is_replaced_meanwhile_goes_to_the_new_one(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.network.silent.add(Address.parse(NAMESRV))
        await cluster.start_name_server(OTHER)
        async with open_producer(NAMESRV, world=cluster.world) as producer, trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, Message("t", b"0"))
            await trio.sleep(1)
            producer.update_name_servers(OTHER)


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("[::1]:9876", [("::1", 9876)]),
        ("[fe80::1]", [("fe80::1", 9876)]),
        ("10.0.0.1;[::1]:1;host", [("10.0.0.1", 9876), ("::1", 1), ("host", 9876)]),
        ("10.0.0.1:1, host:2", [("10.0.0.1", 1), ("host", 2)]),
        (["[::1]:2", "10.0.0.1:3"], [("::1", 2), ("10.0.0.1", 3)]),
    ],
)
def test_name_servers_are_read_with_ipv6_addresses_in_brackets(
    given: str | list[str], addresses: list[tuple[str, int]]
) -> None:
    assert [(each.host, each.port) for each in parse_name_servers(given)] == addresses


@pytest.mark.parametrize("given", ["", ";", "[::1]:x", "host:0:1", "[::1"])
def test_an_address_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_name_servers(given)
