"""Known bugs of Raft implementations, to be planted one at a time: each breaks a rule that the paper or the thesis states."""

# ruff: noqa: ARG005 - a mutant has the parameters of what it replaces, and reaches inside

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, TypeAlias

from ledgermq.ha.raft import ballot_box, election, following, forgetting, membership, quorum, reading, replication, terms
from ledgermq.ha.raft.core import Raft
from ledgermq.ha.raft.log import RaftLog
from ledgermq.ha.raft.quorum import Configuration, majority, quorum_value
from ledgermq.ha.raft.ready import HardState
from ledgermq.ha.raft.state import State

Planted: TypeAlias = tuple[str, Any, str, Callable[[Any], Any]]
"""What the bug does, the class or module, its attribute, and the function that makes the replacement."""


@contextmanager
def planted(bug: Planted) -> Generator[None]:
    """Plant the bug for the length of a `with` block."""
    _, owner, attribute, make = bug
    original: Any = owner.__dict__[attribute]
    setattr(owner, attribute, make(original))
    try:
        yield
    finally:
        setattr(owner, attribute, original)


def _advance_with(*, own_synced: bool, own_term: bool) -> Callable[[Any], Any]:
    """A commit rule that omits the conditions whose argument is False."""

    def make(_: Any) -> Any:
        def advance_commit(state: Any, led: Any) -> None:
            match = {replicator.peer: replicator.match_index for replicator in led.group}
            match[state.id] = state.log.durable_index if own_synced else state.log.last_index
            index = quorum.committed_index(match, state.configuration)
            if index > state.commit_index and (index >= led.term_start_index or not own_term):
                state.commit_index = index
                state.verified_index = max(state.verified_index, index)
                membership.on_commit(state, led)

        return advance_commit

    return make


def _acknowledge_unsynced(_: Any) -> Callable[[Any], Any]:
    return lambda state: state.verified_index if state.snapshot is None else state.acked_index


def _never(_: State) -> bool:
    return False


def _always(_: State) -> bool:
    return True


def _forget_the_vote(original: Any) -> Any:
    def start(cls: Any, /, *arguments: Any, hard_state: HardState = HardState(), **options: Any) -> Any:  # noqa: B008
        return original.__func__(cls, *arguments, hard_state=HardState(hard_state.term), **options)

    return classmethod(start)


def _commit_unverified(_: Any) -> Any:
    def follow_commit(state: Any, leader_commit: int) -> None:
        state.commit_index = max(state.commit_index, min(leader_commit, state.log.last_index))
        state.verified_index = max(state.verified_index, state.commit_index)

    return follow_commit


def _truncate_always(_: Any) -> Callable[[Any, Any], Any]:
    return lambda log, batch: max(batch.first_index, log.first_index)


def _count_twice(original: Any) -> Any:
    def committed_index(match: Any, configuration: Any) -> int:
        if configuration.joint or len(configuration.voters) < 3:
            return int(original(match, configuration))
        values = sorted((match.get(voter, -1) for voter in configuration.voters), reverse=True)
        return int(sorted([values[0], *values[:-1]], reverse=True)[majority(len(values)) - 1])

    return committed_index


def _apply_uncommitted(original: Any) -> Callable[[Any, Any, Any, Any], Any]:
    return lambda self, hard, soft, last: original(self, hard, soft, self.log.last_index)


def _new_voters_decide(_: Any) -> Any:
    def majorities(self: Any) -> Any:
        return (self.voters,)

    return property(majorities)


def _learners_count(_: Any) -> Any:
    def majorities(self: Any) -> Any:
        return ((*self.voters, *self.learners), *((self.outgoing,) if self.outgoing else ()))

    return property(majorities)


def _pre_vote_raises_the_term(original: Any) -> Any:
    def start_pre_vote(state: Any, cause: Any) -> None:
        terms.enter_term(state, state.term + 1, None)
        original(state, cause)

    return start_pre_vote


def _apply_again_after_a_snapshot(original: Any) -> Any:
    def on_install_snapshot(state: Any, message: Any) -> None:
        applied = state.applied_index
        original(state, message)
        state.applied_index = applied

    return on_install_snapshot


def _any_log_will_do(_: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda self, last_index, last_term: True


def _vote_for_everybody(original: Any) -> Any:
    def on_vote_request(state: Any, request: Any) -> None:
        if state.leader is None and state.vote != state.id:
            state.vote = None
        original(state, request)

    return on_vote_request


def _read_unconfirmed(_: Any) -> Any:
    def confirm_reads(state: Any, led: Any) -> None:
        if state.commit_index >= led.term_start_index:
            for read in led.reads:
                reading.answer(state, read, state.commit_index)
            led.reads = []

    return confirm_reads


def _read_before_the_barrier(_: Any) -> Any:
    def confirm_reads(state: Any, led: Any) -> None:
        rounds = {replicator.peer: replicator.confirmed_round for replicator in led.group}
        rounds[state.id] = led.round
        confirmed = quorum_value(rounds, state.configuration)
        for read in [read for read in led.reads if read.round <= confirmed]:
            led.reads.remove(read)
            reading.answer(state, read, state.commit_index if read.index is None else read.index)

    return confirm_reads


def _believe_every_sync(_: Any) -> Any:
    def mark_durable(log: Any, point: Any) -> bool:
        index = min(point.index, log.written_index)
        if index <= log.durable_index:
            return False
        log.durable_index = index
        return True

    return mark_durable


def _remember_too_much(_: Any) -> Any:
    return property(attrgetter("commit_index"))


def _never_look_after_lost_messages(_: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda state, replicator, answered_round: None


def _caught_up_with_the_own_commit_index(_: Any) -> Callable[[Any], bool]:
    def has_caught_up(state: Any) -> bool:
        index = state.commit_index
        filled = state.leader is not None and state.snapshot is None and index <= state.log.durable_index
        return filled and state.log.term_at(index) == state.term

    return has_caught_up


RAFT_BUGS: tuple[Planted, ...] = (
    (
        "raft: count entries of earlier terms",
        ballot_box,
        "advance_commit",
        _advance_with(own_synced=True, own_term=False),
    ),
    (
        "raft: count the leader before its own sync",
        ballot_box,
        "advance_commit",
        _advance_with(own_synced=False, own_term=True),
    ),
    ("raft: acknowledge before the follower's sync", following, "_durable_match", _acknowledge_unsynced),
    ("raft: do not sync the vote", Raft, "start", _forget_the_vote),
    ("raft: vote after the loss of the disk", State, "forgetful", lambda _: property(_never)),
    ("raft: remember at the first word of a leader", forgetting, "_has_caught_up", lambda _: _always),
    ("raft: remember with a part of the log", forgetting, "_has_caught_up", _caught_up_with_the_own_commit_index),
    ("raft: commit beyond what was verified", ballot_box, "follow_commit", _commit_unverified),
    ("raft: truncate what an old Append repeats", RaftLog, "find_conflict", _truncate_always),
    ("raft: count one follower twice", quorum, "committed_index", _count_twice),
    ("raft: apply what is not committed", Raft, "_hand_out", _apply_uncommitted),
    ("raft: skip the joint quorum", Configuration, "majorities", _new_voters_decide),
    ("raft: count learners", Configuration, "majorities", _learners_count),
    ("raft: raise the term in a pre-vote", election, "start_pre_vote", _pre_vote_raises_the_term),
    ("raft: apply twice after a snapshot", following, "on_install_snapshot", _apply_again_after_a_snapshot),
    ("raft: vote for a log that is behind", RaftLog, "is_up_to_date", _any_log_will_do),
    ("raft: vote twice in a term", election, "on_vote_request", _vote_for_everybody),
    ("raft: read without asking a majority", reading, "confirm_reads", _read_unconfirmed),
    ("raft: read before an entry of the term is committed", reading, "confirm_reads", _read_before_the_barrier),
    ("raft: believe a sync from before a truncation", RaftLog, "mark_durable", _believe_every_sync),
    ("raft: remember a commit index that is not durable", Raft, "checkpoint_index", _remember_too_much),
    ("raft: never look after lost messages", replication, "_probe_if_stalled", _never_look_after_lost_messages),
)
