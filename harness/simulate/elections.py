"""The common part of the simulators of whole nodes that elect their master: who leads, and what any node has let others see.

The watch sends no requests: it compares the bytes that each node commits, or lets consumers read, with those that any node has
had at the same position before, also after restarts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import attrs
import trio

from ledgermq.broker.broker import Broker

from .scene import Node, Scene

HEALED_PAUSE_SECONDS = 0.5
"""The shortest pause of a client once all faults have ended: the run then only waits, and every operation costs real time."""
ASKED_ELSEWHERE = 0.1
"""The share of requests that an administrator sends to any node instead of the leader."""


@attrs.define(eq=False)
class ElectionWatch:
    """What has been observed of one group, and the violations found in it."""

    segment_size: int
    newest_term: int = 0
    """The newest term that a node was elected in."""
    on_change: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    """Functions that are called when a node begins or ceases to lead."""
    elections: int = 0
    violations: list[str] = attrs.field(factory=list[str])
    leaders: dict[int, str] = attrs.field(factory=dict[int, str])
    """The host that was elected in each term."""
    _committed: dict[int, bytearray] = attrs.field(factory=dict[int, bytearray])
    """The committed part of each data file, by the position where the file begins."""

    def elected(self, host: str, term: int) -> None:
        """Record an election; a term has at most one leader."""
        known = self.leaders.setdefault(term, host)
        if known != host:
            self.found(f"{known} and {host} were both elected in term {term}")
        self.newest_term = max(self.newest_term, term)
        self.elections += 1

    def compare(self, host: str, start: int, found: memoryview) -> None:
        """Compare committed bytes of one file with those that were committed there before, and record new ones."""
        base = start - start % self.segment_size
        known = self._committed.setdefault(base, bytearray())
        at = start - base
        both = min(len(known) - at, len(found))
        if both < 0:
            # The bytes between were not observed, as the nodes that committed them are gone. They are compared when another
            # node commits them.
            return
        if bytes(known[at : at + both]) != bytes(found[:both]):
            first = next(n for n in range(both) if known[at + n] != found[n])
            self.found(f"{host} commits other bytes at position {start + first} than were committed there before")
            return
        known += found[both:]

    def found(self, violation: str) -> None:
        """Record a violation, once."""
        if violation not in self.violations:
            self.violations.append(violation)


@attrs.define(eq=False)
class ElectingScene(Scene):
    """The machines of one group and of its clients. The master is the node that leads, or led last."""

    _last: Node | None = None

    @abstractmethod
    def find_leader(self) -> Node | None:
        """The node that accepts messages and was elected last; None while there is none."""

    @property
    def leader(self) -> Node | None:
        """The node that accepts messages and was elected last; None while there is none."""
        if (found := self.find_leader()) is not None:
            self._last = found
        return found

    @property
    def members(self) -> list[Node]:
        """The nodes that copy the log; all of them, unless the group changes."""
        return self.nodes

    @property
    def master(self) -> Node:
        return self.leader or self._last or self.nodes[0]

    @property
    def slaves(self) -> list[Node]:
        leader = self.leader
        return [node for node in self.members if node is not leader]

    @property
    def copying(self) -> list[Node]:
        return []  # offsets come through the log and are not copied at intervals

    @property
    def serving(self) -> Broker | None:
        leader = self.leader
        return leader.broker if leader is not None else None

    def is_master(self, node: Node) -> bool:
        return node is self.leader

    def pause_seconds(self, share: float) -> float:
        pause = super().pause_seconds(share)
        return max(pause, HEALED_PAUSE_SECONDS) if self.healed else pause

    def read_seconds(self) -> float:
        return 5 * super().read_seconds()

    @property
    def asked(self) -> Node:
        return self.rng.choice(self.nodes) if self.rng.random() < ASKED_ELSEWHERE else self.master

    async def until_led(self, seconds: float) -> Node:
        """Wait for a leader.

        Raises:
            AssertionError: there was no leader in that time.
        """
        with trio.move_on_after(seconds):
            while self.leader is None:  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.01)
        leader = self.leader
        assert leader is not None, f"no node has led for {seconds} s without faults"
        return leader
