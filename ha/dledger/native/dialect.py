"""The native dialect of one node: the Raft core, and connections that also carry copies of damaged entries."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ...envelopes import NODE_SIZE
from ...raft.core import Raft
from ...raft.forgetting import unanswered
from ...raft.units import PeerId
from ..mending import Mending
from ..replica import Replica
from ..status import beginning_of
from .handshake import UNKNOWN, NodeCard
from .links import Links
from .mending_messages import MendingMessage


@attrs.define(eq=False)
class NativeDialect:
    """Implements `Dialect`."""

    core: Raft
    tick_seconds: float
    names_group: bool = True
    copies: Mending | None = None

    def connect(self, replica: Replica) -> Links:
        """Make the connections of a node, which is the one to which they deliver what arrives."""
        settings, world, core = replica.settings, replica.world, self.core

        def send(message: MendingMessage) -> None:
            links.send(message)

        mending = self.copies = Mending(
            settings.self_id,
            replica.ledger,
            replica.disk,
            world.clock,
            lambda: core.term,
            lambda: sorted(core.configuration.members - {settings.self_id}),
            send,
        )
        own = settings.peers.get(settings.self_id)
        card = NodeCard(
            settings.group,
            settings.self_id,
            replica.node,
            settings.files.data_file_size,
            serves=settings.serves,
            start=world.secrets.getrandbits(8 * NODE_SIZE).to_bytes(NODE_SIZE, "big"),
        )
        if own is not None:
            card = attrs.evolve(card, address=str(own))
        links = Links(
            card,
            lambda: beginning_of(replica.ledger, replica.older),
            lambda: bytes.fromhex(replica.reader.committed_group_id) or UNKNOWN,
            settings.secret,
            world.network,
            world.clock,
            world.workers,
            world.secrets,
            replica.deliver,
            replica.work_at_once,
            lambda peer: replica.tell(lambda: core.reconnected(peer)),
            lambda peer: replica.tell(lambda: core.disconnected(peer)),
            mending.report,
            mending.take,
        )
        return links

    def waits_for(self) -> Iterable[PeerId]:
        return unanswered(self.core)

    def refusal_of(self, peer: PeerId) -> str | None:  # noqa: ARG002 - a follower of ours refuses the connection instead
        return None
