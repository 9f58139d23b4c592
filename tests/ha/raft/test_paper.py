"""One test for each rule of the Raft paper's section 5, in its order: terms, elections, replication and safety."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from harness.raft.group import Group
from harness.raft.node import BARRIER, Node
from harness.raft.storage import MemoryStorage, batch_of
from harness.raft.stories import A, B, C, a_candidate, a_leader, a_node, entries
from ledgermq.ha.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    StaleTerm,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.ready import HardState
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import PeerId


def of_type(messages: list[Message], kind: type) -> list[Message]:
    return [message for message in messages if isinstance(message, kind)]


# ---------------------------------------------------------------- §5.1 terms


@pytest.mark.parametrize("make", [a_node, a_candidate, a_leader])
def test_smaller_term_is_updated_to_the_larger_one(make: Callable[[], Node]) -> None:
    """§5.1: If one server's current term is smaller than the other's, then it updates its current term to the larger value."""
    node = make()

    node.raft.step(Append(B, A, 7, -1, -1, -1))

    assert node.raft.term == 7


@pytest.mark.parametrize("make", [a_candidate, a_leader])
def test_candidate_or_leader_with_stale_term_becomes_follower(make: Callable[[], Node]) -> None:
    """§5.1: If a candidate or leader discovers that its term is out of date, it immediately reverts to follower state."""
    node = make()

    node.raft.step(StaleTerm(B, A, 2))

    assert (node.raft.role, node.raft.term) == (Role.FOLLOWER, 2)


@pytest.mark.parametrize(
    "request_",
    [Append(B, A, 1, -1, -1, -1, batch_of(0, entries(1))), Heartbeat(B, A, 1, -1, 1), VoteRequest(B, A, 1, 9, 9)],
)
def test_request_with_stale_term_is_rejected(request_: Message) -> None:
    """§5.1: If a server receives a request with a stale term number, it rejects the request."""
    node = a_node(term=2)

    node.raft.step(request_)

    assert node.process() == [StaleTerm(A, B, 2)]
    assert (node.raft.term, node.raft.vote, node.storage.entries) == (2, None, [])


# ---------------------------------------------------------------- §5.2 elections


def test_servers_start_as_followers() -> None:
    """§5.2: When servers start up, they begin as followers."""
    assert a_node().raft.role is Role.FOLLOWER


def test_leader_sends_heartbeats_to_all_followers_periodically() -> None:
    """§5.2: Leaders send periodic heartbeats to all followers in order to maintain their authority."""
    node = a_leader()

    node.raft.tick(node.settings.heartbeat_ticks)

    assert [message.to for message in of_type(node.process(), Heartbeat)] == [B, C]


def test_follower_remains_follower_while_it_hears_a_leader() -> None:
    """§5.2: A server remains in follower state as long as it receives valid RPCs from a leader or candidate."""
    node = a_node(term=1)

    for _ in range(10):
        node.raft.step(Heartbeat(B, A, 1, -1, 1))
        node.raft.tick(node.settings.election_ticks_min - 1)

    assert node.raft.role is Role.FOLLOWER


def test_follower_that_hears_nothing_begins_an_election() -> None:
    """§5.2: If a follower receives no communication over an election timeout, it begins an election (a pre-vote first)."""
    node = a_node(term=1)

    node.raft.tick(node.settings.election_ticks_min)

    assert node.raft.role is Role.PRE_CANDIDATE
    assert [message.to for message in of_type(node.process(), PreVoteRequest)] == [B, C]


def test_candidate_raises_its_term_votes_for_itself_and_asks_all_others() -> None:
    """§5.2: A follower increments its current term, votes for itself and issues RequestVote RPCs in parallel."""
    node = a_node(*entries(1, 1), term=1)
    node.raft.step(TimeoutNow(B, A, 1))

    messages = node.process()

    assert messages == [VoteRequest(A, B, 2, 1, 1, transfer=True), VoteRequest(A, C, 2, 1, 1, transfer=True)]
    assert node.storage.hard_state == HardState(2, A)


@pytest.mark.parametrize(
    ("voters", "granted", "leads"),
    [
        ("a", "", True),
        ("abc", "", False),
        ("abc", "b", True),
        ("abcde", "b", False),
        ("abcde", "bc", True),
        ("abcd", "b", False),
    ],
)
def test_candidate_wins_with_a_majority_of_the_full_cluster(voters: str, granted: str, leads: bool) -> None:
    """§5.2: A candidate wins an election if it receives votes from a majority of the servers in the full cluster."""
    node = a_candidate(voters) if voters != "a" else a_node(voters=voters)
    if voters == "a":
        node.raft.tick(node.settings.election_ticks_min)
        node.process()

    for voter in map(PeerId, granted):
        node.raft.step(VoteResponse(voter, A, 1, granted=True))
        node.raft.step(VoteResponse(voter, A, 1, granted=True))

    assert (node.raft.role is Role.LEADER) == leads


@pytest.mark.parametrize(("vote", "candidate", "granted"), [(None, B, True), (B, B, True), (C, B, False)])
def test_server_votes_for_at_most_one_candidate_in_a_term(vote: PeerId | None, candidate: PeerId, granted: bool) -> None:
    """§5.2: Each server will vote for at most one candidate in a given term, on a first-come-first-served basis."""
    node = a_node(term=3, vote=vote)

    node.raft.step(VoteRequest(candidate, A, 3, -1, -1))

    assert node.process() == [VoteResponse(A, candidate, 3, granted)]


def test_vote_is_durable_before_it_is_sent() -> None:
    """Figure 2: The state (current term, vote) is updated on stable storage before responding to RPCs."""
    node = a_node()
    node.raft.step(VoteRequest(B, A, 4, -1, -1))

    ready = node.raft.ready()

    assert ready is not None
    assert ready.hard_state == HardState(4, B)
    assert ready.messages == (VoteResponse(A, B, 4, granted=True),)
    assert node.raft.ready() is None


def test_own_vote_counts_only_when_it_is_durable() -> None:
    """Figure 2: a candidate's vote for itself is a vote like any other."""
    node = a_node(voters="a")
    node.raft.tick(node.settings.election_ticks_min)

    ready = node.raft.ready()
    assert node.raft.role is Role.CANDIDATE
    assert ready is not None
    node.obey(ready)
    node.raft.advance(ready)

    assert node.raft.role is Role.LEADER


@pytest.mark.parametrize("term", [1, 2])
def test_candidate_recognises_a_leader_of_its_term_or_later(term: int) -> None:
    """§5.2: If the leader's term is at least as large as the candidate's, the candidate returns to follower state."""
    node = a_candidate()

    node.raft.step(Append(C, A, term, -1, -1, -1))

    assert (node.raft.role, node.raft.leader, node.raft.term) == (Role.FOLLOWER, C, term)


def test_candidate_without_decision_begins_anew() -> None:
    """§5.2: Each candidate will time out and start a new election (with a pre-vote, so the term grows only if it can win)."""
    node = a_candidate()

    node.raft.tick(node.settings.election_ticks_max)

    assert (node.raft.role, node.raft.term) == (Role.PRE_CANDIDATE, 1)


def test_votes_that_arrive_after_the_vote_has_timed_out_elect_a_leader() -> None:
    """§5.2: They were given in the current term, so no other node can win it. A slow disk delays a vote for that long."""
    node = a_candidate()
    node.raft.tick(node.settings.election_ticks_max)

    node.raft.step(VoteResponse(B, A, 1, granted=True))

    assert (node.raft.role, node.raft.term) == (Role.LEADER, 1)


def test_late_votes_of_an_earlier_term_do_not_count() -> None:
    """§5.2: A candidate wins with votes for the same term."""
    node = a_candidate()
    node.raft.tick(node.settings.election_ticks_max)
    node.raft.step(PreVoteResponse(B, A, 2, granted=True))
    node.process()
    assert (node.raft.role, node.raft.term) == (Role.CANDIDATE, 2)

    node.raft.step(VoteResponse(B, A, 1, granted=True))
    node.raft.step(VoteResponse(C, A, 1, granted=True))

    assert node.raft.role is Role.CANDIDATE


def test_late_refusals_do_not_end_the_pre_vote() -> None:
    node = a_candidate()
    node.raft.tick(node.settings.election_ticks_max)

    node.raft.step(VoteResponse(B, A, 1, granted=False))
    node.raft.step(VoteResponse(C, A, 1, granted=False))

    assert node.raft.role is Role.PRE_CANDIDATE


def test_no_election_times_out_while_term_and_vote_are_written() -> None:
    """Figure 2: they are durable before requests are sent, so until then nobody can have answered."""
    node = a_node()
    node.raft.tick(node.settings.election_ticks_max)
    node.process()
    node.raft.step(PreVoteResponse(B, A, 1, granted=True))
    ready = node.raft.ready()
    assert ready is not None

    node.raft.tick(10 * node.settings.election_ticks_max)
    assert (node.raft.role, node.raft.term) == (Role.CANDIDATE, 1)
    node.obey(ready)
    node.raft.advance(ready)
    node.raft.tick(node.settings.election_ticks_max)

    assert node.raft.role is Role.PRE_CANDIDATE


def test_election_time_outs_are_spread_over_the_whole_range() -> None:
    """§5.2: Election timeouts are chosen randomly from a fixed interval."""
    rng, settings = Random(1), Settings()
    seen = Counter[int]()
    for _ in range(1000):
        node = Node(A, settings, rng.randint, MemoryStorage(Configuration((A, B, C))))
        seen[node.raft.timers.election.ticks_left] += 1

    assert set(seen) == set(range(settings.election_ticks_min, settings.election_ticks_max + 1))


# ---------------------------------------------------------------- §5.3 log replication


def test_append_names_the_entry_before_the_new_ones() -> None:
    """§5.3: The leader includes the index and term of the entry in its log that immediately precedes the new entries."""
    group = Group.of("abc")
    leader = group.elect("a")
    leader.propose("x")

    append = next(message for message in leader.process() if isinstance(message, Append) and message.to == B)

    assert (append.prev_index, append.prev_term, append.batch) == (0, 1, batch_of(1, ((1, "x"),)))


def test_entry_is_committed_once_a_majority_has_it_with_all_before_it() -> None:
    """§5.3: A log entry is committed once the leader has replicated it on a majority, and all entries before it too."""
    group = Group.of("abcde")
    leader = group.elect("a")
    group.isolate("d")
    group.isolate("e")
    group.propose("a", "x", "y")
    assert [value for _, (_, value) in leader.applied] == [BARRIER, "x", "y"]

    group.isolate("c")
    group.propose("a", "z")
    assert leader.last_applied == 2


def test_followers_learn_the_commit_index_and_apply_in_log_order() -> None:
    """§5.3: The leader includes the highest index it knows to be committed; followers apply entries in log order."""
    group = Group.of("abc")
    group.elect("a")

    group.propose("a", "x", "y")
    group.tick(1)

    assert group["b"].applied == group["c"].applied == [(0, (1, BARRIER)), (1, (1, "x")), (2, (1, "y"))]


@pytest.mark.parametrize(
    ("prev_index", "prev_term", "accepted"), [(-1, -1, True), (0, 1, True), (1, 2, True), (1, 1, False), (2, 2, False)]
)
def test_follower_refuses_entries_that_do_not_follow_its_log(prev_index: int, prev_term: int, accepted: bool) -> None:
    """§5.3: If the follower does not find an entry with the same index and term, then it refuses the new entries."""
    node = a_node(*entries(1, 2), term=2)

    node.raft.step(Append(B, A, 3, prev_index, prev_term, -1))

    [answer] = node.process()
    assert isinstance(answer, AppendResponse)
    assert (answer.rejection is None) == accepted


FIGURE_7 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


@pytest.mark.parametrize("follower", FIGURE_7)
def test_every_follower_of_figure_7_is_brought_to_the_leaders_log(follower: str) -> None:
    """§5.3, Figure 7: The leader forces the followers' logs to duplicate its own; conflicting entries are overwritten."""
    leader_log = tuple((term, (term, index)) for index, term in enumerate((1, 1, 1, 4, 4, 5, 5, 6, 6, 6)))
    follower_log = tuple((term, (term, index)) for index, term in enumerate(FIGURE_7[follower]))
    group = Group.of("lfx", logs={"l": leader_log, "x": leader_log, "f": follower_log})
    group.isolate("f")
    for name in "lfx":
        group[name].storage.hard_state = HardState(7)
        group[name].start()
    leader = group.elect("l")

    group.heal()
    group.tick(20)

    assert group.log("f") == group.log("l") == [*leader_log, (8, BARRIER)]
    assert leader.last_applied == 10


def test_leader_never_removes_or_overwrites_its_own_entries() -> None:
    """§5.3, Leader Append-Only: A leader never overwrites or deletes entries in its log; it only appends new entries."""
    group = Group.of("abc", logs={"a": entries(1, 1, 1), "b": entries(1), "c": entries(1)})
    leader = group.elect("a")

    group.tick(20)

    assert leader.storage.entries[:3] == list(entries(1, 1, 1))


def test_disagreement_is_skipped_by_whole_terms() -> None:
    """§5.3: One AppendEntries RPC will be required for each term with conflicting entries, rather than one per entry."""
    old = entries(*[1] * 5)
    logs = {"a": old + tuple((3, n) for n in range(50)), "b": old + tuple((2, n) for n in range(40)), "c": old}
    group = Group.of("abc", logs=logs)
    group.isolate("b")
    leader = group.elect("a")
    group.heal()
    group.tick(5)

    rejected: list[Message] = []
    for _ in range(200):
        group.collect()
        rejected += [m for m in group.network if isinstance(m, AppendResponse) and m.rejection is not None]
        if not group.network:
            break
        group.deliver(group.network.popleft())

    assert group.log("b")[:55] == leader.storage.entries[:55]
    assert len({(m.sender, m.rejection) for m in rejected if isinstance(m, AppendResponse)}) <= 2


def test_lost_appends_are_sent_again_until_all_followers_have_all_entries() -> None:
    """§5.3: The leader retries AppendEntries RPCs indefinitely until all followers eventually store all log entries."""
    group = Group.of("abc")
    group.elect("a")
    group.isolate("c")
    for value in range(5):
        group.propose("a", value)
        group.tick(1, "a", "b")

    group.heal()
    group.tick(20)

    assert group.log("c") == group.log("a")


# ---------------------------------------------------------------- §5.4 safety


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(1, 2, True), (2, 2, True), (0, 3, True), (0, 2, False), (9, 1, False), (-1, -1, False)],
)
def test_voter_denies_its_vote_if_its_own_log_is_more_up_to_date(last_index: int, last_term: int, granted: bool) -> None:
    """§5.4.1: The later last term is more up-to-date; with equal terms the longer log is."""
    node = a_node(*entries(1, 2), term=2)

    node.raft.step(VoteRequest(B, A, 4, last_index, last_term))

    assert node.process() == [VoteResponse(A, B, 4, granted)]


def test_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    """§5.4.2, Figure 8: Raft never commits log entries from previous terms by counting replicas."""
    logs = {"a": (1, 2), "b": (1, 2), "c": (1,), "d": (1,), "e": (1, 3)}
    group = Group.of("abcde", logs={name: entries(*terms) for name, terms in logs.items()})
    for node in group.nodes.values():
        node.storage.hard_state = HardState(3)
        node.start()
    leader = group["a"]
    leader.opens_terms = False  # (c): the leader of term 4 has no entry of its own yet
    group.isolate("d")
    group.isolate("e")
    group.elect("a")

    group.tick(10)
    assert [group.log(name) for name in "abc"] == [list(entries(1, 2))] * 3
    assert leader.raft.commit_index == -1

    group.heal()
    group.isolate("a")  # (d): the node that led term 3 is elected and overwrites the entry of term 2
    group.elect("e")
    group.tick(10)
    assert group.log("b") == group.log("c") == [*entries(1, 3), (5, BARRIER)]


def test_entries_of_earlier_terms_are_committed_with_one_of_the_leaders_term() -> None:
    """§5.4.2, Figure 8 (e): Once an entry from the current term has been committed, all prior entries are committed too."""
    group = Group.of("abc", logs={"a": entries(1, 2), "b": entries(1), "c": entries(1)})

    leader = group.elect("a")

    assert leader.last_applied == 2
    assert leader.raft.log.last_term == leader.raft.term


def test_retried_append_has_no_effect() -> None:
    """§5.5: If a follower receives an AppendEntries request that includes entries already present, it ignores those entries."""
    node = a_node(term=1)
    long = Append(B, A, 1, -1, -1, -1, batch_of(0, entries(1, 1, 1)))
    short = Append(B, A, 1, -1, -1, -1, batch_of(0, entries(1)))

    for append in (long, short, long, short):
        node.raft.step(append)
        node.process()

    assert node.storage.entries == list(entries(1, 1, 1))
