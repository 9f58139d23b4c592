"""The figure of `stats`, by what its panels say and show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ledgermq.pipeline.errors import BadOption
from ledgermq.pipeline.jobs.picture import picture

from ..stores import Stored, StoreFiles

if TYPE_CHECKING:
    from click.testing import Result
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

PNG = b"\x89PNG\r\n\x1a\n"
BEGIN = 1_700_000_000_000


def stored(number: int, *, at_ms: int, latency_ms: int = 5, queue_id: int = 0) -> Stored:
    key = {"KEYS": "a $1 key of which only the beginning is shown"} if number % 4 == 0 else {}
    return Stored("T", queue_id, b"x" * 100, key, store_timestamp=BEGIN + at_ms, born_timestamp=BEGIN + at_ms - latency_ms)


@pytest.fixture
def source(tmp_path: Path) -> dict[str, str]:
    """A minute of one message a second, with a pause of half a minute and one message that was born after it was stored."""
    files = StoreFiles(tmp_path / "store")
    files.append(stored(number, at_ms=1000 * number, queue_id=number % 3 // 2) for number in range(30))
    files.append([stored(59, at_ms=59_000, latency_ms=-20)])
    return {"storePath": str(files.root), "subscribe": "T"}


def heights(axes: Axes) -> list[float]:
    """The heights of the steps of a curve."""
    return [float(value) for value in axes.patches[0].get_data().values]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_every_panel_has_a_title_and_axes_with_units(spark: SparkSession, source: dict[str, str]) -> None:
    figure, windows = picture(spark, source)

    said = {each.get_title(loc="left"): (each.get_xlabel(), each.get_ylabel()) for each in figure.axes}
    assert figure.get_suptitle() == "T: 31 messages"
    assert said == {
        "Throughput, in windows of 1 second": ("stored at (UTC)", "messages per second"),
        "Throughput in bytes": ("stored at (UTC)", "bytes per second"),
        "Latency from born to stored": ("stored at (UTC)", "milliseconds (log scale)"),
        "Sizes of bodies": ("size (bytes, log scale)", "messages (%)"),
        "Skew of 2 queues": ("queue", "messages (%)"),
        "Keys with the most messages": ("messages (%)", "key"),
    }
    assert [row.latencyMax for row in windows.orderBy("start").collect()] == [5] * 30 + [-20]
    assert windows.schema["start"].dataType.typeName() == "timestamp"


@pytest.mark.slow
def test_a_picture_shows_pauses_as_zero_and_shares_as_percent(spark: SparkSession, source: dict[str, str]) -> None:
    drawn = picture(spark, source, window="10 seconds")
    rates, _, _, queues, latencies, keys = drawn.figure.axes

    assert heights(rates) == [1.0, 1.0, 1.0, 0, 0, 0.1]
    assert [bar.get_height() for bar in queues.patches] == pytest.approx([100 * 21 / 31, 100 * 10 / 31])  # type: ignore[attr-defined]
    assert [bar.get_width() for bar in keys.patches] == pytest.approx([100 * 8 / 31])  # type: ignore[attr-defined]
    assert [label.get_text() for label in keys.get_yticklabels()] == ["a $1 key of which o…"]
    assert latencies.get_ylim()[0] == -20
    assert drawn._repr_png_().startswith(PNG)  # pyright: ignore[reportPrivateUsage] - the name is IPython's


def test_a_picture_of_nothing_says_so(spark: SparkSession, source: dict[str, str]) -> None:
    figure, windows = picture(spark, {**source, "endingTimestamp": "0"})

    assert (figure.get_suptitle(), figure.axes, windows.count()) == ("no messages", [], 0)


def test_more_windows_than_a_picture_can_show_are_refused(spark: SparkSession, source: dict[str, str]) -> None:
    with pytest.raises(BadOption, match=r"option 'window': a picture shows at most 2000 windows; use a longer one"):
        picture(spark, source, window="29 milliseconds")


def test_the_command_writes_png_and_svg(
    pipeline_command: Callable[..., Result], source: dict[str, str], tmp_path: Path
) -> None:
    """Beside the table; a file that cannot be written is refused before anything is read."""
    arguments = ("stats", "T", "--store", source["storePath"], "--plot")

    shown = pipeline_command(*arguments, f"{tmp_path}/a.png", "--by", "queue").output
    pipeline_command(*arguments, f"{tmp_path}/a.svg")
    kind = pipeline_command(*arguments, f"{tmp_path}/a.pdf", status=2).output
    place = pipeline_command(*arguments, f"{tmp_path}/none/a.png", status=2).output

    assert "BODYSIZEMAX" in shown
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    assert "<svg" in (tmp_path / "a.svg").read_text("utf-8")
    assert "a picture is written as .png or .svg" in kind
    assert f"nothing can be written to {tmp_path}/none" in place
