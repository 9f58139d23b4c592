"""Reading a store's files without a broker: what is in them, and whether they agree.

The files are opened read-only and no lock is taken, so a broker may run meanwhile; then the end of the log is a snapshot. Files
are RocketMQ's: `commitlog/`, `consumequeue/TOPIC/QUEUE/`. A `Look` decodes how a log frames its records.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping

import attrs

from ..message.control import TOPIC_DELETED, decode_control, deleted_topic_of, is_control
from ..message.errors import CorruptRecord
from ..message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from ..message.layout import Check, RecordSpan, check_record, topic_of
from ..message.numbers import is_digits
from ..world.disk import Disk
from .checkpoint import Checkpoint
from .consumequeue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from .recovery_mark import RecoveryMark

PROBLEMS_MAX = 100
"""How many problems are described; further ones are only counted."""

NAME_DIGITS = 20

Look = Callable[["LogFile", int], tuple[Check, RecordSpan | None, int]]
"""Takes a file and a position in it; returns what is there, the record if it is one, and the position of what follows."""
Advance = Callable[[int], None]
"""Called with the number of log bytes that were read since the last call."""


def look_at_record(file: LogFile, position: int) -> tuple[Check, RecordSpan | None, int]:
    """What is at a position of a classic segment, where records follow one another directly."""
    found, span = check_record(file.view, position, len(file.view))
    return found, span, position + span.size if span is not None else position


@attrs.frozen
class LogFile:
    """One file of the log, and the physical offset of its first byte."""

    path: str
    start: int
    view: memoryview
    look: Look = look_at_record
    """Decodes what is at a position of the file."""


@attrs.frozen
class LogRecord:
    """One sound record of the log."""

    offset: int
    file: LogFile
    span: RecordSpan

    @property
    def bytes(self) -> memoryview:
        """The record as stored."""
        at = self.offset - self.file.start
        return self.file.view[at : at + self.span.size]

    @property
    def topic(self) -> str:
        return topic_of(self.file.view, self.span)


@attrs.define(eq=False)
class Report:
    """What `verify` found."""

    begin: int = 0
    end: int = 0
    records: int = 0
    queues: int = 0
    units_missing: int = 0
    """How many records have no queue entry; a broker derives it again when it starts."""
    problem_count: int = 0
    problems: list[str] = attrs.field(factory=list[str])

    def problem(self, text: str) -> None:
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


def log_files(disk: Disk, root: str) -> list[LogFile]:
    """The files of a store's classic log, in order; none if there is no store.

    Raises:
        OSError: one cannot be read.
    """
    return files_in(disk, f"{root}/commitlog", look_at_record)


def files_in(disk: Disk, directory: str, look: Look) -> list[LogFile]:
    """The files of a log, in order; none if there is no log.

    Args:
        directory: the directory of the log.
        look: decodes what is at a position of a file.

    Raises:
        OSError: one cannot be read.
    """
    files: list[LogFile] = []
    for name in _numbered(disk, directory):
        path = f"{directory}/{name}"
        file = disk.open(path, read_only=True)
        view = file.view()
        file.close()  # the map stays as long as the view
        files.append(LogFile(path, int(name), view, look))
    return files


def stores_below(disk: Disk, directory: str) -> list[str]:
    """The directories right below `directory` that are stores, sorted: those with a log in them.

    Raises:
        OSError: `directory` cannot be listed.
    """
    found = (posixpath.join(directory, name) for name in disk.list_directory(directory))
    return [path for path in found if disk.is_directory(f"{path}/commitlog")]


def read_log(
    files: list[LogFile], begin: int = 0, report: Report | None = None, advance: Advance = lambda _: None
) -> Iterator[LogRecord]:
    """The sound records from the first one at or behind `begin`, in order, up to the end of good data.

    Unsound data before the zeros of the last file is added to `report`.
    """
    expected = files[0].start if files else 0
    for file in files:
        if file.start != expected and report is not None:
            report.problem(f"{file.path} begins at {file.start}, the file before it ends at {expected}")
        expected = file.start + len(file.view)
        if expected <= begin:
            continue
        position, size = 0, len(file.view)
        while position < size:
            found, span, after = file.look(file, position)
            if found is not Check.RECORD:
                break
            if span is not None:  # else an entry that is no message
                at = file.start + after - span.size
                if span.physical_offset != at and report is not None:
                    report.problem(f"the record at {at} says that it lies at {span.physical_offset}")
                if at >= begin:
                    yield LogRecord(at, file, span)
            advance(after - position)
            position = after
        else:
            found = Check.BLANK
        advance(size - position)
        if report is not None:
            report.end = expected
        if found is Check.NOTHING:
            if report is not None:
                _judge_end(file, position, file is files[-1], report)
            return


def _judge_end(file: LogFile, position: int, is_last: bool, report: Report) -> None:
    report.end = file.start + position
    if not is_last:
        report.problem(f"no sound record at {report.end}, though the log goes on in later files")
    elif any(file.view[position : position + 64]):
        report.problem(f"no sound record at {report.end}, and what lies there is not the empty end of the log")


def read_queue(disk: Disk, root: str, topic: str, queue_id: int) -> Iterator[tuple[int, int, int, int]]:
    """The entries of a queue: queue offset, physical offset, record size, tags code."""
    directory = f"{root}/consumequeue/{topic}/{queue_id}"
    for name in _numbered(disk, directory):
        file = disk.open(f"{directory}/{name}", read_only=True)
        try:
            content = file.read(0, file.size)
        finally:
            file.close()
        for at in range(0, len(content) - UNIT_SIZE + 1, UNIT_SIZE):
            physical_offset, size, tags_code = UNIT.codec.unpack_from(content, at)
            if size <= 0:
                return
            if size != PRE_BLANK_SIZE:
                yield (int(name) + at) // UNIT_SIZE, physical_offset, size, tags_code


def verify(disk: Disk, root: str, advance: Advance = lambda _: None, files: list[LogFile] | None = None) -> Report:
    """Read the whole log and compare it with the queues, and with what the recovery mark says that a start must find.

    Every record must be sound and at the physical offset that it has; offsets of a queue must be dense and used once; every
    entry of a queue must lead to its record. Files that are missing at either end of the log leave no other trace.

    Args:
        root: the directory of the store.
        advance: see `Advance`.
        files: the files of its log; those of a classic log if None.

    Raises:
        OSError: a file cannot be read.
    """
    report, files = Report(), log_files(disk, root) if files is None else files
    report.begin = report.end = files[0].start if files else 0
    clean_exit, checkpoint = not disk.exists(f"{root}/abort"), _checkpoint_of(disk, root)
    mark = RecoveryMark.decode(checkpoint.mark)  # read first: while a broker runs, the log is never behind it
    behind: int | None = None
    checks: dict[tuple[str, int], _QueueCheck] = {}
    for record in read_log(files, report=report, advance=advance):
        report.records += 1
        report.end = record.offset + record.span.size
        if behind is None and mark is not None and record.offset >= mark.flushed_offset:
            behind = record.span.store_timestamp
        if record.span.sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            # Half messages and rollbacks are in no queue.
            if is_control(record.topic, record.span.sys_flag):
                _end_topic(record, checks, report)
            continue
        queue = (record.topic, record.span.queue_id)
        if queue not in checks:
            checks[queue] = _QueueCheck(*queue, read_queue(disk, root, *queue))
        checks[queue].compare(record, report)
    for check in checks.values():
        check.finish(report)
    report.queues = len(checks)
    if mark is not None and report.end < mark.flushed_offset:
        report.problem(
            f"the log ends at {report.end}, though all before {mark.flushed_offset} had been synced: a file is missing"
        )
    if behind is not None and checkpoint.is_of_another(behind, clean_exit=clean_exit):
        return report  # a broker that writes no mark may have removed the first files as expired
    mark = RecoveryMark.decode(_checkpoint_of(disk, root).mark)  # read again: retention of a broker that runs may move it
    if mark is not None and report.begin > mark.log_min_offset >= 0:
        report.problem(f"the log begins at {report.begin}, though it had every file from {mark.log_min_offset} on")
    return report


def _checkpoint_of(disk: Disk, root: str) -> Checkpoint:
    checkpoint = Checkpoint(disk, f"{root}/checkpoint")
    checkpoint.load()
    return checkpoint


def _end_topic(record: LogRecord, checks: Mapping[tuple[str, int], _QueueCheck], report: Report) -> None:
    try:
        control = decode_control(record.bytes)
        deleted = deleted_topic_of(control)[0] if control.kind == TOPIC_DELETED else None
    except CorruptRecord as error:
        report.problem(f"the control record at {record.offset} cannot be read: {error}")
        return
    for (topic, _), check in checks.items():
        if topic == deleted:
            check.missing = 0


@attrs.define(eq=False)
class _QueueCheck:
    """Compares the records of one queue, in log order, with the queue's entries."""

    topic: str
    queue_id: int
    entries: Iterator[tuple[int, int, int, int]]
    missing: int = 0
    """Records without an entry that no deletion accounts for."""
    _expected: int | None = None
    _waiting: tuple[int, int, int, int] | None = None
    """An entry whose record was not reached in the log yet."""

    def compare(self, record: LogRecord, report: Report) -> None:
        """Compare the next record of the queue with the next entry."""
        span, expected = record.span, self._expected
        if expected is not None and span.queue_offset != expected:
            report.problem(
                f"{self.topic} queue {self.queue_id}: the record at {record.offset} has offset {span.queue_offset}, "
                f"{expected} was next"
            )
        self._expected = span.queue_offset + 1
        entry = self._next(report.begin)
        if entry is None or entry[0] > span.queue_offset:
            self.missing += 1
            return
        self._waiting = None
        offset, physical_offset, size, _ = entry
        if (offset, physical_offset, size) != (span.queue_offset, record.offset, span.size):
            report.problem(
                f"{self.topic} queue {self.queue_id}: entry {offset} leads to {size} bytes at {physical_offset}, "
                f"the record with offset {span.queue_offset} has {span.size} at {record.offset}"
            )

    def _next(self, begin: int) -> tuple[int, int, int, int] | None:
        while self._waiting is None or self._waiting[1] < begin:  # the records of earlier ones have expired
            self._waiting = next(self.entries, None)
            if self._waiting is None:
                return None
        return self._waiting

    def finish(self, report: Report) -> None:
        """Report an entry that is left at the end of the log, and add the missing entries."""
        entry = self._next(report.begin)
        if entry is not None:
            report.problem(
                f"{self.topic} queue {self.queue_id}: entry {entry[0]} leads to {entry[1]}, behind the end of the log"
                if entry[1] >= report.end
                else f"{self.topic} queue {self.queue_id}: entry {entry[0]} leads to {entry[1]}, where no record of it is"
            )
        report.units_missing += self.missing


def _numbered(disk: Disk, directory: str) -> list[str]:
    return [name for name in disk.list_directory(directory) if is_digits(name) and len(name) == NAME_DIGITS]
