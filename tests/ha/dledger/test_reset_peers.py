"""A group that has lost its majority for good: one node that is left goes on alone, by order of an operator only."""

from __future__ import annotations

import random

import pytest
import trio

from ledgermq.ha.dledger.ledger.hard_state import HardStateFile, TermAndVote
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles, open_ledger
from ledgermq.ha.dledger.members import change_members
from ledgermq.ha.dledger.outcomes import Outcome
from ledgermq.ha.dledger.reset_peers import look_at_node, reset_peers
from ledgermq.ha.errors import NoSuchNode
from ledgermq.ha.raft.units import PeerId
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.network import Address

from .groups import PORT, Group, Node, scenario
from .ledgers import FILE_SIZE, INDEX_FILE_SIZE, message


async def is_left_alone(group: Group, *, remove: bool) -> Node:
    """Put some entries, perhaps remove a node, and let all nodes but one burn."""
    leader = await group.leader()
    await group.put(leader, 20)
    left = next(node for node in group.running if node is not leader)
    if remove:
        third = next(node for node in group.running if node not in (leader, left))
        with trio.fail_after(20):
            await change_members(leader.up, {}, {}, [third.peer])
        await third.stop()
        await group.put(leader, 5)
    await group.converged()
    await trio.sleep(5)  # checkpoints name what is committed
    for node in [left, *group.running]:
        if node.replica is not None:
            await node.kill()
    return left


@pytest.mark.parametrize("remove", [False, True])
def test_the_node_that_is_left_leads_alone_and_takes_in_new_ones(*, remove: bool) -> None:
    """Everything acknowledged that it has stays; new nodes are filled from it and vote."""

    async def story(group: Group) -> None:
        left = await is_left_alone(group, remove=remove)
        address = group.peers[left.peer]
        found = look_at_node(left.machine.disk, "store")
        assert found.peer == left.peer
        assert found.configuration is not None
        assert len(found.configuration.voters) == (2 if remove else 3)
        reset_peers(left.machine.disk, "store", found, address, 0, secrets=random.Random(1))

        # The list of the others in dLegerPeers does no harm any more: the log says who votes.
        await left.start()
        assert left.failure is None
        assert await group.leader() is left
        assert left.up.core.configuration.voters == (left.peer,)
        assert left.up.leading.term > found.term
        assert await group.put(left, 5) is Outcome.COMMITTED
        fresh = group.add("n7", peers={left.peer: address, PeerId("n7"): Address("10.0.0.4", PORT)})
        await fresh.start()
        with trio.fail_after(20):
            await change_members(left.up, {fresh.peer: Address("10.0.0.4", PORT)}, {}, ())
        assert await group.put(left, 5) is Outcome.COMMITTED
        await group.converged()
        group.check()
        assert not fresh.up.ledger.empty

    scenario(story)


def test_it_survives_a_power_cut_at_once() -> None:
    async def story(group: Group) -> None:
        left = await is_left_alone(group, remove=True)
        found = look_at_node(left.machine.disk, "store")
        reset_peers(left.machine.disk, "store", found, group.peers[left.peer], 0, secrets=random.Random(1))
        left.machine.power_cut()
        await left.start()
        assert await group.leader() is left

    scenario(story)


def test_a_store_without_such_a_node_is_named() -> None:
    disk = SimDisk()
    disk.make_directories("store/dledger-n0/data")
    disk.make_directories("store/dledger-n1/data")

    with pytest.raises(NoSuchNode, match="holds ledgers of n0, n1: say whose with --node"):
        look_at_node(disk, "store")
    with pytest.raises(NoSuchNode, match="holds no ledger of n7"):
        look_at_node(disk, "store", "n7")
    with pytest.raises(NoSuchNode, match="a node without any can be started with itself alone in dLegerPeers"):
        look_at_node(disk, "store", "n0")
    with pytest.raises(NoSuchNode, match="holds no ledger of any node"):
        look_at_node(disk, "elsewhere")


@pytest.mark.parametrize("forged", [(1 << 63) - 1, 1 << 50])
def test_a_node_that_a_forged_term_has_stopped_goes_on_alone(forged: int) -> None:
    """The term is again the one that follows those of its log."""

    async def story(group: Group) -> None:
        left = await is_left_alone(group, remove=False)
        HardStateFile(left.machine.disk, f"store/dledger-{left.peer}").save(TermAndVote(forged))

        found = look_at_node(left.machine.disk, "store")
        reset_peers(left.machine.disk, "store", found, group.peers[left.peer], 0, secrets=random.Random(1))

        await left.start()
        assert left.failure is None
        assert await group.leader() is left
        assert left.up.leading.term < 100
        assert await group.put(left, 5) is Outcome.COMMITTED
        group.check()

    scenario(story)


def test_entries_of_an_impossible_term_get_one_that_others_can_follow() -> None:
    """A leader of the last term but one has written them; none of them is lost, the node can lead again and restart, and a
    backup whose files are these by another name stays as it is."""

    async def story(group: Group) -> None:
        left = await is_left_alone(group, remove=False)
        files = LedgerFiles(f"store/dledger-{left.peer}", FILE_SIZE, INDEX_FILE_SIZE)
        ledger = open_ledger(left.machine.disk, files)
        sane = ledger.end_term
        ledger.append((1 << 63) - 1, [message(500 + number) for number in range(40)])
        ledger.force(0, ledger.end_position)
        ledger.reached(ledger.end)
        ledger.write_checkpoint()
        end = ledger.end_index
        backup = f"store/dledger-{left.peer}/backup"
        linked = next(file for file in ledger.data.files if file.start + file.size > ledger.place_of(end - 39)[0])
        left.machine.disk.link(linked.path, backup)
        before = bytes(linked.view)
        ledger.close()
        HardStateFile(left.machine.disk, f"store/dledger-{left.peer}").save(TermAndVote((1 << 63) - 1))

        found = look_at_node(left.machine.disk, "store")
        assert found.term == sane + 1
        reset_peers(left.machine.disk, "store", found, group.peers[left.peer], 0, secrets=random.Random(1))

        await left.start()
        assert left.failure is None
        assert await group.leader() is left
        assert await group.put(left, 5) is Outcome.COMMITTED
        assert left.machine.disk.open(backup).read(0, FILE_SIZE) == before
        assert [left.up.ledger.term_of(index) for index in (end - 40, end - 39, end, end + 1)] == [
            sane,
            sane + 1,
            sane + 1,
            sane + 2,
        ]
        await left.kill()
        await left.start()
        assert left.failure is None

    scenario(story)


def test_a_former_node_with_its_old_store_is_refused() -> None:
    """Together they would be a second group of the same name, also once the first entries have expired."""

    async def story(group: Group) -> None:
        left = await is_left_alone(group, remove=False)
        found = look_at_node(left.machine.disk, "store")
        reset_peers(left.machine.disk, "store", found, group.peers[left.peer], 0, secrets=random.Random(1))
        await left.start()
        assert await group.put(await group.leader(), 5) is Outcome.COMMITTED
        former = next(node for node in group.nodes.values() if node is not left)

        await former.start()

        await group.until(lambda: "are of two groups that have the name g" in " ".join(left.up.status().turned_away))
        assert former.up.ledger.end_index < left.up.ledger.end_index

    scenario(story)
