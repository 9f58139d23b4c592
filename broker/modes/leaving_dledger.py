"""Leaving DLedger mode, offline: the store of a group's only voter is written once more, as a classic store.

Every record of the store, in an older classic log and in the ledger, is copied into a classic log in the same order. It gets
a new physical offset, because a ledger has headers between its records, and the table of numbered sends gets the new ones. Its
queue offset stays, so consumer offsets stay valid. Of the control records, those that determine queues are copied; those that
change tables are not, because the tables' files contain them. Queues and index are derived when a broker opens the copy for the
first time. The original store keeps all that is sound in it: a torn end of its ledger is cut off, as at a start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import attrs

from ...ha.dledger.native.group_records import BARRIER, CONFIGURATION
from ...ha.dledger.offline import all_log_files
from ...ha.dledger.reset_peers import NodeLeft, look_at_node
from ...message.control import QUEUES_END, TABLES_CARRIED, TOPIC_DELETED, decode_control, is_control
from ...message.errors import CorruptRecord
from ...store.config import StoreConfig
from ...store.errors import StoreError
from ...store.json_file import JsonFile
from ...store.locking import lock_store
from ...store.log.local_commitlog import open_local_commit_log
from ...store.offline import UNFINISHED, Advance, LogFile, LogRecord, Report, read_log
from ...world.disk import Disk
from ...world.real import World
from ..tables.numbered_sends import NUMBERS_FILE
from ..tables.persistence import IN_LOG_KEY, LOG_OFFSET_KEY, STATED_FROM_KEY, UNREADABLE, UNSURE_KEY, encoded
from ..tables.send_table import SendTable

BATCH_BYTES = 1 << 20
"""Records are collected up to this size and then written together."""
_COPIED_CONTROLS = frozenset({TOPIC_DELETED, QUEUES_END})
_NO_TABLES = frozenset({QUEUES_END, TABLES_CARRIED, BARRIER, CONFIGURATION})
"""Kinds of control records that change no table."""
_CLOSE_IN_ORDER = "Start the node, wait until it leads, and stop it"


class CannotLeave(StoreError):
    """The store cannot be copied; the text says why, and what was written."""


@attrs.frozen
class ClassicCopy:
    """The extent of a finished copy."""

    records: int
    end: int
    """The physical offset at which the classic log ends."""


def write_classic_copy(world: World, root: str, target: str, advance: Advance = lambda _: None) -> ClassicCopy:
    """Copy the store of a group's only voter to another directory, as a classic store. Blocks.

    Args:
        root: the store (storePathRootDir) of the node.
        target: a directory that does not exist or is empty.
        advance: called with the number of log bytes that were read since the last call.

    Raises:
        StoreInUse: a broker has the store open. Nothing was written.
        CannotLeave: the store may lack acknowledged messages, or is not sound; what was written cannot be opened.
        HaError: as when the node starts. Nothing was copied.
        OSError: the disk failed or is full. No broker opens `target`, which can be removed.
    Durability: on return the copy is on the medium.
    """
    disk = world.disk
    if disk.list_directory(target):
        raise CannotLeave(f"{target} is not empty; nothing was written")
    lock = lock_store(disk, root)
    try:
        _check_complete(disk, root, look_at_node(disk, root))
        tables = _tables(disk, root)
        ends = [table[LOG_OFFSET_KEY] for table in tables.values() if LOG_OFFSET_KEY in table]
        numbers = _Numbers(tables.pop(NUMBERS_FILE, None))
        copy = _copy_log(world, all_log_files(disk, root), target, min(ends, default=0), numbers, advance)
        for name, table in tables.items():
            if LOG_OFFSET_KEY in table:
                table[LOG_OFFSET_KEY] = copy.end
            for key in (IN_LOG_KEY, STATED_FROM_KEY, UNSURE_KEY):
                table.pop(key, None)  # the copied log lacks the events of tables
            JsonFile(disk, f"{target}/config/{name}").save(table)
        numbers.save(disk, target, copy.end)
        disk.replace(f"{target}/{UNFINISHED}", f"{target}/commitlog")
        disk.sync_directory(target)
        disk.sync_directory(target.rpartition("/")[0] or ("/" if target.startswith("/") else "."))
        return copy
    finally:
        lock.release()


def _check_complete(disk: Disk, root: str, left: NodeLeft) -> None:
    """Raise CannotLeave unless the store has all that its group has acknowledged, and its tables have all of its log."""
    configuration = left.configuration
    if configuration is None or configuration.joint or configuration.voters != (left.peer,):
        voters = "those of dLegerPeers" if configuration is None else ", ".join(configuration.voters)
        raise CannotLeave(
            f"{left.peer} is not the only voter of its group (voters: {voters}), so others may have messages that it lacks. "
            "Nothing was copied. Remove the others with `ledgermq dledger remove` while the group runs. If they are lost, let "
            f"this node go on alone with `ledgermq store reset-peers {root}`, then start it and stop it"
        )
    if disk.exists(f"{root}/abort") or left.committed_index != left.end_index:
        raise CannotLeave(
            f"{root} was not closed in order since {left.peer} leads alone, so its tables may lack what its log has. Nothing "
            f"was copied. {_CLOSE_IN_ORDER}"
        )


def _tables(disk: Disk, root: str) -> dict[str, dict[str, Any]]:
    """The contents of the tables' files, by name."""
    found: dict[str, dict[str, Any]] = {}
    for name in disk.list_directory(f"{root}/config"):
        if name.endswith(".json"):
            table = JsonFile(disk, f"{root}/config/{name}").load()
            if not isinstance(table, dict):
                raise CannotLeave(f"{root}/config/{name} cannot be read; nothing was written")
            found[name] = cast("dict[str, Any]", table)
    return found


@attrs.define
class _Numbers:
    """The table of numbered sends, whose messages get other physical offsets."""

    stored: dict[str, Any] | None
    """The content of the table's file; None if there is none, and then a start makes the table from the log."""
    table: SendTable = attrs.field(factory=SendTable)
    moved: dict[int, int] = attrs.field(factory=dict[int, int])
    """By the physical offset of a message in the store, that in the copy; -1 for one that was not copied (yet)."""
    resume: int = -1
    """Where in the copy the log goes on that the file does not contain; -1 if the file contains all that was copied."""

    def __attrs_post_init__(self) -> None:
        if self.stored is None:
            return
        try:
            self.table.load(self.stored)
        except UNREADABLE as error:
            raise CannotLeave(f"{NUMBERS_FILE} cannot be read ({error!r}); nothing was written") from error
        self.moved = {send[1]: -1 for producer in self.table.producers.values() for send in producer.sends}

    def note(self, before: int, after: int) -> None:
        """Note that a record was copied; called in the order of the log."""
        if before in self.moved:
            self.moved[before] = after
        if self.stored is not None and self.resume < 0 and before >= self.stored.get(LOG_OFFSET_KEY, 0):
            self.resume = after

    def save(self, disk: Disk, target: str, end: int) -> None:
        if self.stored is not None:
            self.table.move(self.moved)
            content = {LOG_OFFSET_KEY: self.resume if self.resume >= 0 else end, **self.table.to_json()}
            JsonFile(disk, f"{target}/config/{NUMBERS_FILE}").save(encoded(content))


def _copy_log(
    world: World, files: list[LogFile], target: str, tables_end: int, numbers: _Numbers, advance: Advance
) -> ClassicCopy:
    """Copy the log; the tables' files contain all events before `tables_end`."""
    config = StoreConfig(
        store_path_root_dir=target,
        store_path_commit_log=f"{target}/{UNFINISHED}",
        mapped_file_size_commit_log=files[-1].size,
    )
    world.disk.make_directories(config.commit_log_directory)
    log = open_local_commit_log(world, config)
    try:
        report = Report()
        count = 0
        for batch in _batches(read_log(files, report=report, advance=advance), tables_end):
            appended = log.append([bytes(record.bytes) for record in batch])
            for record, offset in zip(batch, appended.offsets, strict=True):
                numbers.note(record.offset, offset)
            count += len(batch)
        if report.problems:
            raise CannotLeave(f"the log is not sound: {'; '.join(report.problems)}")
        log.segments.sync(0, log.max_offset)
        return ClassicCopy(count, log.max_offset)
    finally:
        log.close()


def _batches(records: Iterator[LogRecord], tables_end: int) -> Iterator[list[LogRecord]]:
    """The records that belong in the copy, in batches of about `BATCH_BYTES`.

    Raises:
        CannotLeave: the log changes a table behind `tables_end`, so the tables' files lack that change.
    """
    batch, size = list[LogRecord](), 0
    for record in records:
        if is_control(record.topic, record.span.sys_flag):
            kind = _kind_of(record)
            if kind not in _NO_TABLES and record.offset >= tables_end:
                raise CannotLeave(
                    f"the tables' files have all changes up to {tables_end}, and the log has one at {record.offset}. "
                    f"{_CLOSE_IN_ORDER}"
                )
            if kind not in _COPIED_CONTROLS:
                continue
        batch.append(record)
        size += record.span.size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _kind_of(record: LogRecord) -> str:
    try:
        return decode_control(record.bytes).kind
    except CorruptRecord as error:
        raise CannotLeave(f"the control record at {record.offset} cannot be read: {error}") from error
