"""Elections as in DLedger 0.3.1.2 (DLedgerLeaderElector): rounds of votes, heartbeats, transfers; it does no I/O.

A candidate repeats its current term until a round is clearly lost, so a node that reaches no majority does not raise its term;
this is DLedger's substitute for a pre-vote. The order of the checks and the result codes are those of Java, because Java
candidates depend on them.
"""

from __future__ import annotations

from ...raft.roles import Role
from ...raft.units import PeerId
from .messages import Answer, Answered, Code, HeartBeat, Reply, Transfer, Vote, VoteRequest
from .reading import confirm_reads
from .replication import begin_leading
from .state import JavaState

# ------------------------------------------------------------------------------------------------------------- as a candidate


def tick_candidate(state: JavaState) -> None:
    """Begin a round of votes if one is due, or end one that timed out."""
    if state.round_until_ms is not None:
        if state.now_ms >= state.round_until_ms:
            _end_round(state)
        return
    if state.now_ms < state.next_vote_ms:
        return
    if state.raise_term or state.known_term > state.term:
        state.term = max(state.known_term, state.term + 1)
        state.vote = None
        state.raise_term = state.probing = False
    _begin_round(state)


def _begin_round(state: JavaState) -> None:
    state.results.clear()
    state.round_until_ms = state.now_ms + state.draw(state.settings.vote_round_ms, state.settings.vote_round_ms * 3 // 2)
    if state.vote is None:
        state.vote, state.self_vote_due = state.id, True
    elif state.vote == state.id:
        state.self_vote_due = True
    else:
        state.results[state.id] = (Vote.ALREADY_VOTED, state.term)
    for peer in state.others:
        state.send(VoteRequest(sender=state.id, to=peer, term=state.term, end_index=state.end_index, end_term=state.end_term))


def count_self_vote(state: JavaState) -> None:
    """Count this node's vote for itself, which is now durable."""
    if state.self_vote_due:
        state.self_vote_due = False
        if state.role is Role.CANDIDATE and state.round_until_ms is not None and state.vote == state.id:
            state.results[state.id] = (Vote.ACCEPT, state.term)
            _end_round_if_decided(state)


def on_vote_answer(state: JavaState, request: VoteRequest, answer: Answer | None) -> None:
    """Record a peer's answer to a vote request; None if it did not answer in time."""
    if state.role is not Role.CANDIDATE or state.round_until_ms is None or request.term != state.term:
        return
    state.results[request.to] = (answer.result, answer.term) if answer is not None else (Vote.UNKNOWN, -1)
    _end_round_if_decided(state)


def _end_round_if_decided(state: JavaState) -> None:
    results = [result for result, _ in state.results.values()]
    accepted, not_ready = results.count(Vote.ACCEPT), results.count(Vote.TERM_NOT_READY)
    decided = accepted >= state.quorum or accepted + not_ready >= state.quorum or Vote.ALREADY_HAS_LEADER in results
    if decided or len(results) == len(state.configuration.voters):
        _end_round(state)


def _end_round(state: JavaState) -> None:
    """Evaluate the results of the round in the same order as DLedger."""
    results = list(state.results.values())
    words = [result for result, _ in results]
    accepted, not_ready = words.count(Vote.ACCEPT), words.count(Vote.TERM_NOT_READY)
    valid = sum(word != Vote.UNKNOWN for word in words)
    bigger = words.count(Vote.EXPIRED_LEDGER_TERM) + words.count(Vote.SMALL_LEDGER_END_INDEX)
    larger = (Vote.TERM_SMALL_THAN_LEDGER, Vote.EXPIRED_VOTE_TERM)
    highest = max([term for word, term in results if word in larger], default=-1)
    state.round_until_ms = None
    pause, settings = state.vote_interval(), state.settings
    if highest > state.term:
        state.known_term, state.raise_term = max(state.known_term, highest), True
    elif Vote.ALREADY_HAS_LEADER in words:
        pause += settings.heartbeat_ms * settings.heartbeat_leak
    elif valid < state.quorum:
        pass
    elif valid - bigger < state.quorum:
        pause += settings.vote_interval_max_ms
    elif accepted >= state.quorum:
        if not state.probing:
            become_leader(state)
            return
        pause, state.raise_term = 0, True
    elif accepted + not_ready >= state.quorum:
        pause = 0
    else:
        state.raise_term = True
    state.next_vote_ms = state.now_ms + pause


def become_leader(state: JavaState) -> None:
    """Become the leader of the current term (changeRoleToLeader)."""
    begin_leading(state)
    tick_heartbeats(state)
    if state.taking is not None:
        state.send(Reply(request=state.taking, code=Code.SUCCESS, term=state.term, leader=state.id))
        state.taking = None


def on_vote(state: JavaState, request: VoteRequest) -> None:
    """Answer a candidate; its log is checked before its term, as in DLedger (handleVote)."""
    state.send(Reply(request=request, result=_judge(state, request), term=state.term, leader=request.sender))


def _judge(state: JavaState, request: VoteRequest) -> str:
    if request.sender not in state.configuration.voters:
        return Vote.UNKNOWN_LEADER
    if request.sender == state.id:
        return Vote.UNEXPECTED_LEADER
    if request.end_term < state.end_term:
        return Vote.EXPIRED_LEDGER_TERM
    if request.end_term == state.end_term and request.end_index < state.end_index:
        return Vote.SMALL_LEDGER_END_INDEX
    if request.term < state.term:
        return Vote.EXPIRED_VOTE_TERM
    if request.term == state.term and state.vote not in (None, request.sender):
        return Vote.ALREADY_HAS_LEADER if state.leader is not None else Vote.ALREADY_VOTED
    if request.term > state.term:
        # Java refuses once and raises its term a moment later; voting at once is as safe, once the vote is durable.
        state.adopt_term(request.term)
    if state.leader is not None and state.leader != request.sender:
        return Vote.ALREADY_HAS_LEADER
    state.vote = request.sender
    return Vote.ACCEPT


# ----------------------------------------------------------------------------------------------------------------- heartbeats


def on_heartbeat(state: JavaState, beat: HeartBeat) -> None:
    """Follow the sender of a heartbeat as leader, and adopt its term (handleHeartBeat)."""
    if beat.sender not in state.configuration.voters:
        code = Code.UNKNOWN_MEMBER
    elif beat.sender == state.id:
        code = Code.UNEXPECTED_MEMBER
    elif beat.term < state.term:
        code = Code.EXPIRED_TERM
    elif beat.term == state.term and state.leader not in (None, beat.sender):
        code = Code.INCONSISTENT_LEADER
    else:
        code = Code.SUCCESS
        if beat.term > state.term:
            state.adopt_term(beat.term)
        state.become_follower(beat.sender)
        if state.taking is not None:  # another node became the leader instead
            _refuse_to_take(state, state.taking)
            state.taking = None
    state.send(Reply(request=beat, code=code, term=state.term, leader=state.leader))


def tick_follower(state: JavaState) -> None:
    """Become a candidate when the leader has sent no heartbeat for too long."""
    if state.now_ms - state.heard_ms > state.settings.heartbeat_ms * state.settings.heartbeat_leak:
        state.become_candidate(state.term)
        state.next_vote_ms = state.now_ms + state.draw(0, state.settings.vote_interval_min_ms)


def tick_heartbeats(state: JavaState) -> None:
    """Send heartbeats, and step down if no majority answers them."""
    led, settings = state.leadership, state.settings
    assert led is not None
    if state.now_ms - led.success_ms > settings.heartbeat_ms * settings.heartbeat_leak:
        state.become_candidate(state.term)
        state.next_vote_ms = state.now_ms + state.vote_interval()
        return
    if state.now_ms >= led.beat_at_ms:
        led.beat_at_ms = state.now_ms + settings.heartbeat_ms
        led.beat_ok = {state.id}
        led.round += 1
        for peer in state.others:
            state.send(HeartBeat(sender=state.id, to=peer, term=state.term, round=led.round))
        if state.quorum == 1:
            led.success_ms = state.now_ms
        confirm_reads(state)


def on_heartbeat_answer(state: JavaState, beat: HeartBeat, answer: Answer | None) -> None:
    """Handle a follower's answer to a heartbeat: it confirms this leader or has a higher term."""
    led = state.leadership
    if led is None or beat.term != state.term or answer is None:
        return
    follower = led.group.get(beat.to)
    if follower is not None:
        follower.contact_tick = state.now_ms
    if answer.code == Code.SUCCESS:
        led.beat_ok.add(beat.to)
        if follower is not None:
            follower.follows = True
            follower.confirmed_round = max(follower.confirmed_round, beat.round)
            confirm_reads(state)
        if len(led.beat_ok) >= state.quorum:
            led.success_ms = state.now_ms
    elif answer.code == Code.TERM_NOT_READY:
        # The follower raises its term and accepts the next heartbeat, so the next round is due with the next tick.
        led.beat_at_ms = state.now_ms
    elif answer.code == Code.EXPIRED_TERM and answer.term > state.term:
        state.adopt_term(answer.term)
    elif answer.code == Code.INCONSISTENT_LEADER:
        state.become_candidate(state.term)
        state.raise_term = True
        state.next_vote_ms = state.now_ms + state.vote_interval()


# ------------------------------------------------------------------------------------------------------------------- transfer


def on_transfer(state: JavaState, request: Transfer) -> None:
    """Transfer leadership to another node, or take it over from the leader (handleLeadershipTransfer)."""
    led = state.leadership
    code: int = Code.SUCCESS
    if request.transferee == state.id and request.sender == state.leader and request.term == state.term:
        if state.asked_to_take is not None:
            _refuse_to_take(state, state.asked_to_take[0])
        state.asked_to_take = (request, state.now_ms + state.settings.take_wait_ms)
        tick_taking(state)
        return
    if request.transferee == state.id:
        code = Code.INCONSISTENT_TERM if request.sender == state.leader else Code.INCONSISTENT_LEADER
    elif request.transferee not in state.configuration.voters:
        code = Code.UNKNOWN_MEMBER
    elif request.term != state.term:
        code = Code.INCONSISTENT_TERM
    elif led is None:
        code = Code.NOT_LEADER
    elif led.transfer_to is not None:
        code = Code.LEADER_TRANSFERRING
    else:
        follower = led.group.get(request.transferee)
        lag = state.log.last_index - (follower.match_index if follower is not None else -1)
        if lag < state.settings.transfer_lag_max:
            start_transfer(state, request.transferee, request)
            return
        code = Code.FALL_BEHIND_TOO_MUCH
    state.send(Reply(request=request, code=code, term=state.term, leader=state.leader))


def tick_taking(state: JavaState) -> None:
    """Take over leadership once this log has the entries that the leader named, or refuse after the time-out."""
    if state.asked_to_take is None:
        return
    request, until_ms = state.asked_to_take
    follows = state.role is Role.FOLLOWER and state.leader == request.sender and state.term == request.term
    if follows and state.log.durable_index < request.index and state.now_ms < until_ms:
        return
    state.asked_to_take = None
    if follows and state.log.durable_index >= request.index:
        state.taking = request
        state.become_candidate(state.term + 1)
        state.raise_term, state.next_vote_ms = True, state.now_ms
    else:
        _refuse_to_take(state, request)


def start_transfer(state: JavaState, target: PeerId, request: Transfer | None = None) -> None:
    """Refuse new entries until `target` leads or the transfer times out."""
    led = state.leadership
    assert led is not None
    end_transfer(state, Code.TAKE_LEADERSHIP_FAILED)  # one of an earlier leadership
    led.transfer_to = target
    led.transfer_until_ms, state.handing_over = state.now_ms + state.settings.transfer_ms, request


def tick_transfer(state: JavaState) -> None:
    """Ask the target to take over once it has the whole log, and abort the transfer after its time-out."""
    led = state.leadership
    if led is None or led.transfer_to is None:
        return
    follower = led.group.get(led.transfer_to)
    if state.now_ms >= led.transfer_until_ms:
        end_transfer(state, Code.TAKE_LEADERSHIP_FAILED)
    elif follower is not None and state.transfer_asked is None and follower.match_index == state.log.last_index:
        state.transfer_asked = Transfer(
            sender=state.id,
            to=led.transfer_to,
            term=state.term,
            leader=state.id,
            transferee=led.transfer_to,
            index=state.log.last_index,
        )
        state.send(state.transfer_asked)


def on_transfer_answer(state: JavaState, answered: Answered) -> None:
    """End the transfer: the target has become the leader, or could not."""
    if answered.request is not state.transfer_asked:  # that transfer has timed out
        return
    answer = answered.answer
    succeeded = answer is not None and answer.code == Code.SUCCESS
    end_transfer(state, Code.SUCCESS if succeeded else Code.TAKE_LEADERSHIP_FAILED)


def end_transfer(state: JavaState, code: int) -> None:
    """Answer the request for the transfer, and accept entries again if this node still leads."""
    if state.handing_over is not None:
        state.send(Reply(request=state.handing_over, code=code, term=state.term, leader=state.leader))
    state.handing_over = state.transfer_asked = None
    if state.leadership is not None:
        state.leadership.transfer_to = None


def _refuse_to_take(state: JavaState, request: Transfer) -> None:
    state.send(Reply(request=request, code=Code.TAKE_LEADERSHIP_FAILED, term=state.term, leader=state.leader))
