"""Nodes that do not belong together, strangers on the port, and stores that are not whole: a refusal, never a wrong log."""

from __future__ import annotations

import random

import attrs
import pytest
import trio

from ledgermq.ha.dledger.ledger.hard_state import HardStateFile, TermAndVote
from ledgermq.ha.dledger.members import change_members
from ledgermq.ha.dledger.native.frames import encode_message
from ledgermq.ha.dledger.native.handshake import Dialler, Hello, NodeCard
from ledgermq.ha.dledger.native.layout import LANE_CONTROL, TAG
from ledgermq.ha.dledger.outcomes import Outcome
from ledgermq.ha.dledger.replica import Replica
from ledgermq.ha.dledger.settings import ReplicaSettings, parse_peers
from ledgermq.ha.errors import CorruptHardState, WrongHaSetting
from ledgermq.ha.raft.errors import ChangeRefused
from ledgermq.ha.raft.messages import Heartbeat
from ledgermq.ha.raft.units import PeerId
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.world import Machine
from ledgermq.world.network import Address

from .groups import PORT, SECRET, Group, Node, copy_of_disk, files_of, scenario
from .ledgers import FILE_SIZE, content


async def refusal_of(group: Group, stranger: str) -> str:
    """The reason that a node is given when the group refuses its connection."""
    node = group.nodes[PeerId(stranger)]

    def refusals() -> list[str]:
        return [peer.refusal for peer in node.up.status().peers if peer.refusal is not None]

    await group.until(refusals)
    return refusals()[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group": "another"}, "correct dLegerGroup"),
        ({"secret": b"wrong"}, "set the same haSecret"),
        ({"files": files_of("n3", file_size=8192)}, "set mappedFileSizeCommitLog to one value"),
        ({"self_id": PeerId("n1")}, "two nodes of group g have the id n1"),
    ],
    ids=["group", "secret", "file size", "id"],
)
def test_a_node_that_does_not_fit_changes_nothing(changes: dict[str, object], reason: str) -> None:
    """The refusal says what to set; the group goes on in its term."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        term = leader.up.leading.term
        peers = {**group.peers, PeerId(str(changes.get("self_id", "n3"))): Address("10.0.0.4", PORT)}
        stranger = group.add("n3", **{"peers": peers, "self_id": PeerId("n3"), **changes})
        await stranger.start()
        assert stranger.failure is None
        assert reason in await refusal_of(group, "n3")
        await trio.sleep(10)
        assert await group.put(leader, 5) is Outcome.COMMITTED
        assert leader.up.leading.term == term
        assert stranger.up.ledger.empty
        await stranger.kill()
        await group.converged()
        group.check()

    scenario(story)


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\x00\x00\x01\x20\x00\x00\x00\x60{}",
        b"GET / HTTP/1.1\r\n\r\n",
        TAG,
        TAG * 9,
        b"\xff" * 100_000,
        TAG + b"\x00" * 100,
    ],
)
def test_strangers_on_the_port_are_sent_away(greeting: bytes) -> None:
    """Those who say nothing too; the group does not notice."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        term = leader.up.leading.term
        stranger = Machine.of("10.0.0.9", group.fabric, random.Random(9)).world()
        stream = await stranger.network.open_stream(Address(leader.machine.host, PORT))
        with trio.fail_after(10):
            try:
                if greeting:
                    await stream.send_all(greeting)
                while await stream.receive_some(1000):
                    pass
            except trio.BrokenResourceError:
                pass
        assert await group.put(leader, 3) is Outcome.COMMITTED
        assert leader.up.leading.term == term

    scenario(story)


def test_many_strangers_do_not_keep_peers_out() -> None:
    """The oldest of them gives way."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        other = next(node for node in group.running if node is not leader)
        await other.kill()
        stranger = Machine.of("10.0.0.9", group.fabric, random.Random(9)).world()
        for _ in range(100):
            await stranger.network.open_stream(Address(leader.machine.host, PORT))
        await other.start()
        await group.put_until_done()
        await group.converged()

    scenario(story)


def test_only_a_peer_that_owes_an_answer_is_dialled_again() -> None:
    """Two followers have little to say to each other; a peer whose machine is cut off is dialled again."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        one, other = (node for node in group.running if node is not leader)
        await trio.sleep(20)
        with capture_logs() as logs:
            await one.kill()
            await one.start()
            await group.converged()
            await trio.sleep(20)
        assert "silent_raft_peer_dialled_again" not in [entry["event"] for entry in logs]
        with capture_logs() as logs:
            group.isolate(other)
            await trio.sleep(10)
        dialled = {entry["peer"] for entry in logs if entry["event"] == "silent_raft_peer_dialled_again"}
        assert other.peer in dialled

    scenario(story)


def test_a_node_without_its_term_and_vote_does_not_start() -> None:
    """It might vote twice; the text says what to do."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        other = next(node for node in group.running if node is not leader)
        await group.converged()
        await other.kill()
        for name in ("currterm", "currterm.bak"):
            if other.machine.disk.exists(f"store/dledger-{other.peer}/{name}"):
                other.machine.disk.remove(f"store/dledger-{other.peer}/{name}")
        await other.start()
        assert isinstance(other.failure, CorruptHardState)
        assert "let the leader fill the node again (with raftDialect=java under a new name" in str(other.failure)

    scenario(story)


def test_the_members_of_a_group_are_those_in_its_log_whatever_a_list_of_peers_says() -> None:
    """A node whose list was made shorter would else elect itself once it is cut off, and acknowledge alone."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        await group.converged()
        node = next(node for node in group.running if node is not leader)
        await node.kill()
        node.changes = {"peers": {node.peer: group.peers[node.peer]}}
        group.isolate(node)
        await node.start()
        await trio.sleep(10)
        assert not node.up.is_leader
        assert node.up.core.configuration.voters == tuple(group.peers)
        group.fabric.heal()
        await group.put_until_done()
        await group.converged()
        group.check()

    scenario(story)


def test_a_node_of_another_group_with_the_same_name_is_not_taken_over() -> None:
    """Both logs have entries of the same indexes and terms, so Raft alone takes them for equal and appends to a wrong log."""

    async def story(group: Group) -> None:
        first = await group.leader()
        assert await group.put(first, 5) is Outcome.COMMITTED
        await group.converged()
        shared = group.nodes[PeerId("n0")]
        before = content(shared.up.ledger)
        peers = {PeerId(f"n{at}"): Address(f"10.0.0.{at + 1}", PORT) for at in (3, 4, 5)}
        others = [group.add(peer, peers=peers) for peer in peers]
        for node in others:
            await node.start()
        second = await group.leader(among=others)
        assert await group.put(second, 9) is Outcome.COMMITTED

        with trio.move_on_after(10) as waiting:
            await change_members(second.up, {shared.peer: group.peers[shared.peer]}, {}, ())

        assert waiting.cancelled_caught
        assert content(shared.up.ledger) == before
        (refusal,) = [peer.refusal for peer in second.up.status().peers if peer.peer == shared.peer]
        assert "two groups that have the name g" in (refusal or "")
        assert await group.put(first, 1) is Outcome.COMMITTED

    scenario(story)


def test_a_group_names_the_nodes_that_are_started_with_one_of_its_members_in_their_list() -> None:
    """They wait for that member, which belongs to another group with the same name, and elect nobody."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        assert await group.put(leader, 5) is Outcome.COMMITTED
        shared = group.nodes[PeerId("n0")]
        peers = {
            shared.peer: group.peers[shared.peer],
            **{PeerId(f"n{at}"): Address(f"10.0.0.{at + 1}", PORT) for at in (3, 4)},
        }
        strangers = [group.add(peer, peers=peers) for peer in (PeerId("n3"), PeerId("n4"))]
        for node in strangers:
            await node.start()
        await trio.sleep(10)

        assert [node.up.leading.leader for node in strangers] == [None, None]
        assert [node.up.status().waits_for for node in strangers] == [(shared.peer,)] * 2
        notes = shared.up.status().turned_away
        assert [note.partition(" is no member of group g here")[0] for note in notes] == [
            "node n3 at 10.0.0.4",
            "node n4 at 10.0.0.5",
        ]
        assert await group.put(leader, 1) is Outcome.COMMITTED

    scenario(story)


@pytest.mark.parametrize("text", ["", "n0", "n0-127.0.0.1", "n0-127.0.0.1:1;n0-127.0.0.1:2", "-127.0.0.1:1", "n0-h:99999999"])
def test_a_list_of_peers_that_is_none_is_refused(text: str) -> None:
    """With an example of one."""
    with pytest.raises(WrongHaSetting, match="dLegerPeers"):
        ReplicaSettings(group="g", self_id=PeerId("n0"), peers=parse_peers(text), files=files_of("n0"))


def test_a_node_must_be_among_its_peers() -> None:
    """As with DLedger."""
    peers = parse_peers("n0-127.0.0.1:40911;n1-127.0.0.1:40912;")
    assert peers == {PeerId("n0"): Address("127.0.0.1", 40911), PeerId("n1"): Address("127.0.0.1", 40912)}
    with pytest.raises(WrongHaSetting, match="n2, which is not among dLegerPeers"):
        ReplicaSettings(group="g", self_id=PeerId("n2"), peers=peers, files=files_of("n2"))
    assert attrs.evolve(ReplicaSettings(group="g", self_id=PeerId("n1"), peers=peers, files=files_of("n1"))).port == 40912


async def forge(group: Group, target: Node, term: int) -> None:
    """Send a heartbeat of a term to a node, as anybody can who knows the secret, or where there is none."""
    world = Machine.of("10.0.0.9", group.fabric, random.Random(9)).world()
    stream = await world.network.open_stream(Address(target.machine.host, PORT))
    card = NodeCard("g", "n9", bytes(16), FILE_SIZE)
    dialler = Dialler(Hello(card, LANE_CONTROL, target.peer, bytes(32)), SECRET)
    await stream.send_all(dialler.opening())
    while not dialler.done:
        await stream.send_all(dialler.receive(bytes(await stream.receive_some(4096))))
    await stream.send_all(b"".join(encode_message(Heartbeat(PeerId("n9"), target.peer, term, 5, 1))))
    with trio.move_on_after(5):
        while await stream.receive_some(100):
            pass


@pytest.mark.parametrize("term", [(1 << 63) - 1, (1 << 62) - 1, 1 << 40])
def test_a_forged_term_does_not_end_the_group(term: int) -> None:
    """The frame is refused, the status names the reason, and the group elects leaders and commits as before."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        for node in group.running:
            await forge(group, node, term)
        if term <= (1 << 62):  # a higher one is no message at all
            assert f"node n9 is in term {term}, too far ahead" in " ".join(leader.up.status().turned_away)
        await leader.stop()
        await group.put_until_done()
        await leader.start()
        await group.converged()
        group.check()
        assert all(node.up.core.term < 100 for node in group.running)

    scenario(story)


@pytest.mark.parametrize("term", [(1 << 62) + 1, (1 << 63) - 1])
def test_a_node_does_not_start_in_a_term_that_no_elections_can_have_led_to(term: int) -> None:
    """The text names both ways out: emptying the one node, or going on with one that is left."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        await leader.stop()
        HardStateFile(leader.machine.disk, files_of(leader.peer).directory).save(TermAndVote(term, "n0"))

        await leader.start()

        assert isinstance(leader.failure, CorruptHardState)
        assert f"is in term {term}" in str(leader.failure)
        assert "ledgermq store reset-peers" in str(leader.failure)

    scenario(story)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_copy_of_a_running_node_is_refused_by_all_and_the_node_goes_on(seed: int) -> None:
    """It has the id and the identity of the node, and would vote a second time in its name."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        original = next(node for node in group.running if node is not leader)
        await group.put(leader, 5)
        await group.converged()
        await trio.sleep(20)
        term = leader.up.leading.term
        copy = group.add("n9", peers=group.peers, self_id=original.peer, files=files_of(original.peer))
        copy.machine.disk = copy_of_disk(original)

        await copy.start()

        assert copy.failure is None
        words = f"node {original.peer} of group g runs at {group.peers[original.peer]} already"
        await group.until(lambda: all(words in (peer.refusal or "") for peer in copy.up.status().peers))
        for _ in range(10):
            assert await group.put(leader, 5) is Outcome.COMMITTED
            await trio.sleep(1)
        assert leader.up.leading.term == term
        assert original.up.ledger.end_index == leader.up.ledger.end_index
        await copy.kill()
        await original.power_cut()
        await original.start()
        await group.converged()
        group.check()

    scenario(story, seed=seed)


def test_a_node_that_loses_power_is_let_in_again_at_once() -> None:
    """The others may hold connections to its earlier start that nobody has closed."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        for node in [one for one in group.running if one is not leader]:
            await node.power_cut()
            await node.start()
        with trio.fail_after(5):
            await group.put_until_done()
        await group.converged(5)

    scenario(story)


def test_a_group_has_an_id_of_its_own_in_its_log() -> None:
    """Each node has it once the first configuration is committed, and a change of members keeps it."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        await group.converged()
        (group_id,) = {node.up.reader.committed_group_id for node in group.running}
        assert len(bytes.fromhex(group_id)) == 16
        other = next(node for node in group.running if node is not leader)
        with trio.fail_after(20):
            await change_members(leader.up, {}, {}, [other.peer])
        assert leader.up.reader.committed_group_id == group_id
        assert leader.up.reader.newest().group_id == group_id

    scenario(story)


def test_a_change_of_members_that_the_log_does_not_take_is_refused_with_the_reason() -> None:
    """It is no change of leadership, and another node could not tell more."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        other = next(node for node in group.running if node is not leader)
        end = leader.up.ledger.end_index
        leader.up.ledger.failure = "the disk is full"
        with pytest.raises(ChangeRefused, match="the disk is full; membership was not changed"):
            await change_members(leader.up, {}, {}, [other.peer])
        assert leader.up.ledger.end_index == end

    scenario(story)


def test_the_leader_names_a_group_that_was_begun_by_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of such a group has no id; it gets one without another change."""

    def no_id(_: object) -> str:
        return ""

    def begins(self: Replica) -> bool:
        core, led = self.core, self.core.leadership
        return not self.ledger.configurations and led is not None and core.commit_index >= led.term_start_index

    async def story(group: Group) -> None:
        with monkeypatch.context() as earlier:
            earlier.setattr(Replica, "_may_name_group", begins)
            earlier.setattr("ledgermq.ha.dledger.replica.new_group_id", no_id)
            leader = await group.leader()
            await group.put(leader, 5)
            await group.converged()
            assert {node.up.reader.group_id for node in group.running} == {""}
            assert leader.up.ledger.configurations
            for node in list(group.running):
                await node.stop()
        for node in group.nodes.values():
            await node.start()
        await group.put_until_done()
        await group.until(lambda: all(node.up.reader.committed_group_id for node in group.running))
        (group_id,) = {node.up.reader.committed_group_id for node in group.running}
        assert len(bytes.fromhex(group_id)) == 16
        await group.converged()
        group.check()

    scenario(story)
