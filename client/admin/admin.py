"""The admin client as one object.

Every call is one or a few requests and returns values; nothing is cached and nothing runs in between. What concerns the whole
cluster goes to every master, what concerns all name servers to every one of them. A broker without a master is left out, for
a slave does not know for sure what there is; `Cluster.without_master` names such brokers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import attrs
import trio

from ...world.real import World, real_world
from ...world.tls import ClientTls
from ..session import open_session
from .groups import GroupAdmin
from .messages import MessageAdmin
from .servers import ServerAdmin
from .topics import TopicAdmin


@attrs.define(eq=False)
class Admin(TopicAdmin, GroupAdmin, MessageAdmin, ServerAdmin):
    """Administers a cluster; made by `open_admin`.

    All calls raise `Unreachable`, `NoAnswer` or a `Refused` when a server cannot be asked or does not want to.
    """


@asynccontextmanager
async def open_admin(
    namesrv: str | Iterable[str], *, tls: bool | ClientTls = False, world: World | None = None
) -> AsyncGenerator[Admin]:
    """An admin client for the length of an `async with` block; it opens connections as they are needed."""
    async with open_session(namesrv, world or real_world(), tls=tls) as session:
        yield Admin(session)
        await trio.lowlevel.checkpoint()
