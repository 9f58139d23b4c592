"""Elections: pre-vote, vote, and becoming the leader (Raft §5.2, thesis §9.6 and §4.2.3)."""

from __future__ import annotations

from . import forgetting, membership, replication
from .messages import PreVoteRequest, PreVoteResponse, TimeoutNow, VoteRequest, VoteResponse
from .quorum import Ballot
from .roles import Input, Role
from .state import Leadership, State
from .terms import become_follower, enter_term
from .units import PeerId


def on_election_timeout(state: State) -> None:
    """Start a pre-vote, if this node may campaign, after a follower's election timer expired (Raft §5.2)."""
    if state.promotable:
        start_pre_vote(state, Input.ELECTION_TIMEOUT)
    elif state.forgetful:
        state.leader = None
        forgetting.ask(state)
        state.timers.election.start(state.settings.heartbeat_ticks)
    else:
        state.leader = None
        state.timers.election.start(state.draw_election_ticks())


def on_vote_timeout(state: State) -> None:
    """Start again with a pre-vote after a vote was not decided in time; the term is not raised needlessly.

    Votes that are still under way count when they arrive. Where the disks need longer for a vote than an election may take,
    only such votes can elect a leader, because every new term would have to be written first.
    """
    if not state.promotable:
        become_follower(state, Input.VOTE_LOST if state.role is Role.CANDIDATE else Input.PRE_VOTE_LOST, state.term, None)
    else:
        start_pre_vote(state, Input.VOTE_TIMEOUT if state.role is Role.CANDIDATE else Input.ELECTION_TIMEOUT)


def start_pre_vote(state: State, cause: Input) -> None:
    """Ask whether an election could be won, without raising the term."""
    state.change_role(cause)
    state.leader = None
    state.timers.election.stop()
    state.timers.vote.start(state.draw_election_ticks())
    state.pre_ballot = Ballot(state.configuration)
    state.pre_ballot.record(state.id, granted=True)
    for peer in forgetting.other_voters(state):
        state.send(PreVoteRequest(state.id, peer, state.term + 1, state.log.last_index, state.log.last_term))
    if state.pre_ballot.won:
        start_election(state, Input.PRE_VOTE_WON)


def start_election(state: State, cause: Input) -> None:
    """Raise the term and ask for votes; this node's own vote counts once it is durable."""
    state.change_role(cause)
    enter_term(state, state.term + 1, vote=state.id)
    state.timers.election.stop()
    state.timers.vote.start(state.draw_election_ticks())
    state.pre_ballot, state.ballot = None, Ballot(state.configuration)
    transfer = cause is Input.TIMEOUT_NOW
    for peer in forgetting.other_voters(state):
        state.send(VoteRequest(state.id, peer, state.term, state.log.last_index, state.log.last_term, transfer))


def on_pre_vote_request(state: State, request: PreVoteRequest) -> None:
    """Grant if this node would vote for the sender in an election."""
    granted = (
        request.term > state.term
        and not state.bound_to_leader
        and not state.forgetful
        and state.log.is_up_to_date(request.last_index, request.last_term)
        and bool(state.configuration.voters)
    )
    state.send(PreVoteResponse(state.id, request.sender, request.term if granted else state.term, granted))


def on_pre_vote_response(state: State, response: PreVoteResponse) -> None:
    """Count an answer to the pre-vote of this term."""
    if state.pre_ballot is None:
        return
    if response.granted and response.term != state.term + 1:
        return
    state.pre_ballot.record(response.sender, response.granted)
    if state.pre_ballot.won:
        start_election(state, Input.PRE_VOTE_WON)
    elif state.pre_ballot.lost:
        become_follower(state, Input.PRE_VOTE_LOST, state.term, None)


def on_vote_request(state: State, request: VoteRequest) -> None:
    """Vote for the first candidate of a term whose log is not behind, and for no other in that term (Raft §5.2, §5.4.1).

    A node without any configuration is new or has lost its disk. It does not know its earlier votes and grants nothing.
    A node may have learned of this term while it hears the leader of an earlier one. It grants nothing while it does (thesis
    §4.2.3).
    """
    granted = (
        state.vote in {None, request.sender}
        and state.leader is None
        and (request.transfer or not state.bound_to_leader)
        and state.log.is_up_to_date(request.last_index, request.last_term)
        and bool(state.configuration.voters)
    )
    if granted:
        state.vote = request.sender
        if state.role is Role.PRE_CANDIDATE:
            become_follower(state, Input.VOTE_GRANTED, state.term, None)
        state.timers.election.start(state.draw_election_ticks())
    state.send(VoteResponse(state.id, request.sender, state.term, granted))


def on_vote_response(state: State, response: VoteResponse) -> None:
    """Count a vote of this term."""
    count_vote(state, response.sender, response.granted)


def count_vote(state: State, voter: PeerId, granted: bool) -> None:
    """Count the vote of a peer, or this node's own after it is durable, if this node has campaigned in this term."""
    if state.ballot is None:
        return
    state.ballot.record(voter, granted)
    if state.ballot.won:
        become_leader(state)
    elif state.ballot.lost and state.role is Role.CANDIDATE:
        become_follower(state, Input.VOTE_LOST, state.term, None)


def become_leader(state: State) -> None:
    """Become the leader: send heartbeats at once and probe the followers; the owner is asked for a barrier."""
    state.change_role(Input.VOTE_WON)
    state.leader = state.id
    state.pre_ballot = state.ballot = None
    state.verified_index = state.log.last_index
    state.leadership = Leadership(state.log.last_index + 1)
    state.timers.vote.stop()
    state.timers.step_down.start(state.settings.heartbeat_ticks)
    state.timers.preferred.start(state.settings.preferred_check_ticks if state.settings.preferred else 0)
    membership.follow_configuration(state, state.leadership)
    replication.start_round(state, state.leadership)


def on_timeout_now(state: State, message: TimeoutNow) -> None:
    """Campaign at once, without a pre-vote, because the leader transfers its leadership to this node (thesis §3.10)."""
    if state.role in {Role.FOLLOWER, Role.PRE_CANDIDATE} and state.leader in {None, message.sender} and state.promotable:
        start_election(state, Input.TIMEOUT_NOW)
