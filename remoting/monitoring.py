"""What operators' tools ask a server over HTTP: its metrics, whether it is alive, and whether it is ready for its clients.

`/metrics` is for Prometheus. `/livez` answers as long as the event loop runs, which is all that a restart could mend. `/readyz`
answers 200 if everything that clients need is well, and otherwise 503; its body names each check with `ok` or what is missing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from ..message.json import dumps
from ..world.network import closing
from ..world.real import World
from ..world.supervision import keep_running
from .dispatcher import Dispatcher
from .metrics import Latencies, LoopTurns
from .pages import JSON, TEXT, Page, Pages

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
PROM = "PROM"
"""The value of `metricsExporterType` that serves the pages."""


@attrs.frozen
class Monitoring:
    """The pages of one server."""

    text: Callable[[], AsyncIterator[bytes]]
    """The metrics."""
    faults: Callable[[], Mapping[str, str | None]]
    """What is missing for clients, by the name of the check; None where nothing is."""

    @property
    def pages(self) -> Pages:
        """The pages by their paths."""
        return {"/metrics": self._metrics, "/livez": self._live, "/readyz": self._ready}

    async def _metrics(self) -> Page:
        await trio.lowlevel.checkpoint()
        return Page(200, PROMETHEUS_TEXT, self.text())

    async def _live(self) -> Page:
        await trio.lowlevel.checkpoint()
        return Page(200, TEXT, b"ok\n")

    async def _ready(self) -> Page:
        await trio.lowlevel.checkpoint()
        faults = self.faults()
        return Page(503 if any(faults.values()) else 200, JSON, dumps({name: text or "ok" for name, text in faults.items()}))


@asynccontextmanager
async def open_monitoring(
    exporter: str,
    host: str,
    port: int,
    world: World,
    dispatcher: Dispatcher,
    monitoring: Callable[[LoopTurns, Latencies], Monitoring],
) -> AsyncGenerator[None]:
    """Serve the pages for the length of an `async with` block, if `exporter` says so.

    Args:
        dispatcher: the requests to measure.
        monitoring: what is asked for, of a server that measures turns and requests.

    Raises:
        OSError: the port is in use, or `host` is no address of this machine.
    """
    if exporter != PROM:
        yield
        return
    from .http import serve_pages  # noqa: PLC0415 - servers that serve no pages do not import h11

    turns, latencies = LoopTurns(world.clock), Latencies(world.clock)
    listeners = list(await world.network.open_listeners(host, port))
    dispatcher.latencies = latencies
    trio.lowlevel.add_instrument(turns)
    try:
        async with closing(listeners), trio.open_nursery() as nursery:
            nursery.start_soon(keep_running, "monitoring", partial(serve_pages, monitoring(turns, latencies).pages, listeners))
            yield
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.remove_instrument(turns)
        dispatcher.latencies = None
