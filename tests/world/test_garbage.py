"""When the garbage collector of a server runs, and that it may spare what has grown old."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from harness.processes.full_states import FullStates, Sizes
from ledgermq.client.admin import open_admin
from ledgermq.remoting.channel import Channel, open_channel
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import open_embedded, open_virtual
from ledgermq.testing.logs import capture_logs
from ledgermq.world.address import Address
from ledgermq.world.garbage import COLLECT_AFTER, MIDDLE_AFTER, NEVER, PRIVATE_BYTES_MAX, GarbageBound, private_bytes
from ledgermq.world.network import TcpNetwork
from ledgermq.world.real import real_world
from ledgermq.world.tls import TLS_HANDSHAKE, ClientTls, TlsNetwork

from ..client.fake_cluster import until

PACKAGES = ("ledgermq", "trio", "ssl")


@contextmanager
def old_garbage() -> Generator[Counter[str]]:
    """Counts what existed before the block, ended in it, and is in cycles, which only a collection of all objects frees."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.collect(1)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds: list[type[object]] = [type(garbage) for garbage in gc.garbage]
        found.update(kind.__qualname__ for kind in kinds if kind.__module__.split(".")[0] in PACKAGES)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _in_a_cycle() -> GarbageBound:
    bound = GarbageBound()
    bound.private_bytes = lambda: id(bound)
    return bound


def test_old_garbage_in_cycles_is_found_and_young_is_not() -> None:
    """Otherwise the tests below would find nothing in any case."""
    old = [_in_a_cycle()]

    with old_garbage() as found:
        old.clear()
        _in_a_cycle()

    assert found == {"GarbageBound": 1}


async def test_clients_that_leave_a_broker_leave_no_old_garbage() -> None:
    """Neither members of groups, nor pulls that wait, nor leases, nor deleted topics."""
    async with open_embedded() as cluster, trio.open_nursery() as nursery:
        states = FullStates(Address("127.0.0.1", cluster.brokers[0].port), nursery, Sizes().divided(500))
        await states.fill()

        with old_garbage() as found:
            async with trio.open_nursery() as acts:
                for act in (states.peer_returns, states.puller_returns, states.members_return, states.delete_topics):
                    acts.start_soon(act)
        nursery.cancel_scope.cancel()

    assert found == {}


async def test_encrypted_connections_that_end_leave_no_old_garbage() -> None:
    """Neither do those whose handshake fails after a while."""
    world = real_world()
    network = TlsNetwork(TcpNetwork(), ClientTls(), world.workers)
    async with open_embedded() as cluster, trio.open_nursery() as nursery:
        address = Address("127.0.0.1", cluster.brokers[0].port)
        served = cluster.brokers[0].server.connections
        channels: list[Channel] = []
        for _ in range(5):
            channels.append(await open_channel(address, network=network, nursery=nursery))
            await _ask(channels[-1])
        stranger = await trio.open_tcp_stream(address.host, address.port)
        await stranger.send_all(bytes([TLS_HANDSHAKE]))
        await until(lambda: sum(type(one) is trio.SSLStream for one in gc.get_objects()) == 11)

        with old_garbage() as found:
            while channels:
                channels.pop().close()
            await stranger.aclose()
            await until(lambda: not served)
        nursery.cancel_scope.cancel()

    assert found == {}


async def _ask(channel: Channel) -> None:
    await channel.call(RemotingCommand(RequestCode.GET_MIN_OFFSET, {"topic": "x", "queueId": "0"}, b""), 30)


async def test_a_leader_that_hands_over_leaves_no_old_garbage(autojump_clock: trio.testing.MockClock) -> None:
    """Nor does its successor."""
    async with (
        open_virtual(mode="dledger", nodes=3) as cluster,
        open_admin(cluster.namesrv, world=cluster.world) as admin,
    ):
        before = await cluster.master()
        others = [node for node in cluster.nodes if node.address != before]

        with old_garbage() as found:
            await admin.change_dledger_group(before, "transfer", f"n{cluster.nodes.index(others[0])}")
            await until(lambda: any(node.broker is not None and node.broker.role.takes_puts for node in others))

    assert found == {}


def test_servers_collect_new_objects_alone() -> None:
    """The thresholds are those of the process, so another one sets them."""
    script = "import gc; from ledgermq.world.garbage import collect_rarely; collect_rarely(); print(*gc.get_threshold())"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert run.stdout.split() == [str(COLLECT_AFTER), str(MIDDLE_AFTER), str(NEVER)]


def test_memory_above_the_bound_lets_all_objects_be_collected() -> None:
    """Then again only when it has grown by a quarter, since what is not garbage stays."""
    sizes = [PRIVATE_BYTES_MAX, PRIVATE_BYTES_MAX + 1, 2 * PRIVATE_BYTES_MAX, int(2.5 * PRIVATE_BYTES_MAX)]
    bound = GarbageBound(lambda: sizes.pop(0))
    old = [_in_a_cycle()]
    gc.collect()
    gc.disable()
    old.clear()
    try:
        with capture_logs() as events:
            bound.look()
            assert not events
            bound.look()
            bound.look()
    finally:
        gc.enable()

    (event,) = (event for event in events if event["event"] == "all_objects_collected")
    assert event["private_bytes_before"] == PRIVATE_BYTES_MAX + 1
    assert event["found_objects"] >= 2
    assert sizes == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say")
def test_private_memory_is_what_the_process_has_for_itself() -> None:
    """A large object counts."""
    before = private_bytes()

    large = bytes(1) * (64 << 20)

    assert before > 0
    assert private_bytes() - before >= len(large) - (1 << 20)
