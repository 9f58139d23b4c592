"""A nursery for the tasks that serve a client while its block is open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import attrs
import trio


@asynccontextmanager
async def background_nursery() -> AsyncGenerator[trio.Nursery]:
    """A nursery for tasks that serve a block and end with it.

    When the block is cancelled from outside, its tasks keep running until the block's own `finally` clauses have ended, because
    these still send to the brokers. An exception of the block is raised as it is, not inside the exception group that a nursery
    would make of it.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as outer:
        host = _Host()
        outer.start_soon(host.run)
        # Not `Nursery.start`, which never returns if it is cancelled while the task that it starts is shielded.
        with trio.CancelScope(shield=True):
            await host.opened.wait()
        assert host.nursery is not None
        try:
            yield host.nursery
        except BaseException as error:  # noqa: BLE001 - raised again outside the nursery
            failure = error
        host.nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def call_at_end(close: Callable[[], object]) -> None:
    """A task of that nursery which calls `close` when the nursery ends, because its block has ended or a task of it has failed.

    The nursery still takes tasks then, and none later.
    """
    try:
        await trio.sleep_forever()
    finally:
        close()


@attrs.define(eq=False)
class _Host:
    """The task that keeps a nursery open until the nursery's own scope is cancelled."""

    nursery: trio.Nursery | None = None
    opened: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as self.nursery:
                self.opened.set()
                await trio.sleep_forever()
