"""How deriving shares time with the receiving of bulk data."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ledgermq.store.commitlog import LocalLog
from ledgermq.store.dispatch import (
    BULK_ROUND_RECORDS_MAX,
    BULK_SECONDS,
    BULK_SHARE,
    PAUSE_SECONDS,
    ROUND_RECORDS_MAX,
    pause_after,
    records_at_once,
)

from .stores import incoming, small_store


@given(st.floats(0, 60), st.floats(0, BULK_SECONDS))
def test_deriving_gets_its_share_while_bulk_data_arrives_and_no_more(took: float, since_bulk: float) -> None:
    """However long its rounds take; only very short ones wait for the usual pause."""
    pause = pause_after(took, since_bulk)
    share = took / (took + pause)
    assert share <= BULK_SHARE + 1e-9
    assert pause == PAUSE_SECONDS or share >= BULK_SHARE - 1e-9


@given(st.floats(0, 60), st.floats(BULK_SECONDS, 1e9, exclude_min=True))
def test_without_bulk_data_deriving_pauses_for_a_batch_to_gather_only(took: float, since_bulk: float) -> None:
    """However long the round before took."""
    assert pause_after(took, since_bulk) == PAUSE_SECONDS


def test_rounds_are_short_while_bulk_data_arrives() -> None:
    """Receiving waits for one of them; without bulk data nobody waits, and long rounds write each queue less often."""
    assert records_at_once(0.0) == records_at_once(BULK_SECONDS) == BULK_ROUND_RECORDS_MAX
    assert records_at_once(BULK_SECONDS * 1.01) == ROUND_RECORDS_MAX > BULK_ROUND_RECORDS_MAX


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_sync_ends_the_pause_unless_bulk_data_arrives(tmp_path: Path, mock_clock: MockClock, *, bulk: bool) -> None:
    """No time passes here: what comes after a round waits, until the loop has nothing to do but wait for the disk."""
    assert mock_clock.rate == 0
    async with small_store(tmp_path) as store:
        assert isinstance(store.log, LocalLog)
        if bulk:
            store.dispatcher.wake(more_coming=True)
        store.put([incoming()])
        await wait_all_tasks_blocked()
        assert store.dispatch_behind_bytes == 0
        store.put([incoming()])
        await wait_all_tasks_blocked()
        assert store.dispatch_behind_bytes > 0
        await store.log.flush()
        await wait_all_tasks_blocked()
        assert bool(store.dispatch_behind_bytes) == bulk
