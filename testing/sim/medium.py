"""What a simulated disk keeps: the sectors of files, in all versions that a power cut may leave, and the journal of names."""

from __future__ import annotations

import mmap
import random
from collections import deque
from collections.abc import Callable

import attrs

from ...world.disk import Buffer

SECTOR = 512
VERSIONS_MAX = 6
"""How many states of a sector between two syncs are remembered; more would only repeat the same kinds of loss."""
WRITES_MAX = 64
"""How many of the latest writes between two syncs are remembered; a power cut may tear a file at their edges."""


@attrs.define(eq=False)
class Inode:
    """One file: what readers see, and the versions of those sectors that may not be on the medium."""

    size: int = 0
    memory: mmap.mmap | None = None
    versions: dict[int, list[bytes]] = attrs.field(factory=dict[int, list[bytes]])
    """The versions of each sector, oldest first: the one certainly on the medium, then those that may have reached it since."""
    dirty: set[int] = attrs.field(factory=set[int])
    """Sectors that the next sync writes."""
    allocated: set[int] = attrs.field(factory=set[int])
    """The sectors that were ever written; all others are zero."""
    writes: deque[range] = attrs.field(factory=lambda: deque[range](maxlen=WRITES_MAX))
    """The sectors of each write since the last sync."""
    modified_ms: int = 0
    viewed: bool = False

    def reserve(self, size: int) -> mmap.mmap:
        if self.memory is None or len(self.memory) < size:
            # Anonymous memory is as sparse as the files that it represents.
            bigger = mmap.mmap(-1, max(size, SECTOR, 2 * len(self.memory) if self.memory else 0))
            if self.memory is not None:
                assert not self.viewed, "a file that is mapped does not grow"
                bigger[: len(self.memory)] = self.memory[:]
            self.memory = bigger
        return self.memory

    def sector(self, number: int) -> bytes:
        memory = self.memory
        content = b"" if memory is None else memory[number * SECTOR : (number + 1) * SECTOR]
        return content.ljust(SECTOR, b"\0")

    def before_change(self, start: int, end: int) -> None:
        """Remember the present content of the sectors of [start, end)."""
        for number in range(start // SECTOR, -(-end // SECTOR)):
            versions = self.versions.setdefault(number, [])
            if len(versions) >= VERSIONS_MAX:
                del versions[VERSIONS_MAX // 2]
            versions.append(self.sector(number))
            self.dirty.add(number)

    def put(self, buffer: Buffer, position: int) -> None:
        end = position + len(buffer)
        memory = self.reserve(end)
        self.before_change(position, end)
        memory[position:end] = bytes(buffer)
        sectors = range(position // SECTOR, -(-end // SECTOR))
        self.allocated.update(sectors)
        self.writes.append(sectors)
        self.size = max(self.size, end)

    def resize(self, size: int) -> None:
        if size < self.size:
            self.clear(size)
        self.size = size

    def clear(self, position: int) -> None:
        if self.memory is None:
            return
        for number in sorted(number for number in self.allocated if (number + 1) * SECTOR > position):
            start, end = max(number * SECTOR, position), min((number + 1) * SECTOR, len(self.memory))
            self.before_change(start, end)
            self.memory[start:end] = bytes(end - start)
            if start == number * SECTOR:
                self.allocated.discard(number)

    def synced(self) -> None:
        for number in self.dirty:
            del self.versions[number]
        self.dirty.clear()
        self.writes.clear()

    def sync_failed(self, rng: random.Random) -> None:
        for number in sorted(self.dirty):
            if rng.random() < 0.5:
                del self.versions[number]
        self.dirty.clear()

    def part_of_a_write(self, rng: random.Random) -> range:
        """Choose sectors of one unsynced write: one, all up to it or all from it on, mostly at an edge of the write."""
        sectors = rng.choice(self.writes)
        first, last = sectors[0], sectors[-1]
        at = rng.choice((first, min(first + 1, last), rng.randint(first, last), max(first, last - 1), last))
        one = range(at, at + 1)
        return rng.choice((one, one, range(first, at + 1), range(at, last + 1)))

    def copy(self) -> Inode:
        """A copy of the file, all of it on the medium."""
        after = Inode(modified_ms=self.modified_ms, size=self.size)
        for number in sorted(self.allocated):
            content, start = self.sector(number), number * SECTOR
            after.reserve(max(self.size, start + SECTOR))[start : start + SECTOR] = content
            after.allocated.add(number)
        return after

    def survivor(self, rng: random.Random, size: int, count: Callable[[str], None], *, at_edges: bool) -> Inode:
        """What a power cut leaves of this file, whose length is then `size`; `count` is called for each kind of loss.

        Args:
            at_edges: in half of the cases, only a part of one write is lost of what the next sync would write.
        """
        after = Inode(modified_ms=self.modified_ms, size=size)
        by_chance, lost = set(self.versions), range(0)
        if at_edges and self.writes and rng.random() < 0.5:
            by_chance, lost = by_chance - self.dirty, self.part_of_a_write(rng)
            count("lost_edge")
        # At the cut, nearly everything, nearly nothing or a part has been written back.
        written_back = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        kept: list[bool] = []
        for number in sorted(self.allocated | self.versions.keys()):
            content = newest = self.sector(number)
            if number in self.versions:
                if rng.random() >= written_back if number in by_chance else number in lost:
                    content = rng.choice(self.versions[number])
                kept.append(content == newest)
            start = number * SECTOR
            if start < size and content.strip(b"\0"):
                memory = after.reserve(max(size, start + SECTOR))
                content = content[: size - start]
                memory[start : start + len(content)] = content
                after.allocated.add(number)
        if not all(kept):
            count("lost_write")
            if any(kept):
                count("torn_write")
            if True in kept[kept.index(False) :]:  # files are written mostly in order
                count("reordered_write")
        return after


@attrs.frozen
class Change:
    """One entry of the journal of names."""

    directories: tuple[str, ...]
    apply: Callable[[Names], None]
    resized: Inode | None = None
    """The file whose length this entry changes."""


@attrs.define(eq=False)
class Names:
    """The files and directories by path."""

    files: dict[str, Inode] = attrs.field(factory=dict[str, Inode])
    directories: set[str] = attrs.field(factory=set[str])
    sizes: dict[Inode, int] = attrs.field(factory=dict[Inode, int])

    def copy(self) -> Names:
        return Names(dict(self.files), set(self.directories), dict(self.sizes))

    def rename(self, source: str, target: str) -> None:
        """Give a file, or a directory with all that is in it, another name."""

        def renamed(path: str) -> str:
            return target + path.removeprefix(source) if path == source or path.startswith(f"{source}/") else path

        if source in self.directories:
            self.directories = {renamed(path) for path in self.directories}
            self.files = {renamed(path): inode for path, inode in self.files.items()}
        else:
            self.files[target] = self.files.pop(source)

    def backup(self) -> Names:
        """The same names, for copies of the files."""
        copies = {inode: inode.copy() for inode in self.files.values()}
        files = {path: copies[inode] for path, inode in self.files.items()}
        return Names(files, set(self.directories), {inode: inode.size for inode in files.values()})
