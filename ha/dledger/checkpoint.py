"""What was committed and what was synced when the checkpoint of a ledger was last written.

Java writes `committedIndex` and `endIndex` and reads the first of them as a hint. Our own keys beside them name the last entry
that was known to be on the medium, data and index, with everything before it: recovery reads from there on only. A Java node
that takes the store over writes the file without them, and then nothing is trusted.
"""

from __future__ import annotations

import attrs

from ...remoting.java_properties import read_properties, write_properties
from ...world.disk import Disk
from ...world.files import read_file, replace_file
from .layout import NO_INDEX, NO_TERM

FILE_BYTES_MAX = 1024 * 1024
"""Bytes of the file that are read; configurations of a group take a few hundred each."""
_NUMBER_MAX = (1 << 63) - 1
_KEYS = {
    "committed_index": "committedIndex",
    "end_index": "endIndex",
    "begin_index": "beginIndex",
    "before_term": "termBeforeBegin",
    "synced_index": "syncedIndex",
    "synced_term": "syncedTerm",
    "synced_position": "syncedPosition",
}
_CONFIGURATIONS = "configurations"


@attrs.frozen(kw_only=True)
class Checkpoint:
    """The content of the file; a key that is absent has the value of "nothing"."""

    committed_index: int = NO_INDEX
    end_index: int = NO_INDEX
    begin_index: int = NO_INDEX
    before_term: int = NO_TERM
    """Term of the entry before the first one, which expiry has taken away."""
    synced_index: int = NO_INDEX
    """Last entry that is known to be on the medium with everything before it, in data and index files."""
    synced_term: int = NO_TERM
    synced_position: int = 0
    """Where that entry ends; without an entry, where the first one will begin."""
    configurations: tuple[tuple[int, bytes], ...] = ()
    """Index and body of the entries up to the synced one that carry a configuration, and of the last one before the first."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The text of the file."""
    entries = {key: str(getattr(checkpoint, name)) for name, key in _KEYS.items()}
    entries[_CONFIGURATIONS] = ";".join(f"{index}:{body.hex()}" for index, body in checkpoint.configurations)
    return write_properties(entries).encode()


def decode_checkpoint(encoded: bytes) -> Checkpoint:
    """Read the text of the file; what cannot be read counts as absent, for all of it is only a hint that is verified."""
    try:
        entries = read_properties(encoded.decode())
        values = {name: int(entries[key]) for name, key in _KEYS.items() if key in entries}
        parts = [part.partition(":") for part in entries.get(_CONFIGURATIONS, "").split(";") if part]
        configurations = tuple((int(index), bytes.fromhex(body)) for index, _, body in parts)
    except (UnicodeDecodeError, ValueError):
        return Checkpoint()
    if not all(-1 <= value <= _NUMBER_MAX for value in values.values()):
        return Checkpoint()
    return Checkpoint(**values, configurations=configurations)


@attrs.define(eq=False)
class CheckpointFile:
    """The file of one node."""

    disk: Disk
    directory: str

    @property
    def path(self) -> str:
        return f"{self.directory}/checkpoint"

    def load(self) -> Checkpoint:
        """What the file says; nothing where there is none.

        Raises:
            OSError: the disk refused.
        """
        if not self.disk.exists(self.path):
            return Checkpoint()
        return decode_checkpoint(read_file(self.disk, self.path)[:FILE_BYTES_MAX])

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the file.

        Raises:
            OSError: the old file is there still.
        """
        replace_file(self.disk, self.path, encode_checkpoint(checkpoint))
