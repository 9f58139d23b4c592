"""The settings of a node of a DLedger group; the broker sets them from RocketMQ's keys."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...world.network import Address
from ..errors import WrongHaSetting
from ..raft.settings import Settings
from ..raft.units import PeerId
from .java.state import JavaSettings
from .ledger.recovery import LedgerFiles
from .native.group_records import PEERS_MAX
from .native.layout import NAME_BYTES_MAX

NATIVE, JAVA = "native", "java"


def parse_peers(text: str, key: str = "dLegerPeers") -> dict[PeerId, Address]:
    """Read the peers of a group: `n0-127.0.0.1:40911;n1-127.0.0.1:40912`; an id is the text before the first `-`.

    Raises:
        WrongHaSetting: the text is not such a list.
    """
    peers: dict[PeerId, Address] = {}
    for part in filter(None, text.split(";")):
        peer, dash, address = part.strip().partition("-")
        try:
            if not dash or not peer or peer in peers:
                raise ValueError("an id, which no other peer has, and an address are joined by -")  # noqa: TRY301
            peers[PeerId(peer)] = Address.parse(address)
        except ValueError as error:
            raise WrongHaSetting(
                f"{key} is a list like n0-127.0.0.1:40911;n1-127.0.0.1:40912 (got {part!r:.100}: {error})"
            ) from error
    return peers


@attrs.frozen(kw_only=True)
class ReplicaSettings:
    """The settings of one node; times are in seconds, sizes in bytes."""

    group: str
    """The name of the group (dLegerGroup)."""
    self_id: PeerId
    """The id of this node (dLegerSelfId)."""
    peers: Mapping[PeerId, Address]
    """The members of a new group, by id (dLegerPeers)."""
    files: LedgerFiles
    secret: bytes = attrs.field(default=b"", repr=False)
    """The secret of all nodes of the group; empty means no authentication (haSecret)."""
    serves: str = ""
    """The address where this node's broker serves clients; its peers give it to requesters that must ask the leader."""
    listen_host: str = ""
    listen_port: int | None = None
    """The port on which this node listens; None means the port of its own entry in `peers`."""
    sync: bool = True
    """Whether entries are acknowledged only when they are durable (raftFlush = sync)."""
    tick_seconds: float = 0.02
    raft: Settings = attrs.field(factory=Settings)
    """Time-outs and limits of the native dialect."""
    dialect: str = NATIVE
    """`native` if all nodes are ours, `java` if some are nodes of DLedger 0.3.1.2 (raftDialect)."""
    java: JavaSettings = attrs.field(factory=JavaSettings)
    """Time-outs and limits of the java dialect."""
    pending_max: int = 10_000
    """How many puts may wait for a majority; a further one raises TooManyPending (DLedger maxPendingRequestsNum)."""
    flush_seconds: float = 0.5
    """Interval between two syncs while `sync` is off."""
    checkpoint_seconds: float = 3.0
    """Interval at which the checkpoint is written while the ledger grows (DLedger checkPointInterval)."""
    transfer_seconds: float = 2.0
    """How long a stopping leader tries to transfer its leadership; then it stops without."""

    def __attrs_post_init__(self) -> None:
        if self.dialect not in (NATIVE, JAVA):
            raise WrongHaSetting(f"raftDialect is {NATIVE} or {JAVA} (got {self.dialect!r:.40})")
        if self.dialect == JAVA and self.raft.preferred:
            raise WrongHaSetting(
                "preferredLeaderId has no effect with raftDialect = java: remove it, and move leadership with "
                f"`ledgermq dledger transfer` (got {', '.join(sorted(self.raft.preferred))})"
            )
        for name in (self.group, *self.peers, self.self_id):
            if not name or len(name.encode()) > NAME_BYTES_MAX:
                raise WrongHaSetting(f"dLegerGroup and ids of peers have 1 to {NAME_BYTES_MAX} bytes (got {name!r:.100})")
        if len(self.peers) > PEERS_MAX:
            raise WrongHaSetting(f"dLegerPeers has at most {PEERS_MAX} nodes (got {len(self.peers)})")
        if self.self_id not in self.peers:
            raise WrongHaSetting(
                f"dLegerSelfId is {self.self_id}, which is not among dLegerPeers ({', '.join(self.peers) or 'which are empty'})"
            )

    @property
    def port(self) -> int:
        return self.peers[self.self_id].port if self.listen_port is None else self.listen_port
