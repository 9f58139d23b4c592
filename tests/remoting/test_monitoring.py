"""The pages of any server, and what is measured while they are served."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.metrics import Latencies, LoopTurns
from ledgermq.remoting.monitoring import Monitoring, open_monitoring
from ledgermq.testing.ports import reserved_ports
from ledgermq.world.real import real_world

from ..broker.test_monitoring import get


async def test_turns_and_requests_are_measured_only_while_pages_are_served() -> None:
    """A server that serves none pays nothing; `/readyz` names what is missing."""
    dispatcher, given = Dispatcher(), list[LoopTurns]()

    async def text() -> AsyncIterator[bytes]:
        await trio.lowlevel.checkpoint()
        yield b"metrics\n"

    def monitoring(turns: LoopTurns, latencies: Latencies) -> Monitoring:
        assert dispatcher.latencies is latencies
        given.append(turns)
        return Monitoring(text, lambda: {"one": None, "other": "away"})

    with reserved_ports("127.0.0.1", 1) as (port,):
        async with open_monitoring("DISABLE", "127.0.0.1", port, real_world(), dispatcher, monitoring):
            assert dispatcher.latencies is None
        async with open_monitoring("PROM", "127.0.0.1", port, real_world(), dispatcher, monitoring):
            metrics, ready, live = await get(port, "/metrics"), await get(port, "/readyz"), await get(port, "/livez")

    assert (metrics, ready, live) == (
        (200, b"8\r\nmetrics\n\r\n0\r\n\r\n"),
        (503, b'{"one":"ok","other":"away"}'),
        (200, b"ok\n"),
    )
    (turns,) = given
    assert sum(turns.lasted.counts) > 0
    assert dispatcher.latencies is None
