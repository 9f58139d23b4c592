"""The entries of a table as JSON, each encoded once, and their total size. Pure.

A registration, a slave's copy and a table's file hold the whole table, the first two in one frame. A table larger than a frame
could not be registered or copied any more, so an entry that does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import orjson

from ..remoting.codes import ResponseCode
from ..remoting.command import FRAME_SIZE_MAX
from ..remoting.errors import RequestRefused
from ..world.slices import in_slices

TABLE_BYTES_MAX = FRAME_SIZE_MAX - 1024 * 1024
"""The most bytes of entries in a table that must fit one frame, with room for the rest of the frame; more are refused."""
ENTRIES_BYTES_MAX = 8 * 1024 * 1024
"""The most bytes of entries in the table of topics or of groups: 42,000 topics with names of 27 characters. A name server and a
slave read a whole table in one turn of the event loop, which must take less than 100 ms."""
ENTRIES_PER_TURN = 20_000
"""How many entries are joined in one turn of the event loop when a slave copies the table, in about 3 ms."""
ENTRY_BYTES_MAX = 256 * 1024
"""The most bytes of one entry; a larger one is refused. In a DLedger group an entry must fit a record of the log."""


class TableFull(RequestRefused):
    """A table has no room for new entries; nothing was entered."""

    def __init__(self, name: str, size: int, size_max: int) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{name} is full: {size} of {size_max} bytes; nothing was entered")


def encoded_entry(name: str, value: Any) -> bytes:
    """Encode one entry of a table."""
    return orjson.dumps(name) + b":" + orjson.dumps(value)


@attrs.define(eq=False)
class EncodedEntries:
    """The encoded entries of one table, by name."""

    table: str
    """The name of the table in a refusal."""
    size_max: int = ENTRIES_BYTES_MAX
    size: int = 0
    """The total size of the entries in bytes."""
    _entries: dict[str, bytes] = attrs.field(factory=dict[str, bytes])
    _joined: bytes | None = None

    def check_room(self, values: Mapping[str, Any]) -> None:
        """Refuse values for which there is no room.

        Raises:
            TableFull: the table would be larger than `size_max`.
            RequestRefused: an entry is larger than `ENTRY_BYTES_MAX`.
        """
        encoded = {name: encoded_entry(name, value) for name, value in values.items()}
        for name, entry in encoded.items():
            if len(entry) > ENTRY_BYTES_MAX:
                remark = f"an entry of {self.table} has at most {ENTRY_BYTES_MAX} bytes (got {len(entry)} for {name!r:.300})"
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{remark}; nothing was entered")
        growth = self._growth(encoded)
        if growth > 0 and self.size + growth > self.size_max:
            raise TableFull(self.table, self.size, self.size_max)

    def put(self, values: Mapping[str, Any]) -> None:
        """Enter values, whether there is room or not; whoever wants to add some asks `check_room` first."""
        self.put_encoded({name: encoded_entry(name, value) for name, value in values.items()})

    def put_encoded(self, encoded: Mapping[str, bytes]) -> None:
        """Enter values that are already encoded by `encoded_entry`."""
        self.size += self._growth(encoded)
        self._entries.update(encoded)
        self._joined = None

    def _growth(self, encoded: Mapping[str, bytes]) -> int:
        return sum(len(entry) - len(self._entries.get(name, b"")) for name, entry in encoded.items())

    def forget(self, name: str) -> None:
        """Remove one entry, if it exists."""
        self.size -= len(self._entries.pop(name, b""))
        self._joined = None

    def joined(self, names: Iterable[str] | None = None) -> bytes:
        """One JSON object of all entries, or of those in `names` that exist."""
        if names is not None:
            return b"{" + b",".join(self._entries[name] for name in names if name in self._entries) + b"}"
        if self._joined is None:
            self._joined = b"{" + b",".join(self._entries.values()) + b"}"
        return self._joined

    async def joined_in_slices(self) -> bytes:
        """Do the same as `joined` in several turns of the event loop, with the entries of the first one."""
        if self._joined is not None:
            return self._joined
        slices = in_slices(list(self._entries.values()), ENTRIES_PER_TURN)
        return b"{%b}" % b",".join([b",".join(entries) async for entries in slices])
