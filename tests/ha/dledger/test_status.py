"""What a node says about itself and its group."""

from __future__ import annotations

from ledgermq.ha.dledger.replica import Replica

from .groups import Group, scenario


def test_every_node_says_who_leads_and_the_leader_how_far_the_others_are() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 7)
        await group.converged()
        for node in group.running:
            status = node.up.status()
            assert (status.self_id, status.failure) == (node.peer, None)
            assert status.leading.leader == leader.peer
            assert status.synced_index == status.committed_index == status.end_index
            assert {peer.peer for peer in status.peers} == {*group.nodes} - {node.peer}
            assert all(peer.connected and not peer.learner for peer in status.peers)
            known = {peer.match_index for peer in status.peers}
            assert known == ({status.end_index} if node is leader else {None})

    scenario(story)


def test_a_node_that_has_no_part_in_the_group_says_why() -> None:
    async def story(group: Group) -> None:
        node = await group.leader()
        replica: Replica = node.up
        replica.ledger.failed(OSError(5, "Input/output error"))

        assert "Input/output error" in (replica.status().failure or "")

    scenario(story)
