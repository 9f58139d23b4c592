"""The tasks that serve a client while its block is open."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background_nursery() -> AsyncGenerator[trio.Nursery]:
    """A nursery for tasks that serve a block and end with it.

    When the block is cancelled from outside, its tasks go on until the block has left its own `finally` clauses: what these say
    to the brokers needs the connections. An exception of the block leaves it as it is, not inside the group that a nursery
    makes of it.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as outer:
        nursery: trio.Nursery = await outer.start(_host_shielded)
        try:
            yield nursery
        except BaseException as error:  # noqa: BLE001 - raised again outside the nursery
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _host_shielded(*, task_status: trio.TaskStatus[trio.Nursery]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            task_status.started(nursery)
            await trio.sleep_forever()
