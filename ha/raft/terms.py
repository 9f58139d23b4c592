"""Terms, and what it means to become a follower (Raft §5.1), whatever the reason: an election, a message or a removal."""

from __future__ import annotations

from . import reading
from .roles import Input
from .state import State
from .units import NO_INDEX, PeerId, Term


def become_follower(state: State, cause: Input, term: Term, leader: PeerId | None) -> None:
    """Follow `leader`, or nobody yet, in `term`."""
    led = state.leadership
    if led is not None:
        reading.refuse_all(state, led)
        state.leadership = None
        # A former leader is bound to nobody: the group needs its vote at once.
        state.heard_tick = state.now - state.settings.election_ticks_min
    state.change_role(cause)
    if term > state.term:
        enter_term(state, term, vote=None)
    state.leader = leader
    state.ballot = None
    timers = state.timers
    for timer in (timers.vote, timers.step_down, timers.heartbeat, timers.transfer, timers.preferred):
        timer.stop()
    # Raft §5.2: a higher term alone is no reason to wait longer; only a leader, or a vote that was granted, is.
    if cause is not Input.HIGHER_TERM or leader is not None or not timers.election.running:
        timers.election.start(state.draw_election_ticks())


def enter_term(state: State, term: Term, vote: PeerId | None) -> None:
    """Begin a term. What was agreed with a leader holds for its term only; what is committed agrees with every leader."""
    # A node that has forgotten its votes may have voted in this term too.
    state.term, state.vote = term, state.vote if state.forgetful else vote
    state.leader = None
    state.verified_index = state.commit_index
    state.acked_index = NO_INDEX
    state.ack_due = state.ack_at_once = False
