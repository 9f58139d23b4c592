"""DLedger's dialect of one node: a core with its rules, and connections that also serve its clients."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ...raft.units import PeerId
from ..replica import Replica
from .clients import foreign_clients
from .core import TICK_MS, JavaCore
from .links import JavaLinks
from .messages import Message


@attrs.define(eq=False)
class JavaDialect:
    """Implements `Dialect`."""

    core: JavaCore
    tick_seconds: float = TICK_MS / 1000
    names_group: bool = False
    copies: None = None

    def connect(self, replica: Replica) -> JavaLinks:
        """Make the connections of a node, which is the one to which they deliver what arrives."""
        settings, world = replica.settings, replica.world

        def deliver(message: Message) -> None:
            replica.deliver(message)
            replica.wake()

        clients = foreign_clients(
            settings,
            replica.ledger,
            world.clock,
            leader=lambda: replica.leading.leader,
            addresses=replica.addresses,
            propose=replica.propose,
            when_committed=replica.when_committed,
        )
        return JavaLinks(settings.group, settings.self_id, world.network, world.clock, deliver, clients)

    def waits_for(self) -> Iterable[PeerId]:
        return ()

    def refusal_of(self, peer: PeerId) -> str | None:
        led = self.core.leadership
        follower = led.group.get(peer) if led is not None else None
        return follower.refusal if follower is not None else None
