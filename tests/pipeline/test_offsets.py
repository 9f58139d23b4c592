"""Offsets as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.errors import BadOption
from ledgermq.pipeline.offsets import assignment, from_json, parse, parse_assignment, to_json

queues = st.builds(MessageQueue, st.text("ab%_", min_size=1, max_size=3), st.sampled_from(["a", "b"]), st.integers(0, 20))


@given(st.dictionaries(queues, st.integers(0, 2**62)), st.randoms())
def test_equal_offsets_give_equal_json_whatever_their_order(offsets: dict[MessageQueue, int], shuffled: object) -> None:
    """Spark compares texts: were they to differ, it would see new data for ever."""
    items = list(offsets.items())
    shuffled.shuffle(items)  # type: ignore[attr-defined]

    assert json.dumps(to_json(dict(items))) == json.dumps(to_json(offsets))
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_queues_are_ordered_by_number() -> None:
    """As texts, 10 would come before 2."""
    found = to_json({MessageQueue("T", "a", queue_id): queue_id for queue_id in (10, 2, 1)})

    assert list(found["T"]["a"]) == ["1", "2", "10"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 1, column 2"),
        ("[]", "the whole: an object"),
        ('{"T":[]}', "'T': an object"),
        ('{"T":{"a":3}}', "'T'.'a': an object"),
        ('{"T":{"a":{"x":3}}}', "'T'.'a'.'x': a queue is a number"),
        ('{"T":{"a":{"-1":3}}}', "a queue is a number"),
        ('{"T":{"a":{"0":-3}}}', "-3 is not an offset"),
        ('{"T":{"a":{"0":1.5}}}', "1.5 is not an offset"),
        ('{"T":{"a":{"0":true}}}', "True is not an offset"),
        ('{"T":{"a":{"0":"7"}}}', "'7' is not an offset"),
    ],
)
def test_offsets_that_are_none_are_refused_by_their_place(text: str, reason: str) -> None:
    """The option, the value and the place in it are named."""
    with pytest.raises(BadOption, match="startingOffsets") as refused:
        parse("startingOffsets", text)

    assert reason in str(refused.value)


@pytest.mark.parametrize("text", ["{}", '{"T":{"a":0}}', '{"T":{"a":[]}}', '{"T":{"a":[-1]}}', '{"T":{"a":["0"]}}', "T"])
def test_assignments_that_name_no_queue_are_refused(text: str) -> None:
    """Numbers of queues are expected, at least one."""
    with pytest.raises(BadOption, match="assign"):
        parse_assignment("assign", text)


def test_an_assignment_names_queues() -> None:
    """Sorted, each once."""
    queues = [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]

    assert parse_assignment("assign", '{"T":{"a":[1,0,1]}}') == queues
    assert parse_assignment("assign", assignment(queues)) == queues
