"""A walk over the headers of consecutive entries, which finds how far they are valid; it does no I/O.

The follower walks over what a leader sends, recovery over the files. An entry is valid if its header has the position where it
is, the next index and a term that does not decrease, and if its sizes agree. The walk also produces the index records and the
changes of term; for speed it creates nothing else per entry.
"""

from __future__ import annotations

import struct

import attrs

from ....message.checksum import crc32
from ....message.fields import Buffer
from ....message.layout import MAGIC_V1, MAGIC_V2, Check, check_record
from .layout import CHANNEL_CONFIGURATION, ENTRY, HEADER_SIZE, INDEX, MAGIC_ENTRY

_unpack_header = ENTRY.codec.unpack_from
_pack_index = INDEX.codec.pack
_SIZE_AND_MAGIC = struct.Struct(">ii")


@attrs.define(eq=False)
class Walked:
    """The result of a walk."""

    at: int
    """The place in the buffer where the last valid entry ends."""
    position: int
    """The same place as a position in the data files."""
    first_index: int
    next_index: int
    index_records: bytearray
    """The index records of all valid entries, in order."""
    runs: list[tuple[int, int]]
    """The first index of each run of entries of one term, with the term."""
    configurations: list[int]
    """The places in the buffer where configuration entries begin."""
    fault: str | None
    """A description of the fault of the entry at `at`; None if the walk reached its limit."""
    damaged: bool = False
    """Whether the fault is that of a body in a header that is in order."""


def walk_entries(
    buffer: Buffer, at: int, limit: int, *, position: int, next_index: int, term: int, check_bodies: bool
) -> Walked:
    """Walk over the entries of `buffer` from `at` to `limit`.

    Args:
        position: position of the byte `at` in the data files.
        next_index: index that the first entry must have.
        term: term of the previous entry; no later one may have a smaller term.
        check_bodies: whether each body is verified by its CRC, or if a Java node left that 0, by the CRC of its message.
    """
    view = memoryview(buffer)
    first_index, run_term = next_index, -2
    records, runs, configurations = bytearray(), list[tuple[int, int]](), list[int]()
    fault: str | None = None
    damaged = False
    while at < limit:
        if limit - at < HEADER_SIZE:
            fault = f"{limit - at} bytes are left, too few for a header"
            break
        magic, size, index, entry_term, place, channel, _, crc, body_size = _unpack_header(view, at)
        if magic != MAGIC_ENTRY or size != body_size + HEADER_SIZE or body_size < 0:
            fault = f"no entry header: magic {magic}, size {size}, body size {body_size}"
        elif index != next_index or place != position or entry_term < term or entry_term < 0:
            fault = (
                f"entry {index} of term {entry_term} at position {place}, where entry {next_index} of at least term {term} at "
                f"position {position} must come"
            )
        elif at + size > limit:
            fault = f"entry {index} has {size} bytes, {limit - at} are there"
        elif check_bodies and not body_is_sound(view[at + HEADER_SIZE : at + size], crc):
            fault = f"the body of entry {index} does not have the CRC that was stored with it"
            damaged = True
        if fault is not None:
            break
        records += _pack_index(magic, place, size, index, entry_term)
        if entry_term != run_term:
            runs.append((index, entry_term))
            term = run_term = entry_term
        if channel == CHANNEL_CONFIGURATION:
            configurations.append(at)
        at += size
        position += size
        next_index += 1
    return Walked(at, position, first_index, next_index, records, runs, configurations, fault, damaged)


def body_is_sound(body: memoryview, crc: int) -> bool:
    """Whether a body has the CRC of its header. If that is 0, whether the message in the body, if any, has its own CRC."""
    if crc:
        return crc32(body) == crc
    return not is_message(body) or check_record(body, 0, len(body))[0] is Check.RECORD


def is_message(body: memoryview) -> bool:
    """Whether an entry's body begins like a message record of the same size."""
    if len(body) < _SIZE_AND_MAGIC.size:
        return False
    size, magic = _SIZE_AND_MAGIC.unpack_from(body)
    return size == len(body) and magic in (MAGIC_V1, MAGIC_V2)
