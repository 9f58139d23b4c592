"""Judges whether name servers name the leader of a DLedger group as its master, soon after its election and none before it."""

from __future__ import annotations

import attrs
import trio

from .group import GroupScene, peer_of, replica_of
from .scene import Node

LOOK_SECONDS = 0.1
"""How often the name servers are looked at."""
NAMED_SECONDS = 2.0
"""Without faults, all name servers must name a leader this long after it has begun to accept messages."""

HANG_SECONDS = 3.0
"""How long a leader hangs that is to be deposed."""
ELECT_SECONDS = 15.0
"""Virtual time after which nodes without faults must have elected a leader that accepts messages."""


@attrs.define(eq=False)
class NamesWatch:
    """What the name servers of one group have named as its master."""

    scene: GroupScene
    violations: list[str] = attrs.field(factory=list[str])
    is_over: bool = False
    """Whether the nodes are being ended, so that one which hung may register when its successor is gone."""
    _named: dict[str, Node] = attrs.field(factory=dict[str, Node])
    """By the host of a name server, the node that it named when it was looked at."""

    async def run(self) -> None:
        """Look at all name servers until cancelled: a deposed leader must not take the place of a later one."""
        while not self.is_over:
            for process in self.scene.name_servers:
                named, before = self.named_by(process.host), self._named.get(process.host)
                if named is not None and before is not None and self._term_of(named) < self._term_of(before):
                    terms = f"{self._term_of(named)} in the place of {before.host} of term {self._term_of(before)}"
                    now = trio.current_time()
                    self.violations.append(f"at {now:.1f} s {process.host} names {named.host} of term {terms}")
                if named is None:
                    self._named.pop(process.host, None)
                else:
                    self._named[process.host] = named
            await trio.sleep(LOOK_SECONDS)

    def named_by(self, host: str) -> Node | None:
        """The node that a name server names as master; None if it names none or does not run."""
        server = next(process.server for process in self.scene.name_servers if process.host == host)
        if server is None:
            return None
        config = self.scene.nodes[0].config
        address = server.routes.members(config.broker_cluster_name, config.broker_name)["brokerAddrs"].get(0)
        return next((node for node in self.scene.nodes if str(node.address) == address), None)

    def _term_of(self, node: Node) -> int:
        return max((term for term, host in self.scene.watch.leaders.items() if host == node.host), default=0)

    def lacking(self) -> str:
        """Which name server does not name the present leader; empty if all that run do."""
        leader = self.scene.leader
        for process in self.scene.name_servers:
            if process.server is not None and leader is not None and self.named_by(process.host) is not leader:
                named = self.named_by(process.host)
                return f"{process.host} names {named.host if named else 'nobody'} as master, and {leader.host} leads"
        return ""

    async def judge_election(self) -> None:
        """Let another node of a group without faults lead, and wait until all name servers know it.

        The old leader transfers its leadership, or hangs until it is deposed, and registers before it knows that.

        Raises:
            AssertionError: they do not know it in `NAMED_SECONDS`.
        """
        scene, old = self.scene, self.scene.master
        assert old.broker is not None
        replica = replica_of(old.broker)
        if scene.rng.random() < 0.5:
            replica.transfer(
                scene.rng.choice([peer for peer in sorted(replica.core.configuration.voters) if peer != peer_of(old)])
            )
        else:
            old.machine.processor.stall(HANG_SECONDS)
            old.broker.registration.register_again()
            await trio.sleep(HANG_SECONDS)
        with trio.move_on_after(ELECT_SECONDS):
            while scene.leader in (None, old):  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.01)
        with trio.move_on_after(NAMED_SECONDS):
            while self.lacking():  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.01)
        assert not self.lacking(), f"{NAMED_SECONDS} s after an election {self.lacking()}"
