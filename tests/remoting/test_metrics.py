"""What is measured for metrics alone."""

from __future__ import annotations

import attrs
import pytest

from ledgermq.remoting.metrics import Family, Histogram, Latencies, LoopTurns, exposition, one, turns_of
from ledgermq.testing.logs import capture_logs


@attrs.define(eq=False)
class Steps:
    """A clock that is one step further at each look."""

    seconds: list[float]

    def monotonic(self) -> float:
        return self.seconds.pop(0)

    def wall_ms(self) -> int:
        return 0


async def text_of(*families: Family) -> str:
    return "".join([part.decode() async for part in exposition({"node": "n"}, families)])


async def test_a_metric_that_cannot_be_read_is_left_out() -> None:
    """The others are there, and the log has the reason, also if it is an error of the disk in the middle of the text."""

    def fail() -> float:
        raise OSError("no such disk")

    with capture_logs() as logs:
        text = await text_of(one("broken", "", fail), one("sound", "", lambda: 1.0))

    assert 'sound{node="n"} 1.0' in text
    assert "broken" not in text
    found = [(event["event"], event["log_level"], event["metric"], event["reason"]) for event in logs]
    assert found == [("metric_left_out", "error", "broken", "OSError: no such disk")]


async def test_turns_of_the_event_loop_are_counted() -> None:
    """By how long they lasted, in buckets that contain the shorter ones, as Prometheus wants them."""
    turns = LoopTurns(Steps([0.0, 0.0005, 1.0, 1.03, 2.0, 7.0]))
    for _ in range(3):
        turns.after_io_wait(0)
        turns.before_io_wait(0)

    text = "".join([part.decode() async for part in exposition({"node": "n"}, [turns_of(turns)])])

    counts = dict(turns.lasted.buckets())
    assert counts == {"0.001": 1, "0.005": 1, "0.02": 1, "0.05": 2, "0.1": 2, "0.5": 2, "2.0": 2, "+Inf": 3}
    assert turns.lasted.total == pytest.approx(5.0305)
    assert 'ledgermq_event_loop_turn_seconds_bucket{le="0.05",node="n"} 2.0' in text


def test_a_value_at_a_bound_is_within_it() -> None:
    histogram = Histogram((1, 3))

    histogram.add(1)
    histogram.add(3, 2)
    histogram.add(3.1)

    assert histogram.buckets() == [("1", 1), ("3", 3), ("+Inf", 4)]
    assert histogram.total == pytest.approx(10.1)


def test_requests_are_measured_in_milliseconds() -> None:
    latencies = Latencies(Steps([10.004, 20.5]))

    latencies.add(10, 10.0, 2)
    latencies.add(11, 20.0)

    assert latencies.by_code[10].counts[2] == 2
    assert latencies.by_code[10].total == pytest.approx(8)
    assert latencies.by_code[11].total == pytest.approx(500)


async def test_a_metric_in_several_parts_has_one_head() -> None:
    rows = Family("many", "Help.", ("at",), lambda: [((str(at),), lambda at=at: at) for at in range(600)])  # type: ignore[misc]

    text = await text_of(rows)

    assert text.count("# TYPE many gauge") == 1
    assert sum(line.startswith("many{") for line in text.splitlines()) == 600
    assert text.endswith('ledgermq_series_left_out{node="n"} 0.0\n')
