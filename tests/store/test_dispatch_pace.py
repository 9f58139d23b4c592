"""How deriving shares time with the receiving of bulk data."""

from __future__ import annotations

from pathlib import Path

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from ledgermq.store.dispatch import (
    BULK_ROUND_RECORDS_MAX,
    BULK_SECONDS,
    BULK_SHARE,
    PAUSE_SECONDS,
    ROUND_RECORDS_MAX,
    UNREAD_PAUSE_SECONDS,
    pause_after,
    records_at_once,
)
from ledgermq.store.message_store import MessageStore

from .stores import incoming, small_store


@given(st.floats(0, 60), st.floats(0, BULK_SECONDS), st.booleans())
def test_deriving_gets_its_share_while_bulk_data_arrives_and_no_more(took: float, since_bulk: float, read: bool) -> None:
    """However long its rounds take; only very short ones wait for the usual pause."""
    pause = pause_after(took, since_bulk, read=read)
    share = took / (took + pause)
    assert share <= BULK_SHARE + 1e-9
    assert pause == PAUSE_SECONDS or share >= BULK_SHARE - 1e-9


@given(st.floats(0, 60), st.floats(BULK_SECONDS, 1e9, exclude_min=True))
def test_without_bulk_data_deriving_pauses_for_a_batch_to_gather_only(took: float, since_bulk: float) -> None:
    """However long the round before took; a larger one while nobody waits for it."""
    assert pause_after(took, since_bulk, read=True) == PAUSE_SECONDS
    assert pause_after(took, since_bulk, read=False) == UNREAD_PAUSE_SECONDS > PAUSE_SECONDS


def test_rounds_are_short_while_bulk_data_arrives() -> None:
    """Receiving waits for one of them; without bulk data nobody waits, and long rounds write each queue less often."""
    assert records_at_once(0.0) == records_at_once(BULK_SECONDS) == BULK_ROUND_RECORDS_MAX
    assert records_at_once(BULK_SECONDS * 1.01) == ROUND_RECORDS_MAX > BULK_ROUND_RECORDS_MAX


async def rounds_while(store: MessageStore, *, reading: bool) -> int:
    """How many rounds a tenth of a second of steady puts takes."""
    rounds, counted = 0, store.dispatcher.on_success

    def count() -> None:
        nonlocal rounds
        rounds += 1
        counted()

    store.dispatcher.on_success = count
    for _ in range(100):
        store.put([incoming()])
        await trio.sleep(0.001)
        if reading:
            store.get("TopicTest", 1, 0, 1)
    store.dispatcher.on_success = counted
    return rounds


async def test_a_queue_that_nobody_reads_is_written_less_often(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Each round writes queues and index anew, and without a reader nobody is the worse for larger ones."""
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 20) as store:
        unread = await rounds_while(store, reading=False)
        read = await rounds_while(store, reading=True)

        assert unread <= 0.1 / UNREAD_PAUSE_SECONDS + 2
        assert read >= 2 * unread
