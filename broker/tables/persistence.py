"""The tables' files under `config/`: read at the start, and written when and as often as RocketMQ writes them.

Topics and groups are written as soon as they change (simultaneous changes together), offsets at intervals, and everything at a
clean stop. The content is taken on the event loop, that of offsets and leases in several turns; only writing it runs in a
worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, TypeVar, cast

import attrs
import orjson
import trio

from ...message.numbers import LONG_MAX
from ...store.json_file import JsonFile
from ...world.disk import Disk
from ...world.events import get_logger
from ...world.logs import fault_of, trace_of
from ...world.slices import ROWS_PER_SLICE, in_slices, rows_of
from ...world.supervision import keep_running
from ...world.ticks import next_tick
from ...world.workers import Workers
from ..errors import BadTable
from .offsets import ConsumerOffsets

log = get_logger(__name__)

Read = TypeVar("Read")

TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE = "topics.json", "subscriptionGroup.json", "consumerOffset.json"
LOCKS_FILE, ACCESS_FILE = "queueLocks.json", "access.json"
LOG_DERIVED = frozenset((TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE, LOCKS_FILE, ACCESS_FILE))
"""The files that can be rebuilt from the log, and that store the log offset up to which they contain its events."""

LOG_OFFSET_KEY = "logOffset"
"""Our own key in a table's file: the table contains the events of all control records before this physical offset."""
CHECK_SECONDS = 10.0
"""A table that nobody has changed for this long is checked all the same, because the log offset of its file may be old."""
IN_LOG_KEY = "tablesInLog"
"""Our own key in a table's file: whether the log contains all that the file contains."""
STATED_FROM_KEY = "tablesInLogFrom"
"""Our own key in a table's file: `Tables.stated_from`."""
UNSURE_KEY = "notInLog"
"""The key of an older version in the file of offsets: topic, group and queue of those offsets that the log may lack."""
COMMITTED_HERE_KEY = "committedHere"
"""Our own key in the file of offsets of a slave: topic, group, queue and offset of commits that its master lacks."""
RETRY_SECONDS = 5.0
"""The pause after a failed write."""
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""The exceptions of reading a table that is JSON but has wrong values; an infinite number raises OverflowError."""
BREATHER, BREATHER_SECONDS_MAX = 20.0, 2.0
"""The pause after a write is `BREATHER` times the write's duration, but at most `BREATHER_SECONDS_MAX`; changes during the
pause are written together."""


@attrs.define(eq=False)
class Table:
    """One table's file."""

    name: str
    file: JsonFile
    take: Callable[[], Any]
    """Returns the content to write, or an awaitable of it, if it is taken in several turns of the event loop. Its parts may
    then differ in age: none is older than the value of `changes` before the first turn."""
    changes: Callable[[], Hashable]
    """Returns a value that differs from `written` if the table has changed since then."""
    interval_seconds: float
    """How often the table is written; 0 if it is written at every change, after `wake`."""
    written: Hashable = 0
    """The value of `changes` at the last write."""
    log_offset: int = 0
    """`LOG_OFFSET_KEY` of the file as it is now; 0 if it has none."""
    failure: str = ""
    """Why the last write failed; empty if it did not."""
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _writing: trio.Lock = attrs.field(factory=trio.Lock)
    """Separates the writes of a stop and of the table's own task, so that an older value never replaces a newer one."""

    def wake(self) -> None:
        self._wake.set()

    async def keep(self, workers: Workers) -> None:
        """Write the file at intervals or after changes, until cancelled."""
        while True:
            if self.interval_seconds:
                await next_tick(self.interval_seconds)
            else:
                with trio.move_on_after(CHECK_SECONDS):
                    await self._wake.wait()
                self._wake = trio.Event()
            began = trio.current_time()
            if not await self.write(workers):
                await trio.sleep(RETRY_SECONDS)
                self._wake.set()
            # A burst of changes to a large table must not cause continuous writing.
            await trio.sleep(min((trio.current_time() - began) * BREATHER, BREATHER_SECONDS_MAX))

    async def write(self, workers: Workers, *, always: bool = False) -> bool:
        """Write the file if the table has changed; return False if the disk failed or the table could not be encoded.

        Args:
            always: write it even if only the log offset has changed.
        """
        async with self._writing:
            changes = self.changes()
            if changes == self.written and not always:
                return True
            try:
                content = self.take()
                if isawaitable(content):
                    content = await content
                await workers.run(self.file.save, content)
            except OSError as error:
                self.written, self.failure = None, error.strerror or str(error)
                log.error("table_not_written", table=self.name, path=self.file.path, reason=self.failure)
                return False
            except Exception as error:  # noqa: BLE001 - a table that cannot be encoded must not end the broker
                log.error(
                    "table_not_written",
                    table=self.name,
                    path=self.file.path,
                    reason=fault_of(error),
                    trace=trace_of(error),
                )
                return False
            self.written, self.failure = changes, ""
            self.log_offset = cast("dict[str, int]", content).get(LOG_OFFSET_KEY, 0) if isinstance(content, dict) else 0
            return True


@attrs.define(eq=False, repr=False)
class Persistence:
    """All files of one broker's tables."""

    _disk: Disk
    _workers: Workers
    _directory: str
    tables: dict[str, Table] = attrs.field(factory=dict[str, Table])
    _files: dict[str, JsonFile] = attrs.field(factory=dict[str, JsonFile])
    log_offsets: dict[str, int] = attrs.field(factory=dict[str, int])
    """`LOG_OFFSET_KEY` of each loaded file, by file name; files of RocketMQ and of older versions have none."""
    missing: set[str] = attrs.field(factory=set[str])
    """The names of the files that were to be loaded and do not exist, or are broken and replaceable."""
    not_in_log: set[str] = attrs.field(factory=set[str])
    """The names of the loaded files whose content is not in the log, or not certainly."""
    foreign: set[str] = attrs.field(factory=set[str])
    """The names of the loaded files that RocketMQ or an older version has written, which had no tables in the log."""
    kept_end: int = LONG_MAX
    """Where the log is about to be cut: no file has a greater log offset, because other events may come there."""
    stated_from: int = 0
    """The largest `STATED_FROM_KEY` of the loaded files."""

    def load(self, name: str, read: Callable[[Any], Read], *, replaceable: bool = True) -> Read:
        """Call `read` with the content of a table's file, or with None if there is none; return its result.

        Args:
            replaceable: whether the table may begin empty if the file and its `.bak` are both broken or empty.

        Raises:
            BadTable: the file is broken and not replaceable, or `read` refused its content.
            OSError: the file exists and cannot be read.
        """
        file = self._file(name)
        stored = file.load()
        if stored is None and not replaceable and file.exists:
            raise BadTable(file.path, "it is empty or not JSON, and no .bak is there that is")
        content = cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}
        if isinstance(offset := content.get(LOG_OFFSET_KEY), int):
            self.log_offsets[name] = offset
        if isinstance(stated_from := content.get(STATED_FROM_KEY), int):
            self.stated_from = max(self.stated_from, stated_from)
        if stored is None:
            self.missing.add(name)
        elif content.get(IN_LOG_KEY) is not True:
            self.not_in_log.add(name)
            if IN_LOG_KEY not in content:
                self.foreign.add(name)
        try:
            return read(stored)
        except UNREADABLE as error:
            raise BadTable(file.path, f"{type(error).__name__}: {error}") from error

    def keep(self, name: str, take: Callable[[], Any], changes: Callable[[], Hashable], interval_seconds: float = 0.0) -> Table:
        """Write a table to the file of this name from now on; its current content counts as written if there is a file."""
        # Without a file, each start would search the log for its events.
        written = None if name in self.missing & LOG_DERIVED else changes()
        table = Table(name, self._file(name), take, changes, interval_seconds, written, self.log_offsets.get(name, 0))
        self.tables[name] = table
        return table

    def start(self, nursery: trio.Nursery) -> None:
        """Start the tasks that write."""
        for table in self.tables.values():
            nursery.start_soon(keep_running, f"table {table.name}", partial(table.keep, self._workers))

    async def write(self, name: str) -> bool:
        """Write one file if its table has changed; return False if that failed."""
        return await self.tables[name].write(self._workers)

    async def write_all(self, *, always: bool = False) -> bool:
        """Write the file of every table that has changed, or of every table; return False if one could not be written."""
        return all([await table.write(self._workers, always=always) for table in self.tables.values()])

    async def write_until(self, end: int) -> bool:
        """Write the file of every table that is derived from the log, unless it contains the events before `end` already.

        After a removal of the log up to `end`, no start could read them there. Returns False if one could not be written.
        """
        older = [table for name in sorted(LOG_DERIVED) if (table := self.tables[name]).log_offset < end]
        return all([await table.write(self._workers, always=True) for table in older])

    def _file(self, name: str) -> JsonFile:
        if name not in self._files:
            self._files[name] = JsonFile(self._disk, f"{self._directory}/{name}")
        return self._files[name]


def encoded(value: Any) -> orjson.Fragment:
    """Encode a large table immediately, so that later changes do not affect the value."""
    return orjson.Fragment(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))


async def encoded_offsets(offsets: ConsumerOffsets, *, quoted: bool = True, logged: bool = False) -> bytes:
    """Encode offsets by (topic, group) and queue id in several turns of the event loop, each entry as it is in its turn.

    Entries that are added or removed meanwhile may be left out.

    Args:
        quoted: whether queue ids are strings, as strict JSON wants; RocketMQ writes them without quotes.
        logged: whether offsets that the log does not have yet are encoded as the log has them.
    """
    table, entries = offsets.table, list[bytes]()
    async for piece in in_slices(table.walk(), ROWS_PER_SLICE, rows_of):
        for key, queues in piece:
            if table.get(key) is queues:
                if logged and (before := offsets.logged.get(key)):
                    queues = {at: offset for at, offset in {**queues, **before}.items() if offset is not None}  # noqa: PLW2901
                rows = orjson.dumps(queues, option=orjson.OPT_NON_STR_KEYS) if quoted else _bare(queues)
                entries.append(orjson.dumps("@".join(key)) + b":" + rows)
    return b"{%b}" % b",".join(entries)


def _bare(queues: Mapping[int, int]) -> bytes:
    return b"{%b}" % b",".join(b"%d:%d" % row for row in queues.items())
