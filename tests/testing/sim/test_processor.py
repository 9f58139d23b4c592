"""Work that takes virtual time delays what its machine sends and receives, and what its clocks show, by whole turns."""

from __future__ import annotations

import trio

from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import sim_machines
from ledgermq.world.network import Address
from ledgermq.world.slices import in_slices


def echoed_after(slices: int, *, slowness: float = 10.0) -> tuple[float, float]:
    """When a peer is answered that asks 0.1 s after a second of work has begun, and what the clock shows after 0.32 s."""

    async def main() -> tuple[float, float]:
        busy, peer = sim_machines(1, 2)
        busy.processor.slowness = slowness
        world = busy.world()
        answered, shown = [0.0], [0.0]

        async def echo() -> None:
            stream = await listeners[0].accept()
            await stream.send_all(await stream.receive_some(1))

        async def look() -> None:
            await trio.sleep(0.32)
            shown[0] = world.clock.monotonic()

        async def ask() -> None:
            stream = await peer.world().network.open_stream(Address(busy.host, world.network.listener_port(listeners[0])))
            await trio.sleep(0.1 - trio.current_time())
            await stream.send_all(b"x")
            await stream.receive_some(1)
            answered[0] = trio.current_time()

        async def work() -> None:
            await trio.sleep(0.05)
            async for _ in in_slices(range(slices), 1, next_turn=world.processor.next_turn):
                world.processor.charge(0.1 / slices)

        listeners = await world.network.open_listeners(busy.host, 0)
        async with trio.open_nursery() as nursery:
            for task in (echo, look, ask, work):
                nursery.start_soon(task)
        return round(answered[0], 2), round(shown[0], 2)

    return seeded_run(main, seed=1)


def test_a_long_turn_delays_the_answer_and_stops_the_clock() -> None:
    assert echoed_after(1) == (1.05, 0.05)


def test_between_slices_answers_leave_and_the_clock_goes_on() -> None:
    assert echoed_after(10) == (0.25, 0.25)


def test_work_takes_no_time_unless_the_run_says_so() -> None:
    assert echoed_after(1, slowness=0.0) == (0.1, 0.32)
