"""How deriving shares time with the receiving of bulk data."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ledgermq.message.control import CONTROL_TOPIC, Control, control_message
from ledgermq.message.layout import encode_host, encode_records, topic_field
from ledgermq.message.properties import KEYS, UNIQUE_KEY, encode_properties
from ledgermq.message.strings import string_hash
from ledgermq.store.derived import consumequeue
from ledgermq.store.derived.consumequeue import ConsumeQueue
from ledgermq.store.derived.dispatch import (
    BULK_ROUND_RECORDS_MAX,
    BULK_SECONDS,
    BULK_SHARE,
    CATCH_UP_SECONDS_MAX,
    PAUSE_SECONDS,
    ROUND_BYTES,
    ROUND_KEY_CHARS_MAX,
    ROUND_RECORDS_MAX,
    UNREAD_PAUSE_SECONDS,
    TagsCodes,
    pause_after,
    records_at_once,
)
from ledgermq.store.derived.index import IndexFiles
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.log.queue_files import NEW_FILES_PER_TURN_MAX
from ledgermq.store.message_store import MessageStore
from ledgermq.store.statuses import GetStatus
from ledgermq.testing.logs import capture_logs

from ..stores import STORE_HOST, derive_all, incoming, small_store


@given(st.floats(0, 60), st.floats(0, BULK_SECONDS), st.booleans())
def test_deriving_gets_its_share_while_bulk_data_arrives_and_no_more(took: float, since_bulk: float, wanted: bool) -> None:
    """However long its rounds take; only very short ones wait for the usual pause."""
    pause = pause_after(took, since_bulk, wanted=wanted)
    share = took / (took + pause)
    assert share <= BULK_SHARE + 1e-9
    assert pause == PAUSE_SECONDS or share >= BULK_SHARE - 1e-9


@given(st.floats(0, 60), st.floats(BULK_SECONDS, 1e9, exclude_min=True))
def test_without_bulk_data_deriving_pauses_for_a_batch_to_gather_only(took: float, since_bulk: float) -> None:
    """However long the round before took; a larger one while nobody waits for it."""
    assert pause_after(took, since_bulk, wanted=True) == PAUSE_SECONDS
    assert pause_after(took, since_bulk, wanted=False) == UNREAD_PAUSE_SECONDS > PAUSE_SECONDS


def test_rounds_are_short_while_bulk_data_arrives() -> None:
    """Receiving waits for one of them; without bulk data nobody waits, and long rounds write each queue less often."""
    assert records_at_once(0.0) == records_at_once(BULK_SECONDS) == BULK_ROUND_RECORDS_MAX
    assert records_at_once(BULK_SECONDS * 1.01) == ROUND_RECORDS_MAX > BULK_ROUND_RECORDS_MAX


def test_what_is_remembered_of_tags_is_bounded_in_bytes() -> None:
    codes = TagsCodes(())

    assert codes.of("T", "paid", "", 0) == string_hash("paid")
    assert codes.of("T", "x" * 30_000, "", 0) == string_hash("x" * 30_000)

    assert list(codes.hashes) == ["paid"]


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_sync_ends_the_pause_unless_bulk_data_arrives(tmp_path: Path, mock_clock: MockClock, *, bulk: bool) -> None:
    """No time passes here: what comes after a round waits, until the loop has nothing to do but wait for the disk."""
    assert mock_clock.rate == 0
    async with small_store(tmp_path) as store:
        assert isinstance(store.log, LocalCommitLog)
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


async def rounds_while(store: MessageStore, *, reading: bool, body: bytes = b"") -> int:
    """How many rounds a tenth of a second of steady puts takes."""
    rounds, counted = 0, store.dispatcher.on_success

    def count() -> None:
        nonlocal rounds
        rounds += 1
        counted()

    store.dispatcher.on_success = count
    for _ in range(100):
        store.put([incoming(body)])
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


async def test_rounds_of_a_fast_log_come_sooner_but_no_sooner_than_for_a_reader(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """As soon as a good round has gathered, for a longer one would hold up others: yet each queue is written for many."""
    body = b"x" * (ROUND_BYTES // 2)
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 24) as store:
        rounds = await rounds_while(store, reading=False, body=body)

        assert 2 * 0.1 / UNREAD_PAUSE_SECONDS < rounds <= 0.1 / PAUSE_SECONDS + 2


KEYS_OF_ONE = " ".join(f"k{number}" for number in range(3000))


@pytest.mark.parametrize("offered", [True, False], ids=["offered by puts", "read back"])
@pytest.mark.parametrize(("name", "key"), [(KEYS, "k2999"), (UNIQUE_KEY, KEYS_OF_ONE)], ids=[KEYS, UNIQUE_KEY])
async def test_thousands_of_keys_are_indexed_in_several_rounds(
    tmp_path: Path, autojump_clock: MockClock, name: str, key: str, *, offered: bool
) -> None:
    """A round ends before the record whose keys would be too many, and the next one goes on with that record."""
    keys, messages = KEYS_OF_ONE, 9
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 20, max_index_num=100_000) as store:
        dispatcher = store.dispatcher
        store.put([incoming(properties=encode_properties({name: keys})) for _ in range(messages)], together=True)
        if not offered:
            dispatcher.cut(0)

        arrived: list[int] = []
        dispatcher.on_arrival.append(lambda records: arrived.append(sum(len(record[8] + record[9]) for record in records)))
        while store.dispatch_behind_bytes:
            assert dispatcher.round()

        assert len(arrived) == -(-messages // (ROUND_KEY_CHARS_MAX // len(keys)))
        assert max(arrived) <= ROUND_KEY_CHARS_MAX
        assert sum(arrived) == messages * len(keys)
        assert len(store.query("TopicTest", key, 100, 0, 1 << 60).slices) == messages


async def test_a_batch_of_more_messages_than_a_round_derives_takes_several_rounds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A producer decides how many messages it sends together."""
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 22) as store:
        arrived: list[int] = []
        store.dispatcher.on_arrival.append(lambda records: arrived.append(len(records)))
        store.put([incoming() for _ in range(2 * ROUND_RECORDS_MAX + 1)], together=True)
        derive_all(store)

        assert arrived == [ROUND_RECORDS_MAX, ROUND_RECORDS_MAX, 1]
        assert store.max_offset("TopicTest", 1) == 2 * ROUND_RECORDS_MAX + 1


async def test_one_round_creates_a_bounded_number_of_queues(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A node that copies a log creates the files of its queues when it derives them; those of its own puts are there."""
    count = 3 * NEW_FILES_PER_TURN_MAX + 1
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 20) as store:
        dispatcher, arrived = store.dispatcher, list[int]()
        dispatcher.on_arrival.append(lambda records: arrived.append(len(records)))
        for turn in range(2):
            store.put([incoming(queue_id=queue_id) for queue_id in (*range(count), 0)])
            if not turn:  # as on a node that has copied the log
                dispatcher.cut(0)
                store.queues.clear()
            while store.dispatch_behind_bytes:
                assert dispatcher.round()

        files = NEW_FILES_PER_TURN_MAX
        assert arrived == [files, files, files, 2, count + 1]
        assert [store.queues.of("TopicTest", queue_id).max_offset for queue_id in range(count)] == [4] + [2] * (count - 1)


@pytest.mark.parametrize("offered", [True, False], ids=["appended here", "read back"])
async def test_events_of_large_tables_are_applied_in_several_rounds(
    tmp_path: Path, autojump_clock: MockClock, *, offered: bool
) -> None:
    """Each may change a thousand rows; a node that was away has many of them before it."""
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 22) as store:
        dispatcher, event = store.dispatcher, Control("unknown", {"rows": ["x" * 1000] * 100})
        for _ in range(9):
            store.append_event(event)
        if not offered:
            dispatcher.cut(0)

        applied: list[int] = [0]
        store.events.on_event.append(lambda _, __: applied.append(applied.pop() + 1))
        while store.dispatch_behind_bytes:
            assert dispatcher.round()
            applied.append(0)

        assert applied == [2, 2, 2, 2, 1, 0]


async def test_a_reader_begins_no_further_round_after_some_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    """It may come while thousands of events that were put here together are applied; the task applies the rest."""
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 22) as store:
        for _ in range(9):
            store.append_event(Control("unknown", {"rows": ["x" * 1000] * 100}))
        applied: list[int] = []

        def apply(_offset: int, _control: Control) -> None:
            applied.append(1)
            autojump_clock.jump(CATCH_UP_SECONDS_MAX / 3)

        store.events.on_event.append(apply)
        store.catch_up()
        assert len(applied) == 4, "two in a round"
        await trio.sleep(1)
        assert len(applied) == 9


@pytest.mark.parametrize("offered", [True, False], ids=["appended here", "read back"])
async def test_small_events_are_applied_in_several_rounds(tmp_path: Path, autojump_clock: MockClock, *, offered: bool) -> None:
    """A deletion takes longer than its few bytes; a round has room for a thousand messages."""
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 22) as store:
        dispatcher = store.dispatcher
        for n in range(700):
            store.append_event(Control("unknown", {"topic": f"T{n}"}))
        if not offered:
            dispatcher.cut(0)

        applied = [0]
        store.events.on_event.append(lambda _, __: applied.append(applied.pop() + 1))
        while store.dispatch_behind_bytes:
            assert dispatcher.round()
            applied.append(0)

        assert sum(applied) == 700
        assert max(applied) <= ROUND_KEY_CHARS_MAX // 128, "or as many as have fewer bytes than that"


async def test_a_part_of_an_append_that_reaches_into_the_next_segment_is_not_skipped_as_damaged(tmp_path: Path) -> None:
    """What other nodes hold may end anywhere, and the records of one append are derived together."""
    async with small_store(tmp_path) as store:
        log = store.log
        assert isinstance(log, LocalCommitLog)
        before = 0
        for _ in range(100):
            before = log.max_offset
            store.put([incoming(b"x" * 500) for _ in range(5)])
            if log.segment_end(before) < log.max_offset:
                break
            derive_all(store)
        log.readable_limit = log.segment_end(before) + 10
        derive_all(store)
        assert store.dispatcher.dispatched_offset == before
        store.dispatcher.cut(log.max_offset)  # nothing of it is dropped; the records are read back from now on
        log.readable_limit = None
        derive_all(store)

        assert store.max_offset("TopicTest", 1) == store.next_offsets["TopicTest", 1]


async def test_what_is_behind_by_more_than_a_round_is_not_made_to_wait_longer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """After the end of a bulk, say: nothing more may come that would end a long pause."""
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 22) as store:
        records = 3 * ROUND_RECORDS_MAX
        store.put([incoming(b"x" * 200) for _ in range(records)])
        store.dispatcher.cut(0)
        began = trio.current_time()
        store.dispatcher.wake()
        while store.dispatch_behind_bytes > ROUND_BYTES:  # noqa: ASYNC110 - looked at from outside
            await trio.sleep(PAUSE_SECONDS / 4)

        assert trio.current_time() - began < 3 * PAUSE_SECONDS


async def test_a_reader_finds_all_that_was_put_here_although_that_is_more_than_a_round(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 22) as store:
        for _ in range(3):
            store.put([incoming() for _ in range(ROUND_RECORDS_MAX)])

        assert store.get("TopicTest", 1, 3 * ROUND_RECORDS_MAX - 1, 1).status is GetStatus.FOUND


async def test_a_reader_finds_a_message_that_was_put_here_behind_entries_of_the_log_itself(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A replicated log appends entries of its own between messages; nobody offers those."""
    host = encode_host(*STORE_HOST)
    async with small_store(tmp_path, mapped_file_size_commit_log=1 << 20) as store:
        for _ in range(3):
            store.put([incoming()])
            own = control_message(Control("of_the_log", {}), 1, host)
            store.log.append(encode_records([own], [topic_field(CONTROL_TOPIC.encode())], [0], 1, host))
        store.put([incoming()])

        assert store.get("TopicTest", 1, 3, 1).status is GetStatus.FOUND


@pytest.mark.parametrize("offered", [True, False], ids=["just put", "read back"])
async def test_a_large_gap_of_a_queue_is_filled_in_several_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, *, offered: bool
) -> None:
    """Nothing behind it is derived before, and nothing is lost or derived twice."""
    monkeypatch.setattr(consumequeue, "GAP_UNITS_PER_TURN", 10)
    async with small_store(tmp_path) as store:
        derive = store.dispatcher.round
        store.put([incoming(b"0")])
        while store.dispatcher.behind_bytes:
            derive()
        store.next_offsets["TopicTest", 1] = 45
        with capture_logs():
            store.put([incoming(b"other", queue_id=2), incoming(b"45"), incoming(b"46"), incoming(b"other", queue_id=2)])
            if not offered:
                store.dispatcher.cut(store.log.max_offset)
                store.dispatcher.dispatched_offset = store.queues.table["TopicTest", 1].physical_end
            ends: list[int] = []
            while store.dispatcher.behind_bytes:
                assert derive()
                ends.append(store.queues.table["TopicTest", 1].max_offset)

        assert ends == [11, 21, 31, 41, 47]
        assert store.queues.table["TopicTest", 2].max_offset == 2


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Let the next call of a method fail as on a full disk."""
    original = getattr(owner, name)

    def fail(*_: object) -> None:
        monkeypatch.setattr(owner, name, original)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "in Python"])
@pytest.mark.parametrize(("owner", "name"), [(ConsumeQueue, "write"), (IndexFiles, "put_batch")], ids=["queue", "index"])
async def test_a_message_whose_round_failed_is_announced_by_the_round_that_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, owner: type, name: str, *, compiled: bool
) -> None:
    """Held pulls and the delivery of delayed messages wait for it; its unit was gathered, and the next round drops a copy."""
    async with small_store(tmp_path) as store:
        dispatcher, message = store.dispatcher, incoming(properties=encode_properties({KEYS: "k"}))
        if not compiled:
            dispatcher.group_records = None
        arrived: list[int] = []
        dispatcher.on_arrival.append(lambda records: arrived.extend(record[2] for record in records))
        store.put([message])
        derive_all(store)
        store.put([message])
        fail_once(monkeypatch, owner, name)
        with pytest.raises(OSError, match="No space"):
            dispatcher.round()
        assert arrived == [0]
        derive_all(store)

        assert arrived == [0, 1]


async def test_a_message_whose_round_failed_is_not_announced_once_the_log_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with small_store(tmp_path) as store:
        dispatcher = store.dispatcher
        arrived: list[int] = []
        dispatcher.on_arrival.append(lambda records: arrived.extend(record[3] for record in records))
        store.put([incoming()])
        second = store.log.max_offset
        store.put([incoming()])
        fail_once(monkeypatch, ConsumeQueue, "write")
        with pytest.raises(OSError, match="No space"):
            dispatcher.round()
        dispatcher.cut(second)
        assert dispatcher.round()

        assert arrived == [0]
