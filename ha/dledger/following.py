"""Changes of a follower's ledger that its leader requires: entries are written or truncated, or the log begins again later.

Each change must be done before the node sends its next message, so it is retried until the disk accepts it. In the meantime the
leader continues with the other nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from ...store.errors import StoreError
from ...world.events import get_logger
from ..errors import LedgerGap
from ..raft.batch import Slice, Snapshot
from ..raft.ready import Ready
from ..raft.units import LogIndex
from .disk_tasks import RETRY_SECONDS, DiskTasks
from .ledger.ledger import Ledger
from .ledger.received import BeginAnew
from .log_reader import write_slice

log = get_logger(__name__)

BULK_BYTES = 64 * 1024
"""At least this many bytes of entries that were committed before they arrived show that this node is catching up."""


def write_now(ledger: Ledger, ready: Ready[Any]) -> bool:
    """Do the disk operations of a Ready at once if it has none but one append; return False if others are due, or it failed.

    Raises:
        LedgerGap: the entries do not continue the ledger. Nothing was appended.
    """
    if ready.hard_state is not None or ready.snapshot is not None or ready.truncate_from is not None:
        return False
    if not ready.appends:
        return True
    [piece, *others] = ready.appends
    if others or piece.batch.configurations:
        return False
    try:
        write_slice(ledger, piece)
    except LedgerGap:
        raise
    except (OSError, StoreError):
        return False  # `write` fails likewise, reports that, and tries again
    return True


async def write(ledger: Ledger, piece: Slice) -> None:
    """Append received entries.

    Raises:
        LedgerGap: the entries do not continue the ledger. Nothing was appended.
    """
    while True:
        try:
            write_slice(ledger, piece)
        except LedgerGap:
            raise
        except (OSError, StoreError) as error:
            log.error("entries_not_written", end_index=ledger.end_index, reason=str(error))
            await trio.sleep(RETRY_SECONDS)
        else:
            return


async def truncate(ledger: Ledger, disk: DiskTasks, index: LogIndex) -> None:
    """Truncate the entries from `index` on, which the leader does not have."""
    log.info("uncommitted_entries_cut", first_index=index, last_index=ledger.end_index)
    while True:
        try:
            await disk.change(lambda: ledger.truncate(index))
        except OSError as error:
            log.error("entries_not_cut", first_index=index, reason=error.strerror or str(error))
            await trio.sleep(RETRY_SECONDS)
        else:
            break


async def begin_anew(
    ledger: Ledger,
    disk: DiskTasks,
    snapshot: Snapshot,
    *,
    before_clearing: Sequence[Callable[[], Awaitable[None]]],
    on_cleared: Sequence[Callable[[], None]],
) -> None:
    """Remove the ledger and everything derived from it, because the leader no longer has the entries missing here."""
    begin, last_index, last_term = snapshot.payload, snapshot.last_index, snapshot.last_term
    assert isinstance(begin, BeginAnew)
    log.warning(
        "ledger_begun_anew",
        begin_index=last_index + 1,
        old_end_index=ledger.end_index,
        reason="the leader no longer has the entries that are missing here",
    )

    async def clear() -> None:
        async with disk.lock:
            for prepare in before_clearing:
                await prepare()
            # This runs on the event loop, because it changes the list of files that the event loop reads. What was derived from
            # them is dropped in the same turn.
            known = [(begin.configuration_index, begin.configuration_body)] if begin.configuration_body else []
            ledger.clear(last_index + 1, begin.position, last_term, known)

    async def drop_derived() -> None:
        for notify in on_cleared:
            notify()
        await trio.lowlevel.checkpoint()

    async def delete() -> None:
        for change in (ledger.delete_cleared, ledger.write_checkpoint):
            await disk.change(change)

    for step in (clear, drop_derived, delete):
        while True:
            try:
                await step()
            except OSError as error:
                log.error("ledger_not_begun_anew", reason=error.strerror or str(error))
                await trio.sleep(RETRY_SECONDS)
            else:
                break


def catches_up(ready: Ready[Any]) -> bool:
    """Whether the leader sent many entries at once that were committed before they arrived here."""
    committed, appends = ready.committed, ready.appends
    return (
        committed is not None
        and bool(appends)
        and committed.last_index >= appends[-1].last_index
        and sum(piece.batch.size_bytes for piece in appends) >= BULK_BYTES
    )
