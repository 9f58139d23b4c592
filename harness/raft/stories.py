"""Single nodes and logs to begin a scenario with: a follower, a candidate or a leader, without peers or network."""

from __future__ import annotations

from ledgermq.ha.raft.messages import TimeoutNow, VoteResponse
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.ready import HardState
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import PeerId

from .group import shortest
from .node import Node
from .storage import Entry, MemoryStorage

A, B, C, D, E = map(PeerId, "abcde")


def a_node(*log: Entry, voters: str = "abc", term: int = 0, vote: PeerId | None = None) -> Node:
    """Node `a` with this log and hard state on its disk, ready to vote."""
    storage = MemoryStorage(Configuration(tuple(map(PeerId, voters))), hard_state=HardState(term, vote))
    storage.append(log)
    storage.sync()
    node = Node(A, Settings(), shortest, storage)
    node.process()
    node.raft.heard_tick = -100
    return node


def a_candidate(voters: str = "abc", term: int = 1) -> Node:
    """Node `a` that has requested votes in `term`; its own vote is durable."""
    node = a_node(voters=voters, term=term - 1)
    node.raft.step(TimeoutNow(B, A, term - 1))
    node.process()
    assert node.raft.role is Role.CANDIDATE
    return node


def a_leader(voters: str = "abc", term: int = 1) -> Node:
    """Node `a` that has been elected in `term`."""
    node = a_candidate(voters, term)
    for peer in map(PeerId, voters[1:]):
        if node.raft.role is Role.CANDIDATE:
            node.raft.step(VoteResponse(peer, A, term, granted=True))
    node.process()
    assert node.raft.role is Role.LEADER
    return node


def entries(*terms: int) -> tuple[Entry, ...]:
    """A log of entries with these terms; each value names the term and the index of its entry."""
    return tuple((term, f"{term}.{index}") for index, term in enumerate(terms))
