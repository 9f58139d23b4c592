"""Ledgers for tests: small files, records of known sizes, and the disks that all of them must work on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from ledgermq.ha.dledger.ledger.ledger import Ledger
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles, open_ledger
from ledgermq.ha.dledger.ledger.walk import walk_entries
from ledgermq.message.layout import encode_host, encode_record
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import Disk, RealDisk
from ledgermq.world.memory_disk import MemoryDisk

HOST = encode_host("10.0.0.1", 10911)
FILE_SIZE = 4096
INDEX_FILE_SIZE = 32 * 16
DISKS: dict[str, Callable[[Path], tuple[Disk, str]]] = {
    "file": lambda path: (RealDisk(), str(path)),
    "memory": lambda _: (MemoryDisk(), "store"),
    "simulated": lambda _: (SimDisk(), "store"),
}


def message(number: int, body_size: int = 100) -> bytes:
    """A message record whose place is not known yet."""
    body = random.Random(number).randbytes(body_size)
    return encode_record(b"T", 0, number, body, b"KEYS\x01k\x02", 0, 0, 0, HOST, 1, HOST)


def messages(first: int, count: int, body_size: int = 100) -> list[bytes]:
    return [message(number, body_size) for number in range(first, first + count)]


def sizes(numbers: Sequence[int]) -> list[bytes]:
    """Messages with bodies of these sizes."""
    return [message(number, size) for number, size in enumerate(numbers)]


def files(root: str, *, file_size: int = FILE_SIZE, first_position: int = 0) -> LedgerFiles:
    return LedgerFiles(f"{root}/dledger-n0", file_size, INDEX_FILE_SIZE, first_position=first_position)


def open_small(disk: Disk, root: str = "store", *, file_size: int = FILE_SIZE, first_position: int = 0) -> Ledger:
    return open_ledger(disk, files(root, file_size=file_size, first_position=first_position))


def clear(
    ledger: Ledger, begin_index: int, position: int, before_term: int, configurations: Sequence[tuple[int, bytes]] = ()
) -> None:
    """Let a ledger begin anew, as a follower does that is told to."""
    ledger.clear(begin_index, position, before_term, configurations)
    ledger.delete_cleared()


def force(ledger: Ledger) -> None:
    """Sync everything that has been appended."""
    end = ledger.end
    ledger.force(ledger.synced_position, end.position)
    ledger.reached(end)


def content(ledger: Ledger) -> list[tuple[int, int, bytes]]:
    """Index, term and body of each entry."""
    return [
        (index, ledger.term_of(index) or 0, bytes(ledger.body(index)))
        for index in range(ledger.begin_index, ledger.end_index + 1)
    ]


def copy_all(source: Ledger, target: Ledger, *, slice_size: int = 1500) -> None:
    """Append to `target` what it lacks of `source`, in slices."""
    while target.end_index < source.end_index:
        piece = source.slice_from(target.end_index + 1, slice_size)
        entries = bytes(piece.entries)
        walked = walk_entries(
            entries,
            0,
            len(entries),
            position=piece.position,
            next_index=piece.first_index,
            term=target.end_term,
            check_bodies=True,
        )
        assert walked.fault is None
        assert walked.next_index == piece.last_index + 1
        target.append_walked(walked, entries)


def data_of(disk: Disk, root: str = "store") -> dict[str, bytes]:
    """The data files by name, whole."""
    directory = f"{root}/dledger-n0/data"
    found: dict[str, bytes] = {}
    for name in disk.list_directory(directory):
        file = disk.open(f"{directory}/{name}")
        found[name] = file.read(0, file.size)
        file.close()
    return found
