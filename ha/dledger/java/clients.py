"""The requests of DLedger's own clients: for the leader, for one committed entry, and to append one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ....message.fields import Buffer
from ....store.errors import StoreError, is_full
from ....world.clock import Clock
from ....world.network import Address
from ...errors import TooManyPending
from ...raft.errors import Refused, TransferInProgress
from ...raft.units import LogIndex, PeerId
from ..ledger.layout import HEADER_SIZE
from ..ledger.ledger import Ledger, Placed
from ..outcomes import Done, Outcome
from ..settings import ReplicaSettings
from .links import ForeignClients
from .messages import Code

CLIENT_WAIT_SECONDS = 2.5
"""How long an append of such a client waits for a majority (maxWaitAckTimeMs); then it gets WAIT_QUORUM_ACK_TIMEOUT."""

CODE_OF_OUTCOME = {
    Outcome.COMMITTED: Code.SUCCESS,
    Outcome.TERM_CHANGED: Code.TERM_CHANGED,
    Outcome.TIMED_OUT: Code.WAIT_QUORUM_ACK_TIMEOUT,
}
"""The code that such a client gets for each outcome."""


def code_of_refusal(error: Exception) -> Code:
    """Return the code for such a client whose entry was not appended."""
    if isinstance(error, TransferInProgress):
        return Code.LEADER_TRANSFERRING
    if isinstance(error, TooManyPending):
        return Code.LEADER_PENDING_FULL
    if isinstance(error, Refused):
        return Code.NOT_LEADER
    return Code.DISK_FULL if is_full(error) else Code.DISK_ERROR


class Propose(Protocol):
    """Appends bodies as the leader; raises as `Replica.propose`."""

    def __call__(self, records: Sequence[Buffer], *, patch: bool) -> Placed: ...


def foreign_clients(
    settings: ReplicaSettings,
    ledger: Ledger,
    clock: Clock,
    *,
    leader: Callable[[], PeerId | None],
    addresses: Callable[[], Mapping[PeerId, Address]],
    propose: Propose,
    when_committed: Callable[[LogIndex, float, Done], None],
) -> ForeignClients:
    """Return the handler of these requests for one node and its ledger."""

    def committed_entry(index: LogIndex) -> memoryview | None:
        return ledger.entry(index) if ledger.begin_index <= index <= ledger.committed_index else None

    def propose_body(body: bytes, done: Callable[[int, LogIndex, int], None]) -> None:
        try:
            placed = propose([body], patch=False)
        except (Refused, StoreError, OSError) as error:
            done(code_of_refusal(error), -1, -1)
            return
        index, position = placed.last_index, placed.offsets[0] - HEADER_SIZE
        deadline = clock.monotonic() + CLIENT_WAIT_SECONDS
        when_committed(index, deadline, lambda outcome: done(CODE_OF_OUTCOME[outcome], index, position))

    return ForeignClients(settings.group, settings.self_id, leader, addresses, committed_entry, propose_body)
