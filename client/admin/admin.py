"""The admin client as one object.

Every call is one or a few requests and returns values; nothing is cached, and no task runs between calls. A change of the whole
cluster is sent to every master, a change of the name servers to each of them. A broker without a master is left out, because
a slave may lack the newest changes; `Cluster.without_master` names such brokers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import attrs
import trio

from ...remoting.signature import Credentials
from ...world.real import World, real_world
from ...world.tls import ClientTls
from ..session import open_session
from .access import AccessAdmin
from .groups import GroupAdmin
from .messages import MessageAdmin
from .servers import ServerAdmin
from .topics import TopicAdmin


@attrs.define(eq=False)
class Admin(TopicAdmin, GroupAdmin, MessageAdmin, ServerAdmin, AccessAdmin):
    """Administers a cluster; made by `open_admin`.

    All calls raise `Unreachable`, `NoAnswer` or a `Refused` if a server cannot be reached, does not answer or refuses.
    """


@asynccontextmanager
async def open_admin(
    namesrv: str | Iterable[str] | None = None,
    *,
    tls: bool | ClientTls | None = None,
    credentials: Credentials | None = None,
    world: World | None = None,
) -> AsyncGenerator[Admin]:
    """An admin client for the length of an `async with` block; it opens connections as they are needed.

    Args:
        namesrv: as for `open_producer`.
        tls: as in `open_producer`.
        credentials: as in `open_producer`.
        world: replaces disk, network and clock in tests and simulations.

    Raises:
        InvalidArgument: an address is invalid, or there is none.
    """
    async with open_session(namesrv, world or real_world(), tls=tls, credentials=credentials) as session:
        yield Admin(session)
        await trio.lowlevel.checkpoint()
