"""`ledgermq bench`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .processes import Run


def test_sending_and_receiving_are_measured(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """The figures agree with what is in the topic afterwards."""
    produced = as_json("bench", "produce", "Measured", "--seconds", "0.5", "--size", "100")
    assert produced["messages"] > 0
    assert produced["failed"] == 0
    assert produced["p50_ms"] <= produced["p99_ms"]

    consumed = as_json("bench", "consume", "Measured", "--seconds", "30")
    assert consumed["messages"] >= produced["messages"]


def test_measuring_a_topic_that_is_not_there_is_an_error(ledgermq: Run) -> None:
    """And no measurement of zero."""
    said = ledgermq("bench", "consume", "Nowhere", "--seconds", "1", status=1).stderr

    assert "ledgermq topic create Nowhere" in said
