"""What the judge finds in the notes of stopped members, and a short run of `harness.processes.stopped`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.processes.stopped import END_SECONDS, Member, StoppedRun, judge, read_member

QUEUE = "T:0"


def member(name: str, end: str = "one", *, handled: tuple[int, ...] = (), begun: tuple[int, ...] = ()) -> Member:
    """A member that handled the messages of these numbers to the end, and began others; offsets are numbers."""
    places = {(QUEUE, number): number for number in handled}
    return Member(name, end, 0, 1.0, [*places, *((QUEUE, number) for number in begun)], places)


def test_a_message_that_no_member_handled_to_the_end_is_found() -> None:
    begun = [member("a", handled=(1,), begun=(2,))]

    assert judge(begun, [1, 2]) == ["message 2 was not handled"]
    assert judge([*begun, member("b", handled=(2,))], [1, 2]) == []


@pytest.mark.parametrize(("end", "found"), [("one", 1), ("two", 0), ("kill", 0)])
def test_what_was_handled_may_come_again_unless_one_signal_stopped_its_member(end: str, found: int) -> None:
    """A second signal or a kill costs the last commit."""
    assert len(judge([member("a", end, handled=(1,)), member("b", handled=(1,))], [1])) == found


def test_a_member_that_does_not_end_in_order_is_found() -> None:
    """One that a signal met before it had begun ends as any program does."""
    failed, late, early = (member(name, handled=(1,)) for name in "abc")
    failed.status, late.seconds = 1, END_SECONDS + 1
    early.status = -15
    early.begun.clear()

    assert [len(judge([each], [])) for each in (failed, late, early)] == [1, 1, 0]


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("begun T:0 1 7\nhandled T:0 1 7\nbegun T:0 2 8\nhandled T:0 2")

    found = read_member("a", tmp_path / "notes", "kill", -9)

    assert found.begun == [(QUEUE, 1), (QUEUE, 2)]
    assert found.handled == {(QUEUE, 1): 7}


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True])
async def test_members_that_are_stopped_hand_over_without_loss_and_repetition(tmp_path: Path, orderly: bool) -> None:
    """Processes of every kind, each stopped at a random moment."""
    run = StoppedRun(tmp_path, random.Random(1), orderly, lambda _: None)

    assert await run.run(6) == []
    assert any(each.in_order for each in run.members)
