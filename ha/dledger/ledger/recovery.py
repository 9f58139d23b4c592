"""Opening a ledger after any kind of exit, in numbered passes; everything that is relied on is verified.

1. The files are checked: data files have one size and are consecutive, and so are index files.
2. The starting point is found: the checkpoint names an entry that was durable with everything before it. It is used only if
   that entry is still there and unchanged. Otherwise, for example after a Java node used the files, everything is read.
3. The entries after it are read one by one, header and body; the first invalid one is the end. An end before the checkpoint's
   entry is damage, never a torn tail, and the start fails: a node that silently lost acknowledged entries could elect a leader
   that lacks them too.
4. The index records of all entries that were read are rewritten where they differ.
5. Everything after the end is truncated, so that it reads as zeros. The entries that were read may be in the page cache only,
   left by a process whose sync failed, so they are written again and synced.

Recovery blocks, so it runs on a worker thread, before any task uses the ledger.
"""

from __future__ import annotations

from itertools import pairwise

import attrs

from ....store.log.segments import Segment, Segments
from ....world.disk import Disk
from ....world.events import get_logger
from ....world.files import make_directory
from ...errors import CorruptLedger
from .checkpoint import Checkpoint, CheckpointFile
from .entry_files import EntryFiles
from .layout import DATA_FILE_SIZE, ENTRY, ENTRY_SIZE_MAX, HEADER_SIZE, INDEX, INDEX_FILE_SIZE, INDEX_SIZE, MAGIC_ENTRY
from .ledger import Ledger, is_blank
from .walk import walk_entries

log = get_logger(__name__)

WALK_BYTES = 2 * ENTRY_SIZE_MAX
"""How many bytes are walked before their index records are compared, which bounds the records' memory. Any entry fits."""
LEFTOVER_BYTES = 64 * 1024
"""How many bytes after the end are searched for remains of a torn tail; if there are any, a warning is logged."""


@attrs.frozen
class LedgerFiles:
    """The directories and file sizes of one node's ledger."""

    directory: str
    """`dledger-ID` below the store's root."""
    data_file_size: int = DATA_FILE_SIZE
    index_file_size: int = INDEX_FILE_SIZE
    data_directory: str = ""
    """The directory of the data files if they are not in `directory` (storePathDLedgerCommitLog)."""
    first_position: int = 0
    """The position of the first entry of a new ledger."""

    @property
    def data(self) -> str:
        return self.data_directory or f"{self.directory}/data"

    @property
    def index(self) -> str:
        return f"{self.directory}/index"


def open_ledger(disk: Disk, files: LedgerFiles) -> Ledger:
    """Load and recover the ledger of `files`, or create a new one.

    Raises:
        WrongSegmentSize: a file has another size than configured.
        CorruptLedger: the files differ from what was synced. Nothing was changed.
        OSError: the disk failed.
    """
    data = Segments(disk, files.data, files.data_file_size)
    index = Segments(disk, files.index, files.index_file_size)
    try:
        for directory in (files.data, files.index):
            make_directory(disk, directory)
        data.load()
        index.load()
        _check_order(data)
        if not _is_in_order(index):
            index.clear()
        checkpoint_file = CheckpointFile(disk, files.directory)
        checkpoint = checkpoint_file.load()
        ledger = Ledger(EntryFiles(data, index), checkpoint_file, files.first_position, checkpoint=checkpoint)
        _recover(ledger, checkpoint)
    except BaseException:
        data.close()
        index.close()
        raise
    return ledger


def _check_order(run: Segments) -> None:
    if not _is_in_order(run):
        starts = ", ".join(str(segment.start) for segment in run.files)
        raise CorruptLedger(run.directory, f"the files do not follow one another: they begin at {starts}")


def _is_in_order(run: Segments) -> bool:
    return all(after.start - before.start == run.segment_size for before, after in pairwise(run.files))


def _recover(ledger: Ledger, checkpoint: Checkpoint) -> None:
    data = ledger.data
    _finish_clearing(data, checkpoint)
    if not data.files:
        _begin(ledger, checkpoint)
        return
    _finish_expiry(ledger, checkpoint)
    first, begin = data.files[0], checkpoint.begin_position
    ledger.first_position = begin if first.start <= begin < first.start + first.size else first.start
    trusted = not checkpoint.index_unsure and _is_there(ledger, checkpoint)
    if not trusted and checkpoint.synced_index >= 0:
        # A power cut may keep the record of the checkpoint's entry and lose earlier ones; the next start must not trust it.
        ledger.checkpoint = attrs.evolve(checkpoint, index_unsure=1)
        ledger.checkpoint_file.save(ledger.checkpoint)
    _start(ledger, checkpoint, trusted=trusted)
    start = ledger.end_position
    _walk(ledger)
    _check_end(ledger, checkpoint)
    _cut(ledger)
    data.rewrite(start, ledger.end_position)
    data.created = True
    data.sync(start, max(ledger.end_position, start + 1))
    ledger.indexed_until = checkpoint.synced_index if trusted else ledger.begin_index - 1
    ledger.synced_index, ledger.synced_position = ledger.end_index, ledger.end_position
    ledger.committed_index, ledger.committed_position = ledger.begin_index - 1, ledger.begin_position
    ledger.commit(checkpoint.committed_index)


def _finish_clearing(data: Segments, checkpoint: Checkpoint) -> None:
    """Delete files that are left because `Ledger.clear` was interrupted; its checkpoint names no entry but a new beginning."""
    position = checkpoint.synced_position
    begins_anew = 0 < checkpoint.begin_index == checkpoint.synced_index + 1
    if begins_anew and data.files and data.files[0].start != position - position % data.segment_size:
        data.clear()


def _finish_expiry(ledger: Ledger, checkpoint: Checkpoint) -> None:
    """Delete files that had expired when the checkpoint was written and reappeared after a power cut."""
    files = ledger.data.files
    firsts = [_first_index_of(file, file.start) for file in files]
    if checkpoint.begin_index <= 0 or checkpoint.begin_index not in firsts[1:]:
        return
    for file in files[: firsts.index(checkpoint.begin_index)]:
        ledger.data.remove(file)
    first = checkpoint.begin_index * INDEX_SIZE
    while len(ledger.index.files) > 1 and ledger.index.files[1].start <= first:
        ledger.index.remove(ledger.index.files[0])


def _begin(ledger: Ledger, checkpoint: Checkpoint) -> None:
    """Begin without files: as a new node, or where a leader's snapshot made this node begin before anything was written."""
    begin = max(checkpoint.begin_index, 0)
    known = max(checkpoint.synced_index, checkpoint.committed_index)
    if known >= begin:
        raise CorruptLedger(ledger.data.directory, f"no file is there, but the node had entries up to {known}")
    ledger.index.clear()
    ledger.begin_at(begin, checkpoint.synced_position if begin else ledger.first_position, checkpoint.before_term)
    ledger.configurations = list(checkpoint.configurations)
    ledger.write_checkpoint()  # it marks all entries of this ledger as written by our own nodes


def _check_end(ledger: Ledger, checkpoint: Checkpoint) -> None:
    """Raise CorruptLedger if the end cannot be that of a torn tail."""
    where = f"entry {ledger.end_index + 1} at position {ledger.end_position} is not whole"
    if ledger.end_index < checkpoint.synced_index:
        raise CorruptLedger(
            ledger.data.directory,
            f"{where}, although everything up to entry {checkpoint.synced_index} at position {checkpoint.synced_position} had "
            "been synced",
        )
    last = ledger.data.files[-1]
    # A Java node does not record what it has synced. On our nodes the torn tail after the checkpoint may span several files.
    far = last.start - ledger.end_position > last.size or (ledger.empty and last.start > ledger.end_position)
    if checkpoint.begin_index < 0 and far:
        raise CorruptLedger(ledger.data.directory, f"{where}, although files follow up to {last.path}")


def _is_there(ledger: Ledger, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint's entry and its index record are complete and where the checkpoint names them."""
    index, end = checkpoint.synced_index, checkpoint.synced_position
    begin = _first_index(ledger)
    if index < 0 or begin is None or not begin == checkpoint.begin_index <= index:
        return False  # also if expired files have reappeared: their index records were never synced
    record = ledger.index.find(index * INDEX_SIZE)
    if record is None or ledger.index.find(begin * INDEX_SIZE) is None:
        return False
    magic, position, size, found, term = INDEX.codec.unpack_from(record.view, index * INDEX_SIZE - record.start)
    segment = ledger.data.find(position)
    if magic != MAGIC_ENTRY or found != index or term != checkpoint.synced_term or position + size != end or segment is None:
        return False
    at = position - segment.start
    if size <= 0 or at + size > segment.size:
        return False
    walked = walk_entries(segment.view, at, at + size, position=position, next_index=index, term=term, check_bodies=True)
    return walked.fault is None and walked.runs == [(index, term)]


def _first_index(ledger: Ledger) -> int | None:
    """The index of the first entry of the first file."""
    return _first_index_of(ledger.data.files[0], ledger.begin_position)


def _first_index_of(file: Segment, begin: int) -> int | None:
    """The index of the entry at the position `begin` of a file; None if there is none."""
    if begin + HEADER_SIZE > file.start + file.size:
        return None
    magic, _, index, _, position, *_ = ENTRY.codec.unpack_from(file.view, begin - file.start)
    return index if magic == MAGIC_ENTRY and position == begin and index >= 0 else None


def _start(ledger: Ledger, checkpoint: Checkpoint, *, trusted: bool) -> None:
    """Set the ledger's end to the checkpoint's entry if that is trusted, else to the ledger's beginning."""
    begin = _first_index(ledger)
    # After `Ledger.clear` the first file may have no entry yet, and its index is not 0.
    ledger.begin_index = max(checkpoint.begin_index, 0) if begin is None else begin
    ledger.terms.begin = ledger.begin_index
    ledger.end_index, ledger.end_position = ledger.begin_index - 1, ledger.begin_position
    if checkpoint.begin_index == ledger.begin_index:
        ledger.terms.before = checkpoint.before_term
    ledger.configurations = [pair for pair in checkpoint.configurations if trusted or pair[0] < ledger.begin_index]
    if not trusted:
        return
    _read_terms(ledger, ledger.begin_index, checkpoint.synced_index)
    ledger.end_index, ledger.end_position = checkpoint.synced_index, checkpoint.synced_position


def _read_terms(ledger: Ledger, first: int, last: int) -> None:
    """Find in the index where the term changes; terms ascend, so a binary search finds each place."""
    ledger.end_index = last  # `place_of` accepts no later index
    while first <= last:
        term = _term_in_index(ledger, first)
        ledger.terms.add(first, term)
        low, high = first, last + 1
        while low < high:
            middle = (low + high) // 2
            if _term_in_index(ledger, middle) <= term:
                low = middle + 1
            else:
                high = middle
        first = low


def _term_in_index(ledger: Ledger, index: int) -> int:
    ledger.place_of(index)  # raises if the record is not that of this entry
    at = index * INDEX_SIZE
    segment = ledger.index.find(at)
    assert segment is not None
    term: int = INDEX.codec.unpack_from(segment.view, at - segment.start)[4]
    return term


def _walk(ledger: Ledger) -> None:
    """Walk from the ledger's present end to the end of the last valid entry, and repair the index on the way."""
    while (segment := ledger.data.find(ledger.end_position)) is not None:
        at = ledger.end_position - segment.start
        limit = min(at + WALK_BYTES, segment.size)
        walked = walk_entries(
            segment.view,
            at,
            limit,
            position=ledger.end_position,
            next_index=ledger.end_index + 1,
            term=ledger.end_term,
            check_bodies=True,
        )
        if walked.at > at:
            _mend_index(ledger, walked.first_index, walked.index_records)
            ledger.note(walked, segment.view, walked.first_index)
            ledger.end_index, ledger.end_position = walked.next_index - 1, walked.position
        elif not (is_blank(segment, at) and _goes_on(ledger, segment.start + segment.size)):
            return


def _goes_on(ledger: Ledger, position: int) -> bool:
    """Whether the next file begins with the next entry; if not, the log ends before the blank block, which is truncated."""
    segment = ledger.data.find(position)
    if segment is None:
        return False
    size: int = ENTRY.codec.unpack_from(segment.view, 0)[1]
    if not 0 < size <= segment.size:
        return False
    walked = walk_entries(
        segment.view, 0, size, position=position, next_index=ledger.end_index + 1, term=ledger.end_term, check_bodies=True
    )
    if walked.fault is None:
        ledger.end_position = position
    return walked.fault is None


def _mend_index(ledger: Ledger, first_index: int, records: bytearray) -> None:
    at, start = 0, first_index * INDEX_SIZE
    run = ledger.index
    if run.files and not run.files[0].start <= start <= run.files[-1].start + run.segment_size:
        run.clear()
    while at < len(records):
        segment = run.find(start + at)
        if segment is None:
            for last in run.files[-1:]:
                last.wrote = last.size
            segment = run.last(start + at)
        inside = start + at - segment.start
        size = min(len(records) - at, segment.size - inside)
        if segment.view[inside : inside + size] != memoryview(records)[at : at + size]:
            segment.file.write(memoryview(records)[at : at + size], inside)
        at += size


def _cut(ledger: Ledger) -> None:
    """Truncate data and index after the end; the truncated bytes read as zeros."""
    end, data = ledger.end_position, ledger.data
    segment = data.find(end)
    if segment is not None:
        at = end - segment.start
        if any(segment.view[at : at + LEFTOVER_BYTES]) or data.files[-1] is not segment:
            log.warning("torn_tail_truncated", physical_offset=end, segment=segment.path)
        data.truncate(end)
    ledger.index.truncate((ledger.end_index + 1) * INDEX_SIZE)
    first = ledger.begin_index * INDEX_SIZE
    while len(ledger.index.files) > 1 and ledger.index.files[1].start <= first:
        ledger.index.remove(ledger.index.files[0])
