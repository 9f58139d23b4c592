"""Known weaknesses of DLedger 0.3.1.2: each story ends well under our rule, and badly under the original's.

Every test runs twice. Under `ours` its claims must hold; under `DLedger's` the original's rule is planted into the core, and
the claims must fail: otherwise the story would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest

from harness.raft.group import Group
from harness.raft.mutants import RAFT_BUGS, planted
from harness.raft.storage import batch_of
from harness.raft.stories import A, B, C, a_node, entries
from harness.raft.task import Task, TaskQueue
from ledgermq.ha.raft import core, election, following
from ledgermq.ha.raft.core import Raft
from ledgermq.ha.raft.errors import Diverged
from ledgermq.ha.raft.log import RaftLog
from ledgermq.ha.raft.messages import Append, AppendResponse, Heartbeat, StaleTerm, VoteRequest, VoteResponse
from ledgermq.ha.raft.ready import HardState
from ledgermq.ha.raft.roles import Input
from ledgermq.ha.raft.state import State

Rule = Callable[[], AbstractContextManager[None]]
"""How to plant a rule of the original for a while."""


def known(name: str) -> Rule:
    """A rule of the original that is also a classic bug."""
    return lambda: planted(next(bug for bug in RAFT_BUGS if bug[0] == f"raft: {name}"))


def replaced(owner: Any, attribute: str, value: Any) -> Rule:
    """A rule of the original in place of a function or property of ours."""
    return lambda: planted((attribute, owner, attribute, lambda _: value))


@contextmanager
def judged(rule: str, original: Rule) -> Generator[None]:
    """Tell a story under one of the two rules; what it claims must hold under ours alone."""
    if rule == "ours":
        yield
        return
    with pytest.raises((AssertionError, Diverged)), original():
        yield


RULES = pytest.mark.parametrize("rule", ["ours", "DLedger's"])


@RULES
def test_entries_of_earlier_terms_are_not_committed_by_counting(rule: str) -> None:
    """DLedger commits whatever a majority has, of any term; Figure 8 shows how such an entry is lost again."""
    with judged(rule, known("count entries of earlier terms")):
        group = Group.of("abc", logs={"a": entries(1)})
        group["a"].opens_terms = False
        leader = group.elect("a")
        group.tick(10)

        assert leader.raft.commit_index == -1


@RULES
def test_acknowledged_entries_survive_a_power_cut_of_the_follower(rule: str) -> None:
    """DLedger acknowledges from mapped memory; a power cut takes what was not flushed."""
    with judged(rule, known("acknowledge before the follower's sync")):
        group = Group.of("abc")
        leader = group.elect("a")
        group.isolate("c")
        group.syncing = False
        group.propose("a", "x")
        leader.sync()
        group.settle()
        committed = leader.raft.commit_index
        group["b"].storage.crash()

        assert len(group.log("b")) > committed


@RULES
def test_vote_survives_a_power_cut(rule: str) -> None:
    """DLedger writes `currterm` without a sync and ignores errors; a voter that forgets its vote votes twice."""
    with judged(rule, known("do not sync the vote")):
        node = a_node()
        node.raft.step(VoteRequest(B, A, 4, -1, -1))
        node.process()
        node.start()
        node.raft.tick(node.settings.election_ticks_min)
        node.process()
        node.raft.step(VoteRequest(C, A, 4, -1, -1))

        assert node.process() == [VoteResponse(A, C, 4, granted=False)]


@RULES
def test_restarted_leader_does_not_lead_its_term_again(rule: str) -> None:
    """DLedger asks for votes in the old term first; its voters grant again, and (index, term) gets a second content."""
    original = election.start_election

    def same_term(state: State, cause: Input) -> None:
        if state.vote == state.id:
            state.term -= 1
        original(state, cause)
        assert state.ballot is not None
        state.ballot.record(state.id, granted=True)

    with judged(rule, replaced(election, "start_election", same_term)):
        group = Group.of("abc")
        leader = group.elect("a")
        group.isolate("c")
        group.syncing = False
        group.propose("a", "x")  # another node has received it; the leader loses it
        leader.storage.crash()
        leader.start()
        group.syncing = True
        group.heal()
        for name in "bc":
            group[name].raft.tick(2 * leader.settings.election_ticks_max)  # they have given the leader up
            group[name].process()
        group.elect("a")
        group.propose("a", "y")

        assert group.log("b") == group.log("a")


@RULES
def test_follower_commits_only_what_it_has_verified(rule: str) -> None:
    """DLedger's follower takes min(commit index, own end); entries of an old leader that are still there get committed."""
    with judged(rule, known("commit beyond what was verified")):
        node = a_node(*entries(1, 1), term=1)

        node.raft.step(Heartbeat(B, A, 2, 1, 1))

        assert node.raft.commit_index == -1


def _remove_without_looking(state: State, first_index: int, message: Append) -> None:
    state.log.truncate(first_index)


@RULES
def test_committed_entries_are_never_truncated(rule: str) -> None:
    """DLedger's TRUNCATE does not look at the committed index; ours refuses, because somebody has broken a promise."""
    with judged(rule, replaced(following, "_remove_from", _remove_without_looking)):
        node = a_node(*entries(1, 1), term=1)
        node.raft.step(Append(B, A, 1, 1, 1, 1))

        with suppress(Diverged):
            node.raft.step(Append(C, A, 2, 0, 1, -1, batch_of(1, entries(2))))
        node.process()

        assert node.storage.entries == list(entries(1, 1))


@RULES
def test_candidate_with_a_good_log_does_not_depose_a_healthy_leader(rule: str) -> None:
    """DLedger's healthy leader steps down for any candidate with a larger term whose log is not behind."""

    def never(_: State) -> bool:
        return False

    with judged(rule, replaced(State, "bound_to_leader", property(never))):
        group = Group.of("abc")
        leader = group.elect("a")
        group.tick(5)

        leader.raft.step(VoteRequest(C, A, 9, 100, 100))
        group.settle()

        assert (group.leaders(), leader.raft.term) == (["a"], 1)


def _deaf_to_higher_terms(original: Any) -> Any:
    def step(self: Raft, message: Any) -> None:
        if not (isinstance(message, StaleTerm) and self.leadership is not None):
            original(self, message)

    return step


@RULES
def test_minority_with_a_higher_term_comes_back_into_the_group(rule: str) -> None:
    """DLedger 0.3.1.2: a node with a higher term and a log that is behind is refused by all, and stays outside."""
    with judged(rule, lambda: planted(("", Raft, "step", _deaf_to_higher_terms))):
        group = Group.of("abc")
        group.elect("a")
        group.propose("a", "x")
        group["c"].storage.crash()
        group["c"].storage.hard_state = HardState(9)
        group["c"].start()

        group.tick(200)
        group.propose(group.leaders()[0], "y")

        assert group.log("c")[-1][1] == "y"


def _heard_just_now(values: dict[Any, int], configuration: Any, missing: int = -1) -> int:
    return max(values.values())


@RULES
def test_leader_without_majority_steps_down_after_one_election_time_out(rule: str) -> None:
    """DLedger's leader goes on for more than 6 s and takes writes that it cannot commit."""
    with judged(rule, replaced(core, "quorum_value", _heard_just_now)):
        group = Group.of("abc")
        leader = group.elect("a")
        group.isolate("a")

        group.tick(leader.settings.election_ticks_max + 2 * leader.settings.heartbeat_ticks, "a")

        assert leader.raft.leadership is None


@RULES
def test_pending_writes_are_answered_when_leadership_is_lost(rule: str) -> None:
    """DLedger never completes the futures of a leader that steps down; its clients wait for their time-outs."""

    def forget(_: TaskQueue) -> None:
        """What the original does with them."""

    with judged(rule, replaced(TaskQueue, "step_down", forget)):
        queue, answers = TaskQueue(), list[bool]()
        queue.append(Task(1, 5, answers.append))

        queue.step_down()

        assert answers == [False]


@RULES
def test_long_divergence_costs_one_round_trip_for_each_term(rule: str) -> None:
    """DLedger compares one entry for each round trip, all the way back."""

    def one_back(self: RaftLog, index: int, term: int) -> tuple[int, int]:
        index = min(index, self.last_index)
        return index, self.term_at(index) or 0

    with judged(rule, replaced(RaftLog, "last_index_at_most", one_back)):
        old = entries(1)
        logs = {"a": old + tuple((3, n) for n in range(30)), "b": old + tuple((2, n) for n in range(30)), "c": old}
        group = Group.of("abc", logs=logs)
        group.isolate("b")
        group.elect("a")
        group.heal()
        rejected = 0
        for _ in range(400):
            group.collect()
            if not group.network:
                group["a"].raft.tick()
                continue
            message = group.network.popleft()
            rejected += isinstance(message, AppendResponse) and message.sender == B and message.rejection is not None
            group.deliver(message)

        assert rejected <= 2
        assert group.log("b")[:31] == group.log("a")[:31]
