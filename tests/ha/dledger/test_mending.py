"""Entries that were damaged on the disk of one node: no other node takes them for good, and a sound copy replaces them."""

from __future__ import annotations

import pytest
import trio

from ledgermq.ha.dledger.ledger.layout import HEADER_SIZE, INDEX_SIZE
from ledgermq.ha.dledger.ledger.walk import walk_entries
from ledgermq.ha.dledger.native.links import Links
from ledgermq.ha.dledger.native.mending_messages import EntryDamaged
from ledgermq.ha.dledger.outcomes import Outcome
from ledgermq.ha.dledger.settings import JAVA
from ledgermq.ha.raft.errors import ChangeRefused

from .groups import Group, Node, scenario


def damage(node: Node, index: int) -> bytes:
    """Flip a bit of an entry's body on the disk; returns the sound entry."""
    ledger = node.up.ledger
    position, _ = ledger.place_of(index)
    entry = bytes(ledger.entry(index))
    segment = ledger.data.find(position)
    assert segment is not None
    at = position - segment.start + HEADER_SIZE + 100
    segment.file.write(bytes([entry[HEADER_SIZE + 100] ^ 4]), at)
    assert bytes(ledger.entry(index)) != entry
    return entry


def is_sound(node: Node) -> bool:
    """Whether all entries of a node have their CRC."""
    ledger = node.up.ledger
    for index in range(ledger.begin_index, ledger.end_index + 1):
        position, size = ledger.place_of(index)
        walked = walk_entries(ledger.entry(index), 0, size, position=position, next_index=index, term=0, check_bodies=True)
        if walked.fault is not None:
            return False
    return True


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_body_that_rotted_at_the_leader_does_not_spread_and_is_mended(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """The node that was away would have it for good otherwise; the third node has a sound copy."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        away = next(node for node in group.running if node is not leader)
        await group.put(leader, 3)
        await group.converged()
        await away.kill()
        await group.put(leader, 40)
        await group.converged()
        index = leader.up.ledger.end_index - 20
        entry = damage(leader, index)

        await away.start()

        await group.converged()
        assert bytes(away.up.ledger.entry(index)) == entry == bytes(leader.up.ledger.entry(index))
        assert await group.put(leader, 5) is Outcome.COMMITTED
        group.check()
        assert all(map(is_sound, group.running))
        assert {"damaged_entry_refused", "damaged_entry_found", "damaged_entry_mended"} <= {
            record.getMessage().split()[0] for record in caplog.records
        }
        await leader.power_cut()
        await leader.start()
        assert leader.failure is None
        await group.put_until_done()

    with caplog.at_level("INFO"):
        scenario(story, seed=seed)


def test_an_entry_that_the_disk_does_not_give_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """It is not read from a map, in which a lost sector ends the process."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        await group.converged()
        ledger = leader.up.ledger
        position, _ = ledger.place_of(ledger.end_index)
        leader.machine.disk.faults.read_error = 1.0

        assert leader.up.mend(position)

        assert f"damaged_entry_found index={ledger.end_index}" in caplog.text
        leader.machine.disk.faults.calm()
        await group.put_until_done()

    with caplog.at_level("INFO"):
        scenario(story)


def test_a_copy_of_an_entry_whose_place_is_damaged_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The node cannot tell where the copy belongs."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        other = next(node for node in group.running if node is not leader)
        await group.put(leader, 40)
        await group.converged()
        index = leader.up.ledger.end_index - 20
        at = index * INDEX_SIZE
        segment = leader.up.ledger.index.find(at)
        assert segment is not None
        segment.file.write(bytes(INDEX_SIZE), at - segment.start)
        assert isinstance(other.up.links, Links)
        other.up.links.send(EntryDamaged(other.peer, leader.peer, other.up.core.term, index))

        await group.until(lambda: "damaged_entry_not_mended" in caplog.text)
        assert await group.put(leader, 5) is Outcome.COMMITTED

    scenario(story)


def test_without_a_sound_copy_no_node_takes_the_damaged_one(caplog: pytest.LogCaptureFixture) -> None:
    """The others stay behind it, and the leader's log names it. A node with a copy that comes back lets all go on.

    Meanwhile leadership is not transferred to a node that cannot get past it.
    """

    async def story(group: Group) -> None:
        leader = await group.leader()
        one, other = (node for node in group.running if node is not leader)
        await group.put(leader, 3)
        await group.converged()
        await one.kill()
        await group.put(leader, 20)
        await group.converged()
        await other.kill()
        index = leader.up.ledger.end_index - 10
        entry = damage(leader, index)
        term = leader.up.leading.term
        await one.start()
        await group.until(lambda: "damaged_entry_without_copy" in caplog.text)
        assert leader.up.leading.term == term
        assert one.up.ledger.end_index < index
        with pytest.raises(
            ChangeRefused, match=f"{one.peer} lacks entry {index}, which is damaged on the disk of {leader.peer}"
        ):
            leader.up.transfer(one.peer)
        (event,) = [record.getMessage() for record in caplog.records if "without_copy" in record.getMessage()]
        assert f"index={index}" in event

        await other.start()
        await group.put_until_done()
        await group.converged()
        assert all(bytes(node.up.ledger.entry(index)) == entry for node in group.running)
        group.check()

    scenario(story)


@pytest.mark.slow
def test_with_dledgers_protocol_the_follower_names_the_leader_that_an_operator_has_to_replace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has no request for a copy. Once a node with a sound one leads, all go on."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        away = next(node for node in group.running if node is not leader)
        await group.put(leader, 3)
        await group.converged()
        await away.kill()
        await group.put(leader, 40)
        await group.converged()
        index = leader.up.ledger.end_index - 20
        entry = damage(leader, index)

        await away.start()
        await group.until(lambda: "leader_entries_refused" in caplog.text)
        await trio.sleep(5)
        assert away.up.ledger.end_index < index
        (event,) = [record.getMessage() for record in caplog.records if "raft_entries_refused" in record.getMessage()]
        refused = away.up.ledger.end_index + 1
        assert f"index={refused}" in event
        assert f"refuses the entries from {refused} on" in " ".join(peer.refusal or "" for peer in leader.up.status().peers)
        (reason,) = away.up.status().turned_away
        assert f"entry {index} is damaged" in reason
        assert leader.up.hand_over("its disk is replaced")

        await group.until(lambda: away.up.ledger.end_index > index)
        assert bytes(away.up.ledger.entry(index)) == entry
        (event,) = [record.getMessage() for record in caplog.records if "leader_entries_refused" in record.getMessage()]
        assert f"entry {index} is damaged on the disk of {leader.peer}" in event
        assert "transfer leadership to a node that has the entry" in event

    with caplog.at_level("INFO"):
        scenario(story, dialect=JAVA)
