"""Elections of the java dialect, row by row as DLedger: VOTE, a round of votes, HEART_BEAT and LEADERSHIP_TRANSFER."""

from __future__ import annotations

import pytest

from ledgermq.ha.dledger.java.core import JavaCore
from ledgermq.ha.dledger.java.election import become_leader
from ledgermq.ha.dledger.java.messages import Answer, Answered, Code, HeartBeat, Reply, Transfer, Vote, VoteRequest
from ledgermq.ha.raft.errors import TransferInProgress
from ledgermq.ha.raft.ready import HardState
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.units import PeerId

from ..java_nodes import OTHER, OWN, THIRD, answer, node, sent

NORMAL_MS = 300
"""The interval between two rounds where the lower bound is always drawn."""


def vote_request(term: int, end_term: int, end_index: int, sender: PeerId = OTHER) -> VoteRequest:
    return VoteRequest(sender=sender, to=OWN, term=term, end_index=end_index, end_term=end_term)


@pytest.mark.parametrize(
    ("vote", "leader", "request_", "result"),
    [
        (None, None, vote_request(9, 9, 9, PeerId("n9")), Vote.UNKNOWN_LEADER),
        (None, None, vote_request(9, 9, 9, OWN), Vote.UNEXPECTED_LEADER),
        (None, None, vote_request(99, 1, 99), Vote.EXPIRED_LEDGER_TERM),  # the log comes before the term: no disturbance
        (None, None, vote_request(99, 2, 1), Vote.SMALL_LEDGER_END_INDEX),
        (None, None, vote_request(2, 2, 2), Vote.EXPIRED_VOTE_TERM),
        (THIRD, THIRD, vote_request(3, 2, 2), Vote.ALREADY_HAS_LEADER),
        (THIRD, None, vote_request(3, 2, 2), Vote.ALREADY_VOTED),
        (None, THIRD, vote_request(3, 2, 2), Vote.ALREADY_HAS_LEADER),  # Java would accept
        (OTHER, None, vote_request(3, 2, 2), Vote.ACCEPT),  # a repeated request
        (None, None, vote_request(3, 2, 2), Vote.ACCEPT),
        (THIRD, THIRD, vote_request(4, 2, 2), Vote.ACCEPT),  # Java raises its term first, and accepts the next request
    ],
)
def test_vote_is_judged_in_the_order_of_dledger(
    vote: PeerId | None, leader: PeerId | None, request_: VoteRequest, result: str
) -> None:
    """A voter of term 3 whose log ends with the entry 2 of term 2; only a vote that is given changes it."""
    core = node([1, 2, 2], term=3, vote=vote, leader=leader)
    before = core.term, core.vote

    assert answer(core, request_).result == result

    if result == Vote.ACCEPT:
        assert (core.term, core.vote) == (request_.term, OTHER)
    else:
        assert (core.term, core.vote) == before


def test_the_next_round_of_a_voter_is_in_the_term_of_its_vote() -> None:
    """Although it was to raise its own term; a round above the vote would depose the leader that is being elected."""
    core = node([1, 2, 2], term=3, vote=OWN)
    core.raise_term = True
    assert answer(core, vote_request(4, 2, 2)).result == Vote.ACCEPT

    core.tick(40)

    assert {request.term for request in sent(core) if isinstance(request, VoteRequest)} == {4}


def restarted(end_index: int = 0) -> JavaCore:
    """A node that voted in its term 1, right after its start."""
    core = node([1] * (end_index + 1), term=1, vote=OWN)
    core.start(HardState(1, OWN))
    return core


def finish_round(core: JavaCore, result: str | None) -> int:
    """Let the next round of votes begin, whose requests have the returned term, and both peers give this result."""
    requests: list[VoteRequest] = []
    while not requests:
        core.tick()
        requests = [one for one in sent(core) if isinstance(one, VoteRequest)]
    while (ready := core.ready()) is not None:
        core.advance(ready)
    for request in requests:
        answer = Answer(code=Code.SUCCESS, term=request.term, result=result) if result is not None else None
        core.step(Answered(request, answer))
    return requests[0].term


@pytest.mark.parametrize("result", [None, Vote.SMALL_LEDGER_END_INDEX, Vote.ALREADY_HAS_LEADER])
def test_a_node_that_starts_again_keeps_its_term_while_it_cannot_know_that_the_leader_is_gone(result: str | None) -> None:
    """In a higher term it would refuse the leader, and a Java leader ignores that, so it would stay outside of the group."""
    core = restarted()
    assert [finish_round(core, result) for _ in range(3)] == [1, 1, 1]

    assert answer(core, HeartBeat(sender=OTHER, to=OWN, term=1)).code == Code.SUCCESS


def test_a_node_that_starts_again_does_not_lead_in_its_old_term() -> None:
    """It may have led in it, and have lost entries that others have; it asks again at once, in the next term."""
    core = restarted()
    assert finish_round(core, Vote.ACCEPT) == 1
    assert (core.role, core.next_vote_ms) == (Role.CANDIDATE, core.now_ms)

    assert finish_round(core, Vote.ACCEPT) == 2
    assert (core.role, core.term) == (Role.LEADER, 2)


def test_a_node_that_starts_again_without_a_leader_asks_in_the_next_term() -> None:
    """A majority has answered, and no node of it knows a leader."""
    core = restarted()

    assert [finish_round(core, Vote.ALREADY_VOTED) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize(
    ("results", "pause_ms", "raises"),
    [
        ({OTHER: (Vote.EXPIRED_VOTE_TERM, 7), THIRD: (Vote.ALREADY_VOTED, 1)}, NORMAL_MS, True),
        ({OTHER: (Vote.TERM_SMALL_THAN_LEDGER, 7), THIRD: (Vote.ALREADY_VOTED, 1)}, NORMAL_MS, True),
        ({OTHER: (Vote.ALREADY_HAS_LEADER, 1)}, NORMAL_MS + 6000, False),
        ({OTHER: None, THIRD: None}, NORMAL_MS, False),  # no majority is reached: the same term again, not a higher one
        ({OTHER: (Vote.EXPIRED_LEDGER_TERM, 1), THIRD: (Vote.SMALL_LEDGER_END_INDEX, 1)}, NORMAL_MS + 1000, False),
        ({OTHER: (Vote.TERM_NOT_READY, 1)}, 0, False),
        ({OTHER: (Vote.ALREADY_VOTED, 1), THIRD: (Vote.ALREADY_VOTED, 1)}, NORMAL_MS, True),
    ],
    ids=["higher term", "higher ledger", "has leader", "no majority", "larger logs", "revote immediately", "split"],
)
def test_a_round_of_votes_is_parsed_in_the_order_of_dledger(
    results: dict[PeerId, tuple[str, int] | None], pause_ms: int, raises: bool
) -> None:
    """The next round comes after the pause, and only some results raise the term."""
    core = node([1], term=1)
    core.tick()
    requests = {request.to: request for request in sent(core) if isinstance(request, VoteRequest)}
    core.vote = OWN
    core.self_vote_due = False
    core.results[OWN] = (Vote.ACCEPT, 1)

    for peer, result in results.items():
        given = Answer(code=Code.SUCCESS, term=result[1], result=result[0]) if result is not None else None
        core.step(Answered(requests[peer], given))

    assert (core.role, core.round_until_ms) == (Role.CANDIDATE, None)
    assert (core.next_vote_ms - core.now_ms, core.raise_term) == (pause_ms, raises)


def test_a_majority_of_votes_elects_in_the_same_term() -> None:
    """Row 5 of the round: a fresh group elects its first leader in term 0. The vote for itself counts once it is durable."""
    core = node(term=0)
    core.tick()
    request = next(one for one in sent(core) if isinstance(one, VoteRequest) and one.to == OTHER)
    core.step(Answered(request, Answer(code=Code.SUCCESS, term=0, result=Vote.ACCEPT)))
    assert core.role is Role.CANDIDATE

    ready = core.ready()
    assert ready is not None
    assert ready.hard_state is not None
    core.advance(ready)

    assert (core.role, core.term) == (Role.LEADER, 0)


@pytest.mark.parametrize(
    ("leader", "sender", "term", "code"),
    [
        (None, PeerId("n9"), 3, Code.UNKNOWN_MEMBER),
        (None, OWN, 3, Code.UNEXPECTED_MEMBER),
        (None, OTHER, 2, Code.EXPIRED_TERM),
        (OTHER, OTHER, 3, Code.SUCCESS),
        (None, OTHER, 3, Code.SUCCESS),
        (THIRD, OTHER, 3, Code.INCONSISTENT_LEADER),
        (THIRD, OTHER, 4, Code.SUCCESS),  # Java answers 416 first, and accepts the next one
    ],
)
def test_heart_beat_is_judged_in_the_order_of_dledger(leader: PeerId | None, sender: PeerId, term: int, code: int) -> None:
    """A node of term 3; only an accepted heartbeat makes it follow."""
    core = node([1], term=3, leader=leader)
    core.now_ms = 5000

    assert answer(core, HeartBeat(sender=sender, to=OWN, term=term)).code == code

    if code == Code.SUCCESS:
        assert (core.role, core.leader, core.term, core.heard_ms) == (Role.FOLLOWER, OTHER, term, 5000)
    else:
        assert (core.leader, core.term, core.heard_ms) == (leader, 3, 0)


@pytest.mark.parametrize(
    ("match_index", "changes", "code"),
    [
        (0, {"transferee": PeerId("n9")}, Code.UNKNOWN_MEMBER),
        (-1, {"transferee": OTHER}, Code.FALL_BEHIND_TOO_MUCH),
    ],
)
def test_a_transfer_that_cannot_work_is_refused_by_the_leader(match_index: int, changes: dict[str, PeerId], code: int) -> None:
    """It goes on leading, and accepts entries."""
    core = node([1] * 1000, term=1, vote=OWN)
    become_leader(core)
    sent(core)
    assert core.leadership is not None
    core.leadership.group.followers[OTHER].match_index = match_index

    asked = Transfer(sender=PeerId("client"), to=OWN, term=1, leader=OWN, transferee=changes["transferee"])
    assert answer(core, asked).code == code

    assert core.leadership.transfer_to is None


def test_a_transfer_asks_the_target_once_it_has_everything_and_is_answered_by_its_outcome() -> None:
    """A second transfer meanwhile is refused, and so are entries; a refusal of the target lets the leader go on."""
    core = node([1], term=1, vote=OWN)
    become_leader(core)
    sent(core)
    assert core.leadership is not None
    asked = Transfer(sender=PeerId("client"), to=OWN, term=1, leader=OWN, transferee=OTHER)
    core.step(asked)
    assert answer(core, asked).code == Code.LEADER_TRANSFERRING
    with pytest.raises(TransferInProgress):
        core.admit()
    core.leadership.group.followers[OTHER].match_index = 0
    core.tick()
    (to_target,) = [one for one in sent(core) if isinstance(one, Transfer)]
    assert (to_target.to, to_target.index) == (OTHER, 0)

    core.step(Answered(to_target, Answer(code=Code.TAKE_LEADERSHIP_FAILED, term=1)))

    (reply,) = [one for one in sent(core) if isinstance(one, Reply)]
    assert (reply.request, reply.code) == (asked, Code.TAKE_LEADERSHIP_FAILED)
    assert core.leadership.transfer_to is None


def transferring(asked: Transfer) -> JavaCore:
    """A leader of term 1 that was asked to transfer leadership to n1, which has the whole log."""
    core = node([1], term=1, vote=OWN)
    become_leader(core)
    assert core.leadership is not None
    core.leadership.group.followers[OTHER].match_index = 0
    sent(core)
    core.step(asked)
    return core


def test_the_answer_of_an_earlier_transfer_does_not_end_the_next_one() -> None:
    """It comes after its time-out, when the leader has been asked for another transfer."""
    core = transferring(Transfer(sender=PeerId("client"), to=OWN, term=1, leader=OWN, transferee=OTHER))
    core.tick()
    (first,) = [one for one in sent(core) if isinstance(one, Transfer)]
    assert core.leadership is not None
    core.leadership.success_ms = core.settings.transfer_ms
    core.tick(core.settings.transfer_ms // 10)
    assert core.leadership.transfer_to is None
    core.transfer_leadership(OTHER)
    core.tick()
    (second,) = [one for one in sent(core) if isinstance(one, Transfer)]

    core.step(Answered(first, Answer(code=Code.TAKE_LEADERSHIP_FAILED, term=1)))
    assert core.leadership.transfer_to == OTHER

    core.step(Answered(second, None))
    assert core.leadership.transfer_to is None


@pytest.mark.parametrize("asks", [True, False], ids=["asked already", "not asked yet"])
def test_a_client_is_answered_though_leadership_ends_during_its_transfer(*, asks: bool) -> None:
    """By the answer of the target if that was asked, which may lead now, and else at once."""
    asked = Transfer(sender=PeerId("client"), to=OWN, term=1, leader=OWN, transferee=OTHER)
    core = transferring(asked)
    if asks:
        core.tick()
    (*_, request) = [None, *(one for one in sent(core) if isinstance(one, Transfer))]

    core.step(HeartBeat(sender=THIRD, to=OWN, term=2))

    replies = [(one.request, one.code) for one in sent(core) if isinstance(one, Reply) and one.to == "client"]
    if request is None:
        assert replies == [(asked, Code.TAKE_LEADERSHIP_FAILED)]
        return
    assert replies == []
    core.step(Answered(request, Answer(code=Code.SUCCESS, term=2)))
    (reply,) = [one for one in sent(core) if isinstance(one, Reply)]
    assert (reply.request, reply.code) == (asked, Code.SUCCESS)


def test_a_follower_that_is_not_ready_for_the_term_gets_the_next_heartbeat_with_the_next_tick() -> None:
    """Not at once: a node that always gives this answer would get heartbeats as fast as it answers."""
    core = node([1], term=1, vote=OWN)
    become_leader(core)
    (beat,) = [one for one in sent(core) if isinstance(one, HeartBeat) and one.to == OTHER]

    core.step(Answered(beat, Answer(code=Code.TERM_NOT_READY, term=0)))
    assert sent(core) == []

    core.tick()
    assert [one.to for one in sent(core) if isinstance(one, HeartBeat)] == [OTHER, THIRD]


def test_a_leader_without_answers_becomes_a_candidate_of_its_own_term() -> None:
    """After three intervals of heartbeats."""
    core = node([1], term=1, vote=OWN)
    become_leader(core)
    for _ in range(601):
        core.tick()

    assert (core.role, core.term) == (Role.CANDIDATE, 1)


def test_a_follower_without_heartbeats_becomes_a_candidate_of_its_own_term() -> None:
    """After three intervals; its first round asks in the old term, and so finds a leader that others still have."""
    core = node([1], term=1, vote=OTHER, leader=OTHER)
    asked: list[VoteRequest] = []
    for _ in range(602):
        core.tick()
        asked += [one for one in sent(core) if isinstance(one, VoteRequest)]

    assert (core.role, core.term) == (Role.CANDIDATE, 1)
    assert {request.term for request in asked} == {1}


@pytest.mark.parametrize("term", [0, 2, 7])
def test_a_transfer_of_another_term_is_refused(term: int) -> None:
    """It was meant for a leader before, or for one that this node does not know yet; neither side acts on it."""
    leader = node([1], term=1, vote=OWN)
    become_leader(leader)
    sent(leader)
    asked = Transfer(sender=PeerId("client"), to=OWN, term=term, leader=OWN, transferee=OTHER)
    assert answer(leader, asked).code == Code.INCONSISTENT_TERM
    assert leader.leadership is not None
    assert leader.leadership.transfer_to is None

    target = node([1], term=1, leader=OTHER)
    asked = Transfer(sender=OTHER, to=OWN, term=term, leader=OTHER, transferee=OWN)
    assert answer(target, asked).code == Code.INCONSISTENT_TERM
    assert (target.role, target.asked_to_take) == (Role.FOLLOWER, None)
