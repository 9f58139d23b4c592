"""What a node of a DLedger group can be told; the broker fills it from RocketMQ's keys."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...world.network import Address
from ..errors import WrongHaSetting
from ..raft.settings import Settings
from ..raft.units import PeerId
from .java_state import JavaSettings
from .native_layout import NAME_BYTES_MAX
from .recovery import LedgerFiles

NATIVE, JAVA = "native", "java"


def parse_peers(text: str) -> dict[PeerId, Address]:
    """Read `dLegerPeers`: `n0-127.0.0.1:40911;n1-127.0.0.1:40912`; an id is what comes before the first `-`.

    Raises:
        WrongHaSetting: it is no such list.
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
                f"dLegerPeers is a list like n0-127.0.0.1:40911;n1-127.0.0.1:40912 (got {part!r:.100}: {error})"
            ) from error
    return peers


@attrs.frozen(kw_only=True)
class ReplicaSettings:
    """Times in seconds, sizes in bytes."""

    group: str
    """dLegerGroup."""
    self_id: PeerId
    """dLegerSelfId."""
    peers: Mapping[PeerId, Address]
    """dLegerPeers: the members that a new group begins with."""
    files: LedgerFiles
    secret: bytes = b""
    """What all nodes share; empty authenticates nobody (haSecret)."""
    serves: str = ""
    """Where this node's broker serves clients; its peers pass it on to those that should ask the leader."""
    listen_host: str = ""
    listen_port: int | None = None
    """Where this node listens; by default at the port of its own entry in `peers`."""
    sync: bool = True
    """Acknowledge entries only when they are on the medium (raftFlush = sync)."""
    joins: bool = False
    """This node is not in the group yet: it waits until the leader adds it."""
    tick_seconds: float = 0.02
    raft: Settings = attrs.field(factory=Settings)
    """Time-outs of the native dialect."""
    dialect: str = NATIVE
    """raftDialect: `native` where all nodes are ours, `java` beside nodes of DLedger 0.3.1.2."""
    java: JavaSettings = attrs.field(factory=JavaSettings)
    """Time-outs of the java dialect."""
    pending_max: int = 10_000
    """Puts that may wait for a majority (DLedger maxPendingRequestsNum)."""
    flush_seconds: float = 0.5
    """How often entries are synced that nobody waits for, with `sync` off."""
    checkpoint_seconds: float = 3.0
    """How often the checkpoint is written while the ledger grows (DLedger checkPointInterval)."""
    transfer_seconds: float = 2.0
    """How long a leader that is stopped tries to hand over its leadership first."""

    def __attrs_post_init__(self) -> None:
        if self.dialect not in (NATIVE, JAVA):
            raise WrongHaSetting(f"raftDialect is {NATIVE} or {JAVA} (got {self.dialect!r:.40})")
        for name in (self.group, *self.peers, self.self_id):
            if not name or len(name.encode()) > NAME_BYTES_MAX:
                raise WrongHaSetting(f"dLegerGroup and ids of peers have 1 to {NAME_BYTES_MAX} bytes (got {name!r:.100})")
        if self.self_id not in self.peers:
            raise WrongHaSetting(
                f"dLegerSelfId is {self.self_id}, which is not among dLegerPeers ({', '.join(self.peers) or 'which are empty'})"
            )

    @property
    def port(self) -> int:
        return self.peers[self.self_id].port if self.listen_port is None else self.listen_port
