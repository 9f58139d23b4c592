"""What a node says about itself and its group."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...world.network import Address
from ..raft.core import Raft
from ..raft.quorum import Configuration
from ..raft.roles import Role
from ..raft.units import LogIndex, PeerId, Term
from .java_core import JavaCore
from .java_links import JavaLinks
from .ledger import Ledger
from .links import Links
from .native_layout import LANE_CONTROL


@attrs.frozen
class Leading:
    """Who leads, as this node knows it."""

    role: Role
    term: Term
    leader: PeerId | None
    address: Address | None
    """Of the leader's Raft port."""


@attrs.frozen
class PeerStatus:
    """One other member, as this node sees it."""

    peer: PeerId
    address: Address
    learner: bool
    connected: bool
    match_index: LogIndex | None
    """What it is known to hold on its medium; None where this node does not lead."""
    refusal: str | None
    """Why it cannot be connected, if a person has to act."""


@attrs.frozen
class ReplicaStatus:
    """One node, as it is now."""

    self_id: PeerId
    leading: Leading
    begin_index: LogIndex
    end_index: LogIndex
    synced_index: LogIndex
    committed_index: LogIndex
    configuration: Configuration
    failure: str | None
    """Why the node takes nothing or has no part in the group; None while all is well."""
    peers: tuple[PeerStatus, ...]


def status_of(
    self_id: PeerId,
    core: Raft | JavaCore,
    ledger: Ledger,
    links: Links | JavaLinks,
    *,
    leading: Leading,
    addresses: Mapping[PeerId, Address],
    stopped: str | None,
) -> ReplicaStatus:
    """A node as it is now; `stopped` says why it has no part in the group, if it has none."""
    group = core.leadership.group if core.leadership is not None else None
    peers: list[PeerStatus] = []
    for peer, address in addresses.items():
        link = links.outgoing.get((peer, LANE_CONTROL))
        if link is None:
            continue
        replicator = group.get(peer) if group is not None else None
        peers.append(
            PeerStatus(
                peer,
                address,
                peer in core.configuration.learners,
                link.connected,
                replicator.match_index if replicator is not None else None,
                link.refusal,
            )
        )
    return ReplicaStatus(
        self_id,
        leading,
        ledger.begin_index,
        ledger.end_index,
        ledger.synced_index,
        ledger.committed_index,
        core.configuration,
        stopped or ledger.failure,
        tuple(peers),
    )
