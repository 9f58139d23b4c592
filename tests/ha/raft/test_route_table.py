"""Clients follow the leader of the newest term that anybody named."""

from __future__ import annotations

from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.route_table import RouteTable
from ledgermq.ha.raft.units import PeerId

A, B, C = map(PeerId, "abc")


def a_table() -> RouteTable:
    table = RouteTable()
    table.update_configuration("g", Configuration((A, B, C)))
    return table


def test_leader_of_the_newest_term_is_believed() -> None:
    table = a_table()

    table.update_leader("g", B, 3)
    table.update_leader("g", A, 2)
    assert table.leader("g") == B

    table.update_leader("g", None, 4)
    assert table.leader("g") is None


def test_leader_that_leaves_the_group_is_forgotten() -> None:
    table = a_table()
    table.update_leader("g", B, 3)

    table.update_configuration("g", Configuration((A, C)))

    assert table.leader("g") is None


def test_members_are_asked_in_turn() -> None:
    table = a_table()

    assert [table.next_peer("g", peer) for peer in (None, A, B, C)] == [A, B, C, A]
    assert table.next_peer("unknown", None) is None
