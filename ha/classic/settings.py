"""The settings of classic replication, which the broker fills from RocketMQ's keys."""

from __future__ import annotations

import attrs

from ..errors import WrongHaSetting
from .acks import GAP_MAX
from .protocol import TransferLimits

OURS, BARE = "ledgermq", "rocketmq"


@attrs.frozen(kw_only=True)
class HaSettings:
    """Settings of one node; times in seconds, sizes in bytes."""

    protocol: str = OURS
    """The dialect of the HA port (haProtocol)."""
    autoswitch: bool = False
    """Whether the node speaks RocketMQ's dialect of controller mode, AutoSwitch; only with `protocol` rocketmq."""
    async_learner: bool = False
    """Whether a slave only copies the log and acknowledges no put (asyncLearner)."""
    secret: bytes = attrs.field(default=b"", repr=False)
    """The secret that master and slaves share; if empty, nobody is authenticated (haSecret)."""
    listen_host: str = ""
    listen_port: int = 10912
    """The port on which the master accepts slaves (haListenPort)."""
    limits: TransferLimits = attrs.field(factory=TransferLimits)
    sync_master: bool = False
    """Whether puts wait for slaves (brokerRole = SYNC_MASTER)."""
    slave: bool = False
    """Whether the node begins as a slave (brokerRole = SLAVE)."""
    in_sync_replicas: int = 2
    """How many copies, including the master's, a waiting put needs; a SYNC_MASTER waits for at least one slave."""
    min_in_sync_replicas: int = 1
    """With fewer copies in sync a SYNC_MASTER refuses puts before it stores them (minInSyncReplicas)."""
    gap_max: int = GAP_MAX
    """A slave that is this many bytes behind does not count as in sync (haMaxGapNotInSync)."""
    slave_timeout_seconds: float = 3.0
    """How long a put waits for slaves; then it is answered FLUSH_SLAVE_TIMEOUT (slaveTimeout)."""
    from_first: bool = False
    """Whether a slave with an empty log is filled from the master's first segment instead of its last (syncFrom = first)."""

    sync_flush: bool = False
    """Whether puts are answered only once they are flushed (flushDiskType = SYNC_FLUSH)."""
    elected: bool = False
    """Whether a controller elects the master, gives the epochs, and says which slaves count (enableControllerMode)."""
    all_acknowledge: bool = True
    """Whether a put waits for all slaves that count (allAckInSyncStateSet), or for `in_sync_replicas` copies; if elected."""
    lag_seconds_max: float = 2.0
    """A slave that is behind for longer does not count any more (haMaxTimeSlaveNotCatchup); if elected."""
    accept_loss: bool = False
    """Whether a slave drops acknowledged bytes that a returned master does not have (haAcceptLoss)."""

    def __attrs_post_init__(self) -> None:
        if self.protocol not in (OURS, BARE):
            raise WrongHaSetting(f"haProtocol is {OURS} or {BARE} (got {self.protocol!r})")
        if self.autoswitch and self.protocol != BARE:
            raise WrongHaSetting(f"the AutoSwitch dialect of controller mode needs haProtocol = {BARE} (got {self.protocol})")

    @property
    def bare(self) -> bool:
        """Whether the node speaks RocketMQ's dialect without epochs."""
        return self.protocol == BARE and not self.autoswitch

    @property
    def replicas(self) -> int:
        """How many copies a put waits for; with 1 it does not wait."""
        return max(self.in_sync_replicas, 2) if self.sync_master else 1
