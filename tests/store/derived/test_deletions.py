"""What is read from `deletedQueues.json`: only what makes sense as the name of a queue and as offsets."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.store.derived.deletions import Deletion, QueueEnd, deletions_of, ends_of, row_of


def test_what_was_written_about_queues_is_read_back() -> None:
    deletion, end = Deletion(100, 50, 7), QueueEnd(300, 60, 9)
    kept = {"deletedQueues": {"T": {"3": [row_of(deletion)]}}, "endedQueues": {"U": {"0": [row_of(end)]}}}

    assert list(deletions_of(kept)) == [("T", 3, deletion)]
    assert list(ends_of(kept)) == [("U", 0, end)]
    assert (deletion.physical_end, end.physical_end) == (150, 360)


@pytest.mark.parametrize(
    "queues",
    [
        None,
        [],
        {"T": None},
        {"T": {"0": 5}},
        {"T": {"0": [5]}},
        {"T": {"0": [[1, 2]]}},
        {"T": {"0": [[1, 2, "3"]]}},
        {"T": {"0": [[1, 2, True]]}},
        {"T": {"0": [[1, -2, 3]]}},
        {"T": {"0": [[1 << 62, 2, 3]]}},
        {"T": {"07": [[1, 2, 3]]}},
        {"T": {"-1": [[1, 2, 3]]}},
    ],
)
def test_what_makes_no_sense_is_left_out(queues: Any) -> None:
    assert list(deletions_of({"deletedQueues": queues})) == []
    assert list(ends_of({"endedQueues": queues})) == []


@pytest.mark.parametrize("topic", ["", "..", "a/b", "x" * 300])
def test_no_file_is_made_for_a_topic_that_cannot_be_the_name_of_a_directory(topic: str) -> None:
    assert list(ends_of({"endedQueues": {topic: {"0": [[1, 2, 3]]}}})) == []
