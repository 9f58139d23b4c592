"""The checkpoint file of a ledger: what was committed and what was synced when it was last written.

Java writes `committedIndex` and `endIndex` and reads the first of them as a hint. Our additional keys name the last entry that
was known to be durable, in data and index files, with everything before it; recovery reads only what follows. A Java node that
takes over the store writes the file without our keys, and recovery then reads everything.
"""

from __future__ import annotations

import attrs

from ....remoting.java_properties import read_properties, write_properties
from ....world.disk import Disk
from ....world.files import read_file, replace_file
from .layout import NO_INDEX, NO_TERM

FILE_BYTES_MAX = 1024 * 1024
"""The most bytes of the file that are read; a configuration of the group takes a few hundred."""
_NUMBER_MAX = (1 << 63) - 1
_KEYS = {
    "committed_index": "committedIndex",
    "end_index": "endIndex",
    "begin_index": "beginIndex",
    "begin_position": "beginPosition",
    "before_term": "termBeforeBegin",
    "synced_index": "syncedIndex",
    "synced_term": "syncedTerm",
    "synced_position": "syncedPosition",
    "index_unsure": "indexUnsure",
}
_CONFIGURATIONS, _DATA_DIRECTORY = "configurations", "dataDirectory"


@attrs.frozen(kw_only=True)
class Checkpoint:
    """The content of the file; an absent key has the default value, which means no entry."""

    committed_index: int = NO_INDEX
    end_index: int = NO_INDEX
    begin_index: int = NO_INDEX
    begin_position: int = 0
    """The position of the first entry, which is needed only if that is not where its file begins."""
    before_term: int = NO_TERM
    """The term of the entry before the first one, which has expired."""
    synced_index: int = NO_INDEX
    """The last entry known to be durable with everything before it, in data and index files."""
    synced_term: int = NO_TERM
    synced_position: int = 0
    """The position where that entry ends; without an entry, where the first one will begin."""
    index_unsure: int = 0
    """1 while the index is being made anew, because some of its records may then be durable and earlier ones not."""
    configurations: tuple[tuple[int, bytes], ...] = ()
    """The index and body of each configuration entry up to the synced entry, and of the last one before the first entry."""
    data_directory: str = ""
    """Where the data files are if not beside this file, for commands that read a store without the broker's configuration."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode the text of the file."""
    entries = {key: str(getattr(checkpoint, name)) for name, key in _KEYS.items()}
    entries[_CONFIGURATIONS] = ";".join(f"{index}:{body.hex()}" for index, body in checkpoint.configurations)
    if checkpoint.data_directory:
        entries[_DATA_DIRECTORY] = checkpoint.data_directory
    return write_properties(entries).encode()


def decode_checkpoint(encoded: bytes) -> Checkpoint:
    """Decode the text of the file; an unreadable one counts as absent, because all of it is only a hint that is verified."""
    try:
        entries = read_properties(encoded.decode())
        values = {name: int(entries[key]) for name, key in _KEYS.items() if key in entries}
        parts = [part.partition(":") for part in entries.get(_CONFIGURATIONS, "").split(";") if part]
        configurations = tuple((int(index), bytes.fromhex(body)) for index, _, body in parts)
    except (UnicodeDecodeError, ValueError):
        return Checkpoint()
    if not all(-1 <= value <= _NUMBER_MAX for value in values.values()):
        return Checkpoint()
    return Checkpoint(**values, configurations=configurations, data_directory=entries.get(_DATA_DIRECTORY, ""))


@attrs.define(eq=False)
class CheckpointFile:
    """The checkpoint file of one node."""

    disk: Disk
    directory: str

    @property
    def path(self) -> str:
        return f"{self.directory}/checkpoint"

    def load(self) -> Checkpoint:
        """Return the content of the file, or the default checkpoint if there is no file.

        Raises:
            OSError: the file cannot be read.
        """
        if not self.disk.exists(self.path):
            return Checkpoint()
        return decode_checkpoint(read_file(self.disk, self.path)[:FILE_BYTES_MAX])

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the file.

        Raises:
            OSError: the write failed; the old file is kept.
        """
        replace_file(self.disk, self.path, encode_checkpoint(checkpoint))
