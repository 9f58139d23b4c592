"""What a node says about itself and its group."""

from __future__ import annotations

import attrs

from ...world.network import Address
from ..raft.quorum import Configuration
from ..raft.roles import Role
from ..raft.units import LogIndex, PeerId, Term


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
