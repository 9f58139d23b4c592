"""A group of nodes with a perfect network, for tests that play a scenario step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from ledgermq.ha.raft.messages import Message
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import PeerId

from .node import Node
from .storage import Entry, MemoryStorage

STEPS_MAX = 10_000
"""The most steps of one `settle`, which then fails: far more than any scenario needs."""


def shortest(low: int, high: int) -> int:  # noqa: ARG001 - the core calls it with both bounds
    """Return the lower bound, so that all time-outs are equal and the scenario decides which node campaigns."""
    return low


@attrs.define(eq=False)
class Group:
    """Nodes by name, and the messages between them in the order in which they were sent."""

    nodes: dict[PeerId, Node]
    network: deque[Message] = attrs.field(factory=deque[Message])
    cut: set[tuple[PeerId, PeerId]] = attrs.field(factory=set[tuple[PeerId, PeerId]])
    """Pairs of sender and receiver between which every message is lost."""
    syncing: bool = True
    """Whether `settle` syncs whatever was written."""

    @classmethod
    def of(
        cls,
        voters: str,
        learners: str = "",
        *,
        settings: Settings | None = None,
        logs: dict[str, tuple[Entry, ...]] | None = None,
        draw: Callable[[int, int], int] = shortest,
    ) -> Group:
        """A group whose members are named by one letter each: `Group.of("abc")`. `logs` are the entries on their disks."""
        configuration = Configuration(tuple(map(PeerId, voters)), (), tuple(map(PeerId, learners)))
        nodes: dict[PeerId, Node] = {}
        for name in voters + learners:
            storage = MemoryStorage(configuration)
            storage.append((logs or {}).get(name, ()))
            storage.sync()
            nodes[PeerId(name)] = Node(PeerId(name), settings or Settings(), draw, storage)
        return cls(nodes)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[PeerId(name)]

    # ---------------------------------------------------------------- network

    def collect(self) -> None:
        """Let every node process its Ready, and collect its messages."""
        for node in self.nodes.values():
            self.network.extend(node.process())

    def deliver(self, message: Message) -> None:
        if (message.sender, message.to) not in self.cut and message.to in self.nodes:
            self.nodes[message.to].raft.step(message)

    def settle(self) -> None:
        """Deliver and sync until nothing is left to do."""
        for _ in range(STEPS_MAX):
            self.collect()
            if self.network:
                self.deliver(self.network.popleft())
            elif self.syncing and any(node.sync_wanted for node in self.nodes.values()):
                for node in self.nodes.values():
                    if node.sync_wanted:
                        node.sync()
            else:
                return
        raise AssertionError(f"the group did not settle within {STEPS_MAX} messages")

    def isolate(self, name: str) -> None:
        """Lose every message to and from a node."""
        for other in self.nodes:
            if other != name:
                self.cut |= {(PeerId(name), other), (other, PeerId(name))}

    def heal(self) -> None:
        self.cut.clear()

    # ---------------------------------------------------------------- scenarios

    def tick(self, count: int = 1, *names: str) -> None:
        """Let time pass for all nodes, or for these alone, and settle after each tick."""
        for _ in range(count):
            for name in names or tuple(self.nodes):
                self[name].raft.tick()
            self.settle()

    def elect(self, name: str) -> Node:
        """Make a node the leader: its election times out first, after the others have waited long enough to vote."""
        node = self[name]
        for other in self.nodes.values():
            if other is not node and other.raft.leadership is None:
                other.raft.heard_tick = other.raft.now - other.raft.settings.election_ticks_min
        for _ in range(2 * node.settings.election_ticks_max):
            if node.raft.leadership is not None:
                return node
            node.raft.tick()
            self.settle()
        raise AssertionError(f"{name} was not elected: {node.raft.role} of term {node.raft.term}")

    def propose(self, name: str, *values: Any) -> None:
        self[name].propose(*values)
        self.settle()

    def log(self, name: str) -> list[Entry]:
        return self[name].storage.entries

    def leaders(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.raft.leadership is not None]
