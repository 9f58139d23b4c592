"""Reading a store's files without a broker: what is in them, and whether they agree.

The files are opened read-only and no lock is taken, so a broker may run meanwhile; then the end of the log is a snapshot. Files
are RocketMQ's: `commitlog/`, `consumequeue/TOPIC/QUEUE/`. A `Look` decodes how a log frames its records.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count, islice

import attrs

from ..message.control import TOPIC_DELETED, decode_control, deleted_topic_of, is_control
from ..message.errors import CorruptRecord
from ..message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from ..message.layout import Check, RecordSpan, check_record, size_beyond, span_of, topic_of
from ..message.numbers import is_digits
from ..world.disk import Disk
from ..world.files import PIECE_BYTES
from .checkpoint import Checkpoint
from .derived.consumequeue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from .errors import UnfinishedCopy, UnreadableLog
from .log.reading import read_part
from .names import queue_fault
from .recovery_mark import RecoveryMark

PROBLEMS_MAX = 100
"""How many problems are described; further ones are only counted."""

NAME_DIGITS = 20

UNFINISHED = "commitlog-unfinished"
"""The directory of a log that is being copied here, until all of it is on the medium; no broker reads it."""
QUEUE_PIECE_BYTES = 1000 * UNIT_SIZE
"""How many bytes of a queue are read at a time. `verify` holds as many for each queue."""
HEAD_BYTES_MAX = 256
"""No fixed part of a record or an entry has more bytes."""

Look = Callable[["LogPiece", int], tuple[Check, RecordSpan | None, int]]
"""Takes a part of a file and a position in it; returns what is there, the record if it is one, and where the next one begins.

That is behind the part if the record is cut there by its own size, and `position` if no record with sensible sizes is there."""
Advance = Callable[[int], None]
"""Called with the number of log bytes that were read since the last call."""


def look_at_record(piece: LogPiece, position: int) -> tuple[Check, RecordSpan | None, int]:
    """What is at a position of a classic segment, where records follow one another directly."""
    view, size = piece.view, len(piece.view)
    found, span = check_record(view, position, size)
    if span is not None:
        return found, span, position + span.size
    damaged = span_of(view, position, size) if found is Check.NOTHING else None
    return found, None, position + (damaged.size if damaged is not None else size_beyond(view, position, size))


@attrs.frozen
class LogPiece:
    """A part of a file of the log, and the physical offset of its first byte."""

    start: int
    view: memoryview


@attrs.frozen
class LogFile:
    """One file of the log, and the physical offset of its first byte."""

    disk: Disk = attrs.field(repr=False)
    path: str
    start: int
    size: int
    look: Look = look_at_record
    """Decodes what is at a position of the file."""
    held: memoryview | None = None
    """A map of the file, so that its bytes can still be read when retention has removed it."""

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes, at least one; fewer at the end of the file and before those that cannot be read.

        They are not read from a map, in which an unreadable sector is a signal that ends the process.

        Raises:
            UnreadableLog: the disk does not give the byte at `position`.
            OSError: the file cannot be opened.
        """
        try:
            file = self.disk.open(self.path, read_only=True)
        except FileNotFoundError:
            if self.held is None:
                raise
            return bytes(self.held[position : position + size])
        try:
            return read_part(file, self.path, position, size, self.start + position)
        finally:
            file.close()


@attrs.define(eq=False)
class LogReader:
    """Looks at the records of a file, which it reads in pieces."""

    file: LogFile
    piece: LogPiece = attrs.field(default=LogPiece(0, memoryview(b"")))
    """What was read last, in which the record is that was looked at last."""
    piece_bytes: int = attrs.field(factory=lambda: PIECE_BYTES)
    """How many bytes are read at a time, at least; all those of a record are."""

    def look(self, position: int) -> tuple[Check, RecordSpan | None, int]:
        """What `Look` returns for a position of the file.

        Raises:
            UnreadableLog: the disk does not give all bytes of what is there.
            OSError: the file cannot be opened.
        """
        at = self.file.start + position - self.piece.start
        if 0 <= at < len(self.piece.view):
            found, span, after = self.file.look(self.piece, at)
            if found is not Check.NOTHING:
                return found, span, position + after - at
        return self._look_anew(position)

    def _look_anew(self, position: int) -> tuple[Check, RecordSpan | None, int]:
        content, needed, after, room = b"", self.piece_bytes, 0, self.file.size - position
        while True:
            try:
                content += self.file.read(position + len(content), needed - len(content))
            except UnreadableLog as error:
                error.after = position + after
                raise
            self.piece = LogPiece(self.file.start + position, memoryview(content))
            found, span, after = self.file.look(self.piece, 0)
            # A size beyond the end of the file is damaged itself, and the rest of the file need not be read because of it.
            needed = min(max(after if after <= room else 0, HEAD_BYTES_MAX), room)
            if found is not Check.NOTHING or len(content) >= needed:
                return found, span, position + after


@attrs.frozen
class LogRecord:
    """One sound record of the log."""

    offset: int
    piece: LogPiece
    span: RecordSpan

    @property
    def bytes(self) -> memoryview:
        """The record as stored."""
        at = self.offset - self.piece.start
        return self.piece.view[at : at + self.span.size]

    @property
    def topic(self) -> str:
        return topic_of(self.piece.view, self.span)


def is_in_queue(record: LogRecord) -> bool:
    """Whether a record has a queue offset; half messages, rollbacks and control records are in no queue."""
    return record.span.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT)


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
        view, size = file.view(), file.size
        file.close()  # the map stays as long as the view
        files.append(LogFile(disk, path, int(name), size, look, view))
    return files


def unfinished_copy(disk: Disk, root: str) -> UnfinishedCopy | None:
    """The error of a store that is being written by a copy that did not end, or has not yet; None for other ones."""
    return UnfinishedCopy(path) if disk.exists(path := f"{root}/{UNFINISHED}") else None


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

    Raises:
        UnreadableLog: the disk does not give the bytes of a record.
        OSError: a file cannot be opened.
    """
    expected = files[0].start if files else 0
    for file in files:
        if file.start != expected and report is not None:
            report.problem(f"{file.path} begins at {file.start}, the file before it ends at {expected}")
        expected = file.start + file.size
        if expected <= begin:
            continue
        reader, position, size = LogReader(file), 0, file.size
        while position < size:
            found, span, after = reader.look(position)
            if found is not Check.RECORD:
                break
            if span is not None:  # else an entry that is no message
                at = file.start + after - span.size
                if span.physical_offset != at and report is not None:
                    report.problem(f"the record at {at} says that it lies at {span.physical_offset}")
                if at >= begin:
                    yield LogRecord(at, reader.piece, span)
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
    elif any(file.read(position, 64)):
        report.problem(f"no sound record at {report.end}, and what lies there is not the empty end of the log")


def read_queue(disk: Disk, root: str, topic: str, queue_id: int) -> Iterator[tuple[int, int, int, int]]:
    """The entries that a queue has when the first one is taken: queue offset, physical offset, record size, tags code."""
    if queue_fault(topic, queue_id):
        return  # a damaged record may name anything, also a path out of the store
    directory = f"{root}/consumequeue/{topic}/{queue_id}"
    names = _numbered(disk, directory)
    listed = sum(1 for _ in _units(disk, f"{directory}/{names[-1]}")) if names else 0  # a broker may add some meanwhile
    for name in names:
        units = _units(disk, f"{directory}/{name}")
        for number, (physical_offset, size, tags_code) in enumerate(islice(units, listed) if name == names[-1] else units):
            if size != PRE_BLANK_SIZE:
                yield int(name) // UNIT_SIZE + number, physical_offset, size, tags_code


def _units(disk: Disk, path: str) -> Iterator[tuple[int, int, int]]:
    """The units of a file of a queue, up to the first empty one.

    Between two of them no file is open and one piece is in memory, because there may be an iterator for each of many queues.
    """
    for at in count(0, QUEUE_PIECE_BYTES):
        file = disk.open(path, read_only=True)
        try:
            content = file.read(at, QUEUE_PIECE_BYTES)
        finally:
            file.close()
        for unit in UNIT.codec.iter_unpack(content[: len(content) // UNIT_SIZE * UNIT_SIZE]):
            if unit[1] <= 0:
                return
            yield unit
        if len(content) < QUEUE_PIECE_BYTES:
            return


def verify(disk: Disk, root: str, advance: Advance = lambda _: None, files: list[LogFile] | None = None) -> Report:
    """Read the whole log and compare it with the queues, and with what the recovery mark says that a start must find.

    Every record must be sound and at the physical offset that it has; offsets of a queue must be dense and used once, else both
    records are named; every entry of a queue must lead to its record. Files that are missing at either end of the log leave no
    other trace.

    Args:
        root: the directory of the store.
        advance: see `Advance`.
        files: the files of its log; those of a classic log if None.

    Raises:
        OSError: a file cannot be opened.
    """
    report, files = Report(), log_files(disk, root) if files is None else files
    if (copy := unfinished_copy(disk, root)) is not None:
        report.problem(str(copy))
    report.begin = report.end = files[0].start if files else 0
    clean_exit, checkpoint = not disk.exists(f"{root}/abort"), _checkpoint_of(disk, root)
    mark = RecoveryMark.decode(checkpoint.mark)  # read first: while a broker runs, the log is never behind it
    behind: int | None = None
    checks: dict[tuple[str, int], _QueueCheck] = {}
    back: list[_Given] = []
    try:
        for record in read_log(files, report=report, advance=advance):
            report.records += 1
            report.end = record.offset + record.span.size
            if behind is None and mark is not None and record.offset >= mark.flushed_offset:
                behind = record.span.store_timestamp
            if not is_in_queue(record):
                if is_control(record.topic, record.span.sys_flag):
                    _end_topic(record, checks, report)
                continue
            queue = (record.topic, record.span.queue_id)
            if queue not in checks:
                checks[queue] = _QueueCheck(*queue, read_queue(disk, root, *queue), back)
            checks[queue].compare(record, report)
    except UnreadableLog as error:
        report.problem(f"{error.filename}: {error.strerror}")
    _report_given_before(back, files, report)
    last = files[-1] if files else None
    for check in checks.values():
        entry = check.finish(report)
        # While a broker runs, queues go on with the next file of the log, which was not there when the files were listed.
        rolled = last is not None and disk.exists(f"{posixpath.dirname(last.path)}/{last.start + last.size:020d}")
        if entry is not None and not (rolled and entry[1] >= report.end):
            check.report_left(entry, report)
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


@attrs.frozen
class _Given:
    """A queue offset that goes back behind the one that was next, in the record at a physical offset."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    next_offset: int


def _report_given_before(back: list[_Given], files: list[LogFile], report: Report) -> None:
    """Report offsets that go back, each with the record that has had it before: the log is read once more to find these."""
    firsts = dict[tuple[str, int, int], int]()
    wanted = {(one.topic, one.queue_id, one.queue_offset) for one in back}
    with suppress(UnreadableLog):  # which was reported when the log was read for the first time
        for record in read_log(files) if back else ():
            key = (record.topic, record.span.queue_id, record.span.queue_offset)
            if key in wanted and is_in_queue(record):
                firsts.setdefault(key, record.offset)
                if len(firsts) == len(wanted):
                    break
    for one in back:
        first = firsts.get((one.topic, one.queue_id, one.queue_offset), one.physical_offset)
        report.problem(
            f"{one.topic} queue {one.queue_id}: the records at {first} and at {one.physical_offset} both have offset "
            f"{one.queue_offset}"
            if first < one.physical_offset
            else f"{one.topic} queue {one.queue_id}: the record at {one.physical_offset} has offset {one.queue_offset}, "
            f"{one.next_offset} was next"
        )


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
    back: list[_Given]
    """Gets the records whose offset goes back, at most `PROBLEMS_MAX`."""
    missing: int = 0
    """Records without an entry that no deletion accounts for."""
    _expected: int | None = None
    _waiting: tuple[int, int, int, int] | None = None
    """An entry whose record was not reached in the log yet."""

    def compare(self, record: LogRecord, report: Report) -> None:
        """Compare the next record of the queue with the next entry."""
        span, expected = record.span, self._expected
        if expected is not None and span.queue_offset > expected:
            report.problem(
                f"{self.topic} queue {self.queue_id}: the record at {record.offset} has offset {span.queue_offset}, "
                f"{expected} was next"
            )
        elif expected is not None and span.queue_offset < expected:
            if len(self.back) < PROBLEMS_MAX:
                self.back.append(_Given(self.topic, self.queue_id, span.queue_offset, record.offset, expected))
            else:
                report.problem_count += 1
        self._expected = max(span.queue_offset + 1, expected or 0)
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

    def finish(self, report: Report) -> tuple[int, int, int, int] | None:
        """Add the missing entries; returns an entry that is left at the end of the log."""
        report.units_missing += self.missing
        return self._next(report.begin)

    def report_left(self, entry: tuple[int, int, int, int], report: Report) -> None:
        """Report an entry that leads to no record."""
        report.problem(
            f"{self.topic} queue {self.queue_id}: entry {entry[0]} leads to {entry[1]}, behind the end of the log"
            if entry[1] >= report.end
            else f"{self.topic} queue {self.queue_id}: entry {entry[0]} leads to {entry[1]}, where no record of it is"
        )


def _numbered(disk: Disk, directory: str) -> list[str]:
    return [name for name in disk.list_directory(directory) if is_digits(name) and len(name) == NAME_DIGITS]
