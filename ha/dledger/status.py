"""The status of a node and its group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ...store.log.older_log import OlderLog
from ...world.network import Address
from ..raft.quorum import Configuration
from ..raft.roles import Role
from ..raft.units import LogIndex, PeerId, Term
from .dialect import Dialect, PeerLinks
from .ledger.ledger import Ledger
from .native.handshake import EXPIRED, NOT_BEGUN, LogBeginning
from .native.layout import LANE_CONTROL


@attrs.frozen
class Leading:
    """A node's role, and the leader that it knows."""

    role: Role
    term: Term
    leader: PeerId | None
    address: Address | None
    """The address of the leader's Raft port."""


@attrs.frozen
class PeerStatus:
    """The state of one other member, as this node knows it."""

    peer: PeerId
    address: Address
    learner: bool
    connected: bool
    match_index: LogIndex | None
    """The last entry known to be durable there; None if this node does not lead."""
    refusal: str | None
    """Why no connection to it is possible, or why it takes no entries, if an operator has to act."""


@attrs.frozen
class ReplicaStatus:
    """The current state of one node."""

    self_id: PeerId
    leading: Leading
    begin_index: LogIndex
    end_index: LogIndex
    synced_index: LogIndex
    committed_index: LogIndex
    configuration: Configuration
    failure: str | None
    """Why the node refuses appends or has left the group; None if neither."""
    peers: tuple[PeerStatus, ...]
    waits_for: tuple[PeerId, ...]
    """The voters that have to answer before this node, whose store was empty, may vote."""
    turned_away: tuple[str, ...]
    """Why nodes that dial this one, or the entries of a leader, are refused, if an operator has to act."""


def status_of(
    self_id: PeerId,
    dialect: Dialect[Any],
    ledger: Ledger,
    links: PeerLinks[Any],
    *,
    leading: Leading,
    addresses: Mapping[PeerId, Address],
    stopped: str | None,
) -> ReplicaStatus:
    """Return the current status of a node; `stopped` is why it has left the group, if it has."""
    core = dialect.core
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
                link.refusal or dialect.refusal_of(peer),
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
        tuple(dialect.waits_for()),
        links.refusals(),
    )


def beginning_of(ledger: Ledger, older: OlderLog | None) -> LogBeginning:
    """The beginning of a node's log, as peers compare it.

    Args:
        older: the classic commit log that the ledger continues, if the store has one.
    """
    if ledger.begin_index > 0:
        return LogBeginning(EXPIRED)
    if older is not None and older.end is not None and not older.expired:
        return LogBeginning(older.end.divided_offset, older.end.end, older.end.crc)
    if ledger.empty:
        return LogBeginning(NOT_BEGUN)
    return LogBeginning(ledger.begin_position, older_crc=ledger.first_crc)
