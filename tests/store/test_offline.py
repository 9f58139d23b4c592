"""Reading a store's files without a broker."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from ledgermq.message.layout import encode_host, encode_record
from ledgermq.store.checkpoint import Checkpoint
from ledgermq.store.derived.consumequeue import UNIT
from ledgermq.store.offline import LogFile, log_files, read_log, read_queue, stores_below, verify
from ledgermq.store.recovery_mark import RecoveryMark
from ledgermq.world.disk import DiskFile, DiskLock, RealDisk
from ledgermq.world.files import PIECE_BYTES

from .watched_disk import WatchedDisk

FILE_SIZE = 1024
COUNT = 25
DISK = RealDisk()


def record(offset: int, queue_offset: int, body: bytes = b"hello", topic: bytes = b"T") -> bytes:
    return encode_record(
        topic=topic,
        queue_id=1,
        queue_offset=queue_offset,
        physical_offset=offset,
        body=body,
        properties=b"",
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=encode_host("127.0.0.1", 1),
        store_timestamp=2,
        store_host=encode_host("127.0.0.1", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Records of one queue in three files, each file ended by its filler, with all their entries."""
    files: list[bytearray] = [bytearray()]
    entries: list[tuple[int, int]] = []
    for number in range(COUNT):
        body = b"%d" % number
        size = len(record(0, 0, body))
        if len(files[-1]) + size + 8 > FILE_SIZE:
            left = FILE_SIZE - len(files[-1])
            files[-1] += left.to_bytes(4, "big") + bytes.fromhex("CBD43194") + bytes(left - 8)
            files.append(bytearray())
        at = (len(files) - 1) * FILE_SIZE + len(files[-1])
        files[-1] += record(at, number, body)
        entries.append((at, size))
    files[-1] += bytes(FILE_SIZE - len(files[-1]))
    (tmp_path / "commitlog").mkdir()
    for number, content in enumerate(files):
        (tmp_path / "commitlog" / f"{number * FILE_SIZE:020d}").write_bytes(content)
    queue = tmp_path / "consumequeue" / "T" / "1"
    queue.mkdir(parents=True)
    units = b"".join(UNIT.codec.pack(at, size, 7) for at, size in entries)
    (queue / f"{0:020d}").write_bytes(units[: 15 * 20])
    (queue / f"{15 * 20:020d}").write_bytes(units[15 * 20 :] + bytes(10 * 20))
    return tmp_path


def test_records_are_read_across_files(store: Path) -> None:
    """In order, from any offset on."""
    files = log_files(DISK, str(store))

    found = list(read_log(files))

    assert len(files) == 3
    assert [found[at].span.queue_offset for at in range(COUNT)] == list(range(COUNT))
    assert all(each.topic == "T" for each in found)
    assert [each.offset for each in read_log(files, found[12].offset)] == [each.offset for each in found[12:]]


def test_entries_of_a_queue_are_read_across_files(store: Path) -> None:
    """Up to the first empty one."""
    found = list(read_queue(DISK, str(store), "T", 1))

    assert [offset for offset, _, _, _ in found] == list(range(COUNT))
    assert {tags_code for _, _, _, tags_code in found} == {7}
    assert list(read_queue(DISK, str(store), "T", 9)) == []


def test_an_iterator_of_a_queue_holds_a_piece_of_it_and_gives_no_later_entry(store: Path) -> None:
    """`verify` has one for each queue, and an entry that a broker adds may lead behind the log that was read."""
    path = store / "consumequeue" / "T" / "1" / f"{15 * 20:020d}"
    tracemalloc.start()
    with path.open("r+b") as file:
        file.truncate(6_000_000)
        entries = read_queue(DISK, str(store), "T", 1)

        found = [next(entries) for _ in range(20)]

        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        file.seek((COUNT - 15) * 20)
        file.write(UNIT.codec.pack(9999, 50, 0))
    assert [*found, *entries] == list(read_queue(DISK, str(store), "T", 1))[:COUNT]
    assert held < 200_000


def test_a_sound_store_is_sound(store: Path) -> None:
    """Every byte of the log is accounted for."""
    seen: list[int] = []

    report = verify(DISK, str(store), seen.append)

    assert (report.records, report.queues, report.problem_count, report.units_missing) == (COUNT, 1, 0, 0)
    assert sum(seen) == 3 * FILE_SIZE
    assert report.end == list(read_log(log_files(DISK, str(store))))[-1].offset + len(record(0, 0, b"24"))


def rewrite(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def test_a_damaged_record_in_the_middle_is_found(store: Path) -> None:
    """The log goes on behind it, so it cannot be the end."""
    rewrite(store / "commitlog" / f"{FILE_SIZE:020d}", lambda content: content.__setitem__(88, content[88] ^ 1))

    report = verify(DISK, str(store))

    assert any("though the log goes on" in problem for problem in report.problems)
    assert report.end == FILE_SIZE


def test_a_record_that_the_disk_does_not_give_is_a_problem(store: Path) -> None:
    """It has the file and the offset, and does not end the process, as a map of the file would."""
    path = store / "commitlog" / f"{FILE_SIZE:020d}"
    disk = WatchedDisk(unreadable={str(path): range(88, 90)})

    report = verify(disk, str(store))

    assert report.problems[0] == f"{path}: physical offset {FILE_SIZE + 88} cannot be read: Input/output error"
    assert report.end <= FILE_SIZE


def test_a_damaged_size_does_not_have_the_rest_of_a_file_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record cannot end behind its file; the rest of one may be a gigabyte."""
    content = bytearray(record(0, 0))
    content[:4] = (1 << 30).to_bytes(4, "big")
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(content + bytes(PIECE_BYTES) + b"later")
    read, asked = LogFile.read, 0

    def noted(file: LogFile, position: int, size: int) -> bytes:
        nonlocal asked
        asked = max(asked, position + size)
        return read(file, position, size)

    monkeypatch.setattr(LogFile, "read", noted)

    assert verify(DISK, str(tmp_path)).problem_count == 1
    assert asked == PIECE_BYTES


def test_a_store_that_is_not_finished_is_not_sound(store: Path) -> None:
    """What a restoration has written so far may be sound; no broker opens it."""
    (store / "commitlog-unfinished").mkdir()

    assert "has not finished writing this store" in verify(DISK, str(store)).problems[0]


def test_a_torn_tail_is_distinguished_from_the_empty_end(store: Path) -> None:
    """Recovery cuts it; until then it is named."""
    last = store / "commitlog" / f"{2 * FILE_SIZE:020d}"
    end = verify(DISK, str(store)).end
    rewrite(last, lambda content: content.__setitem__(end - 2 * FILE_SIZE, 1))

    report = verify(DISK, str(store))

    assert report.records == COUNT
    assert [problem for problem in report.problems if "not the empty end" in problem]


def test_a_gap_between_files_is_found(store: Path) -> None:
    """A file that somebody deleted by hand."""
    (store / "commitlog" / f"{FILE_SIZE:020d}").unlink()

    report = verify(DISK, str(store))

    assert any(f"begins at {2 * FILE_SIZE}, the file before it ends at {FILE_SIZE}" in problem for problem in report.problems)


@pytest.mark.parametrize(
    ("lost", "told"), [(0, "begins at 1024, though it had every file from 0 on"), (-1, "ends at 2048, though")]
)
def test_a_file_that_is_missing_at_an_end_is_found_by_the_mark(store: Path, lost: int, told: str) -> None:
    """Records and queues alone look as if the first file had expired, or the rest had never been written."""
    end = verify(DISK, str(store)).end
    mark = RecoveryMark(end, end, -1, 0, 0, -1, "")
    Checkpoint(DISK, f"{store}/checkpoint", physical_timestamp=1, mark=mark.encode()).save()
    assert verify(DISK, str(store)).problem_count == 0

    sorted((store / "commitlog").iterdir())[lost].unlink()
    (store / "consumequeue" / "T" / "1" / f"{15 * 20:020d}").unlink()
    assert any(told in problem for problem in verify(DISK, str(store)).problems)


@pytest.mark.parametrize(
    ("killed", "checkpoint_time", "is_found"),
    [
        pytest.param(True, 2, True, id="killed, so our own records lie behind the mark"),
        pytest.param(True, 3, False, id="another broker has written the checkpoint since"),
        pytest.param(False, 2, False, id="another broker has stopped in order"),
    ],
)
def test_a_first_file_is_missed_although_records_lie_behind_the_mark(
    store: Path, *, killed: bool, checkpoint_time: int, is_found: bool
) -> None:
    """After a kill they do. Only a broker that writes no mark may have removed the file as expired; a start judges the same."""
    mark = RecoveryMark(FILE_SIZE, FILE_SIZE, -1, 0, 0, -1, "")
    Checkpoint(DISK, f"{store}/checkpoint", physical_timestamp=checkpoint_time, mark=mark.encode()).save()
    if killed:
        (store / "abort").touch()
    assert verify(DISK, str(store)).problem_count == 0

    (store / "commitlog" / f"{0:020d}").unlink()

    problems = verify(DISK, str(store)).problems
    assert any("begins at 1024, though it had every file from 0 on" in problem for problem in problems) is is_found


def test_an_entry_that_leads_elsewhere_is_found(store: Path) -> None:
    """The queue says another place than the record."""
    rewrite(store / "consumequeue" / "T" / "1" / f"{0:020d}", lambda content: content.__setitem__(7, 99))

    report = verify(DISK, str(store))

    assert report.problem_count == 1
    assert "entry 0 leads to" in report.problems[0]


def test_entries_behind_the_log_are_found_and_missing_ones_only_counted(store: Path) -> None:
    """A broker derives missing entries again when it starts; entries without records it must cut."""
    queue = store / "consumequeue" / "T" / "1" / f"{15 * 20:020d}"
    rewrite(queue, lambda content: content.__setitem__(slice(180, 200), bytes(20)))
    missing = verify(DISK, str(store))

    rewrite(
        queue,
        lambda content: content.__setitem__(
            slice(180, 220), UNIT.codec.pack(*last_of(store), 7) + UNIT.codec.pack(9999, 50, 0)
        ),
    )
    behind = verify(DISK, str(store))

    assert (missing.units_missing, missing.problem_count) == (1, 0)
    assert (behind.units_missing, behind.problem_count) == (0, 1)
    assert "behind the end of the log" in behind.problems[0]


def last_of(store: Path) -> tuple[int, int]:
    last = list(read_log(log_files(DISK, str(store))))[-1]
    return last.offset, last.span.size


def test_entries_behind_the_listed_files_of_a_log_that_goes_on_are_no_problem(store: Path) -> None:
    """A broker that runs began a new file after they were listed, and its queues are read later."""
    assert verify(DISK, str(store), files=log_files(DISK, str(store))[:2]).problems == []


def store_of(directory: Path, *queue_offsets: int) -> list[int]:
    """Write a log with these queue offsets of one queue, and return where the records lie."""
    content, places = b"", list[int]()
    for queue_offset in queue_offsets:
        places.append(len(content))
        content += record(len(content), queue_offset)
    (directory / "commitlog").mkdir()
    (directory / "commitlog" / f"{0:020d}").write_bytes(content + bytes(FILE_SIZE - len(content)))
    return places


def test_each_queue_offset_given_twice_is_named_with_both_records(tmp_path: Path) -> None:
    """Nobody will ever see the second record, as the queue has room for one: an operator has to know both to find it."""
    first, second, _, again, once_more = store_of(tmp_path, 0, 1, 2, 0, 1)

    report = verify(DISK, str(tmp_path))

    assert (report.records, report.units_missing) == (5, 5)
    assert report.problems == [
        f"T queue 1: the records at {first} and at {again} both have offset 0",
        f"T queue 1: the records at {second} and at {once_more} both have offset 1",
    ]


def test_a_gap_of_queue_offsets_and_one_that_goes_back_to_expired_records_are_found(tmp_path: Path) -> None:
    """Then no other record of the log has the offset."""
    _, gap, back = store_of(tmp_path, 5, 9, 2)

    assert verify(DISK, str(tmp_path)).problems == [
        f"T queue 1: the record at {gap} has offset 9, 6 was next",
        f"T queue 1: the record at {back} has offset 2, 10 was next",
    ]


@pytest.mark.parametrize("topic", [b"a\0b", b"../U", b"x" * 255])
def test_a_record_of_a_topic_that_is_no_directory_does_not_end_the_check(tmp_path: Path, topic: bytes) -> None:
    """Damage that no CRC covers may change the topic, and then what is below that path is no queue of it."""
    (tmp_path / "commitlog").mkdir()
    content = record(0, 0, topic=topic)
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(content + bytes(FILE_SIZE - len(content)))
    (tmp_path / "U" / "1").mkdir(parents=True)
    (tmp_path / "U" / "1" / f"{0:020d}").write_bytes(UNIT.codec.pack(0, len(content), 7))

    report = verify(DISK, str(tmp_path))

    assert (report.records, report.units_missing, report.problems) == (1, 1, [])


def test_no_store_is_no_files(tmp_path: Path) -> None:
    """The caller says so to the user."""
    assert log_files(DISK, str(tmp_path)) == []
    assert verify(DISK, str(tmp_path)).records == 0


@attrs.frozen
class DiskMountedReadOnly(RealDisk):
    """Gives no right to write, whoever asks."""

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> DiskFile:
        if not read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return super().open(path, create_size=create_size, read_only=read_only)

    def lock(self, path: str) -> DiskLock:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def test_looking_needs_no_right_to_write(store: Path) -> None:
    """A backup mounted read-only, or the store of another user, is read like any other."""
    disk = DiskMountedReadOnly()

    assert attrs.asdict(verify(disk, str(store))) == attrs.asdict(verify(DISK, str(store)))
    assert len(list(read_log(log_files(disk, str(store))))) == COUNT
    assert len(list(read_queue(disk, str(store), "T", 1))) == COUNT


def test_stores_are_found_right_below_a_directory(tmp_path: Path) -> None:
    """What has no log directory is none, and neither is what lies deeper."""
    (tmp_path / "b" / "deeper" / "commitlog").mkdir(parents=True)
    (tmp_path / "a" / "commitlog").mkdir(parents=True)

    assert stores_below(DISK, str(tmp_path)) == [str(tmp_path / "a")]
    assert stores_below(DISK, str(tmp_path / "a")) == []
