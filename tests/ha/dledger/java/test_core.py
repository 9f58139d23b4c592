"""Groups of three nodes of ours that speak DLedger's dialect, on simulated machines."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio

from ledgermq.ha.dledger.java import bodies as java
from ledgermq.ha.dledger.java.core import JavaCore
from ledgermq.ha.dledger.java.links import JavaLink
from ledgermq.ha.dledger.java.messages import APPEND, Answer, Answered, Code, Push, Reply, VoteRequest
from ledgermq.ha.dledger.java.replication import apply_pushes
from ledgermq.ha.dledger.java.state import JavaSettings
from ledgermq.ha.dledger.ledger.layout import HEADER_SIZE
from ledgermq.ha.dledger.log_reader import JavaEntryReader
from ledgermq.ha.dledger.outcomes import Outcome
from ledgermq.ha.dledger.settings import JAVA
from ledgermq.ha.errors import LeadershipLost
from ledgermq.ha.raft.errors import TermTooHigh
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.units import PeerId
from ledgermq.remoting.channel import connected
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.sim.world import Machine
from ledgermq.world.network import Address

from ..groups import (
    PORT,
    Group,
    Node,
    check_begun_anew,
    files_of,
    isolate_leader_during_puts,
    lose_power_during_puts,
    miss_files_that_expire,
    scenario,
)
from ..java_nodes import OTHER, OWN, SIZE, entry, node, sent
from ..ledgers import FILE_SIZE

SEEDS = range(1, 4)
FAST = JavaSettings(heartbeat_ms=200, vote_interval_min_ms=50, vote_interval_max_ms=200, vote_round_ms=300)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_elects_one_leader_and_commits(seed: int) -> None:
    """With DLedger's own time-outs."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        assert await group.put(leader, 3) is Outcome.COMMITTED
        assert await group.put(leader, 40) is Outcome.COMMITTED
        await group.converged()
        group.check()
        assert {node.up.leading.leader for node in group.running} == {leader.peer}

    scenario(story, seed=seed, dialect=JAVA)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", ["kill", "power_cut"])
def test_nothing_acknowledged_is_lost_when_the_leader_dies(seed: int, way: str) -> None:
    """Another one leads, and the dead one follows when it is back."""

    async def story(group: Group) -> None:
        for _ in range(3):
            leader = await group.leader()
            for _ in range(5):
                assert await group.put(leader, 4) is Outcome.COMMITTED
            await (leader.kill() if way == "kill" else leader.power_cut())
            await group.put_until_done(2)
            await leader.start()
            assert leader.failure is None
            await group.converged()
            group.check()

    scenario(story, seed=seed, dialect=JAVA, java=FAST)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_isolated_leader_acknowledges_nothing_and_steps_down(seed: int) -> None:
    """What it took meanwhile is replaced when it is back; its term has not grown."""

    async def story(group: Group) -> None:
        old, new, outcomes = await isolate_leader_during_puts(group)
        assert outcomes != [Outcome.COMMITTED]
        term = new.up.leading.term
        await trio.sleep(5)
        assert old.up.leading.term < term
        group.fabric.heal()
        await group.converged()
        assert new.up.leading.role is Role.LEADER
        group.check()

    scenario(story, seed=seed, dialect=JAVA, java=FAST)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_learns_what_is_committed_though_the_message_that_says_so_is_lost(seed: int) -> None:
    """No further put helps."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        await group.converged()
        term = leader.up.leading.term

        def lose_all(_index: int, _position: int) -> None:
            for _ in range(50):
                group.fabric.lose_connection()

        leader.up.on_committed.append(lose_all)
        await group.put(leader, 3)
        leader.up.on_committed.remove(lose_all)
        assert min(node.up.ledger.committed_index for node in group.running) < leader.up.ledger.committed_index

        await group.converged()

        assert leader.up.leading.term == term
        group.check()

    scenario(story, seed=seed, dialect=JAVA, java=FAST)


@pytest.mark.parametrize("bulk", [False, True])
def test_connections_that_carry_nothing_are_replaced(*, bulk: bool) -> None:
    """As after a long cut, when TCP retries ever more rarely."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        await group.converged()
        silent = {
            channel.local
            for node in group.running
            for link in node.up.links.outgoing.values()
            if isinstance(link, JavaLink) and (channel := link.bulk if bulk else link.channel) is not None
        }
        assert len(silent) == 6
        for stream in group.fabric.streams:
            if stream.local in silent:
                for direction in (stream.incoming, stream.outgoing):
                    direction.forgotten = True
                    direction.notify()
        await trio.sleep(10)

        with trio.fail_after(30):
            await group.put_until_done()
        await group.converged()
        group.check()

    scenario(story, dialect=JAVA, java=FAST)


def test_a_node_that_follows_a_leader_of_term_0_without_a_vote_starts_again() -> None:
    """DLedger begins with that term, so nothing had ever made the node save its term."""

    async def story(group: Group) -> None:
        late = group.nodes[PeerId("n2")]
        await late.kill()
        late.machine.disk.remove_tree("store")
        leader = await group.leader()
        await group.put(leader, 3)
        late.changes["java"] = JavaSettings(vote_interval_min_ms=5000, vote_interval_max_ms=5000)
        await late.start()
        await group.converged()
        assert late.up.core.term == 0

        await late.kill()
        await late.start()

        assert late.failure is None

    scenario(story, seed=2, dialect=JAVA, java=FAST)


def test_reads_wait_until_the_leader_is_confirmed() -> None:
    """By a round of heartbeats; an isolated leader gives no index, and says so when it gives up its leadership."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        with trio.fail_after(1):
            assert await leader.up.read_index() >= max(group.acknowledged)
        group.isolate(leader)
        with trio.fail_after(30), pytest.raises(LeadershipLost):
            await leader.up.read_index()
        assert not leader.up.is_leader

    scenario(story, dialect=JAVA, java=FAST)


def test_a_leader_that_is_elected_again_in_its_term_serves_again() -> None:
    """Its log has entries of the term already, and still it has to commit one of this leadership before reads are answered."""

    async def story(group: Group) -> None:
        old = await group.leader()
        assert await group.put(old, 3) is Outcome.COMMITTED
        term, hosts = old.up.leading.term, [node.machine.host for node in group.running]
        for host in hosts:
            group.fabric.part([host], [other for other in hosts if other != host])
        await group.until(lambda: not group.leaders())
        group.fabric.heal()

        again = await group.leader()

        assert again.up.leading.term == term
        with trio.fail_after(5):
            await again.up.read_index()
        assert await group.put(again, 3) is Outcome.COMMITTED

    scenario(story, seed=1, dialect=JAVA, java=FAST)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_that_lost_power_has_everything_acknowledged(seed: int) -> None:
    """All three machines at once, in the middle of puts."""

    scenario(lose_power_during_puts, seed=seed, dialect=JAVA, java=FAST)


def test_a_node_that_was_away_catches_up_over_many_files() -> None:
    """By COMPARE, TRUNCATE and APPEND."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        away = next(node for node in group.running if node is not leader)
        await away.kill()
        for _ in range(40):
            assert await group.put(leader, 10, body_size=300) is Outcome.COMMITTED
        await away.start()
        await group.converged()
        group.check()

    scenario(story, dialect=JAVA, java=FAST)


def test_a_leader_with_a_damaged_header_leaves_the_group_and_says_why() -> None:
    """It has no next entry to send; another node leads, from which the one that was away is filled."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        away = next(node for node in group.running if node is not leader)
        await group.put(leader, 3)
        await group.converged()
        await away.kill()
        await group.put(leader, 40)
        await group.converged()
        ledger = leader.up.ledger
        position, _ = ledger.place_of(ledger.end_index - 20)
        segment = ledger.data.find(position)
        assert segment is not None
        segment.file.write(bytes(HEADER_SIZE), position - segment.start)

        await away.start()
        other = await group.leader(among=[node for node in group.running if node is not leader])

        assert "no entry header: magic 0" in (leader.up.status().failure or "")
        await group.until(lambda: away.up.ledger.committed_index == other.up.ledger.end_index)

    scenario(story, dialect=JAVA, java=FAST)


def test_a_node_with_data_files_of_another_size_says_what_to_set(caplog: pytest.LogCaptureFixture) -> None:
    """Its log has the leader's positions up to the end of the first file."""

    async def story(group: Group) -> None:
        other = group.nodes[PeerId("n2")]
        await other.kill()
        other.machine.disk.remove_tree("store")
        other.changes["files"] = files_of("n2", file_size=2 * FILE_SIZE)
        await other.start()
        leader = await group.leader()
        assert leader is not other

        await group.put(leader, 50)

        await group.until(lambda: "mappedFileSizeCommitLog" in " ".join(other.up.status().turned_away))
        await trio.sleep(5)
        assert caplog.text.count("leader_entries_refused") == 1
        assert "refuses the entries" in " ".join(peer.refusal or "" for peer in leader.up.status().peers)

    scenario(story, seed=2, dialect=JAVA, java=FAST)


def test_a_node_begins_anew_where_old_files_have_expired() -> None:
    """The leader truncates it at its own beginning."""

    async def story(group: Group) -> None:
        leader, away = await miss_files_that_expire(group)
        await away.start()
        await check_begun_anew(group, leader, away)
        group.check()

    scenario(story, dialect=JAVA, java=FAST)


def test_a_leader_that_is_stopped_hands_over_first() -> None:
    """The next put finds a leader long before an election would be due."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        began = trio.current_time()
        await leader.stop()
        await group.put_until_done()
        assert trio.current_time() - began < 0.4
        group.check()

    scenario(story, dialect=JAVA, java=FAST)


def test_the_refusal_of_a_node_of_the_other_dialect_says_what_to_set() -> None:
    """It changes nothing."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        other = next(node for node in group.running if node is not leader)
        await other.kill()
        other.changes["dialect"] = "native"
        await other.start()
        await trio.sleep(5)
        assert await group.put(leader, 3) is Outcome.COMMITTED
        assert not other.up.is_leader
        assert other.up.ledger.end_index < leader.up.ledger.end_index

    scenario(story, dialect=JAVA, java=FAST)


async def ask_node(group: Group, node: Node, code: int, /, **fields: object) -> dict[str, Any]:
    """The answer to one request of DLedger, from a machine of its own."""
    world = Machine.of("10.0.0.9", group.fabric, random.Random(9)).world()
    content = {"group": "g", "remoteId": node.peer, **fields}
    async with connected(Address(node.machine.host, PORT), network=world.network) as channel:
        answer = await channel.call(RemotingCommand(code, body=java.encode_fields(content)), 3.0)
    assert answer.code == 200
    return dict(java.read_object(answer.body))


def test_clients_of_dledger_itself_are_served() -> None:
    """METADATA anywhere, APPEND and GET on the leader; another group and a wrong receiver are refused with DLedger's codes."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        other = next(node for node in group.running if node is not leader)
        ask = partial(ask_node, group)

        metadata = await ask(other, java.METADATA)
        assert metadata["leaderId"] == leader.peer
        assert metadata["peers"] == {peer: str(address) for peer, address in group.peers.items()}
        appended = await ask(leader, java.APPEND_ENTRY, body="aGVsbG8=")
        assert (appended["code"], appended["index"]) == (200, leader.up.ledger.end_index)
        found = await ask(leader, java.GET, beginIndex=appended["index"])
        assert found["entries"][0]["body"] == "aGVsbG8="
        assert found["entries"][0]["pos"] == appended["pos"]
        assert (await ask(leader, java.GET, beginIndex=10_000))["code"] == 410
        assert (await ask(other, java.APPEND_ENTRY, body="aGVsbG8="))["code"] == 404
        assert (await ask(leader, java.METADATA, group="h"))["code"] == 400
        assert (await ask(leader, java.METADATA, remoteId="n9"))["code"] == 401
        transfer = {"transferId": leader.peer, "transfereeId": other.peer, "localId": "client", "term": leader.up.leading.term}
        assert (await ask(leader, java.LEADERSHIP_TRANSFER, **transfer))["code"] == 200
        await group.until(lambda: other.up.is_leader)
        await group.put_until_done()
        await group.converged()
        group.check()

    scenario(story, dialect=JAVA, java=FAST)


@pytest.mark.parametrize(("lacking", "code", "leads"), [(5, 200, True), (500, 418, False)], ids=["a little", "too much"])
def test_a_node_waits_for_what_it_lacks_before_it_takes_over(lacking: int, code: int, leads: bool) -> None:
    """A Java leader asks as soon as its own log has an entry; after a second the follower refuses."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        other = next(node for node in group.running if node is not leader)
        await group.until(lambda: other.up.leading.leader == leader.peer)
        last = leader.up.ledger.end_index
        request = {"localId": leader.peer, "leaderId": leader.peer, "transferId": leader.peer, "transfereeId": other.peer}
        fields = {**request, "takeLeadershipLedgerIndex": last + lacking, "term": leader.up.leading.term}
        answers: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def take_over() -> None:
                answers.append(await ask_node(group, other, java.LEADERSHIP_TRANSFER, **fields))

            nursery.start_soon(take_over)
            await trio.sleep(0.3)
            assert not answers
            await group.put(leader, 5)
        assert answers[0]["code"] == code
        assert other.up.is_leader is leads
        await group.put_until_done()
        await group.converged()
        group.check()

    scenario(story, dialect=JAVA, java=FAST)


@pytest.mark.parametrize("code", [java.VOTE, java.HEART_BEAT, java.PUSH, java.LEADERSHIP_TRANSFER])
def test_a_request_of_an_impossible_term_changes_nothing(code: int) -> None:
    """No secret keeps anybody from sending one, and one would end the group: no term follows the last."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        follower = next(node for node in group.running if node is not leader)
        for target in (leader, follower):
            fields = {"leaderId": "n1" if target.peer != "n1" else "n2", "term": (1 << 63) - 1, "type": "COMMIT"}
            answer = await ask_node(group, target, code, **fields, ledgerEndIndex=1 << 40, ledgerEndTerm=1 << 40)
            assert answer["code"] == 411
        assert await group.put(leader, 5) is Outcome.COMMITTED
        await leader.stop()
        await group.put_until_done()
        await leader.start()
        await group.converged()
        assert all(one.up.core.term < 100 for one in group.running)

    scenario(story, dialect=JAVA, java=FAST)


@pytest.mark.parametrize("result", ["REJECT_EXPIRED_VOTE_TERM", "ACCEPT"])
def test_an_answer_of_an_impossible_term_is_none(result: str) -> None:
    """Neither a candidate nor a leader follows it."""
    candidate = node((1, 1))
    request = VoteRequest(sender=OWN, to=OTHER, term=1, end_index=1, end_term=1)

    with pytest.raises(TermTooHigh, match="node n1 is in term"):
        candidate.step(Answered(request, Answer(code=200, term=(1 << 63) - 1, result=result)))

    assert (candidate.term, candidate.known_term) == (1, -1)


class AcrossFiles(JavaEntryReader):
    """Reads entries for pushes as a Java leader with `enableBatchPush` does, which gathers them across the ends of files."""

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[memoryview]:
        found = [self.entry(first)]
        while first + len(found) <= last and sum(map(len, found)) < bytes_max:
            found.append(self.entry(first + len(found)))
        return found


def test_a_push_may_have_entries_of_two_files() -> None:
    """A follower that refused it would be sent it again for ever, and the group would stop at the end of each file."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        core = leader.up.core
        assert isinstance(core, JavaCore)
        core.reader = AcrossFiles(leader.up.ledger)

        for _ in range(5):
            assert await group.put(leader, 60) is Outcome.COMMITTED

        assert len(leader.up.ledger.data.files) > 10
        await group.converged()
        group.check()

    scenario(story, dialect=JAVA, java=FAST)


def test_a_push_with_a_gap_that_no_file_ends_in_is_refused() -> None:
    follower = node((1, 1), leader=OTHER)
    follower.verified_index = 1
    entries = (
        entry(2, 1),
        memoryview(entry(3, 1).tobytes().replace((3 * SIZE).to_bytes(8, "big"), (4 * SIZE).to_bytes(8, "big"))),
    )
    push = Push(sender=OTHER, to=OWN, term=1, kind=APPEND, commit_index=-1, first_index=2, last_index=3, entries=entries)

    follower.step(push)
    apply_pushes(follower)

    (reply,) = sent(follower)
    assert isinstance(reply, Reply)
    assert (reply.code, follower.log.last_index) == (Code.INCONSISTENT_STATE, 1)


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("way", ["kill", "power_cut"])
def test_a_follower_that_starts_again_waits_for_a_heartbeat(seed: int, way: str) -> None:
    """Its vote is for a new term, for which a healthy leader would step down. Without a leader it votes a little later."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        term = leader.up.leading.term
        for follower in [one for one in group.running if one is not leader]:
            await getattr(follower, way)()
            await trio.sleep(group.rng.random() * 3)
            await follower.start()
            assert await group.put(leader, 3) is Outcome.COMMITTED
            await trio.sleep(10)
        assert leader.up.leading.term == term
        assert leader.up.is_leader
        for each in group.nodes.values():
            await getattr(each, way)()
        for each in group.nodes.values():
            await each.start()
        await group.put_until_done()
        await group.converged()
        group.check()

    scenario(story, seed=seed, dialect=JAVA)
