"""Metrics of a server in the text format of Prometheus: made in slices when somebody asks, from what the server counts anyway.

The series of one metric are bounded: of more, the first ones are named, and `ledgermq_series_left_out` says how many are
missing. Two things are measured for metrics alone: the turns of the event loop, and how long requests take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import attrs
import trio

from ..world.clock import Clock
from ..world.events import get_logger
from ..world.logs import fault_of, trace_of
from ..world.slices import in_slices

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

log = get_logger(__name__)

SERIES_MAX = 20_000
"""How many series one metric has at most; further ones are counted in `ledgermq_series_left_out`."""
SLICE_SERIES = 250
"""How many series are formatted in one turn of the event loop, which takes some 3 ms."""
UNREAD_ROWS_PER_TURN = 10_000
"""How many series beyond the bound are counted in one turn."""
TURN_BUCKETS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.5, 2.0)
"""The upper bounds in seconds of the histogram of turns; a turn above 0.1 is a fault."""
RPC_BUCKETS = (1, 3, 5, 7, 10, 100, 1000, 3000)
"""The upper bounds in milliseconds of the histogram of requests, which are RocketMQ's as far as they matter here."""

Labels = tuple[str, ...]
Row = tuple[Labels, Callable[[], float | Awaitable[float]]]
"""The labels of a series, and what reads its value: a row is made quickly, and many values are read in slices. A value that
takes several turns is awaited."""


@attrs.define
class Histogram:
    """How many values fell into each bucket, and their sum."""

    bounds: Sequence[float]
    counts: list[int] = attrs.field(init=False)
    """How many values were up to each bound but above the one before, and how many above all."""
    total: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float, count: int = 1) -> None:
        """Count `count` values that are alike."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """How many values were up to each bound, as Prometheus wants them."""
        upto, found = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            upto += count
            found.append((bound, upto))
        return found


@attrs.define(eq=False)
class LoopTurns(trio.abc.Instrument):
    """Measures each turn of the event loop: from the end of its wait for events to the beginning of the next one."""

    clock: Clock
    lasted: Histogram = attrs.field(factory=lambda: Histogram(TURN_BUCKETS))
    """In seconds."""
    _began: float | None = None

    def after_io_wait(self, timeout: float) -> None:
        del timeout
        self._began = self.clock.monotonic()

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        if self._began is not None:
            self.lasted.add(self.clock.monotonic() - self._began)


@attrs.define(eq=False)
class Latencies:
    """How long requests take, by request code: from when a handler gets them until it has answered or handed them on.

    Requests of one receive that a handler takes together count with the time of all of them.
    """

    clock: Clock
    by_code: dict[int, Histogram] = attrs.field(factory=dict[int, Histogram])
    """In milliseconds; the codes are those that the server has handlers for, which bounds their number."""

    def add(self, code: int, began: float, count: int = 1) -> None:
        """Count requests that a handler got at `began`, by the monotonic clock."""
        if (histogram := self.by_code.get(code)) is None:
            histogram = self.by_code[code] = Histogram(RPC_BUCKETS)
        histogram.add((self.clock.monotonic() - began) * 1000, count)


@attrs.frozen
class Family:
    """One metric."""

    name: str
    """Without `_total`, which Prometheus adds to counters."""
    help: str
    labels: Labels
    rows: Callable[[], Iterable[Row]]
    """Is called in one turn of the event loop; its rows are taken in many, so a list is a copy of a table that may change."""
    counter: bool = False
    weight: Callable[[Labels], int] = lambda _: 1
    """How many values are read for a series."""


def one(name: str, text: str, value: Callable[[], float], *, counter: bool = False) -> Family:
    """A metric of a single series."""
    return Family(name, text, (), lambda: [((), value)], counter)


@attrs.frozen
class Histograms:
    """One metric whose series are histograms."""

    name: str
    help: str
    labels: Labels
    rows: Callable[[], Iterable[tuple[Labels, Histogram]]]


def turns_of(turns: LoopTurns) -> Histograms:
    """The metric of the turns of the event loop."""
    text = "How long turns of the event loop lasted."
    return Histograms("ledgermq_event_loop_turn_seconds", text, (), lambda: [((), turns.lasted)])


def latencies_of(latencies: Latencies) -> Histograms:
    """The metric of requests."""
    return Histograms(
        "rocketmq_rpc_latency",
        "Milliseconds until a handler has answered a request or handed it on: without the waiting of pulls for messages, and "
        "of sends for flush and replication.",
        ("request_code",),
        lambda: [((str(code),), histogram) for code, histogram in latencies.by_code.items()],
    )


async def exposition(constant: Mapping[str, str], families: Iterable[Family | Histograms]) -> AsyncIterator[bytes]:
    """The metrics in the text format of Prometheus, in parts between which other tasks run.

    A metric that cannot be read is left out and logged.

    Args:
        constant: the labels that every series has.
    """
    left_out, names, values = 0, tuple(constant), tuple(constant.values())
    for family in families:
        try:
            if isinstance(family, Histograms):
                yield _formatted(_histogram_metric(family, names, values), headed=True)
                continue
            rows = iter(family.rows())
            await trio.lowlevel.checkpoint()  # a copy of a long table fills a turn by itself
            first = True
            async for part in in_slices(islice(rows, SERIES_MAX), SLICE_SERIES, partial(_weight_of, family)):
                read = [(labels, value if isinstance(value := read(), int | float) else await value) for labels, read in part]
                yield _formatted(_metric(family, read, names, values), headed=first)
                first = False
            async for part in in_slices(rows, UNREAD_ROWS_PER_TURN):
                left_out += len(part)
            await trio.lowlevel.checkpoint()
        except Exception as error:  # noqa: BLE001 - a metric that cannot be read must not take the others with it
            log.error("metric_left_out", metric=family.name, reason=fault_of(error), trace=trace_of(error))
    beyond = Family("ledgermq_series_left_out", "Series beyond the bound of their metric.", (), tuple)
    yield _formatted(_metric(beyond, [((), left_out)], names, values), headed=True)


def _weight_of(family: Family, row: Row) -> int:
    return family.weight(row[0])


def _metric(family: Family, series: Iterable[tuple[Labels, float]], names: Labels, values: Labels) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - only where metrics are asked for

    kind = CounterMetricFamily if family.counter else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=(*names, *family.labels))
    for labels, value in series:
        metric.add_metric((*values, *labels), value)
    return metric


def _histogram_metric(family: Histograms, names: Labels, values: Labels) -> Metric:
    from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 - as above

    metric = HistogramMetricFamily(family.name, family.help, labels=(*names, *family.labels))
    for labels, histogram in family.rows():
        metric.add_metric((*values, *labels), histogram.buckets(), histogram.total)
    return metric


def _formatted(metric: Metric, *, headed: bool) -> bytes:
    """The text of a metric; `headed` is False for further parts of the same one, whose head would be a second one."""
    from prometheus_client import generate_latest  # noqa: PLC0415 - as above

    text = generate_latest(_Registry(metric))
    return text if headed else b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))


@attrs.frozen
class _Registry:
    """What `generate_latest` reads: here a single metric."""

    metric: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.metric,)
