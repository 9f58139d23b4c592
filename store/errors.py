"""Errors of the store.

StoreError
├── StoreInUse           another broker has the directory open
├── WrongSegmentSize     a file has another size than the configured one
├── MissingLog           no file of the log is left in its directory
├── MissingSegment       a file of the log is missing before or between others
├── LogOfOtherMode       the messages of the store are in a log that the configured mode does not read
├── BackupRefused        nothing can be backed up or restored as asked
├── DamagedBackup        an object of a backup is missing or not what was backed up
├── UnfinishedCopy       the store is a copy that was not finished
├── LinkInStore          a symbolic link where only files and directories of the store may be
├── ForeignQueues        consume queues of a kind that only RocketMQ reads
├── DamagedLog           a record that was safely on the medium is no longer whole
├── BadQueueName         a queue of a record or a request that can have no files
├── NotWritable          the log accepts no appends now; its text says why
├── AppendUnclear        an append failed, and what it wrote could not be removed (an OSError too)
├── NoSuchOffset         a physical offset that the log does not have
└── OffsetGap            raw bytes do not begin at the end of the log

OSError
└── UnreadableLog        the disk does not give bytes of the log
"""

from __future__ import annotations

import errno
import shlex

from .statuses import PutStatus


def cut_command(log_directory: str, offset: int) -> str:
    """The command that cuts off a log at `offset`."""
    root, _, name = log_directory.rpartition("/")
    if name == "commitlog":
        return f"ledgermq store cut {shlex.quote(root or '.')} --at {offset}"
    return f"ledgermq store cut STORE --commitlog {shlex.quote(log_directory)} --at {offset}"


class StoreError(Exception):
    """Base class of all errors of the store."""


class StoreInUse(StoreError):
    """Another process, or another broker in this one, holds the lock of `path`."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"the store {path} is in use by another broker; nothing was opened: stop that one, or give this one directories of "
            "its own (storePathRootDir, storePathCommitLog, storePathDLedgerCommitLog; controllerStorePath of a controller)"
        )
        self.path = path


class BackupRefused(StoreError):
    """A backup or restoration that is not possible; the text says why, and what was not done."""


class DamagedBackup(StoreError):
    """The object `name` of a backup is missing, or not what was backed up."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} of the backup is damaged: {reason}")
        self.name = name


class WrongSegmentSize(StoreError):
    """The file `path` has `found` bytes instead of the configured `expected`."""

    def __init__(self, path: str, expected: int, found: int) -> None:
        super().__init__(
            f"{path} has {found} bytes, the configuration says {expected}: set the configured size to what the store was "
            "made with, or move the file away if it does not belong there; nothing was opened"
        )
        self.path = path
        self.expected = expected
        self.found = found


class MissingLog(StoreError):
    """No file of the log is in `path`, where it had been synced up to `synced_offset`."""

    def __init__(self, path: str, synced_offset: int) -> None:
        super().__init__(
            f"{path} holds no file of the log, which had been synced up to offset {synced_offset}: is a disk not mounted, or "
            "was the directory moved? Nothing was changed. To begin with an empty store, move all of the old one away"
        )
        self.path = path
        self.synced_offset = synced_offset


class MissingSegment(StoreError):
    """The log in `path` has no bytes from `offset` to `end`, where it had some."""

    def __init__(self, path: str, offset: int, end: int) -> None:
        super().__init__(
            f"{path}: the file {offset:020d} is missing: the log had bytes from offset {offset} on, and what is there goes on "
            f"at {end}. Nothing was changed. Restore the file from a slave or a backup. To give up what follows, or what is "
            f"missing before the rest, see what `{cut_command(path, offset)}` lists, or run it with --missing instead of --at"
        )
        self.path = path
        self.offset = offset
        self.end = end


class LogOfOtherMode(StoreError):
    """`path` is a log of the store that the configured mode would not read."""

    def __init__(self, path: str, *, dledger: bool) -> None:
        super().__init__(
            f"{path} holds messages that were written with enableDLegerCommitLog={str(dledger).lower()}: consumers would not "
            "be given them, and queue offsets would be given out again. Nothing was opened or changed. Set "
            "enableDLegerCommitLog as it was, or write the store as a classic one with `ledgermq store to-classic` first"
            if dledger
            else f"{path} holds messages at offsets at which the ledger has some too: the two logs were written independently. "
            "Nothing was opened or changed. Move away the one that does not belong to this store: commitlog or dledger-ID"
        )
        self.path = path


class UnfinishedCopy(StoreError):
    """`path` is in a store that `ledgermq store to-classic` or `restore` began to write."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is there, so `ledgermq store to-classic` or `ledgermq store restore` has not finished writing this store: "
            "messages are missing, and no broker opens it. Unless the command still runs, remove the directory of the store, "
            "and run the command again; the original is as it was"
        )
        self.path = path


class LinkInStore(StoreError):
    """`path` is a symbolic link inside the store."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is a symbolic link: the store reads, writes and deletes only what is below its own directories. Put "
            "what it leads to in its place, or move it away; nothing was opened"
        )
        self.path = path


class ForeignQueues(StoreError):
    """`path` has consume queues that are read with RocketMQ's extensions only."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: these queues were written with an extension of RocketMQ that is not read here, and consumers with a "
            "filter would pass over messages. Move them and the directory consumequeue away: the queues are derived anew "
            "from the log, which takes its time; nothing was opened"
        )
        self.path = path


class DamagedLog(StoreError):
    """The log in `path` was synced up to `synced_offset`, but the record at `offset` is not whole any more."""

    def __init__(self, path: str, offset: int, synced_offset: int) -> None:
        super().__init__(
            f"{path}: the record at physical offset {offset} is damaged although everything before {synced_offset} had been "
            "synced: the medium or somebody else changed it, or a file is missing. Nothing was cut. Restore the file from a "
            f"slave or a backup, or give up everything from there on: `{cut_command(path, offset)}` lists what that would be "
            "and asks; where the log ends before that offset, run it with --missing instead of --at"
        )
        self.path = path
        self.offset = offset
        self.synced_offset = synced_offset


class BadQueueName(StoreError):
    """A queue's topic or number cannot become a path. Nothing was created."""


class NotWritable(StoreError):
    """The log accepts no appends now. Nothing was appended."""

    status = PutStatus.SERVICE_NOT_AVAILABLE
    """The status that the producer gets."""


class RecordTooLarge(NotWritable):
    """A record is larger than any that the log takes. Nothing was appended."""

    status = PutStatus.MESSAGE_ILLEGAL


class AppendUnclear(StoreError, OSError):
    """The disk refused an append and then also its removal: after a crash, the records may be in the log."""


class UnreadableLog(OSError):
    """The disk does not give the byte at `offset` of the log."""

    after = 0
    """The position in the file at which the record with that byte ends by its size; where it begins if that is unknown."""

    def __init__(self, path: str, offset: int, cause: OSError) -> None:
        super().__init__(cause.errno, f"physical offset {offset} cannot be read: {cause.strerror or cause}", path)
        self.offset = offset


class OffsetGap(StoreError):
    """Raw bytes for `offset` do not continue the log, which ends at `expected`. Nothing was appended."""

    def __init__(self, offset: int, expected: int) -> None:
        super().__init__(f"bytes for physical offset {offset} do not join the log, which ends at {expected}")
        self.offset = offset
        self.expected = expected


class NoSuchOffset(StoreError):
    """The log has no byte at `offset`."""

    def __init__(self, offset: int, begin: int, end: int) -> None:
        super().__init__(f"the log has no physical offset {offset}: it goes from {begin} to {end}; nothing was cut")
        self.offset = offset
        self.begin = begin
        self.end = end


def is_full(error: Exception) -> bool:
    """Whether a disk refused because it, or the quota of this user on it, has no room."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
