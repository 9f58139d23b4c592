"""What a simulated run sees of a group: two leaders of one term, and committed bytes that change."""

from __future__ import annotations

from harness.simulate.elections import ElectionWatch


def test_two_nodes_that_are_elected_in_one_term_are_found() -> None:
    """One node may be elected again in a later term."""
    watch = ElectionWatch(1024)
    watch.elected("a", 1)
    watch.elected("b", 2)
    watch.elected("a", 3)
    assert watch.violations == []
    assert watch.newest_term == 3

    watch.elected("a", 2)

    assert watch.violations == ["b and a were both elected in term 2"]


def test_committed_bytes_that_differ_are_found() -> None:
    """A node may commit later than another one, and what lies in another file is another place."""
    watch = ElectionWatch(1024)
    watch.compare("a", 0, memoryview(b"one two"))
    watch.compare("b", 0, memoryview(b"one"))
    watch.compare("b", 3, memoryview(b" two three"))
    watch.compare("a", 1024, memoryview(b"four"))
    assert watch.violations == []

    watch.compare("c", 3, memoryview(b" too"))

    assert watch.violations == ["c commits other bytes at position 5 than were committed there before"]
