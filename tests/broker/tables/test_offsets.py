"""Committed offsets."""

from __future__ import annotations

import random
import time

import pytest

from ledgermq.broker.entries import TableFull
from ledgermq.broker.tables import offsets as module
from ledgermq.broker.tables.offsets import ENTRY_BYTES, ConsumerOffsets
from ledgermq.message.json import dumps, loads


def filled() -> ConsumerOffsets:
    offsets = ConsumerOffsets()
    offsets.commit("g1", "T1", 0, 5)
    offsets.commit("g1", "T2", 1, 6)
    offsets.commit("g2", "T1", 0, 7)
    return offsets


def test_an_offset_is_known_after_its_commit_only() -> None:
    """No commit is not the same as offset 0."""
    offsets = filled()

    assert offsets.query("g1", "T1", 0) == 5
    assert offsets.query("g1", "T1", 1) is None
    assert offsets.query("g3", "T1", 0) is None


def test_a_group_ahead_of_a_queue_goes_back_to_its_end() -> None:
    """A power cut has taken what it had consumed; other messages come in its place, and it must not pass them over."""
    offsets = filled()
    changes = offsets.changes

    moved = offsets.keep_inside({("T1", 0): 5, ("T2", 1): 9})

    assert moved == {"T1@g2": 2}
    assert (offsets.query("g1", "T1", 0), offsets.query("g2", "T1", 0), offsets.query("g1", "T2", 1)) == (5, 5, 6)
    assert offsets.changes > changes
    assert offsets.keep_inside({}) == {}


def test_an_offset_may_move_back() -> None:
    """That is how offsets are reset."""
    offsets = filled()

    offsets.commit("g1", "T1", 0, 2)

    assert offsets.query("g1", "T1", 0) == 2


def test_a_slave_gives_up_a_commit_behind_the_log_and_keeps_one_ahead_of_it() -> None:
    """The master is handed only the second one, so nothing else would ever end the first one's difference."""
    offsets = ConsumerOffsets()
    for queue_id in (0, 1):
        offsets.apply("t", "g", queue_id, 46, own=False)
    offsets.commit("g", "t", 0, 45)
    offsets.commit("g", "t", 1, 47)

    offsets.drop_handed()

    assert offsets.of("g", "t") == {0: 46, 1: 47}
    assert offsets.unlogged() == [("t", "g", 1, 47)]


def test_the_same_commit_again_changes_nothing() -> None:
    """An idle group repeats it every few seconds; only a reset to the same offset is new, as clients have to follow it."""
    offsets = filled()
    changes, offsets.dirty = offsets.changes, {}

    offsets.commit("g1", "T1", 0, 5)

    assert (offsets.changes, offsets.dirty) == (changes, {})
    offsets.reset("g1", "T1", 0, 5)
    assert list(offsets.dirty) == [("T1", "g1", 0)]


def test_topics_and_groups_find_each_other() -> None:
    """Tools ask both ways."""
    offsets = filled()

    assert offsets.topics_of("g1") == {"T1", "T2"}
    assert offsets.groups_of("T1") == {"g1", "g2"}
    assert offsets.of("g1", "T2") == {1: 6}


def test_forgetting_leaves_the_others_alone() -> None:
    """A deleted topic or group takes its own offsets along."""
    offsets = filled()
    offsets.forget_topic("T1")
    assert offsets.topics_of("g1") == {"T2"}

    offsets.forget_group("g1")

    assert offsets.table == {}


def test_a_topic_is_forgotten_in_far_less_time_than_its_groups_have_committed_in() -> None:
    """A turn of the event loop has room for it, however many groups there are."""
    offsets = ConsumerOffsets()
    began = time.process_time()
    for number in range(100_000):
        offsets.commit(f"g{number}", "T", 0, 5)
    filled = time.process_time()

    offsets.forget_topic("T")

    assert time.process_time() - filled < (filled - began) / 4
    assert (offsets.size, len(offsets.table)) == (0, 0)


def test_the_file_is_read_back_bare_keys_included() -> None:
    """RocketMQ writes queue ids without quotes; both forms are read, ours too."""
    offsets = filled()
    again = ConsumerOffsets()

    again.load(loads(dumps(offsets.to_json())))
    again.load(loads(b'{"offsetTable":{"T1@g1":{0:9,1:4},"nonsense":{0:1}}}'))

    assert again.of("g1", "T1") == {0: 9, 1: 4}
    assert again.of("g2", "T1") == {0: 7}


def test_a_group_is_given_the_offsets_of_another() -> None:
    """Cloned offsets are the target's own from then on."""
    offsets = filled()

    offsets.clone("g1", "g9", "T1")
    offsets.commit("g1", "T1", 0, 50)

    assert offsets.query("g9", "T1", 0) == 5


def test_who_is_forgotten_is_not_found_any_more() -> None:
    """Neither by topic nor by group, and nothing waits for its pulls."""
    offsets = filled()
    offsets.clone("g1", "g9", "T2")
    offsets.reset("g1", "T1", 0, 2)

    offsets.forget_group("g1")

    assert offsets.groups_of("T1") == {"g2"}
    assert offsets.groups_of("T2") == {"g9"}
    assert offsets.topics_of("g1") == set()
    assert offsets.topics_of("g9") == {"T2"}
    assert not offsets.resets


def test_offsets_of_another_queue_are_refused_when_no_copy_could_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there move on."""
    offsets = ConsumerOffsets()
    offsets.commit("g", "T", 0, 5)
    monkeypatch.setattr(module, "TABLE_BYTES_MAX", offsets.size)

    with pytest.raises(TableFull):
        offsets.commit("g", "T", 1, 5)
    with pytest.raises(TableFull):
        offsets.clone("g", "h", "T")

    offsets.commit("g", "T", 0, 6)
    assert offsets.table == {("T", "g"): {0: 6}}


def test_the_size_follows_every_change() -> None:
    """Whatever is committed, cloned, loaded and forgotten."""
    rng, offsets = random.Random(5), ConsumerOffsets()
    for _ in range(500):
        group, topic, other = (rng.choice("abc") * rng.randint(1, 3) for _ in range(3))
        match rng.randrange(5):
            case 0 | 1:
                offsets.commit(group, topic, rng.randrange(4), 1)
            case 2:
                offsets.clone(group, other, topic)
            case 3:
                offsets.load({"offsetTable": {f"{topic}@{group}": {"0": 1, "7": 2}}})
            case _:
                rng.choice((offsets.forget_topic, offsets.forget_group))(topic)
        keys = sum(len(topic) + len(group) + ENTRY_BYTES for topic, group in offsets.table)

        assert offsets.size == keys + sum(map(len, offsets.table.values())) * ENTRY_BYTES


def test_a_group_that_is_given_its_own_offsets_keeps_them() -> None:
    """They must not be cleared to make room for themselves."""
    offsets = ConsumerOffsets()
    offsets.commit("g", "T", 0, 5)

    offsets.clone("g", "g", "T")

    assert offsets.of("g", "T") == {0: 5}
