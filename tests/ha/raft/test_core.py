"""The core as its owner sees it: elections, replication, and the Ready discipline."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness.raft.group import Group
from harness.raft.node import BARRIER
from harness.raft.storage import batch_of
from harness.raft.stories import A, B, C
from ledgermq.ha.raft.batch import Snapshot
from ledgermq.ha.raft.errors import ChangeRefused, NotLeader, TermTooHigh, TwoLeaders
from ledgermq.ha.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    Regressed,
    StaleTerm,
    TermAnswer,
    TermQuery,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ledgermq.ha.raft.progress import Mode
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.ready import HardState
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import FORGOTTEN, TERM_LEAD_MAX, TERM_MAX, PeerId, highest_acceptable


def test_single_node_elects_itself_and_commits_alone() -> None:
    group = Group.of("a")

    group.elect("a")
    group.propose("a", "x", "y")

    assert group["a"].applied == [(0, (1, BARRIER)), (1, (1, "x")), (2, (1, "y"))]


def test_single_node_answers_a_read_in_the_round_of_a_heartbeat_that_was_due_at_once() -> None:
    group = Group.of("a")
    group.elect("a")
    node = group["a"]

    node.raft.read_index("r1")
    node.raft.tick(Settings().heartbeat_ticks)
    node.process()

    assert list(node.reads) == ["r1"]


def test_three_nodes_elect_a_leader_and_replicate_what_it_is_given() -> None:
    group = Group.of("abc")

    group.elect("b")
    group.propose("b", "x")
    group.tick(5)

    assert group.leaders() == ["b"]
    for name in "abc":
        assert group.log(name) == [(1, BARRIER), (1, "x")]
        assert group[name].applied == [(0, (1, BARRIER)), (1, (1, "x"))]


def test_another_leader_follows_when_the_first_is_cut_off() -> None:
    group = Group.of("abc")
    group.elect("a")
    group.propose("a", "x")

    group.isolate("a")
    group.elect("b")
    group.propose("b", "y")
    group.tick(group["a"].settings.election_ticks_max + 10)

    assert group["a"].raft.role is not Role.LEADER
    group.heal()
    group.tick(10)
    assert group.log("a") == [(1, BARRIER), (1, "x"), (2, BARRIER), (2, "y")]


def test_proposal_to_a_follower_names_the_leader() -> None:
    group = Group.of("abc")
    group.elect("a")

    with pytest.raises(NotLeader) as refusal:
        group["b"].propose("x")
    assert refusal.value.leader == "a"


def test_nothing_is_committed_before_a_majority_has_synced() -> None:
    group = Group.of("abc")
    group.elect("a")
    committed = group["a"].raft.commit_index

    group.syncing = False
    group.propose("a", "x")
    assert group["a"].raft.commit_index == committed
    group["b"].sync()
    group.settle()
    assert group["a"].raft.commit_index == committed
    group["c"].sync()
    group.settle()
    assert group["a"].raft.commit_index == committed + 1


def test_commit_index_waits_for_the_next_entries_but_for_one_tick_at_most() -> None:
    """No message carries only a commit index while entries that carry it follow within a tick."""
    group = Group.of("abc")
    group.elect("a")
    group.tick(group["a"].settings.heartbeat_ticks - 1)
    leader = group["a"].raft

    group.propose("a", "x")
    alone = [group[name].raft.commit_index for name in "bc"]
    group.propose("a", "y")
    followed = [group[name].raft.commit_index for name in "bc"]
    group.tick(1, "a")

    assert leader.commit_index == leader.log.last_index == 2
    assert (alone, followed) == ([0, 0], [1, 1])
    assert [group[name].raft.commit_index for name in "bc"] == [2, 2]


def test_followers_read_brings_it_the_commit_index_too() -> None:
    """A read of a follower waits until the follower has applied its index, which the round of heartbeats for it carries."""
    group = Group.of("abc")
    group.elect("a")
    group.tick(1)
    group.propose("a", "x")
    before = group["b"].raft.commit_index

    group["b"].raft.read_index("read")
    group.settle()

    assert (before, group["b"].raft.commit_index) == (0, 1)
    assert group["b"].reads == {"read": 1}


def test_heartbeat_of_an_earlier_term_confirms_nothing() -> None:
    """A delayed heartbeat of a node's earlier leadership is not answered as if it belonged to its present one."""
    group = Group.of("abc")
    group.elect("a")
    old = Heartbeat(PeerId("a"), PeerId("b"), 1, -1, 90)
    group.elect("b")
    group.elect("a")
    assert group["a"].raft.term == 3

    group["b"].raft.step(old)
    answers = group["b"].process()

    assert answers == [StaleTerm(PeerId("b"), PeerId("a"), 3)]


def test_follower_whose_sent_entries_were_compacted_gets_a_snapshot() -> None:
    """A full window of lost Appends must not hold a follower back when the leader has compacted them meanwhile."""
    group = Group.of("abc", settings=Settings(inflight_batches_max=1, append_bytes_max=1, probe_bytes_max=1))
    leader = group.elect("a")
    group.isolate("c")
    group.propose("a", "x")
    group.propose("a", "y")
    leader.compact(2)

    group.heal()
    group.tick(20)

    assert group["c"].raft.commit_index == leader.raft.commit_index == 2


def test_snapshot_that_a_lost_connection_held_is_sent_again_over_the_next_one() -> None:
    """Not only after `snapshot_retry_ticks`, while a majority may need the follower."""
    group = Group.of("abc")
    group.isolate("c")
    leader = group.elect("a")
    group.propose("a", "x", "y", "z")
    leader.compact(2)
    group.heal()
    group.cut.add((PeerId("a"), PeerId("c")))
    leader.raft.reconnected(PeerId("c"))
    group.settle()
    assert leader.raft.leadership is not None
    replicator = leader.raft.leadership.group.get(PeerId("c"))
    assert replicator is not None
    assert replicator.mode is Mode.SNAPSHOT

    group.heal()
    leader.raft.reconnected(PeerId("c"))
    group.settle()

    assert group.log("c") == group.log("a")


def test_vote_of_a_term_that_was_learned_while_a_leader_was_heard_is_not_given() -> None:
    """Node b hears a in term 1; a late message tells it of term 2, in which c campaigns."""
    group = Group.of("abcde")
    group.elect("a")
    group.tick(5)
    voter = group["b"]

    voter.raft.step(StaleTerm(PeerId("d"), PeerId("b"), 2))
    voter.raft.step(VoteRequest(PeerId("c"), PeerId("b"), 2, 99, 99))

    assert voter.raft.term == 2
    assert voter.process() == [VoteResponse(PeerId("b"), PeerId("c"), 2, granted=False)]
    assert voter.raft.vote is None


def test_second_leader_of_a_term_stops_the_node() -> None:
    """Two nodes that were given one name may both win an election; whoever finds out must not go on."""
    group = Group.of("abc")
    leader = group.elect("a")

    with pytest.raises(TwoLeaders, match="b leads term 1 too"):
        leader.raft.step(Heartbeat(PeerId("b"), PeerId("a"), 1, -1, 1))


@pytest.mark.parametrize(
    "append",
    [
        Append(A, B, 1, 5, 2, -1),
        Append(A, B, 1, -1, -1, -1, batch_of(3, ((1, "x"),))),
        Append(A, B, 1, -1, -1, -1, batch_of(0, ((2, "x"),))),
        Append(A, B, 3, 0, 2, -1, batch_of(1, ((1, "x"),))),
    ],
    ids=["term of the future before", "gap", "term of the future", "descending terms"],
)
def test_append_that_makes_no_sense_is_ignored(append: Append) -> None:
    node = Group.of("abc")["b"]

    node.raft.step(append)
    node.process()

    assert node.storage.entries == []
    assert node.raft.commit_index == -1


def test_reads_beyond_the_bound_are_refused_until_later() -> None:
    group = Group.of("abc", settings=Settings(pending_reads_max=1))
    leader = group.elect("a")
    group.isolate("a")

    leader.raft.read_index("first")
    leader.raft.read_index("second")
    leader.process()

    assert leader.reads == {"second": None}


def test_learner_forgets_a_leader_that_it_no_longer_hears() -> None:
    group = Group.of("abc", "d")
    group.elect("a")
    group.tick(5)
    assert group["d"].raft.leader == "a"

    group.isolate("d")
    group.tick(40, "d")

    assert (group["d"].raft.leader, group["d"].raft.role) == (None, Role.FOLLOWER)


def test_transfer_to_a_learner_is_refused() -> None:
    group = Group.of("abc", "d")
    leader = group.elect("a")

    with pytest.raises(ChangeRefused, match="d is not a voter of this group"):
        leader.raft.transfer_leadership(PeerId("d"))


def test_preferred_node_is_given_the_leadership() -> None:
    group = Group.of("abc", settings=Settings(preferred=frozenset({PeerId("c")})))
    group.elect("a")

    group.tick(60)

    assert group.leaders() == ["c"]


def test_preferred_node_that_does_not_take_the_leadership_is_asked_ever_more_seldom() -> None:
    """As one that has lost its disk while another voter is away: proposals are refused while it is asked."""
    preferred = frozenset({PeerId("c")})
    settings = Settings(preferred=preferred, preferred_retry_ticks=100, preferred_retry_ticks_max=400)
    group = Group.of("abc", settings=settings)
    leader = group.elect("a")
    group.isolate("b")
    group["c"].raft.vote = FORGOTTEN
    asked: list[int] = []

    for _ in range(1200):
        group.tick()
        led = leader.raft.leadership
        assert led is not None
        if led.preferred_tick is not None and led.preferred_tick not in asked:
            asked.append(led.preferred_tick)

    assert [after - before for before, after in pairwise(asked)] == [100, 200, 400, 400]
    assert leader.raft.leadership is not None


def restore(group: Group, name: str, length: int) -> None:
    """Start a node from a copy of its disk that was made when its log had `length` entries."""
    node = group[name]
    del node.storage.entries[length:]
    node.storage.hard_state = HardState(node.storage.hard_state.term, None)
    node.storage.sync()
    node.start()


def test_a_follower_on_an_older_copy_of_its_disk_counts_as_forgetful_until_it_has_caught_up() -> None:
    """It may have lost votes too. It is filled, and votes again once every other voter has answered."""
    group = Group.of("abc")
    group.elect("a")
    group.propose("a", "x")
    group.propose("a", "y")
    group.isolate("b")

    restore(group, "c", 1)
    group.tick(20)

    assert group.log("c") == group.log("a")
    assert group["c"].raft.forgetful
    assert group["c"].storage.hard_state.vote == FORGOTTEN
    group.heal()
    group.tick(20)
    assert not group["c"].raft.forgetful


def test_it_stays_forgetful_through_restarts_and_other_leaders() -> None:
    """The leader that knows what it had acknowledged is away; the others must not elect one that lacks it with this vote."""
    group = Group.of("abc")
    group.elect("a")
    group.isolate("b")
    group.propose("a", "x")
    group.isolate("a")
    group.heal()
    group.isolate("b")
    restore(group, "c", 1)
    group.tick(10)
    assert group["c"].raft.forgetful

    group["c"].start()
    group.heal()
    group.isolate("a")
    group.tick(300)

    assert group["c"].raft.forgetful
    assert group["b"].raft.leadership is None
    group.heal()
    group.tick(300)
    assert not group["c"].raft.forgetful
    assert group.log("a") == group.log("b") == group.log("c")


def test_a_leader_remembers_from_an_earlier_term_what_a_follower_had_acknowledged() -> None:
    """Another one led in between, to which the follower acknowledged nothing because it was down."""
    group = Group.of("abc")
    group.elect("a")
    group.propose("a", "x")
    group.propose("a", "y")
    group.isolate("c")
    for old, new in (("a", B), ("b", A)):
        group[old].raft.transfer_leadership(new)
        group.tick(10)
    assert group["a"].raft.leadership is not None
    group.heal()

    restore(group, "c", 1)
    seen = False
    for _ in range(40):
        group.tick()
        seen |= group["c"].raft.forgetful

    assert seen
    assert group.log("c") == group.log("a")
    assert not group["c"].raft.forgetful


def test_follower_that_does_not_sync_is_filled_again_where_that_was_chosen() -> None:
    group = Group.of("abc", settings=Settings(trust_regressed=True))
    group.elect("a")
    group.propose("a", "x")
    group["c"].storage.entries.clear()
    group["c"].storage.unsynced.append((0, ()))
    group["c"].storage.sync()
    group["c"].start()

    group.tick(20)

    assert group.log("c") == group.log("a")


def test_voters_campaign_one_after_the_other_when_the_leaders_connection_ends() -> None:
    """As soon as the others may help, and not before: a leader that lives keeps its followers by the next heartbeat."""
    group = Group.of("abc")
    group.elect("a")
    settings = group["a"].raft.settings
    for name in "bc":
        group[name].raft.disconnected(A)
    waits = [group[name].raft.timers.election.ticks_left for name in "bc"]
    assert waits[0] <= settings.election_ticks_min + 1
    assert waits[1] - waits[0] == settings.turn_ticks

    group.tick(100)
    assert group["a"].raft.leadership is not None

    group.cut |= {(A, B), (A, C), (B, A), (C, A)}
    for name in "bc":
        group[name].raft.disconnected(A)
    group.tick(settings.election_ticks_min + 2)
    assert group["b"].raft.leadership is not None


IMPOSSIBLE = (1 << 63) - 1
FAR_AHEAD: list[Message] = [
    PreVoteRequest(B, A, IMPOSSIBLE, 9, 9),
    PreVoteResponse(B, A, IMPOSSIBLE, granted=True),
    PreVoteResponse(B, A, IMPOSSIBLE, granted=False),
    TermQuery(B, A, IMPOSSIBLE, 1, -1),
    TermAnswer(B, A, IMPOSSIBLE, 1),
    VoteRequest(B, A, IMPOSSIBLE, 9, 9, transfer=True),
    VoteResponse(B, A, IMPOSSIBLE, granted=True),
    Append(B, A, IMPOSSIBLE, -1, -1, 9),
    AppendResponse(B, A, IMPOSSIBLE, 9, 9),
    Heartbeat(B, A, IMPOSSIBLE, 9, 9),
    HeartbeatResponse(B, A, IMPOSSIBLE, 9, 9),
    InstallSnapshot(B, A, IMPOSSIBLE, Snapshot(9, 9, Configuration((A, B)), None)),
    TimeoutNow(B, A, IMPOSSIBLE),
    Regressed(B, A, IMPOSSIBLE),
    StaleTerm(B, A, IMPOSSIBLE),
    ReadIndexRequest(B, A, IMPOSSIBLE, 1),
    ReadIndexResponse(B, A, IMPOSSIBLE, 1, 9),
]


@pytest.mark.parametrize("message", FAR_AHEAD, ids=lambda message: type(message).__name__)
def test_no_message_brings_a_node_to_a_term_that_no_elections_can_have_led_to(message: Message) -> None:
    """One forged message would otherwise end a group: there is no term behind the last one."""
    group = Group.of("abc")
    group.elect("a")
    group.propose("a", "x")
    raft = group["b"].raft
    before = raft.term, raft.vote, raft.leader, raft.log.last_index, raft.commit_index

    with pytest.raises(TermTooHigh, match=rf"node {B} is in term {IMPOSSIBLE}, too far ahead of term 1 here"):
        raft.step(message)

    assert (raft.term, raft.vote, raft.leader, raft.log.last_index, raft.commit_index) == before
    group.propose("a", "y")
    assert group.log("b")[-1] == (1, "y")


def test_a_node_that_was_away_for_long_learns_of_the_term_and_a_new_one_of_any() -> None:
    """The bound is a lead. A node that was never in a term has none to compare, so it can join whatever group there is."""
    group = Group.of("abc")
    group.elect("a")
    raft = group["b"].raft

    raft.step(StaleTerm(A, B, 1 + TERM_LEAD_MAX))

    assert raft.term == 1 + TERM_LEAD_MAX
    assert highest_acceptable(0) == highest_acceptable(TERM_MAX) == TERM_MAX
