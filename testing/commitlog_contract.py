"""The contract of `CommitLog` as checks: every implementation runs them, and that is what "swappable" means.

Each check opens a log of its own, any number of times. Those of `FAULT_CHECKS` also stall what puts wait for and cut the
power; they need virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from typing import Protocol

import trio

from ..message.layout import decode_record, encode_host, encode_record
from ..store.errors import NotWritable
from ..store.log.commitlog import CommitLog
from ..store.statuses import PutStatus


class LogUnderTest(Protocol):
    """One log, through any number of lives. Its segments must be between 2 and 64 KiB, so that the checks roll them."""

    def open(self) -> AbstractAsyncContextManager[CommitLog]:
        """Open the log, with `run` in progress: an empty one at the first call, later the one that the last life left."""
        ...

    @property
    def placed_alike(self) -> bool:
        """Whether all nodes of a group place records alike: then a batch may span two segments, and only a leader truncates."""
        ...


class FaultyLogUnderTest(LogUnderTest, Protocol):
    """A log under test in a world with faults."""

    def stall(self, *, stalled: bool) -> None:
        """Stall or resume what puts wait for: a sync, slaves, a majority."""
        ...

    def cut_power(self) -> None:
        """End the present life without closing; the next one finds what was on the medium, and possibly some of the rest."""
        ...


_HOST = encode_host("10.0.0.1", 10911)
_TIMEOUT_SECONDS = 30.0


def _record(number: int, body_size: int = 100) -> bytes:
    body = b"%d;" % number + b"x" * body_size
    return encode_record(b"T", 0, number, body, b"", 0, 0, 0, _HOST, 1, _HOST)


async def check_commit_log(new_log: Callable[[], LogUnderTest]) -> None:
    """Run all checks that need no faults, each on a log of its own from `new_log`."""
    for check in LOG_CHECKS:
        await check(new_log())


async def check_faulty_commit_log(new_log: Callable[[], FaultyLogUnderTest]) -> None:
    """Run all checks with faults, each on a log of its own from `new_log`; needs virtual time."""
    for check in FAULT_CHECKS:
        await check(new_log())


async def _done(log: CommitLog, end: int) -> PutStatus:
    """Wait for what the mode of the log promises for everything before `end`."""
    finished = trio.Event()
    outcome: list[PutStatus] = []

    def done(status: PutStatus) -> None:
        assert not outcome, "a waiter was notified twice"
        outcome.append(status)
        finished.set()

    log.when_stored(end, done)
    with trio.fail_after(_TIMEOUT_SECONDS):
        await finished.wait()
    return outcome[0]


async def _append(log: CommitLog, records: list[bytes], *, together: bool = False) -> list[int]:
    appended = log.append(records, together=together)
    assert await _done(log, appended.end) is PutStatus.PUT_OK
    return appended.offsets


def _body_at(log: CommitLog, offset: int, size: int) -> bytes:
    record = log.record(offset, size)
    assert record is not None, f"no record of {size} bytes at {offset}"
    message = decode_record(record)
    assert message.physical_offset == offset, "a record's physical offset is not where it lies"
    return message.body


def _messages(log: CommitLog) -> list[tuple[int, int]]:
    """Number and physical offset of each message that a check has put; the log may have records of its own, too."""
    walk = log.records(log.min_offset, log.max_offset)
    return [(parts[2], parts[3]) for _, parts in walk if parts is not None and parts[6] == "T"]


async def positions_are_known_at_append(case: LogUnderTest) -> None:
    """Offsets ascend without overlap, each record contains its own, `end` is behind the last record, and the log ends there."""
    async with case.open() as log:
        records = [_record(number) for number in range(5)]
        appended = log.append(records)
        ends = [offset + len(record) for offset, record in zip(appended.offsets, records, strict=True)]
        assert all(before <= offset for before, offset in zip([appended.start, *ends], appended.offsets, strict=False))
        assert appended.end == ends[-1] == log.max_offset
        assert await _done(log, appended.end) is PutStatus.PUT_OK
        bodies = [_body_at(log, offset, len(record)) for offset, record in zip(appended.offsets, records, strict=True)]
        assert [int(body.partition(b";")[0]) for body in bodies] == list(range(5))


async def records_never_cross_a_segment(case: LogUnderTest) -> None:
    """A record that does not fit goes to the next segment whole, and so does a batch that must stay together."""
    async with case.open() as log:
        for number in range(200):
            records = [_record(3 * number + part, 200) for part in range(3)]
            offsets = await _append(log, records, together=number % 2 == 0)
            lasts = [offset + len(record) for offset, record in zip(offsets, records, strict=True)]
            segments = [log.segment_end(offset) for offset in offsets]
            assert all(last <= end for last, end in zip(lasts, segments, strict=True))
            if number % 2 == 0 and not case.placed_alike:
                assert len(set(segments)) == 1, "a batch that must stay together crosses a segment"
            for offset, record in zip(offsets, records, strict=True):
                _body_at(log, offset, len(record))


async def what_is_done_is_readable(case: LogUnderTest) -> None:
    """When a put is answered PUT_OK, its record is below `readable_offset`, and no offset exceeds the end of the log."""
    async with case.open() as log:
        for number in range(20):
            appended = log.append([_record(number)])
            assert log.readable_offset <= log.max_offset
            assert log.flushed_offset <= log.max_offset
            assert await _done(log, appended.end) is PutStatus.PUT_OK
            assert log.readable_offset >= appended.end


async def waiters_are_notified_in_order_and_once(case: LogUnderTest) -> None:
    """Each of many waiters is answered once, in the order of their positions."""
    async with case.open() as log:
        notified: list[int] = []
        everyone = trio.Event()

        def notify(number: int) -> Callable[[PutStatus], None]:
            def done(status: PutStatus) -> None:
                assert status is PutStatus.PUT_OK
                notified.append(number)
                if len(notified) == 50:
                    everyone.set()

            return done

        for number in range(50):
            end = log.append([_record(number)]).end
            log.when_stored(end, notify(number))
        with trio.fail_after(_TIMEOUT_SECONDS):
            await everyone.wait()
        assert notified == list(range(50))


async def absent_records_are_none(case: LogUnderTest) -> None:
    """No record is found behind the end of the log or across it."""
    async with case.open() as log:
        assert log.record(log.max_offset, 100) is None
        assert len(log.slice_from(log.max_offset, 100)) == 0
        record = _record(1)
        (offset,) = await _append(log, [record])
        assert log.record(offset + len(record), 100) is None
        assert log.record(offset, len(record) + 1) is None
        assert log.record(1 << 50, 100) is None
        assert len(log.slice_from(log.max_offset, 100)) == 0


async def slices_hold_the_raw_bytes(case: LogUnderTest) -> None:
    """A slice from a record's offset on begins with the record, stays in the segment, and has at most the asked size."""
    async with case.open() as log:
        records = [_record(number) for number in range(40)]
        offsets = await _append(log, records)
        for offset, record in zip(offsets, records, strict=True):
            part = log.slice_from(offset, len(record))
            assert len(part) == len(record)
            assert decode_record(part).physical_offset == offset
            assert offset + len(log.slice_from(offset, 1 << 30)) <= log.segment_end(offset)
            read = log.read(offset, len(record), 1 << 30)
            assert read[: len(record)] == part
            assert offset + len(read) <= log.segment_end(offset)
        for beyond in (0, 1, 100):
            assert len(log.read(log.max_offset + beyond, 100)) == 0


async def too_large_is_refused_whole(case: LogUnderTest) -> None:
    """A record that fits no segment is refused, and the log continues where it was."""
    async with case.open() as log:
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


async def a_reopened_log_goes_on(case: LogUnderTest) -> None:
    """All records that were answered are at their offsets again, and new records are appended behind them."""
    kept: list[tuple[int, int, int]] = []
    for life in range(3):
        async with case.open() as log:
            for number, offset, size in kept:
                assert _body_at(log, offset, size).startswith(b"%d;" % number)
            before = log.max_offset
            for number in range(life * 100, life * 100 + 30):
                record = _record(number, 300)
                (offset,) = await _append(log, [record])
                assert offset >= before
                kept.append((number, offset, len(record)))


async def walks_meet_every_record_and_nothing_else(case: LogUnderTest) -> None:
    """From any position that a walk or an append has returned, and from any record, `records` yields the messages in order."""
    async with case.open() as log:
        expected: list[tuple[int, int]] = []
        starts = [log.max_offset]
        for number in range(60):
            record = _record(number, 37 * number % 700)
            appended = log.append([record])
            starts += [appended.end, *appended.offsets]
            expected.append((number, appended.offsets[0]))
        assert await _done(log, log.max_offset) is PutStatus.PUT_OK
        end = log.readable_offset
        for start in starts:
            walked = list(log.records(start, end))
            found = [(parts[2], parts[3]) for _, parts in walked if parts is not None and parts[6] == "T"]
            assert found == [one for one in expected if one[1] >= start]
            positions = [position for position, _ in walked]
            assert positions == sorted(set(positions))
            assert not positions or positions[-1] == end
            starts_again = positions[len(positions) // 2] if positions else end
            again = [
                (parts[2], parts[3]) for _, parts in log.records(starts_again, end) if parts is not None and parts[6] == "T"
            ]
            assert again == [one for one in found if one[1] >= starts_again]


async def what_is_truncated_is_gone(case: LogUnderTest) -> None:
    """After a truncation the log ends there, in this life and the next; new records replace what was dropped."""
    if case.placed_alike:
        return
    async with case.open() as log:
        for number in range(30):
            await _append(log, [_record(number)])
        kept = log.max_offset
        for number in range(30, 90):
            await _append(log, [_record(number, 500)])
        await log.truncate(kept)
        assert log.max_offset == kept
        assert log.readable_offset <= kept
        assert log.flushed_offset <= kept
        assert [number for number, _ in _messages(log)] == list(range(30))
        (offset,) = await _append(log, [_record(1000)])
        assert offset >= kept
    async with case.open() as log:
        numbers = [number for number, _ in _messages(log)]
        assert numbers == [*range(30), 1000]


async def the_oldest_file_goes_alone(case: LogUnderTest) -> None:
    """`files` are adjacent; without the oldest one the log begins where the next one does, and the rest is unchanged."""
    async with case.open() as log:
        for number in range(200):
            await _append(log, [_record(number, 300)])
        files = log.files()
        assert len(files) > 2
        assert all(one.start + one.size == other.start for one, other in pairwise(files))
        assert (files[0].start, files[-1].end) == (log.min_offset, log.max_offset)
        before = [offset for _, offset in _messages(log)]
        await log.remove_oldest()
        assert log.min_offset == files[1].start
        after = [offset for _, offset in _messages(log)]
        assert after == [offset for offset in before if offset >= log.min_offset]


async def a_put_that_waits_too_long_is_answered(case: FaultyLogUnderTest) -> None:
    """While what puts wait for is stalled, each is answered once with another status than PUT_OK; later puts succeed."""
    async with case.open() as log:
        if not log.waits:
            return
        await _append(log, [_record(0)])
        case.stall(stalled=True)
        status = await _done(log, log.append([_record(1)]).end)
        assert status is not PutStatus.PUT_OK
        case.stall(stalled=False)
        await _append(log, [_record(2)])


async def a_waiter_is_notified_when_its_record_is_truncated(case: FaultyLogUnderTest) -> None:
    """The waiter is answered once, whether its record was safe before the truncation or not."""
    if case.placed_alike:
        return
    async with case.open() as log:
        if not log.waits:
            return
        await _append(log, [_record(0)])
        kept = log.max_offset
        case.stall(stalled=True)
        outcome: list[PutStatus] = []
        notified = trio.Event()

        def done(status: PutStatus) -> None:
            outcome.append(status)
            notified.set()

        log.when_stored(log.append([_record(1)]).end, done)
        assert outcome == []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.truncate, kept)
            await trio.sleep(0.1)
            case.stall(stalled=False)
        with trio.fail_after(_TIMEOUT_SECONDS):
            await notified.wait()
        await _append(log, [_record(2)])
        assert len(outcome) == 1


async def what_was_answered_survives_a_power_cut(case: FaultyLogUnderTest) -> None:
    """If puts wait for the medium, every record answered PUT_OK is found again after power cuts, and none is found twice."""
    kept: dict[int, int] = {}
    number = 0
    for _ in range(6):
        async with case.open() as log:
            found = _messages(log)
            assert dict(found).items() >= kept.items()
            assert len(dict(found)) == len(found)
            number = max([number, *(one + 1 for one, _ in found)])
            for _ in range(12):
                (offset,) = await _append(log, [_record(number, 200)])
                if log.flushed_offset > offset:
                    kept[number] = offset
                number += 1
            case.cut_power()


LOG_CHECKS: tuple[Callable[[LogUnderTest], Awaitable[None]], ...] = (
    positions_are_known_at_append,
    records_never_cross_a_segment,
    what_is_done_is_readable,
    waiters_are_notified_in_order_and_once,
    absent_records_are_none,
    slices_hold_the_raw_bytes,
    too_large_is_refused_whole,
    a_reopened_log_goes_on,
    walks_meet_every_record_and_nothing_else,
    what_is_truncated_is_gone,
    the_oldest_file_goes_alone,
)

FAULT_CHECKS: tuple[Callable[[FaultyLogUnderTest], Awaitable[None]], ...] = (
    a_put_that_waits_too_long_is_answered,
    a_waiter_is_notified_when_its_record_is_truncated,
    what_was_answered_survives_a_power_cut,
)
