"""Conditions that Spark pushes down: how many records are looked at, and that none is missed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from ledgermq.message.message import MessageQueue
from ledgermq.pipeline import segment_reader
from ledgermq.pipeline.batch_reader import PruningReader
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.filters import Condition, Pruning
from ledgermq.pipeline.options import read_options
from ledgermq.pipeline.ranges import QueueRange

from .stores import StoreFiles, interleaved

COUNT = 300
BEGIN = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1_700_000_000_000)


@attrs.define(eq=False)
class Read:
    """Rows that came, and how many records were looked at for them."""

    rows: list[dict[str, Any]]
    looked_at: int


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Read]:
    """Two topics with messages of two tags in three queues each, stored a millisecond apart; read with filters."""
    files = StoreFiles(tmp_path / "broker-a")
    files.append(interleaved(COUNT))
    files.append(interleaved(COUNT, topic="U"))
    looked_at = 0
    read_heads = segment_reader.read_heads

    def counted(piece: Any, positions: Any, expected: Any) -> Any:
        nonlocal looked_at
        looked_at += len(positions)
        return read_heads(piece, positions, expected)

    monkeypatch.setattr(segment_reader, "read_heads", counted)

    def run(*filters: Filter) -> Read:
        nonlocal looked_at
        looked_at = 0
        options = read_options({"storePath": str(files.root), "subscribe": "T,U", "pushFilters": "true"}, streaming=False)
        reader = PruningReader(options, chosen(options.content))
        assert list(reader.pushFilters(list(filters))) == list(filters)  # Spark applies all of them again
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        return Read(rows, looked_at)

    return run


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ([], 600),
        ([EqualTo(("topic",), "U")], 300),
        ([In(("topic",), ("T", "none"))], 300),
        ([EqualTo(("queueId",), 2)], 200),
        ([EqualTo(("topic",), "T"), In(("queueId",), (0, 1))], 200),
        ([EqualNullSafe(("brokerName",), "broker-a")], 600),
        ([EqualTo(("brokerName",), "broker-b")], 0),
        ([EqualTo(("queueOffset",), 7)], 6),
        ([GreaterThan(("queueOffset",), 89), LessThan(("queueOffset",), 95)], 30),
        ([GreaterThanOrEqual(("queueOffset",), 90), LessThanOrEqual(("queueOffset",), 94)], 30),
        ([GreaterThanOrEqual(("storeTimestamp",), BEGIN + timedelta(milliseconds=290))], 600),
        ([EqualTo(("tags",), "paid new")], 600),
        ([In(("tags",), ("paid", "paid||new"))], 600),
        ([EqualTo(("tags",), "*")], 600),
        ([EqualTo(("tags",), "paid")], 300),
        ([EqualTo(("tags",), "paid"), EqualTo(("topic",), "T"), LessThan(("queueOffset",), 10)], 15),
        ([IsNotNull(("tags",)), Not(EqualTo(("topic",), "T")), StringStartsWith(("topic",), "U")], 600),
        ([EqualTo(("properties", "TAGS"), "paid"), EqualTo(("bornTimestamp",), BEGIN)], 600),
        ([EqualTo(("tags",), None)], 600),
    ],
)
def test_only_records_that_may_match_are_looked_at(read: Callable[..., Read], filters: list[Filter], count: int) -> None:
    """Conditions on topic, broker, queue, offset and tag spare records; others change nothing.

    Nor do conditions on times, because a clock may have gone back, and on tags that no subscription can name.
    """
    found = read(*filters)

    assert found.looked_at == len(found.rows) == count


conditions = st.one_of(
    st.builds(
        Condition,
        st.just("queueOffset"),
        st.sampled_from(["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]),
        st.integers(0, 12),
    ),
    st.builds(
        Condition,
        st.just("storeTimestamp"),
        st.sampled_from(["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]),
        st.integers(0, 12_000).map(lambda micros: BEGIN + timedelta(microseconds=micros)),
    ),
    st.builds(Condition, st.just("queueId"), st.just("EqualTo"), st.integers(0, 3)),
)
_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda left, right: left == right,
    "GreaterThan": lambda left, right: left > right,
    "GreaterThanOrEqual": lambda left, right: left >= right,
    "LessThan": lambda left, right: left < right,
    "LessThanOrEqual": lambda left, right: left <= right,
}


@given(st.lists(conditions, max_size=4))
def test_no_message_that_matches_is_left_out(given_conditions: list[Condition]) -> None:
    """Whatever conditions there are together."""
    ranges = [QueueRange(MessageQueue("T", "a", queue_id), 0, 12) for queue_id in range(3)]

    kept = {
        (each.queue.queue_id, offset)
        for each in Pruning.of(given_conditions).apply(ranges)
        for offset in range(each.start, each.end)
    }

    for each in ranges:
        for offset in range(12):
            stored = BEGIN + timedelta(milliseconds=offset)
            row = {"queueId": each.queue.queue_id, "queueOffset": offset, "storeTimestamp": stored}
            if all(_HOLDS[condition.kind](row[condition.column], condition.value) for condition in given_conditions):
                assert (each.queue.queue_id, offset) in kept
