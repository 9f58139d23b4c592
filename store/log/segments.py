"""An ordered run of files of one size, each named by the offset of its first byte (RocketMQ MappedFileQueue).

Invariant: `start <= offset < start + size` finds a byte's file; files are consecutive. Writes go to the last file and past its
`wrote` position only; cutting the run makes what is cut read as zeros, so that no later scan mistakes old bytes for new ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise

import attrs

from ...message.fields import Buffer
from ...message.numbers import is_digits
from ...world.disk import Disk, DiskFile, is_given
from ...world.files import copy_sparse
from ..errors import LinkInStore, WrongSegmentSize
from .queue_files import OpenFiles, QueueFile
from .reading import read_part

NAME_DIGITS = 20

PREPARED_BYTES = 512 * 1024
"""How many zeros are written at a time, enough for some groups of puts. With fewer, each group would have to prepare; with
more, one group would wait for megabytes of zeros, and copying these would evict everything else from the processor's cache."""
_ZEROS = bytes(PREPARED_BYTES)


@attrs.define(eq=False)
class Segment:
    """One file of the run."""

    path: str
    start: int
    size: int
    file: DiskFile
    wrote: int = 0
    """Next byte to write, counted inside the file."""
    reserved: int = 0
    """Space on the medium was reserved for the bytes before this position, as far as the disk does that."""
    _prepared: int = 0
    """All bytes before this position were written once, if only as zeros."""
    _view: memoryview | None = None

    @property
    def end(self) -> int:
        """End of what has been written, as an offset in the run."""
        return self.start + self.wrote

    @property
    def view(self) -> memoryview:
        """The file's bytes."""
        if self._view is None:
            self._view = self.file.view()
        return self._view

    def prepare(self, size: int) -> None:
        """Write zeros where the next `size` bytes and those after them will be written, unless that has been done.

        In a sparse file every sync of new bytes also waits until the file system has recorded where they are, and for other
        changes in its journal; a sync of overwritten bytes does not. A failure is ignored here, because the write of the
        bytes themselves reports it.
        """
        if self.wrote + size > self._prepared and size < PREPARED_BYTES:
            start = max(self._prepared, self.wrote)
            self._prepared = min(start + PREPARED_BYTES, self.size)
            with contextlib.suppress(OSError):
                self.file.write(memoryview(_ZEROS)[: self._prepared - start], start)

    def append(self, buffer: Buffer) -> None:
        """Write at the end; the caller has checked that there is room."""
        self.file.write(buffer, self.wrote)
        self.wrote += len(buffer)

    def nonzero_size(self, position: int, size_max: int) -> int:
        """How many of the `size_max` bytes from `position` on have to be overwritten to make all of them zeros.

        What is not zero has its place on the medium, so that a full disk does not refuse the overwriting. The map is not used,
        because on a full tmpfs the process is killed when it reads a part of a map that was never written.
        """
        size_max = min(size_max, self.size - position)
        try:
            return len(self.file.read(position, size_max).rstrip(b"\0"))
        except OSError:
            return size_max

    def cut(self, position: int) -> None:
        """End at `position` inside the file, and make everything behind it read as zeros, synced.

        Raises:
            OSError: the file ends there, but some of what follows may not be zeros, on the medium at least.
        """
        self.wrote = position
        self.file.clear(position)
        self.file.sync()

    def exchange(self, file: DiskFile) -> None:
        """Read and write `file` from now on, which has the same bytes; readers in other threads see one of both."""
        self.file, self._view = file, None

    def close(self) -> None:
        self._view = None
        self.file.close()


@attrs.define(eq=False)
class Segments:
    """The run of files."""

    disk: Disk
    directory: str
    segment_size: int
    files: list[Segment] = attrs.field(factory=list[Segment])
    created: bool = False
    """Whether a file was created since the directory was last synced."""
    _ahead: list[Segment] = attrs.field(factory=list[Segment])
    """Files behind the last one that were created before they are needed; nothing is written to them yet."""
    open_files: OpenFiles | None = None
    """If the files are open only while they are used, counts those of all runs; otherwise None."""

    def load(self) -> None:
        """Open the existing files; every file counts as full until recovery has checked it.

        Raises:
            WrongSegmentSize: a file has another size than configured. Nothing stays open.
        """
        names = [name for name in self.disk.list_directory(self.directory) if is_digits(name) and len(name) == NAME_DIGITS]
        try:
            for name in names:
                path = f"{self.directory}/{name}"
                if self.disk.is_link(path):
                    raise LinkInStore(path)  # noqa: TRY301
                found = self.disk.size(path)
                if found != self.segment_size:
                    if found == 0 and name == names[-1]:
                        self.disk.remove(path)  # a crash came between its creation and the setting of its size
                        break
                    raise WrongSegmentSize(path, self.segment_size, found)  # noqa: TRY301
                self.files.append(Segment(path, int(name), self.segment_size, self._opened(path), wrote=self.segment_size))
        except BaseException:
            self.close()
            raise

    def _opened(self, path: str, *, create_size: int | None = None) -> DiskFile:
        if self.open_files is None:
            return self.disk.open(path, create_size=create_size)
        file = QueueFile(
            self.disk,
            path,
            self.segment_size,
            self.open_files,
            self.disk.open(path, create_size=create_size) if create_size is not None else None,
        )
        if self.open_files.is_full:
            file.close()
        return file

    def park(self) -> None:
        """Close the files until they are used again, all of whose bytes have been synced."""
        assert self.open_files is not None, "the files are opened when they are used"
        for segment in self.files:
            segment.close()

    def park_if_full(self) -> None:
        """Do the same if as many files are open as may be open to be read."""
        if self.open_files is not None and self.open_files.is_full:
            self.park()

    def load_unchanged(self, files: Sequence[tuple[int, int]], end: int) -> bool:
        """Open files by their starts, if each has the time of change that is given with it; otherwise opens none.

        Args:
            end: where the bytes that count end; it must be in the last of the files, or at its end.
        """
        if not files or not files[-1][0] < end <= files[-1][0] + self.segment_size:
            return False
        for at, (start, modified_ms) in enumerate(files):
            path = f"{self.directory}/{start:020d}"
            try:
                unchanged = (
                    start == files[0][0] + at * self.segment_size
                    and not self.disk.is_link(path)
                    and self.disk.modified_ms(path) == modified_ms
                    and self.disk.size(path) == self.segment_size
                )
                file = self._opened(path) if unchanged else None
            except OSError:
                file = None
            if file is None:
                self.close()
                self.files.clear()
                return False
            self.files.append(Segment(path, start, self.segment_size, file, wrote=self.segment_size))
        return True

    @property
    def gap(self) -> int | None:
        """The offset at which a file is missing between two others; None if the run is continuous."""
        for before, after in pairwise(self.files):
            if before.start + self.segment_size != after.start:
                return before.start + self.segment_size
        return None

    @property
    def min_offset(self) -> int:
        return self.files[0].start if self.files else 0

    @property
    def max_offset(self) -> int:
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> Segment | None:
        """The file that holds `offset`."""
        if not self.files:
            return None
        index = (offset - self.files[0].start) // self.segment_size
        return self.files[index] if 0 <= index < len(self.files) else None

    def read(self, offset: int, size: int, more: int = 0) -> memoryview:
        """Written bytes of one file; see `CommitLog.read`."""
        segment = self.find(offset)
        if segment is None:
            return memoryview(b"")
        at = offset - segment.start
        rest = max(0, segment.wrote - at)
        needed, wanted = min(size, rest), min(size + more, rest)
        if is_given(segment.view, at, wanted):
            return segment.view[at : at + wanted]
        content = b""
        while (have := len(content)) < needed:
            piece = read_part(segment.file, segment.path, at + have, wanted - have, offset + have)
            content = content + piece if content else piece
        return memoryview(content)

    def create(self, start: int) -> Segment:
        """Create the file that begins at `start`, a multiple of the segment size behind the last one, or take the prepared one.

        Raises:
            OSError: the disk refused. Nothing was created.
        """
        while self._ahead:
            segment = self._ahead[0]
            if segment.start != start:  # the run was cut, and goes on elsewhere
                self.disk.remove(segment.path)
                segment.close()
            del self._ahead[0]
            if segment.start == start:
                break
        else:
            segment = self._created_at(start)
        self.files.append(segment)
        self.created = True
        return segment

    def _created_at(self, start: int) -> Segment:
        self.disk.make_directories(self.directory)
        path = f"{self.directory}/{start:020d}"
        if self.disk.exists(path):  # a creation that failed half-way left it; nothing in it counts
            self.disk.remove(path)
        return Segment(path, start, self.segment_size, self._opened(path, create_size=self.segment_size))

    def prepare(self, offset: int) -> int:
        """Create the file that will hold `offset`, and those before it, unless they are there; return where that file ends.

        Raises:
            OSError: the disk refused. The files that are there already stay.
        """
        start = offset - offset % self.segment_size
        known = self._ahead or self.files
        at = known[-1].start + self.segment_size if known else start
        while at <= start:
            self._ahead.append(self._created_at(at))
            at += self.segment_size
        return start + self.segment_size

    @property
    def is_full(self) -> bool:
        """Whether the next byte needs a file that is not there yet."""
        return not self._ahead and (not self.files or self.files[-1].wrote == self.segment_size)

    @property
    def opens_file(self) -> bool:
        """Whether the next write opens a file, which may have to be created."""
        files = self.files if self.files and self.files[-1].wrote < self.segment_size else self._ahead[:1]
        return not (files and isinstance(file := files[-1].file, QueueFile) and file.is_open)

    def last(self, start_if_none: int = 0) -> Segment:
        """The file to append to: the last one, or a new one when there is none or it is full."""
        if not self.files:
            return self.create(start_if_none - start_if_none % self.segment_size)
        last = self.files[-1]
        return self.create(last.start + self.segment_size) if last.wrote == self.segment_size else last

    @property
    def reservable(self) -> bool:
        """Whether the last file is being written, and no more of it is reserved."""
        last = self.files[-1] if self.files else None
        return last is not None and last.reserved <= last.wrote < last.size

    def reserve(self, end: int) -> None:
        """Reserve space on the medium for bytes that will be appended, up to `end` and in the last file only; blocks.

        Otherwise the file system allocates space when a sync or its own write-back reaches the new bytes, and blocks writes to
        the file meanwhile, which may take long on a busy medium. A failure is ignored here, because the write of the bytes
        themselves reports it.
        """
        last = self.files[-1]
        last.reserved = max(min(end - last.start, last.size), last.wrote)
        size = last.reserved - last.wrote
        with contextlib.suppress(OSError):
            # On a nearly full disk nothing is reserved, because queues and checkpoints need to grow too.
            if 0 < size <= self.disk.usage(self.directory).free // 2:
                last.file.reserve(last.wrote, size)

    def own(self, segment: Segment) -> None:
        """Replace a file that has a second name by a copy, before a byte of it is changed: the other name is that of a backup.

        Raises:
            OSError: the disk refused. The file is as it was.
        """
        if self.disk.link_count(segment.path) == 1:
            return
        copy, shared = f"{segment.path}.tmp", segment.file
        copy_sparse(self.disk, shared, copy)
        self.disk.replace(copy, segment.path)
        self.disk.sync_directory(self.directory)
        segment.exchange(self._opened(segment.path))
        shared.close()

    def truncate(self, offset: int) -> None:
        """Cut the run at `offset`: later files are deleted, and the one that holds it reads as zeros from there on.

        Raises:
            OSError: the disk refused. `max_offset` says how far the cut has come; see `Segment.cut`.
        """
        while self.files and self.files[-1].start >= offset and len(self.files) > 1:
            self.remove(self.files[-1])
        if self.files:
            last = self.files[-1]
            self.own(last)
            last.cut(min(max(offset - last.start, 0), self.segment_size))
            self.disk.sync_directory(self.directory)

    def clear(self) -> None:
        """Delete all files, so that not even a power cut brings one back."""
        self.remove_all()
        self.disk.sync_directory(self.directory)

    def remove_all(self) -> None:
        """Delete all files, the last one first, so that a crash leaves a beginning of the run."""
        for segment in reversed([*self.files, *self._ahead]):
            self.remove(segment)

    def take_out(self) -> list[Segment]:
        """Let the run have no files, and return them in the order in which `remove_all` would delete them."""
        segments = [*self.files, *self._ahead][::-1]
        self.files.clear()
        self._ahead.clear()
        return segments

    def remove(self, segment: Segment) -> None:
        """Delete a file of the run, the first or the last.

        Raises:
            OSError: the disk refused. The file stays a part of the run.
        """
        self.disk.remove(segment.path)
        (self._ahead if segment in self._ahead else self.files).remove(segment)
        segment.close()

    def sync(self, start: int, end: int) -> None:
        """Sync the bytes of [start, end), and the directory if files were created.

        Raises:
            OSError: as `DiskFile.sync`.
        """
        created, self.created = self.created, False
        try:
            if created:
                self.disk.sync_directory(self.directory)
            for segment in list(self.files):
                if segment.start < end and segment.start + segment.size > start:
                    segment.file.sync()
        except OSError:
            self.created = self.created or created
            raise

    def rewrite(self, start: int, end: int) -> None:
        """Write the bytes of [start, end) again as they are, so that the next sync covers them.

        Raises:
            OSError: the disk refused.
        """
        for segment in list(self.files):
            low, high = max(start - segment.start, 0), min(end - segment.start, segment.wrote)
            if low < high:
                segment.file.write(segment.file.read(low, high - low), low)

    def close(self) -> None:
        for segment in (*self.files, *self._ahead):
            segment.close()
        self.files.clear()
        self._ahead.clear()
