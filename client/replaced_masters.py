"""Leaves a master that hangs or is cut off as soon as the name servers know another one in its place.

Such a master keeps its connections, so sends would wait for their whole time limit, and the route would be looked at again only
half a minute later. A group that elects its master has another one within a second. Closing the connection to the old one ends
the calls on it as its death would, and they go on at the new one.
"""

from __future__ import annotations

import trio

from ..message.units import MASTER_ID
from ..remoting.channel import Channel
from ..world.address import Address
from ..world.events import get_logger
from .errors import Closed, NoRoute
from .session import Session

log = get_logger(__name__)

LOOK_SECONDS = 0.5
"""The interval between two looks at connections with waiting calls; one on which nothing came meanwhile is silent."""


async def watch_masters(session: Session) -> None:
    """Look for replaced masters until cancelled."""
    while True:
        waiting = {channel: channel.received_at for channel in session.open_channels() if channel.waiting}
        await trio.sleep(LOOK_SECONDS)
        for channel, received_at in waiting.items():
            if _silent(channel, received_at) and await _is_replaced(session, channel.address) and _silent(channel, received_at):
                log.warning("silent_master_left", broker=str(channel.address), silence_seconds=LOOK_SECONDS)
                channel.close()


def _silent(channel: Channel, since: float) -> bool:
    return channel.waiting and not channel.closed and channel.received_at == since


async def _is_replaced(session: Session, address: Address) -> bool:
    """Whether there is another master in place of `address` now; if so, the routes of all topics are fetched again."""
    routes = session.routes
    at = [
        name for name, route in routes.routes.items() if any(address == one.addresses.get(MASTER_ID) for one in route.brokers)
    ]
    if at and not await _refreshed(session, at[:1]):
        return False
    if address in routes.masters() or not routes.masters():
        return False
    await _refreshed(session, sorted(session.topics))
    return True


async def _refreshed(session: Session, topics: list[str]) -> bool:
    """Fetch the routes of topics; return whether all of them came."""
    missing = 0
    for topic in topics:
        try:
            await session.refresh_route(topic)
        except (NoRoute, Closed):
            missing += 1
    return not missing
