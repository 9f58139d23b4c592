from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from ledgermq.testing.sim.network import FORGOTTEN_GIVE_UP_SECONDS, GIVE_UP_SECONDS, SimFabric, SimNetwork
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.world.network import Address, Stream

A, B = "10.0.0.1", "10.0.0.2"
SERVER = Address(B, 10911)


async def connected(fabric: SimFabric) -> tuple[Stream, Stream]:
    (listener,) = await fabric.machine(B).open_listeners("", SERVER.port)
    client = await fabric.machine(A).open_stream(SERVER)
    return client, await listener.accept()


async def received(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some()
        assert piece
        data += piece
    return data


def test_bytes_arrive_whole_and_in_order_however_they_are_cut() -> None:
    async def main() -> None:
        fabric = SimFabric(random.Random(1), short_reads=0.5)
        client, server = await connected(fabric)
        data = random.Random(2).randbytes(300_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, data)
            assert await received(server, len(data)) == data
        await client.aclose()
        assert await server.receive_some() == b""

    seeded_run(main, seed=1)


@pytest.mark.parametrize("dropped", [False, True])
def test_what_a_closed_end_has_sent_over_a_cut_path_arrives_later_unless_it_is_dropped(dropped: bool) -> None:
    """As with TCP: a machine goes on sending for an application that has closed, and forgets a connection that it resets."""

    async def main() -> None:
        fabric = SimFabric()
        client, server = await connected(fabric)
        fabric.part([A], [B])
        await client.send_all(b"late")
        if dropped:
            client.drop_undelivered()
        await client.aclose()
        fabric.heal()
        assert await server.receive_some() == (b"" if dropped else b"late")

    seeded_run(main, seed=1)


def test_both_ends_know_each_other() -> None:
    async def main() -> None:
        fabric = SimFabric()
        client, server = await connected(fabric)
        assert client.peer == SERVER
        assert server.peer == client.local

    seeded_run(main, seed=1)


def test_a_connection_that_is_cancelled_while_it_is_made_is_closed() -> None:
    """The server may have accepted it."""

    async def main() -> None:
        fabric = SimFabric(delay_seconds=(0.1, 0.1))
        (listener,) = await fabric.machine(B).open_listeners("", SERVER.port)
        with trio.move_on_after(0.15):
            await fabric.machine(A).open_stream(SERVER)
        assert fabric.left_open(A) == []
        assert await (await listener.accept()).receive_some() == b""

    seeded_run(main, seed=1)


def test_nobody_listening_refuses_and_a_taken_port_is_an_error() -> None:
    async def main() -> None:
        fabric = SimFabric()
        network = fabric.machine(B)
        with pytest.raises(ConnectionRefusedError):
            await fabric.machine(A).open_stream(SERVER)
        (listener,) = await network.open_listeners("", SERVER.port)
        with pytest.raises(OSError, match="in use"):
            await network.open_listeners("", SERVER.port)
        await listener.aclose()
        with pytest.raises(ConnectionRefusedError):
            await fabric.machine(A).open_stream(SERVER)

    seeded_run(main, seed=1)


def test_a_closed_listener_ends_the_connections_that_nobody_has_accepted() -> None:
    async def main() -> None:
        fabric = SimFabric()
        (listener,) = await fabric.machine(B).open_listeners("", SERVER.port)
        client = await fabric.machine(A).open_stream(SERVER)

        await listener.aclose()

        assert fabric.left_open(B) == []
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()

    seeded_run(main, seed=1)


def test_a_cut_path_holds_bytes_back_until_it_is_healed() -> None:
    async def main() -> None:
        fabric = SimFabric()
        client, server = await connected(fabric)
        fabric.cut(A, B)
        await client.send_all(b"late")
        await server.send_all(b"other way")
        assert await received(client, 9) == b"other way"
        with trio.move_on_after(5) as scope:
            await server.receive_some()
        assert scope.cancelled_caught
        fabric.heal()
        assert await received(server, 4) == b"late"

    seeded_run(main, seed=1)


def test_a_sender_gives_up_on_a_cut_path_and_its_peer_stays_half_open() -> None:
    async def main() -> None:
        fabric = SimFabric()
        client, server = await connected(fabric)
        fabric.part([A], [B])
        await client.send_all(b"lost")
        started = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()
        assert trio.current_time() - started == pytest.approx(GIVE_UP_SECONDS, abs=1)
        with trio.move_on_after(1000) as scope:
            await server.receive_some()
        assert scope.cancelled_caught

    seeded_run(main, seed=1)


def test_power_loss_is_noticed_by_sending_only() -> None:
    async def main() -> None:
        fabric = SimFabric()
        client, _ = await connected(fabric)
        fabric.power_off(B)
        with trio.move_on_after(1000) as scope:
            await client.receive_some()
        assert scope.cancelled_caught
        await client.send_all(b"anybody there?")
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()
        with pytest.raises(TimeoutError):
            await fabric.machine(A).open_stream(SERVER)

    seeded_run(main, seed=1)


def test_a_machine_that_is_back_answers_old_connections_at_once() -> None:
    async def main() -> None:
        fabric = SimFabric()
        client, _ = await connected(fabric)
        fabric.power_off(B)
        fabric.machine(B)
        await client.send_all(b"still there?")
        started = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()
        assert trio.current_time() - started < 1

    seeded_run(main, seed=1)


def test_a_killed_process_ends_its_connections() -> None:
    """The first send is taken, and lost: the other machine's reset comes later."""

    async def main() -> None:
        fabric = SimFabric()
        client, _ = await connected(fabric)
        fabric.end_process(B)
        assert await client.receive_some() == b""
        await client.send_all(b"x")
        await trio.sleep(1)
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(b"x")

    seeded_run(main, seed=1)


def test_the_fast_path_takes_what_is_there_and_no_more() -> None:
    """A send that may not wait takes a part at times; a receive that may not wait has nothing before bytes have arrived."""

    async def main() -> None:
        fabric = SimFabric(random.Random(3), short_sends=0.5, short_reads=0.5)
        client, server = await connected(fabric)
        data, sent, got, buffer = random.Random(4).randbytes(5000), 0, b"", memoryview(bytearray(1000))
        sizes = set[int]()
        assert server.receive_now(buffer) is None
        while len(got) < len(data):
            sizes.add(size := client.send_now(data[sent : sent + 100]))
            sent += size
            count = server.receive_now(buffer)
            if count is None and sent > len(got):
                count = await server.receive_into(buffer)
            got += bytes(buffer[: count or 0])
        assert got == data
        assert len(sizes) > 2

        await client.send_parts([b"one ", memoryview(b"two")])
        assert await received(server, 7) == b"one two"
        await client.aclose()
        await trio.sleep(1)
        assert server.receive_now(buffer) == 0
        assert client.send_now(b"x") == 0

    seeded_run(main, seed=1)


def test_a_lost_connection_breaks_waiting_ends() -> None:
    async def main() -> None:
        fabric = SimFabric()
        client, server = await connected(fabric)

        async def must_break(stream: Stream) -> None:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(must_break, client)
            nursery.start_soon(must_break, server)
            await trio.testing.wait_all_tasks_blocked()
            fabric.lose_connection()

    seeded_run(main, seed=1)


def test_a_reader_that_stalls_holds_its_sender_back() -> None:
    async def main() -> None:
        client, server = await connected(SimFabric())
        with trio.move_on_after(1) as scope:
            await client.send_all(bytes(1 << 20))
        assert scope.cancelled_caught
        assert isinstance(server, Stream)

    seeded_run(main, seed=1)


def test_the_same_network_seen_from_two_machines_is_two_values() -> None:
    fabric = SimFabric()

    assert fabric.machine(A) == SimNetwork(fabric, A)
    assert fabric.machine(A).own_host() == A


def test_a_forgotten_connection_carries_nothing_and_neither_end_is_notified() -> None:
    """Only after many minutes does a sender give up; whoever only receives waits for ever."""

    async def main() -> None:
        fabric = SimFabric()
        client, server = await connected(fabric)
        await client.send_all(b"before")
        assert await received(server, 6) == b"before"

        fabric.forget_connection()
        await client.send_all(b"after")
        with trio.move_on_after(FORGOTTEN_GIVE_UP_SECONDS / 2) as waiting:
            await server.receive_some()
        assert waiting.cancelled_caught
        await trio.sleep(FORGOTTEN_GIVE_UP_SECONDS)
        with pytest.raises(trio.BrokenResourceError):
            await client.receive_some()
        with trio.move_on_after(1) as waiting:
            await server.receive_some()
        assert waiting.cancelled_caught

    seeded_run(main, seed=1)


def test_a_host_that_hangs_is_connected_to_and_answers_when_it_goes_on() -> None:
    async def main() -> None:
        fabric = SimFabric()
        (listener,) = await fabric.machine(B).open_listeners("", SERVER.port)
        fabric.hang(B)
        client = await fabric.machine(A).open_stream(SERVER)
        server = await listener.accept()
        await client.send_all(b"x")
        with trio.move_on_after(10 * GIVE_UP_SECONDS) as waiting:
            await server.receive_some()
        assert waiting.cancelled_caught

        fabric.spare(B)

        assert await server.receive_some() == b"x"

    seeded_run(main, seed=1)


def test_a_host_that_swallows_packets_is_as_if_it_were_off() -> None:
    async def main() -> None:
        fabric = SimFabric()
        client, _server = await connected(fabric)
        fabric.swallow(B)
        with pytest.raises(TimeoutError):
            await fabric.machine(A).open_stream(SERVER)
        await client.send_all(b"x")
        await trio.sleep(GIVE_UP_SECONDS + 1)
        with pytest.raises(trio.BrokenResourceError):
            await client.send_all(b"y")

        fabric.spare(B)

        await fabric.machine(A).open_stream(SERVER)

    seeded_run(main, seed=1)


def test_connections_between_safe_hosts_are_neither_broken_nor_forgotten() -> None:
    async def main() -> None:
        fabric = SimFabric()
        client, server = await connected(fabric)
        fabric.safe = {A, B}
        fabric.lose_connection()
        fabric.lose_one_end()
        fabric.forget_connection()
        await client.send_all(b"x")
        assert await server.receive_some() == b"x"

    seeded_run(main, seed=1)
