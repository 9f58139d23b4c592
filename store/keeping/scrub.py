"""Reading back what is cold: CRCs of the records in full files of the log, at a bounded rate, so that rot is found in time.

A record that is damaged is reported and no longer served, until it is found sound again: another node's copy may have replaced
it. One pass reads all files that are no longer written; the next one begins a day after it began, at the earliest. Files are
read in worker threads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import attrs
import trio

from ...message.layout import Check
from ...world.events import get_logger
from ...world.files import PIECE_BYTES
from ..errors import UnreadableLog
from ..message_store import MessageStore
from ..offline import HEAD_BYTES_MAX, LogFile, LogReader, Look, look_at_record

log = get_logger(__name__)

PASS_SECONDS_MIN = 24 * 3600.0
"""The shortest time from the beginning of a pass to that of the next one."""

PAUSE_SECONDS_MAX = 3600.0
"""The longest time after which a damaged record that nothing replaces is read again."""


@attrs.frozen
class Framing:
    """How a log frames its records."""

    look: Look
    header_size: int
    """How many bytes precede each record."""


CLASSIC = Framing(look_at_record, 0)


@attrs.frozen
class Checked:
    """What was found in a part of a file."""

    end: int
    """Everything before this physical offset was looked at."""
    damaged: tuple[int, ...]
    """The physical offsets of damaged records."""


def check(file: LogFile, start: int, size: int, framing: Framing) -> Checked:
    """Read at least `size` bytes of records; blocks.

    Args:
        file: a full file.
        start: the physical offset in it from which on it is read, at which a record begins.

    Returns:
        What was found. A record whose size is damaged too hides those behind it, up to the end of the file. One that the disk
        does not give is damaged.

    Raises:
        OSError: the file cannot be opened.
    """
    reader = LogReader(file, piece_bytes=min(max(size, HEAD_BYTES_MAX), PIECE_BYTES))
    at, damaged = start - file.start, list[int]()
    end = min(at + size, file.size)
    while at < end:
        try:
            found, span, after = reader.look(at)
        except UnreadableLog as error:
            found, span, after = Check.NOTHING, None, error.after
        if found is Check.BLANK:
            return Checked(file.start + file.size, tuple(damaged))
        if found is Check.NOTHING or (span is not None and span.physical_offset != file.start + after - span.size):
            damaged.append(file.start + at + framing.header_size)
            if not at < after <= file.size:
                return Checked(file.start + file.size, tuple(damaged))
        at = after
    return Checked(file.start + at, tuple(damaged))


@attrs.define(eq=False, kw_only=True)
class Scrubber:
    """Scrubs the log of one store."""

    store: MessageStore
    rate: Callable[[], int]
    """How many bytes a second are read, at most; 0 for none."""
    framing_at: Callable[[int], Framing]
    """How the log frames the records at a physical offset."""
    mend: Callable[[int], bool]
    """Asks for another node's copy of the record at a physical offset; returns False where nothing replaces it."""
    checked_bytes: int = 0
    found: int = 0
    """How many damaged records were found."""
    _busy: bool = False
    _next: int = 0
    """The physical offset from which the pass goes on."""
    _pass_at: float = 0.0
    """When the next pass may begin."""
    _paused: dict[int, tuple[float, float]] = attrs.field(factory=dict[int, tuple[float, float]])
    """By the physical offset of a damaged record that nothing replaces: when it may be read again, and the pause until then."""

    @property
    def is_due(self) -> bool:
        """Whether there is something to read, and the last `tick` has ended."""
        return not self._busy and bool(self.rate() or self.store.damaged)

    async def tick(self) -> None:
        """Read what is read each second; called about as often while it `is_due`."""
        self._busy = True
        try:
            await self.look_again()
            if rate := self.rate():
                await self.step(rate)
        finally:
            self._busy = False

    async def step(self, size: int) -> None:
        """Read the next `size` bytes or a few more, if a pass is due."""
        clock, log_ = self.store.world.clock, self.store.log
        safe = min(log_.flushed_offset, log_.committed_offset)
        cold = [file for file in log_.files()[:-1] if file.start + file.size <= safe]
        while size > 0:
            file = next((file for file in cold if file.start + file.size > self._next), None)
            if file is None:
                self._next = 0
                return
            now, begins = clock.monotonic(), self._next == 0
            if begins and now < self._pass_at:
                return
            start = max(self._next, file.start, log_.min_offset)
            checked = await self._check(start, size)
            if checked is None:
                return
            if begins:
                self._pass_at = now + PASS_SECONDS_MIN
            if log_.min_offset <= start:  # else it has expired meanwhile, and what was read may have been a part
                self._note(file.path, checked)
            self._next, size = max(checked.end, start + 1), size - (checked.end - start)
            self.checked_bytes += checked.end - start

    async def _check(self, start: int, size: int) -> Checked | None:
        """Call `check` for the file that has the physical offset `start`; None if it has expired, or cannot be opened now."""
        world, framing = self.store.world, self.framing_at(start)
        for file in self.store.log.files():
            if file.start <= start < file.start + file.size:
                with suppress(OSError):
                    part = LogFile(world.disk, file.path, file.start, file.size, framing.look)
                    return await world.workers.run(check, part, start, size, framing)
        return None

    def _note(self, path: str, checked: Checked) -> None:
        damaged = self.store.damaged
        for offset in checked.damaged:
            if offset in damaged:
                continue
            self.found += 1
            is_mended = self.mend(offset)
            log.error("damaged_record_found", path=path, physical_offset=offset, replaced_by_copy=is_mended)
            self.store.note_damaged(offset)

    async def look_again(self) -> None:
        """Serve records again that are sound now, and those that have expired need nothing; ask for copies of the others.

        A record that nothing replaces is read again after a pause, which doubles each time: one that is damaged for good is
        not to be read each second, whatever `rate` allows.
        """
        store, now = self.store, self.store.world.clock.monotonic()
        self._paused = {offset: pause for offset, pause in self._paused.items() if offset in store.damaged}
        for offset in sorted(store.damaged):
            due, pause = self._paused.get(offset, (now, 0.5))
            if now < due:
                continue
            framing = self.framing_at(offset)
            start = offset - framing.header_size
            if start < store.log.min_offset:
                store.damaged.discard(offset)
                continue
            checked = await self._check(start, 1)
            if checked is not None and not checked.damaged:
                store.damaged.discard(offset)
                log.info("damaged_record_sound_again", physical_offset=offset)
            elif not self.mend(offset):
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
                self._paused[offset] = now + pause, pause
            await trio.lowlevel.checkpoint()
