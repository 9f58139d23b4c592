"""What operators' tools ask a broker over HTTP: its metrics, whether it is alive, and whether it is ready for its clients.

`/metrics` is for Prometheus. `/livez` answers as long as the event loop runs, which is all that a restart could mend. `/readyz`
answers 200 if everything that clients need is well, and otherwise 503; its body names each check with `ok` or what is missing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from ..message.json import dumps
from ..remoting.pages import JSON, TEXT, Page, Pages
from ..store.message_store import MessageStore
from ..world.real import World
from ..world.supervision import keep_running
from .config import BrokerConfig
from .live_config import LiveConfig
from .metrics import LoopTurns, Metrics
from .registration import Registration
from .role import LiveRole

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


@attrs.frozen
class Monitoring:
    """The pages of one broker."""

    metrics: Metrics
    config: LiveConfig = attrs.field(kw_only=True)
    store: MessageStore = attrs.field(kw_only=True)
    role: LiveRole = attrs.field(kw_only=True)
    registration: Registration = attrs.field(kw_only=True)
    is_following: Callable[[], bool] = attrs.field(kw_only=True)
    """Whether a slave or follower is connected to its master or knows its leader."""
    lag_bytes: Callable[[], int] = attrs.field(kw_only=True)
    """How many bytes a slave is behind its master."""

    @property
    def pages(self) -> Pages:
        """The pages by their paths."""
        return {"/metrics": self._metrics, "/livez": self._live, "/readyz": self._ready}

    async def _metrics(self) -> Page:
        await trio.lowlevel.checkpoint()
        return Page(200, PROMETHEUS_TEXT, self.metrics.text())

    async def _live(self) -> Page:
        await trio.lowlevel.checkpoint()
        return Page(200, TEXT, b"ok\n")

    async def _ready(self) -> Page:
        await trio.lowlevel.checkpoint()
        faults = self.faults()
        return Page(503 if any(faults.values()) else 200, JSON, dumps({name: text or "ok" for name, text in faults.items()}))

    def faults(self) -> dict[str, str | None]:
        """What is missing for clients, by the name of the check; None where nothing is."""
        config, leads = self.config.now, self.role.takes_puts
        nobody = "no name server has registered this broker" if config.name_servers else None
        alone = f"{self.role.refusal}; and none is connected" if not (leads or self.is_following()) else None
        lag, lag_max = self.lag_bytes(), config.ha_max_gap_not_in_sync
        behind = f"{lag} bytes behind its master, haMaxGapNotInSync is {lag_max}" if lag > lag_max else None
        writability = self.store.writability
        return {
            "store": self.store.log.failure or (writability.refusal if leads else writability.disk_refusal),
            "registered": None if self.registration.registered_with else nobody,
            "role": alone,
            "lag": behind,
        }


@asynccontextmanager
async def open_monitoring(
    config: BrokerConfig, world: World, monitoring: Callable[[LoopTurns], Monitoring]
) -> AsyncGenerator[None]:
    """Serve the pages for the length of an `async with` block, if the configuration says so.

    Raises:
        OSError: `metricsPromExporterPort` is in use, or `metricsPromExporterHost` is no address of this machine.
    """
    if config.metrics_exporter_type != "PROM":
        yield
        return
    from ..remoting.http import serve_pages  # noqa: PLC0415 - brokers that serve no pages do not import h11

    turns = LoopTurns(world.clock)
    listeners = list(await world.network.open_listeners(config.metrics_prom_exporter_host, config.metrics_prom_exporter_port))
    trio.lowlevel.add_instrument(turns)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_running, "monitoring", partial(serve_pages, monitoring(turns).pages, listeners))
            yield
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.remove_instrument(turns)
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()
