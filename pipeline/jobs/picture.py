"""The picture of `stats`: rates, latencies and sizes of messages, and how they are spread over queues and keys, in one figure.

Spark computes what is drawn; at most a few thousand rows reach this process, however many messages there are. Matplotlib is
imported when something is drawn.
"""

# ruff: noqa: PLC0415 - for this reason
from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from ...message.message import MessageQueue
from ..errors import BadOption
from ..intervals import UNITS_US, microseconds
from .places import Source, read
from .stats import COLUMNS, keys_of, windows_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, Row, SparkSession

WINDOWS_MAX = 2_000
"""The most windows of a picture, about as many as it has pixels across."""
WINDOWS_AIM = 100
"""The most windows of a picture for which no length of a window is given."""
BARS_MAX = 16
"""The most queues that are drawn with their names. More are drawn as a curve."""
KEYS_MAX = 12
BINS_PER_DOUBLING = 4
"""How finely sizes are counted: bars are this many to a factor of two."""
NAME_MAX = 20
"""The most characters of a name beside an axis."""

_LENGTHS_US = tuple(
    count * UNITS_US[unit]
    for unit, counts in (
        ("millisecond", (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        ("second", (1, 2, 5, 10, 15, 30)),
        ("minute", (1, 2, 5, 10, 15, 30)),
        ("hour", (1, 2, 3, 6, 12)),
        ("day", (1, 2, 7, 14, 28, 56, 112, 224, 448)),
    )
    for count in counts
)
_PERCENTILES = (("latencyP50", "median"), ("latencyP95", "95 %"), ("latencyP99", "99 %"), ("latencyMax", "slowest"))
_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"))
_BLUE, _RED = "#2b6ca3", "#c8452d"
_SHADES = ("#9ecae1", "#4a90c2", "#1f4e79", _RED)
_STYLE: Any = {
    "font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "grid.color": "#dddddd",
    "grid.linewidth": 0.8, "legend.frameon": False, "text.parse_math": False,
    "figure.constrained_layout.use": True, "figure.constrained_layout.h_pad": 0.1, "figure.constrained_layout.w_pad": 0.1,
}  # fmt: skip


class Picture(NamedTuple):
    """A figure and the numbers that its curves show. A notebook that evaluates it shows the figure."""

    figure: Figure
    windows: DataFrame
    """For each window what `Stats.windows` has, of all topics together."""

    def save(self, path: str) -> None:
        """Write the figure to a file whose name ends with `.png` or `.svg`."""
        self.figure.savefig(path)

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.figure.savefig(written, format="png")
        return written.getvalue()


@attrs.frozen
class _Drawn:
    """What the panels show."""

    windows: Sequence[Row]
    """In order; each begins at `start`, in microseconds since 1970."""
    length: int
    """Of a window, in microseconds."""
    queues: Mapping[MessageQueue, int]
    """The number of messages of each queue."""
    sizes: Sequence[tuple[int | None, int]]
    """For each bin of sizes its number and how many messages it has. Empty bodies have none."""
    keys: Sequence[tuple[str, int]]

    @property
    def messages(self) -> int:
        return sum(self.queues.values())

    @property
    def topics(self) -> str:
        return ", ".join(sorted({queue.topic for queue in self.queues}))


def picture(spark: SparkSession, source: Source, *, window: str | None = None) -> Picture:
    """Draw the messages of topics; all topics together.

    Args:
        spark: a session.
        source: options of a batch read. If messages arrive meanwhile, set `endingOffsets`, so that all panels show the same.
        window: the length of a window as Spark writes it, such as `1 minute`; if None, there are about a hundred.

    Raises:
        BadOption: `window` is no length, or there would be more than `WINDOWS_MAX` windows.
        ImportError: Matplotlib is not installed.
    """
    from matplotlib.figure import Figure as _  # noqa: F401 - an environment without it fails before anything is read
    from pyspark.sql import functions

    rows = read(spark, source, *COLUMNS)
    length = _fitting(rows) if window is None else microseconds("window", window)
    described = windows_of(rows, length).withColumn("start", functions.unix_micros("start"))
    windows = described.limit(WINDOWS_MAX + 1).collect()
    if windows and (windows[-1].start - windows[0].start) // length >= WINDOWS_MAX:
        raise BadOption("window", window, f"a picture shows at most {WINDOWS_MAX} windows; use a longer one")
    queues, sizes = _counted(rows)
    keys = [(row["keys"], row.messages) for row in keys_of(rows, KEYS_MAX).collect()]
    figure = _figure(_Drawn(windows, length, queues, sizes, keys))
    frame = spark.createDataFrame(windows, described.schema).withColumn("start", functions.timestamp_micros("start"))
    return Picture(figure, frame)


def _fitting(rows: DataFrame) -> int:
    """Return the shortest usual length, in microseconds, with which there are at most `WINDOWS_AIM` windows."""
    from pyspark.sql import functions

    stored = functions.unix_micros("storeTimestamp")
    (row,) = rows.agg((functions.max(stored) - functions.min(stored)).alias("span")).collect()
    return next((length for length in _LENGTHS_US if length * (WINDOWS_AIM - 1) > (row.span or 0)), _LENGTHS_US[-1])


def _counted(rows: DataFrame) -> tuple[dict[MessageQueue, int], list[tuple[int | None, int]]]:
    """Count messages by queue and by bin of sizes, in one pass."""
    from pyspark.sql import functions

    of_size = functions.when(
        functions.col("bodySize") > 0, functions.floor(functions.log2("bodySize") * BINS_PER_DOUBLING).cast("int")
    )
    counted = rows.groupBy("topic", "brokerName", "queueId", of_size.alias("bin")).agg(functions.count("*").alias("messages"))
    queues: dict[MessageQueue, int] = {}
    sizes: dict[int | None, int] = {}
    for row in counted.collect():
        queue = MessageQueue(row.topic, row.brokerName, row.queueId)
        queues[queue] = queues.get(queue, 0) + row.messages
        sizes[row.bin] = sizes.get(row.bin, 0) + row.messages
    return queues, sorted(sizes.items(), key=lambda item: -1 if item[0] is None else item[0])


def _figure(drawn: _Drawn) -> Figure:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(12, 10), dpi=120)
        if not drawn.messages:
            figure.suptitle("no messages")
            return figure
        figure.suptitle(f"{_shortened(drawn.topics, 60)}: {drawn.messages:,} messages", fontsize=15, fontweight="bold")
        axes = figure.subplots(3, 2, width_ratios=(1.35, 1))
        (rates, sizes), (volumes, queues), (latencies, keys) = axes
        _draw_rates(rates, volumes, drawn)
        _draw_latencies(latencies, drawn)
        for each in (rates, volumes, latencies):
            _label_times(each, drawn)
        _draw_sizes(sizes, drawn)
        _draw_queues(queues, drawn)
        _draw_keys(keys, drawn)
    return figure


def _draw_rates(rates: Axes, volumes: Axes, drawn: _Drawn) -> None:
    """Draw messages and bytes in a second. Windows without messages count as zero."""
    found = {row.start: row for row in drawn.windows}
    starts = _starts(drawn)
    edges = _days([*starts, starts[-1] + drawn.length])
    fastest = max(row.bytesPerSecond for row in drawn.windows)
    size, name = next((unit for unit in _UNITS if fastest >= unit[0]), (1, "bytes"))
    for axes, column, unit in ((rates, "messagesPerSecond", 1), (volumes, "bytesPerSecond", size)):
        values = [getattr(found[start], column) / unit if start in found else 0.0 for start in starts]
        axes.stairs(values, edges, fill=True, color=_BLUE, alpha=0.25)
        axes.stairs(values, edges, color=_BLUE, linewidth=1.5)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    rates.set_title(f"Throughput, in windows of {_spoken(drawn.length)}")
    rates.set_ylabel("messages per second")
    volumes.set_title("Throughput in bytes")
    volumes.set_ylabel(f"{name} per second")


def _draw_latencies(axes: Axes, drawn: _Drawn) -> None:
    """Draw percentiles for each window. A clock that is behind makes latencies negative, so the scale has both signs."""
    found = {row.start: row for row in drawn.windows}
    starts = _starts(drawn)
    middles = _days([start + drawn.length / 2 for start in starts])
    for (column, label), colour in zip(_PERCENTILES, _SHADES, strict=True):
        values = [getattr(found[start], column) if start in found else float("nan") for start in starts]
        axes.plot(middles, values, color=colour, label=label, linewidth=1.8, marker="o", markersize=3)
    axes.set_yscale("symlog", linthresh=1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_title("Latency from born to stored")
    axes.set_ylabel("milliseconds (log scale)")
    lowest, highest = min(row.latencyP50 for row in drawn.windows), max(row.latencyMax for row in drawn.windows)
    axes.set_ylim(min(lowest, 0), 10 * max(highest, 1))  # with room for the legend above the curves
    axes.legend(loc="upper right", ncols=4, fontsize=10, columnspacing=1.2)


def _draw_sizes(axes: Axes, drawn: _Drawn) -> None:
    from matplotlib.ticker import LogLocator

    step = 2 ** (1 / BINS_PER_DOUBLING)
    for number, count in drawn.sizes:
        low = 0.5 if number is None else 2 ** (number / BINS_PER_DOUBLING)  # an empty body is left of one byte
        axes.bar(low, 100 * count / drawn.messages, width=low * (step - 1), align="edge", color=_BLUE, edgecolor="white")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axes.xaxis.set_major_formatter(lambda value, _: _of_bytes(value))
    axes.set_title("Sizes of bodies")
    axes.set_xlabel("size (bytes, log scale)")
    axes.set_ylabel("messages (%)")


def _draw_queues(axes: Axes, drawn: _Drawn) -> None:
    """Draw the share of each queue, and the share that each would have if all had the same."""
    shares = [100 * drawn.queues[queue] / drawn.messages for queue in sorted(drawn.queues)]
    if len(shares) <= BARS_MAX:
        axes.bar(range(len(shares)), shares, color=_BLUE, width=0.7)
        prefix = "{0.topic} " if len({queue.topic for queue in drawn.queues}) > 1 else ""
        names = [_shortened((prefix + "{0.broker_name}:{0.queue_id}").format(queue)) for queue in sorted(drawn.queues)]
        is_long = sum(map(len, names)) > 45
        axes.set_xticks(range(len(shares)), names, rotation=40 if is_long else 0, ha="right" if is_long else "center")
        axes.set_xlabel("queue")
    else:
        axes.fill_between(range(1, len(shares) + 1), sorted(shares, reverse=True), color=_BLUE, alpha=0.4, step="mid")
        axes.set_xlabel("queues, the fullest first")
    axes.axhline(100 / len(shares), color=_RED, linestyle="--", linewidth=1.5, label="if all had the same")
    axes.set_ylim(0, 1.25 * max(shares))
    axes.legend(loc="upper right", fontsize=10)
    axes.set_title(f"Skew of {len(shares)} queues")
    axes.set_ylabel("messages (%)")


def _draw_keys(axes: Axes, drawn: _Drawn) -> None:
    shares = [100 * count / drawn.messages for _, count in drawn.keys]
    axes.barh(range(len(shares)), shares, color=_BLUE, height=0.7)
    axes.set_yticks(range(len(shares)), [_shortened(key) for key, _ in drawn.keys])
    axes.invert_yaxis()
    axes.set_title("Keys with the most messages" if drawn.keys else "No message has a key")
    axes.set_xlabel("messages (%)")
    axes.set_ylabel("key")


def _label_times(axes: Axes, drawn: _Drawn) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    axes.set_xlabel("stored at (UTC)")
    begin, end = _days([drawn.windows[0].start, drawn.windows[-1].start + drawn.length])
    axes.set_xlim(begin, end)
    locator = AutoDateLocator(tz=UTC, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))


def _starts(drawn: _Drawn) -> range:
    """Return the starts of all windows between the first and the last one with messages."""
    return range(drawn.windows[0].start, drawn.windows[-1].start + 1, drawn.length)


def _days(moments: Iterable[float]) -> list[float]:
    """Return microseconds since 1970 as Matplotlib counts times: in days."""
    return [moment / UNITS_US["day"] for moment in moments]


def _spoken(length: int) -> str:
    unit = next(unit for unit in reversed(UNITS_US) if length % UNITS_US[unit] == 0)
    count = length // UNITS_US[unit]
    return f"{count} {unit}{'s' if count > 1 else ''}"


def _of_bytes(size: float) -> str:
    if size < 1:
        return "0"
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.10g} {name}"
    return f"{size:.10g} B"


def _shortened(name: str, longest: int = NAME_MAX) -> str:
    return name if len(name) <= longest else name[: longest - 1] + "…"
