"""What clients of DLedger itself may ask a node for: who leads, one committed entry, and to append one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...store.errors import StoreError
from ..raft.errors import Refused
from ..raft.units import LogIndex
from .java_links import ForeignClients
from .layout import HEADER_SIZE
from .waiters import CODE_OF_OUTCOME, code_of_refusal

if TYPE_CHECKING:
    from .replica import Replica

CLIENT_WAIT_SECONDS = 2.5
"""How long such a client waits for a majority (maxWaitAckTimeMs)."""


def foreign_clients(replica: Replica) -> ForeignClients:
    """Answers from what a node knows and holds."""
    settings, ledger = replica.settings, replica.ledger

    def committed_entry(index: LogIndex) -> memoryview | None:
        return ledger.entry(index) if ledger.begin_index <= index <= ledger.committed_index else None

    def propose(body: bytes, done: Callable[[int, LogIndex, int], None]) -> None:
        try:
            placed = replica.propose([body], patch=False)
        except (Refused, StoreError, OSError) as error:
            done(code_of_refusal(error), -1, -1)
            return
        index, position = placed.last_index, placed.offsets[0] - HEADER_SIZE
        deadline = replica.world.clock.monotonic() + CLIENT_WAIT_SECONDS
        replica.when_committed(index, deadline, lambda outcome: done(CODE_OF_OUTCOME[outcome], index, position))

    return ForeignClients(
        settings.group, settings.self_id, lambda: replica.leading.leader, replica.addresses, committed_entry, propose
    )
