"""Errors of replication.

HaError
├── HaProtocolError     the peer sent bytes that its dialect does not allow: its connection is closed
├── WrongDialect        the peer speaks the other dialect; the message names the key to set
├── HaRefused           one node refuses to replicate with the other; the message says what to do
├── CorruptEpochs       the epoch file is inconsistent
├── WrongHaSetting      a configuration key has a value that is not allowed
├── WrongRaftDialect    a peer on the Raft port speaks the other dialect; the message names the key to set
├── CorruptLedger       the files of a ledger differ from what was synced
├── NoSuchNode          a store has no ledger of the requested node
├── CorruptHardState    the term and vote of a node cannot be read
├── LeadershipLost      this node stopped leading before it could answer
├── DamagedEntry        a leader has sent an entry that was damaged where it stored it
├── LedgerGap           entries do not continue a ledger
└── CommittedEntries    a truncation would remove committed entries

NotWritable (store)
├── TooManyPending           too many puts wait for a majority
└── InSyncReplicasNotEnough  too few slaves are in sync
"""

from __future__ import annotations

from ..store.errors import NotWritable
from ..store.statuses import PutStatus

UNDER_WHICH_NAME = " (with raftDialect=java under a new name, because there a node votes before it is filled)"
"""The end of a text that lets an operator have a node filled by the leader again."""


class HaError(Exception):
    """Base of all errors of replication."""


class HaProtocolError(HaError):
    """The peer sent bytes that its dialect does not allow. None of them acknowledged a put or were appended."""


class WrongDialect(HaError):
    """The peer speaks `dialect` on the HA port, and this node another one."""

    def __init__(self, dialect: str) -> None:
        super().__init__(f"the other side speaks the other HA protocol: set haProtocol = {dialect} on this node to talk to it")
        self.dialect = dialect


class HaRefused(HaError):
    """Replication between two nodes is refused until an operator acts."""


class CorruptEpochs(HaError):
    """The epoch file of a store is inconsistent."""


class WrongHaSetting(HaError):
    """A configuration key has a value that is not allowed."""


class WrongRaftDialect(HaError):
    """A peer on the Raft port speaks `theirs`; this node speaks `ours`."""

    def __init__(self, theirs: str, ours: str) -> None:
        super().__init__(
            f"the peer speaks the {theirs} dialect on the Raft port, this node the {ours} one: set raftDialect to the same "
            "value on all nodes of the group (java while one of them is a Java node)"
        )
        self.theirs = theirs
        self.ours = ours


class CorruptLedger(HaError):
    """The files in `path` differ from what was synced; `found` says where and how. Nothing was changed."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(
            f"{path}: {found}. Nothing was cut. Restore the files of this node from a backup; or, while the other nodes of the "
            "group are a majority, stop this one, move its whole directory away and let it be filled by the leader again"
            f"{UNDER_WHICH_NAME}"
        )
        self.path = path


class NoSuchNode(HaError):
    """A store has no ledger of the requested node. Nothing was changed."""


class CorruptHardState(HaError):
    """The file that holds a node's term and vote is gone or unreadable although the node has entries. Nothing was changed."""


class LeadershipLost(HaError):
    """The node stopped leading, or following its leader, before it could answer. The outcome of the request is unknown."""

    def __init__(self) -> None:
        super().__init__("leadership of the group changed before this could be answered; ask the new leader")


class DamagedEntry(HaError):
    """The leader of `term` has sent the entry `index` with a body that does not have its CRC. Nothing was appended."""

    def __init__(self, term: int, index: int) -> None:
        super().__init__(f"entry {index} of the leader of term {term} does not have the CRC that was stored with it")
        self.term = term
        self.index = index


class LedgerGap(HaError):
    """Entries do not continue the ledger. Nothing was appended."""


class CommittedEntries(HaError):
    """A truncation at the entry `index` would remove entries, which are committed up to `committed_index`. Nothing was cut."""

    def __init__(self, index: int, committed_index: int) -> None:
        super().__init__(
            f"a cut at entry {index} would take committed entries away, the last of which is {committed_index}: two nodes of "
            "the group hold different histories. This node refuses to follow; compare the stores of all nodes before any of "
            "them is started anew"
        )
        self.index = index
        self.committed_index = committed_index


class InSyncReplicasNotEnough(NotWritable):
    """`found` copies are in sync, but `minInSyncReplicas` requires `least`. Nothing was appended."""

    status = PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH

    def __init__(self, found: int, least: int) -> None:
        super().__init__(f"{found} copies are within reach, minInSyncReplicas asks for {least}")
        self.found = found
        self.least = least


class TooManyPending(NotWritable):
    """`pending_max` puts wait for a majority already (DLedger LEADER_PENDING_FULL). Nothing was appended."""

    status = PutStatus.OS_PAGE_CACHE_BUSY

    def __init__(self, pending_max: int) -> None:
        super().__init__(f"{pending_max} puts wait for a majority of the group already; nothing was appended")
        self.pending_max = pending_max
