"""Errors of replication.

HaError
├── HaProtocolError     the peer sent what its dialect does not allow: its connection is closed
├── WrongDialect        the peer speaks the other dialect; says which key to set
├── HaRefused           one side will not replicate with the other; says what to do
├── CorruptEpochs       the epoch file does not add up
└── WrongHaSetting      a configuration key has a value that cannot work

NotWritable (store)
└── InSyncReplicasNotEnough  too few slaves are within reach
"""

from __future__ import annotations

from ..store.errors import NotWritable
from ..store.statuses import PutStatus


class HaError(Exception):
    """Base of all."""


class HaProtocolError(HaError):
    """The peer sent what its dialect does not allow. Nothing of it was taken for an acknowledgement or appended."""


class WrongDialect(HaError):
    """The peer speaks `dialect` on the HA port; ours is another one."""

    def __init__(self, dialect: str) -> None:
        super().__init__(f"the other side speaks the other HA protocol: set haProtocol = {dialect} on this node to talk to it")
        self.dialect = dialect


class HaRefused(HaError):
    """Replication between these two nodes is refused until a person acts."""


class CorruptEpochs(HaError):
    """The epoch file of a store does not add up."""


class WrongHaSetting(HaError):
    """A configuration key has a value that cannot work."""


class InSyncReplicasNotEnough(NotWritable):
    """`found` copies are within reach where `minInSyncReplicas` asks for `least`. Nothing was appended."""

    status = PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH

    def __init__(self, found: int, least: int) -> None:
        super().__init__(f"{found} copies are within reach, minInSyncReplicas asks for {least}")
        self.found = found
        self.least = least
