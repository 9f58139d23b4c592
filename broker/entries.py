"""The entries of a table as JSON, encoded once, and how many bytes they have together. Pure.

A registration, a slave's copy and a table's file hold the whole table, the first two in one frame: a table that grew beyond it
could not be registered or copied any more. So the entry that no longer fits is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import orjson

from ..remoting.codes import ResponseCode
from ..remoting.command import FRAME_SIZE_MAX
from ..remoting.errors import RequestRefused

TABLE_BYTES_MAX = FRAME_SIZE_MAX - 1024 * 1024
"""Entries of one table; what else a frame holds beside a table fits the rest."""
ENTRIES_BYTES_MAX = 8 * 1024 * 1024
"""Entries of the table of topics or of groups: some 60,000 topics. A name server and a slave read a whole table in one turn
of the event loop, which must not take 100 ms."""


class TableFull(RequestRefused):
    """A table has no room for what was to be entered; nothing was entered."""

    def __init__(self, name: str, size: int, size_max: int) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{name} is full: {size} of {size_max} bytes; nothing was entered")


def encoded_entry(name: str, value: Any) -> bytes:
    """One entry of a table."""
    return orjson.dumps(name) + b":" + orjson.dumps(value)


@attrs.define(eq=False)
class EncodedEntries:
    """Entries by name."""

    table: str
    """What to call the table in a refusal."""
    size_max: int = ENTRIES_BYTES_MAX
    size: int = 0
    """Bytes of all entries."""
    _entries: dict[str, bytes] = attrs.field(factory=dict[str, bytes])
    _joined: bytes | None = None

    def put(self, values: Mapping[str, Any], *, bounded: bool = True) -> None:
        """Enter values.

        Args:
            bounded: whether they may be refused; what comes from a file or from the master is always taken.

        Raises:
            TableFull: they make the table larger than it may be. Nothing was entered.
        """
        self.put_encoded({name: encoded_entry(name, value) for name, value in values.items()}, bounded=bounded)

    def put_encoded(self, encoded: Mapping[str, bytes], *, bounded: bool = False) -> None:
        """Enter values that `encoded_entry` has encoded; see `put`."""
        growth = sum(len(entry) - len(self._entries.get(name, b"")) for name, entry in encoded.items())
        if bounded and growth > 0 and self.size + growth > self.size_max:
            raise TableFull(self.table, self.size, self.size_max)
        self.size += growth
        self._entries.update(encoded)
        self._joined = None

    def forget(self, name: str) -> None:
        """Remove one entry, which need not be there."""
        self.size -= len(self._entries.pop(name, b""))
        self._joined = None

    def joined(self, names: Iterable[str] | None = None) -> bytes:
        """One JSON object of all entries, or of those of `names` that there are."""
        if names is not None:
            return b"{" + b",".join(self._entries[name] for name in names if name in self._entries) + b"}"
        if self._joined is None:
            self._joined = b"{" + b",".join(self._entries.values()) + b"}"
        return self._joined
