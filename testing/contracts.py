"""What every implementation of an interface must do, as checks that a test runs on each of them.

Each check is a function of an empty place to work in; it raises AssertionError with the sentence that does not hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio

from ..message.layout import decode_record, encode_host, encode_record
from ..store.append_log import AppendLog
from ..store.errors import NotWritable
from ..store.statuses import PutStatus
from ..world.disk import Disk


def check_disk(disk: Disk, root: str) -> None:
    """Run all checks of `Disk`, each in a directory of its own under `root`."""
    for check in DISK_CHECKS:
        directory = f"{root}/{check.__name__}"
        disk.make_directories(directory)
        check(disk, directory)


def created_file_is_zero_and_sized(disk: Disk, directory: str) -> None:
    """A new file has the asked size and reads as zeros."""
    file = disk.open(f"{directory}/a", create_size=10_000)
    assert file.size == disk.size(f"{directory}/a") == 10_000
    assert file.read(0, 20_000) == bytes(10_000)
    file.close()


def create_refuses_what_exists(disk: Disk, directory: str) -> None:
    """Making a file that exists, or opening one that does not, is an error of its own kind."""
    disk.open(f"{directory}/a", create_size=1).close()
    _raises(FileExistsError, lambda: disk.open(f"{directory}/a", create_size=1))
    _raises(FileNotFoundError, lambda: disk.open(f"{directory}/b"))
    _raises(FileNotFoundError, lambda: disk.open(f"{directory}/none/b", create_size=1))
    _raises(FileNotFoundError, lambda: disk.size(f"{directory}/b"))


def written_bytes_show_at_once(disk: Disk, directory: str) -> None:
    """A write shows in `read`, in a view taken before, and through another opening of the file."""
    file = disk.open(f"{directory}/a", create_size=2000)
    view = file.view()
    other = disk.open(f"{directory}/a")
    file.write(b"hello", 509)
    file.write(memoryview(bytearray(b"world")), 1995)
    assert bytes(view[509:514]) == b"hello"
    assert other.read(507, 9) == b"\0\0hello\0\0"
    assert other.read(1990, 100) == b"\0\0\0\0\0world"
    assert view.readonly
    assert len(view) == 2000
    view.release()
    file.close()
    other.close()


def what_is_opened_read_only_cannot_be_changed(disk: Disk, directory: str) -> None:
    """It is read like any other file, and what others write to it shows."""
    file = disk.open(f"{directory}/a", create_size=1000)
    looked_at = disk.open(f"{directory}/a", read_only=True)
    view = looked_at.view()
    file.write(b"hello", 10)
    assert looked_at.read(10, 5) == bytes(view[10:15]) == b"hello"
    assert looked_at.size == 1000
    _raises(OSError, lambda: looked_at.write(b"x", 10))
    _raises(OSError, lambda: looked_at.truncate(10))
    _raises(OSError, lambda: looked_at.clear(10))
    assert file.read(10, 5) == b"hello"
    assert disk.size(f"{directory}/a") == 1000
    view.release()
    looked_at.close()
    file.close()
    _raises(FileNotFoundError, lambda: disk.open(f"{directory}/b", read_only=True))


def writing_past_the_end_makes_a_file_longer(disk: Disk, directory: str) -> None:
    """The gap reads as zeros."""
    file = disk.open(f"{directory}/a", create_size=0)
    file.write(b"x", 700)
    assert file.size == disk.size(f"{directory}/a") == 701
    assert file.read(0, 1000) == bytes(700) + b"x"
    file.close()


def truncate_cuts_and_extends_with_zeros(disk: Disk, directory: str) -> None:
    """What was cut does not come back."""
    file = disk.open(f"{directory}/a", create_size=3000)
    file.write(b"\xff" * 3000, 0)
    file.truncate(600)
    assert file.size == 600
    file.truncate(3000)
    file.sync()
    assert file.read(0, 3000) == b"\xff" * 600 + bytes(2400)
    file.close()


def clear_zeroes_the_rest_in_place(disk: Disk, directory: str) -> None:
    """The size and a view that is held stay as they are."""
    file = disk.open(f"{directory}/a", create_size=100_000)
    view = file.view()
    file.write(b"\xff" * 3000, 0)
    file.write(b"\xff" * 10_000, 70_000)
    file.clear(600)
    file.clear(99_999)
    assert file.size == disk.size(f"{directory}/a") == 100_000
    assert file.read(0, 100_000) == bytes(view) == b"\xff" * 600 + bytes(99_400)
    view.release()
    file.close()


def views_outlive_close_and_removal(disk: Disk, directory: str) -> None:
    """A slice that is on its way to a client stays readable."""
    file = disk.open(f"{directory}/a", create_size=1000)
    file.write(b"kept", 0)
    part = file.view()[:4]
    file.close()
    file.close()
    disk.remove(f"{directory}/a")
    assert bytes(part) == b"kept"
    assert not disk.exists(f"{directory}/a")


def names_are_listed_sorted(disk: Disk, directory: str) -> None:
    """Files and directories together; an absent directory has none."""
    disk.make_directories(f"{directory}/b/inner")
    disk.make_directories(f"{directory}/b")
    for name in ("c", "a"):
        disk.open(f"{directory}/{name}", create_size=0).close()
    assert disk.list_directory(directory) == ["a", "b", "c"]
    assert disk.list_directory(f"{directory}/absent") == []
    assert disk.is_directory(f"{directory}/b")
    assert not disk.is_directory(f"{directory}/a")
    assert not disk.is_directory(f"{directory}/absent")


def replace_takes_the_place_of_the_target(disk: Disk, directory: str) -> None:
    """The target holds the source's bytes, the source's name is gone, open files keep theirs."""
    for name in ("old", "new"):
        file = disk.open(f"{directory}/{name}", create_size=0)
        file.write(name.encode(), 0)
        file.close()
    open_old = disk.open(f"{directory}/old")
    disk.replace(f"{directory}/new", f"{directory}/old")
    disk.sync_directory(directory)
    assert disk.list_directory(directory) == ["old"]
    reopened = disk.open(f"{directory}/old")
    assert (reopened.read(0, 9), open_old.read(0, 9)) == (b"new", b"old")
    reopened.close()
    open_old.close()
    _raises(FileNotFoundError, lambda: disk.replace(f"{directory}/new", f"{directory}/old"))


def trees_are_removed_whole(disk: Disk, directory: str) -> None:
    """With files and directories inside."""
    disk.make_directories(f"{directory}/a/b")
    disk.open(f"{directory}/a/b/c", create_size=1).close()
    disk.remove_tree(f"{directory}/a")
    assert disk.list_directory(directory) == []
    _raises(FileNotFoundError, lambda: disk.remove_tree(f"{directory}/a"))
    _raises(FileNotFoundError, lambda: disk.remove(f"{directory}/a/b/c"))


def a_lock_is_held_once(disk: Disk, directory: str) -> None:
    """A second attempt fails without waiting; after release it succeeds."""
    lock = disk.lock(f"{directory}/lock")
    _raises(BlockingIOError, lambda: disk.lock(f"{directory}/lock"))
    lock.release()
    disk.lock(f"{directory}/lock").release()
    file = disk.open(f"{directory}/lock")
    assert file.read(0, 4) == b"lock"
    file.close()


def usage_adds_up(disk: Disk, directory: str) -> None:
    """Used and free are parts of the total."""
    usage = disk.usage(directory)
    assert 0 <= usage.ratio <= 1
    assert usage.used + usage.free <= usage.total
    assert disk.boot_id() == disk.boot_id()


DISK_CHECKS: tuple[Callable[[Disk, str], None], ...] = (
    created_file_is_zero_and_sized,
    create_refuses_what_exists,
    written_bytes_show_at_once,
    what_is_opened_read_only_cannot_be_changed,
    writing_past_the_end_makes_a_file_longer,
    truncate_cuts_and_extends_with_zeros,
    clear_zeroes_the_rest_in_place,
    views_outlive_close_and_removal,
    names_are_listed_sorted,
    replace_takes_the_place_of_the_target,
    trees_are_removed_whole,
    a_lock_is_held_once,
    usage_adds_up,
)


def _raises(kind: type[Exception], function: Callable[[], object]) -> None:
    try:
        function()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, and nothing was raised")


# ---------------------------------------------------------------- AppendLog

OpenLog = Callable[[], AbstractAsyncContextManager[AppendLog]]
"""Opens a log that `run` is driving: new and empty at the first call, what the one before left at each later one.

Segments must be between 2 and 64 KiB, so that the checks roll them.
"""

_HOST = encode_host("10.0.0.1", 10911)
_PATIENCE_SECONDS = 30.0


def _record(number: int, body_size: int = 100) -> bytes:
    body = b"%d;" % number + b"x" * body_size
    return encode_record(b"T", 0, number, body, b"", 0, 0, 0, _HOST, 1, _HOST)


async def check_append_log(new_log: Callable[[], OpenLog]) -> None:
    """Run all checks of `AppendLog`, each on a log of its own made by `new_log`."""
    for check in LOG_CHECKS:
        await check(new_log())


async def _done(log: AppendLog, end: int) -> PutStatus:
    """Wait for what the mode of the log promises for everything before `end`."""
    finished = trio.Event()
    outcome: list[PutStatus] = []

    def done(status: PutStatus) -> None:
        assert not outcome, "a waiter was told twice"
        outcome.append(status)
        finished.set()

    log.when_done(end, trio.current_time() + _PATIENCE_SECONDS, done)
    with trio.fail_after(_PATIENCE_SECONDS):
        await finished.wait()
    return outcome[0]


async def _append(log: AppendLog, records: list[bytes], *, together: bool = False) -> list[int]:
    appended = log.append(records, together=together)
    assert await _done(log, appended.end) is PutStatus.PUT_OK
    return appended.offsets


def _body_at(log: AppendLog, offset: int, size: int) -> bytes:
    record = log.record(offset, size)
    assert record is not None, f"no record of {size} bytes at {offset}"
    message = decode_record(record)
    assert message.physical_offset == offset, "a record's physical offset is not where it lies"
    return message.body


async def positions_are_known_at_append(open_log: OpenLog) -> None:
    """Offsets ascend without overlap, each record says its own, `end` lies behind the last, and the log ends there."""
    async with open_log() as log:
        records = [_record(number) for number in range(5)]
        appended = log.append(records)
        ends = [offset + len(record) for offset, record in zip(appended.offsets, records, strict=True)]
        starts = [offset - log.header_size for offset in appended.offsets]
        assert starts == [appended.start, *ends[:-1]]
        assert appended.end == ends[-1] == log.max_offset
        assert await _done(log, appended.end) is PutStatus.PUT_OK
        bodies = [_body_at(log, offset, len(record)) for offset, record in zip(appended.offsets, records, strict=True)]
        assert [int(body.partition(b";")[0]) for body in bodies] == list(range(5))


async def records_never_cross_a_segment(open_log: OpenLog) -> None:
    """A record that does not fit goes to the next segment whole, and so does a batch that must stay together."""
    async with open_log() as log:
        for number in range(200):
            records = [_record(3 * number + part, 200) for part in range(3)]
            offsets = await _append(log, records, together=number % 2 == 0)
            lasts = [offset + len(record) for offset, record in zip(offsets, records, strict=True)]
            segments = [log.segment_end(offset) for offset in offsets]
            assert all(last <= end for last, end in zip(lasts, segments, strict=True))
            if number % 2 == 0:
                assert len(set(segments)) == 1, "a batch that must stay together crosses a segment"
            for offset, record in zip(offsets, records, strict=True):
                _body_at(log, offset, len(record))


async def what_is_done_is_readable(open_log: OpenLog) -> None:
    """A waiter that was told PUT_OK finds its record below `readable_offset`; nothing unreadable is ever promised."""
    async with open_log() as log:
        for number in range(20):
            appended = log.append([_record(number)])
            assert log.readable_offset <= log.max_offset
            assert log.flushed_offset <= log.max_offset
            assert await _done(log, appended.end) is PutStatus.PUT_OK
            assert log.readable_offset >= appended.end


async def waiters_are_told_in_order_and_once(open_log: OpenLog) -> None:
    """Many waiters at once: each is told, none twice, and what lies before another's end not after it."""
    async with open_log() as log:
        told: list[int] = []
        everyone = trio.Event()

        def teller(number: int) -> Callable[[PutStatus], None]:
            def done(status: PutStatus) -> None:
                assert status is PutStatus.PUT_OK
                told.append(number)
                if len(told) == 50:
                    everyone.set()

            return done

        for number in range(50):
            end = log.append([_record(number)]).end
            log.when_done(end, trio.current_time() + _PATIENCE_SECONDS, teller(number))
        with trio.fail_after(_PATIENCE_SECONDS):
            await everyone.wait()
        assert told == list(range(50))


async def absent_records_are_none(open_log: OpenLog) -> None:
    """Before the beginning, behind the end, and across it there is nothing."""
    async with open_log() as log:
        assert log.record(0, 100) is None
        assert len(log.slice_from(0, 100)) == 0
        record = _record(1)
        (offset,) = await _append(log, [record])
        assert log.record(offset + len(record), 100) is None
        assert log.record(offset, len(record) + 1) is None
        assert log.record(1 << 50, 100) is None
        assert len(log.slice_from(log.max_offset, 100)) == 0


async def slices_hold_the_raw_bytes(open_log: OpenLog) -> None:
    """From a record's offset on they begin with the record, end with the segment, and keep to the asked size."""
    async with open_log() as log:
        records = [_record(number) for number in range(40)]
        offsets = await _append(log, records)
        for offset, record in zip(offsets, records, strict=True):
            part = log.slice_from(offset, len(record))
            assert len(part) == len(record)
            assert decode_record(part).physical_offset == offset
            assert offset + len(log.slice_from(offset, 1 << 30)) <= log.segment_end(offset)


async def too_large_is_refused_whole(open_log: OpenLog) -> None:
    """What fits no segment is refused, and the log goes on where it was."""
    async with open_log() as log:
        await _append(log, [_record(1)])
        before = log.max_offset
        try:
            log.append([_record(2, 1 << 20)])
        except (NotWritable, OSError):
            pass
        else:
            raise AssertionError("a record larger than a segment was taken")
        assert log.max_offset == before
        assert log.readable_offset <= before
        record = _record(3)
        (offset,) = await _append(log, [record])
        assert _body_at(log, offset, len(record)).startswith(b"3;")


async def a_reopened_log_goes_on(open_log: OpenLog) -> None:
    """Everything that was done is there again at its offset, and new records come behind it."""
    kept: list[tuple[int, int, int]] = []
    for life in range(3):
        async with open_log() as log:
            for number, offset, size in kept:
                assert _body_at(log, offset, size).startswith(b"%d;" % number)
            before = log.max_offset
            for number in range(life * 100, life * 100 + 30):
                record = _record(number, 300)
                (offset,) = await _append(log, [record])
                assert offset >= before
                kept.append((number, offset, len(record)))


LOG_CHECKS: tuple[Callable[[OpenLog], Awaitable[None]], ...] = (
    positions_are_known_at_append,
    records_never_cross_a_segment,
    what_is_done_is_readable,
    waiters_are_told_in_order_and_once,
    absent_records_are_none,
    slices_hold_the_raw_bytes,
    too_large_is_refused_whole,
    a_reopened_log_goes_on,
)
