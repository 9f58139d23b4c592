"""The tasks that serve a client: they end with its block, however that ends."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.background import background_nursery
from ledgermq.client.producer import open_producer
from ledgermq.testing.sim.world import sim_world


async def test_a_block_that_is_cancelled_before_it_begins_ends(autojump_clock: MockClock) -> None:
    """Nothing that a client opens may outlive the scope that was to limit it."""
    with trio.fail_after(5):
        with trio.CancelScope() as scope:
            scope.cancel()
            async with background_nursery():
                await trio.lowlevel.checkpoint()
        with trio.CancelScope() as scope:
            scope.cancel()
            async with open_producer("10.0.0.1:9876", world=sim_world(1)):
                await trio.lowlevel.checkpoint()

    assert scope.cancelled_caught


async def test_a_block_that_is_cancelled_at_any_turn_ends(autojump_clock: MockClock) -> None:
    for turns in range(20):
        with trio.fail_after(5), trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel(turns: int = turns, scope: trio.CancelScope = scope) -> None:
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(cancel)
                async with background_nursery() as background:
                    background.start_soon(trio.sleep_forever)
                    await trio.sleep_forever()


async def test_background_tasks_go_on_while_a_cancelled_block_says_goodbye(autojump_clock: MockClock) -> None:
    served: list[str] = []

    async def serve(requests: trio.MemoryReceiveChannel[str]) -> None:
        served.append(await requests.receive())

    send, receive = trio.open_memory_channel[str](0)
    with trio.move_on_after(1):
        async with background_nursery() as nursery:
            nursery.start_soon(serve, receive)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await send.send("goodbye")

    assert served == ["goodbye"]


async def test_an_exception_leaves_the_block_as_it_is() -> None:
    with pytest.raises(KeyError, match="k"):
        async with background_nursery():
            raise KeyError("k")
