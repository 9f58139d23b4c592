from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.store.derived.index import IndexFiles
from ledgermq.store.derived.index_keys import IndexEntry
from ledgermq.store.recovery_mark import PartialIndex
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import Disk, RealDisk

from ..watched_disk import WatchedDisk

SLOTS = 10
ENTRIES = 20
FOREVER = (0, 1 << 62)


@attrs.define
class StandingClock:
    now_ms: int = 1_600_000_000_123

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


def index_in(path: Path, *, disk: Disk | None = None, slots: int = SLOTS, entries: int = ENTRIES) -> IndexFiles:
    return IndexFiles(disk or RealDisk(), str(path / "index"), StandingClock(), slot_count=slots, entry_count=entries)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[IndexFiles]:
    files = index_in(tmp_path)
    yield files
    files.close()


def golden_entries(count: int = 5) -> list[IndexEntry]:
    offsets = (0, 138, 276, 1609, 4096)
    return [("TopicTest", f"UK{(0, 1, 0, 1, 2)[n]}", "k1 k2", offsets[n], 1_600_000_000_123) for n in range(count)]


def only_file(path: Path) -> bytes:
    (file,) = (path / "index").iterdir()
    return file.read_bytes()


def test_bytes_are_rocketmqs(tmp_path: Path, index: IndexFiles) -> None:
    """Five records with three keys each give the slots and entries that RocketMQ 4.9.4 wrote for them."""
    index.put_batch(golden_entries())
    index.flush()

    data = only_file(tmp_path)
    slots = [int.from_bytes(data[40 + 4 * n : 44 + 4 * n], "big") for n in range(SLOTS)]
    entries = [data[80 + 20 * n : 100 + 20 * n].hex() for n in range(ENTRIES)]
    assert len(data) == 480
    assert data[:40].hex() == f"{1_600_000_000_123:016x}" * 2 + f"{0:016x}{0x1000:016x}" + "00000005" + "00000010"
    assert slots == [0, 0, 0, 0, 14, 15, 7, 10, 13, 0]
    assert entries[1] == "05129f18" + "0000000000000000" + "00000000" + "00000000"
    assert entries[4] == "05129f19" + "000000000000008a" + "00000000" + "00000000"
    assert entries[5] == "0029e6a8" + "000000000000008a" + "00000000" + "00000002"


def test_one_by_one_and_as_a_batch_give_the_same_bytes(tmp_path: Path) -> None:
    together, single = index_in(tmp_path / "a"), index_in(tmp_path / "b")

    together.put_batch(golden_entries())
    for entry in golden_entries():
        single.put_batch([entry])

    assert only_file(tmp_path / "a") == only_file(tmp_path / "b")


def test_name_is_the_local_time_of_creation(tmp_path: Path, index: IndexFiles) -> None:
    index.put_batch(golden_entries(1))

    assert [file.name for file in index.files] == [time.strftime("%Y%m%d%H%M%S", time.localtime(1_600_000_000)) + "123"]


def test_keys_are_found_oldest_first(index: IndexFiles) -> None:
    index.put_batch(golden_entries())

    assert index.query("TopicTest", "UK0", 64, *FOREVER) == [0, 276]
    assert index.query("TopicTest", "k1", 64, *FOREVER) == [0, 138, 276, 1609, 4096]
    assert index.query("TopicTest", "k1", 2, *FOREVER) == [1609, 4096]
    assert index.query("TopicTest", "nothing", 64, *FOREVER) == []
    assert (index.end_timestamp, index.end_physical_offset) == (1_600_000_000_123, 4096)


def test_full_files_roll_and_all_are_searched_newest_first(index: IndexFiles) -> None:
    entries = [("T", "", "k", n * 100, 1_600_000_000_000 + n * 1000) for n in range(50)]

    index.put_batch(entries)

    assert [file.next_entry for file in index.files] == [20, 20, 13]
    assert [file.name for file in index.files] == sorted(file.name for file in index.files)
    assert index.query("T", "k", 64, *FOREVER) == [n * 100 for n in range(50)]
    assert index.query("T", "k", 30, *FOREVER) == [n * 100 for n in range(20, 50)]
    assert index.query("T", "k", 64, 1_600_000_010_000, 1_600_000_012_999) == [1000, 1100, 1200]


def test_a_begin_inside_a_second_finds_that_second(index: IndexFiles) -> None:
    index.put_batch([("T", "", "k", 0, 1_600_000_000_100), ("T", "", "k", 100, 1_600_000_001_900)])

    assert index.query("T", "k", 64, 1_600_000_001_850, 1_600_000_002_000) == [100]


def test_records_below_the_end_are_not_indexed_twice(index: IndexFiles) -> None:
    index.put_batch(golden_entries())

    index.put_batch(golden_entries(4))

    assert index.query("TopicTest", "k1", 64, *FOREVER) == [0, 138, 276, 1609, 4096]


def test_a_reopened_index_goes_on(tmp_path: Path, index: IndexFiles) -> None:
    index.put_batch(golden_entries(3))
    index.sync()
    index.close()

    assert index.load(page_cache_intact=True, forced_offset=-1) is None
    index.put_batch(golden_entries())

    assert index.query("TopicTest", "k2", 64, *FOREVER) == [0, 138, 276, 1609, 4096]


def test_after_a_power_cut_only_full_forced_files_count(tmp_path: Path, index: IndexFiles) -> None:
    index.put_batch([("T", "", "k", n * 100, 1000 + n) for n in range(50)])
    index.sync_full(2000)
    assert (index.forced_offset, index.forced_timestamp) == (1800, 1018)
    index.close()

    lost_from = index.load(page_cache_intact=False, forced_offset=1800)

    assert lost_from == 1800
    assert [file.end_timestamp for file in index.files] == [1018]
    assert len(list((tmp_path / "index").iterdir())) == 1


def test_after_a_power_cut_a_file_goes_on_where_it_was_forced(tmp_path: Path, index: IndexFiles) -> None:
    """Slots and header are newer than the entries that count; what came later is indexed again, and nothing twice."""
    entries: list[IndexEntry] = [("T", "", f"k{n % 3}", n * 100, 1000 + n) for n in range(15)]
    index.put_batch(entries[:10])
    index.flush()
    partial = index.partial(1000)
    index.put_batch(entries[10:])
    index.flush()
    file = index.files[0]
    end_of_forced = file.entries_at + 11 * 20
    index.close()
    path = tmp_path / "index" / str(partial.name if partial else "")
    content = path.read_bytes()
    path.write_bytes(content[:end_of_forced] + bytes(len(content) - end_of_forced))

    assert index.load(page_cache_intact=False, forced_offset=-1, partial=partial) == 1000
    assert index.query("T", "k1", 64, *FOREVER) == [100, 400, 700]
    index.put_batch(entries[10:])

    assert index.query("T", "k1", 64, *FOREVER) == [100, 400, 700, 1000, 1300]
    assert index.files[0].next_entry == 16


def test_the_file_that_was_being_filled_is_synced_although_it_is_full_meanwhile() -> None:
    """The sync runs on a worker thread, so a new file may be the last one when it begins."""
    disk = SimDisk()
    index = index_in(Path(), disk=disk)
    index.put_batch([("T", "", f"k{n}", n * 100, 1000 + n) for n in range(10)])
    index.flush()
    partial = index.partial(1000)
    assert partial is not None
    index.put_batch([("T", "", f"k{n}", n * 100, 1000 + n) for n in range(10, 30)])
    index.flush()
    assert len(index.files) == 2
    index.sync_partial(partial)

    for seed in range(20):
        found = index_in(Path(), disk=disk.power_cut(seed))
        assert found.load(page_cache_intact=False, forced_offset=-1, partial=partial) == 1000
        assert [found.query("T", f"k{n}", 1, *FOREVER) for n in range(10)] == [[n * 100] for n in range(10)]


def test_a_file_that_lacks_what_was_forced_is_made_anew(tmp_path: Path, index: IndexFiles) -> None:
    """It was exchanged for an older copy, or for another store's."""
    index.put_batch([("T", "", "k", n * 100, 1000 + n) for n in range(5)])
    index.flush()
    partial = attrs.evolve(index.partial(1000) or PartialIndex(0, 0, 0, 0), next_entry=9, end_physical_offset=700)
    index.close()

    assert index.load(page_cache_intact=False, forced_offset=-1, partial=partial) == 0
    assert index.files == []


def test_a_file_is_not_forced_ahead_of_the_log(index: IndexFiles) -> None:
    index.put_batch([("T", "", "k", n * 100, 1000 + n) for n in range(50)])

    index.sync_full(1800)

    assert index.forced_offset == -1


def test_a_file_behind_one_that_is_lost_goes_too(tmp_path: Path, index: IndexFiles) -> None:
    index.put_batch([("T", "", "k", n * 100, 1000 + n) for n in range(50)])
    first, second, _ = (tmp_path / "index" / file.name for file in index.files)
    index.close()
    second.write_bytes(b"\xff" * second.stat().st_size)

    assert index.load(page_cache_intact=True, forced_offset=-1) == 1800

    assert list((tmp_path / "index").iterdir()) == [first]


def test_after_the_log_was_cut_what_comes_there_is_indexed(index: IndexFiles) -> None:
    index.put_batch([("T", "", "k", n * 100, 1000) for n in range(50)])

    index.cut(3000)
    index.put_batch([("T", "", "new", 3000, 1000)])

    assert index.query("T", "new", 64, *FOREVER) == [3000]
    assert [file.end_physical_offset for file in index.files] == [1800, 3000, 3000]


@pytest.mark.parametrize("cut_at", [300, 500])
def test_after_the_log_was_cut_nothing_of_what_was_never_counted_is_found(index: IndexFiles, cut_at: int) -> None:
    """A process that was killed has written entries that its header does not count, and a slave derives them again too late."""
    index.put_batch([("T", "", "k", n * 100, 1000) for n in range(5)])
    index.flush()
    index.put_batch([("T", "", "k", n * 100 + 50, 1000) for n in range(5, 8)])
    index.close()
    index.load(page_cache_intact=True, forced_offset=-1)

    index.cut(cut_at)
    index.put_batch([("T", "", "new", 700, 1000)])
    index.flush()
    index.close()
    index.load(page_cache_intact=True, forced_offset=-1)

    assert index.end_physical_offset == 700


def test_a_file_of_another_size_is_left_alone_and_its_name_too(tmp_path: Path, index: IndexFiles) -> None:
    index.put_batch(golden_entries(1))
    name = index.files[0].name
    index.close()
    (tmp_path / "index" / name).write_bytes(b"x" * 100)

    index.load(page_cache_intact=True, forced_offset=-1)
    index.put_batch(golden_entries(1))

    assert [file.name for file in index.files] == [str(int(name) + 1)]
    assert (tmp_path / "index" / name).read_bytes() == b"x" * 100


def test_an_empty_or_impossible_file_is_deleted(tmp_path: Path, index: IndexFiles) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20200101000000000").write_bytes(b"\xff" * 480)
    (tmp_path / "index" / "20200101000000001").write_bytes(b"")

    assert index.load(page_cache_intact=True, forced_offset=-1) == 0

    assert index.files == []
    assert list((tmp_path / "index").iterdir()) == []


def test_files_below_the_log_expire_but_never_the_last(index: IndexFiles) -> None:
    index.put_batch([("T", "", "k", n * 100, 1000) for n in range(50)])

    assert len(index.expire(1_800)) == 0
    assert len(index.expire(1_801)) == 1
    assert len(index.expire(1 << 40)) == 1
    assert [file.end_physical_offset for file in index.files] == [4900]


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


@pytest.fixture
def failing(tmp_path: Path, disk: WatchedDisk) -> Iterator[IndexFiles]:
    files = index_in(tmp_path, disk=disk)
    yield files
    files.close()


LATE: list[IndexEntry] = [("TopicTest", "UK0", "k1 k2 k3 k4", 5000, 1_600_000_000_123)]


def test_a_batch_whose_entries_could_not_be_written_can_be_put_again(disk: WatchedDisk, failing: IndexFiles) -> None:
    """A disk that fails the write of entries leaves the index as it was, in memory too."""
    failing.put_batch(golden_entries(2))
    disk.opened[-1].fail_at = 1

    with pytest.raises(OSError, match="No space"):
        failing.put_batch(LATE)
    assert failing.query("TopicTest", "k1", 64, *FOREVER) == [0, 138]

    failing.put_batch(LATE)

    assert failing.query("TopicTest", "k1", 64, *FOREVER) == [0, 138, 5000]
    assert failing.query("TopicTest", "UK0", 64, *FOREVER) == [0, 5000]
    assert failing.files[0].slots_in_use == len({slot for slot in range(SLOTS) if failing.files[0].newest_entry(slot)})


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_flush_that_failed_says_so_and_can_be_repeated(
    tmp_path: Path, disk: WatchedDisk, failing: IndexFiles, fail_at: int
) -> None:
    """Slots or header that could not be written are found all the same, and are written by the next flush."""
    failing.put_batch(golden_entries(2) + LATE)
    disk.opened[-1].fail_at = fail_at

    with pytest.raises(OSError, match="No space"):
        failing.flush()
    assert failing.query("TopicTest", "k1", 64, *FOREVER) == [0, 138, 5000]

    assert failing.flush()
    assert only_file(tmp_path)[36:40] == failing.files[0].next_entry.to_bytes(4, "big")


def test_what_was_not_flushed_before_a_crash_can_be_put_again(tmp_path: Path, disk: WatchedDisk, failing: IndexFiles) -> None:
    """A process that dies leaves a file of an earlier time, some of its slots ahead of the header; indexing again heals it."""
    failing.put_batch(golden_entries(2))
    failing.flush()
    failing.put_batch(LATE)
    disk.opened[-1].fail_at = 2
    with pytest.raises(OSError, match="No space"):
        failing.flush()  # the slots are written, the header is not

    again = index_in(tmp_path)
    assert again.load(page_cache_intact=True, forced_offset=-1) is None
    before = again.query("TopicTest", "k1", 64, *FOREVER)
    again.put_batch(LATE)

    assert before == [0, 138]
    assert again.query("TopicTest", "k1", 64, *FOREVER) == [0, 138, 5000]
    again.close()


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "c", "long-key-12345678", "long-key-12345679"]), max_size=4), max_size=60),
    st.data(),
)
def test_every_key_put_is_found_whatever_the_batches(keys: list[list[str]], data: st.DataObject) -> None:
    """The index against a dictionary, over rolled files and slots shared by many keys."""
    with tempfile.TemporaryDirectory(prefix="index-") as folder, closing(index_in(Path(folder), slots=2, entries=16)) as index:
        at = 0
        while at < len(keys):
            size = data.draw(st.integers(1, 20))
            part = range(at, min(at + size, len(keys)))
            index.put_batch([("T", keys[n][0] if keys[n] else "", " ".join(keys[n][1:]), n, 1000 + n) for n in part])
            at += size
        for key in {key for some in keys for key in some}:
            expected = [n for n, some in enumerate(keys) if key in some]
            assert index.query("T", key, 1000, *FOREVER) == expected


def test_a_search_in_steps_finds_what_a_query_finds_while_files_come_and_go(index: IndexFiles) -> None:
    """Newer entries are not part of it, and of a file that has expired meanwhile nothing more is."""
    index.put_batch([("T", "", "k", n * 100, 1000 + n) for n in range(50)])
    first = index.search("T", "k", 64, *FOREVER)
    before = index.query("T", "k", 64, *FOREVER)

    assert not first.step(7)
    index.put_batch([("T", "", "k", n * 100, 1000 + n) for n in range(50, 60)])
    while not first.step(7):
        pass
    assert first.offsets == before

    before, second = index.query("T", "k", 64, *FOREVER), index.search("T", "k", 64, *FOREVER)
    assert not second.step(7)
    kept = index.files[1].begin_physical_offset
    index.expire(kept + 1)
    while not second.step(7):
        pass
    assert second.offsets == [offset for offset in before if offset >= kept]
