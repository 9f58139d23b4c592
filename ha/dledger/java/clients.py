"""The requests of DLedger's own clients: for the leader, for one committed entry, and to append one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ....message.fields import Buffer
from ....store.errors import StoreError
from ....world.clock import Clock
from ....world.network import Address
from ...raft.errors import Refused
from ...raft.units import LogIndex, PeerId
from ..ledger.layout import HEADER_SIZE
from ..ledger.ledger import Ledger, Placed
from ..settings import ReplicaSettings
from ..waiters import CODE_OF_OUTCOME, Done, code_of_refusal
from .links import ForeignClients

CLIENT_WAIT_SECONDS = 2.5
"""How long an append of such a client waits for a majority (maxWaitAckTimeMs); then it gets WAIT_QUORUM_ACK_TIMEOUT."""


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
