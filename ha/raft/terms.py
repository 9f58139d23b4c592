"""Enter a term and become a follower (Raft §5.1), whether by an election, a message or a removal."""

from __future__ import annotations

from . import reading
from .roles import Input
from .state import State
from .units import NO_INDEX, PeerId, Term


def become_follower(state: State, cause: Input, term: Term, leader: PeerId | None) -> None:
    """Become a follower of `leader` in `term`; None if the leader is not known yet."""
    led = state.leadership
    if led is not None:
        reading.refuse_all(state, led)
        for replicator in led.group:
            known = state.acknowledged.get(replicator.peer, NO_INDEX)
            state.acknowledged[replicator.peer] = max(known, min(replicator.match_index, state.commit_index))
        state.leadership = None
        # A former leader is not bound to any leader: the group needs its vote at once.
        state.heard_tick = state.now - state.settings.election_ticks_min
    state.change_role(cause)
    if term > state.term:
        enter_term(state, term, vote=None)
    state.leader = leader
    state.pre_ballot = state.ballot = None
    timers = state.timers
    for timer in (timers.vote, timers.step_down, timers.heartbeat, timers.commit, timers.transfer, timers.preferred):
        timer.stop()
    # Raft §5.2: a higher term alone does not restart the election timer; only a leader or a granted vote does.
    if cause is not Input.HIGHER_TERM or leader is not None or not timers.election.running:
        timers.election.start(state.draw_election_ticks())


def enter_term(state: State, term: Term, vote: PeerId | None) -> None:
    """Begin a term. Only committed entries agree with every leader, so the verified and acknowledged indexes are reset."""
    # A node that has forgotten its votes may have voted in this term too, so its vote stays `FORGOTTEN`.
    state.term, state.vote = term, state.vote if state.forgetful else vote
    state.leader = None
    state.verified_index = state.commit_index
    state.acked_index = NO_INDEX
    state.ack_due = state.ack_at_once = False
