"""What a log holds of strangers' doings."""

from __future__ import annotations

import pytest

from ledgermq.world.logs import (
    BURST_LINES,
    ITEMS_MAX,
    TEXT_CHARACTERS_MAX,
    RateLimit,
    fault_of,
    readable,
    trace_of,
)


def fail(signature: str) -> None:
    raise LookupError(f"no {len(signature)} of these")


def fail_because_of(signature: str) -> None:
    try:
        fail(signature)
    except LookupError as cause:
        raise ValueError("outer") from cause


def failure() -> LookupError:
    try:
        fail("secret-signature")
    except LookupError as error:
        return error
    raise AssertionError


def test_a_trace_holds_places_and_no_values() -> None:
    """A frame may hold a table of ten thousand topics, or a signature."""
    error = failure()

    assert "secret-signature" not in repr(trace_of(error))
    assert fault_of(error) == "LookupError: no 16 of these"
    last = trace_of(error)[-1]
    assert last.startswith("world/test_logs.py:")
    assert last.endswith(" fail")


def test_a_trace_names_the_cause() -> None:
    """What was raised first comes first."""
    with pytest.raises(ValueError, match="outer") as caught:
        fail_because_of("x")
    lines = trace_of(caught.value)

    assert any("no 1 of these" in line for line in lines)
    assert lines[-1].endswith("fail_because_of")


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "\u202eabc", "\x9b2J", "\ud800"])
def test_nothing_that_a_terminal_acts_on_passes(text: str) -> None:
    """Colours, new lines, bidirectional overrides."""
    event = readable({"topic": text, "nested": {text: [text]}})

    assert str(event["topic"]).isprintable()
    assert all(key.isprintable() and value[0].isprintable() for key, value in event["nested"].items())


def test_values_are_bounded() -> None:
    """A line stays a line, whatever a peer sent."""
    event = readable({"text": "x" * 9_000_000, "items": list(range(1000)), "table": {"a": 1}})

    assert len(event["text"]) < TEXT_CHARACTERS_MAX + 50
    assert len(event["items"]) == ITEMS_MAX + 1
    assert event["table"] == {"a": 1}
    assert len(fault_of(ValueError("y" * 9_000_000))) < TEXT_CHARACTERS_MAX + 50


def test_an_event_is_logged_once_a_second_with_a_count() -> None:
    """After a burst; other events are not affected, and after a pause there is a burst again."""
    seconds = 0.0
    limit = RateLimit(lambda: seconds)

    admitted = [limit.admit("malformed_frame_received") for _ in range(BURST_LINES + 500)]
    assert admitted == [0] * BURST_LINES + [None] * 500
    assert limit.admit("broker_started") == 0
    seconds = 1.0
    assert [limit.admit("malformed_frame_received") for _ in range(100)] == [500] + [None] * 99
