"""The timers of a node, and ticks that pass together."""

from __future__ import annotations

import pytest

from harness.raft.group import Group
from ledgermq.ha.raft.core import Raft
from ledgermq.ha.raft.messages import Message
from ledgermq.ha.raft.timers import Timers


def test_the_timer_that_expires_first_is_due() -> None:
    timers = Timers()
    stopped = timers.ticks_until_due
    timers.election.start(9)
    timers.commit.start(4)
    timers.skip(3)

    assert stopped == 0
    assert timers.ticks_until_due == 1
    assert (timers.election.ticks_left, timers.commit.ticks_left, timers.heartbeat.ticks_left) == (6, 1, 0)


def state_of(raft: Raft) -> tuple[int, list[int], list[Message], object]:
    timers = raft.timers
    left = [
        timer.ticks_left
        for timer in (timers.election, timers.vote, timers.step_down, timers.heartbeat, timers.commit, timers.transfer)
    ]
    return raft.now, left, raft.messages, raft.role


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("count", [1, 2, 5, 14, 15, 40])
def test_ticks_that_pass_together_do_what_single_ticks_do(name: str, count: int) -> None:
    """A node that slept counts all ticks at once; a leader's heartbeats and a follower's campaign come at the same ticks."""
    together, single = Group.of("abc"), Group.of("abc")
    for group in (together, single):
        group.elect("a")
        group.propose("a", "x")

    together[name].raft.tick(count)
    for _ in range(count):
        single[name].raft.tick()

    assert state_of(together[name].raft) == state_of(single[name].raft)
