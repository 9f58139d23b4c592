"""What replication can be told; the broker fills it from RocketMQ's keys."""

from __future__ import annotations

import attrs

from ..errors import WrongHaSetting
from .acks import GAP_MAX
from .protocol import TransferLimits

OURS, BARE = "ledgermq", "rocketmq"


@attrs.frozen(kw_only=True)
class HaSettings:
    """Times in seconds, sizes in bytes."""

    protocol: str = OURS
    """Which dialect the HA port speaks (haProtocol)."""
    secret: bytes = attrs.field(default=b"", repr=False)
    """What master and slaves share; empty authenticates nobody (haSecret)."""
    listen_host: str = ""
    listen_port: int = 10912
    """haListenPort."""
    limits: TransferLimits = attrs.field(factory=TransferLimits)
    sync_master: bool = False
    """Puts wait for slaves (brokerRole = SYNC_MASTER)."""
    slave: bool = False
    """The node begins as a slave (brokerRole = SLAVE)."""
    in_sync_replicas: int = 2
    """Copies that a waiting put needs, the master's included; a SYNC_MASTER never waits for less than one slave."""
    min_in_sync_replicas: int = 1
    """With fewer copies within reach a SYNC_MASTER refuses puts before storing them."""
    gap_max: int = GAP_MAX
    """haMaxGapNotInSync."""
    slave_timeout_seconds: float = 3.0
    """slaveTimeout."""
    from_first: bool = False
    """A slave with an empty log is filled from the master's first segment, not its last (syncFrom = first)."""

    sync_flush: bool = False
    """The group promises what is on the medium (flushDiskType = SYNC_FLUSH): what a power cut takes was never answered."""
    accept_loss: bool = False
    """A slave drops what a master that came back shorter does not have, whatever was promised of it (haAcceptLoss)."""

    def __attrs_post_init__(self) -> None:
        if self.protocol not in (OURS, BARE):
            raise WrongHaSetting(f"haProtocol is {OURS} or {BARE} (got {self.protocol!r})")

    @property
    def replicas(self) -> int:
        """Copies that a put waits for; 1 = it does not wait."""
        return max(self.in_sync_replicas, 2) if self.sync_master else 1
