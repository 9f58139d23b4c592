"""The compiled batch path: what it offers, and whether it runs.

`_native.pyx` does for a whole receive what the Python path does for each message; see its docstring. It is optional: without a
compiler at installation, or with `LEDGERMQ_NATIVE=0`, everything runs in Python, with the same outcomes, byte for byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

SWITCH = "LEDGERMQ_NATIVE"
"""The environment variable that switches the compiled path off if it is `0`."""


class SendRun(Protocol):
    """Successive plain sends of one receive, from its first byte on."""

    @property
    def received(self) -> bytes:
        """All bytes of the receive."""
        ...

    @property
    def end(self) -> int:
        """Where the frames of the run end in them."""
        ...

    @property
    def body_max(self) -> int:
        """The size of the largest body."""
        ...

    @property
    def queues(self) -> list[tuple[str, int]]:
        """The queues to which messages go: topic and queue id."""
        ...

    @property
    def counts(self) -> list[int]:
        """How many messages go to each of the queues."""
        ...

    @property
    def topics_of_messages(self) -> list[str]:
        """The topic of each message."""
        ...

    @property
    def unanswered(self) -> list[tuple[int, int]]:
        """Opaque and encoding of each request that wants an answer."""
        ...

    @property
    def queue_offsets(self) -> list[int]:
        """The queue offset of each message, once it is encoded."""
        ...

    def __len__(self) -> int: ...

    def encode(
        self,
        topic_fields: list[bytes],
        starts: list[int],
        now: int,
        born_host: bytes,
        store_host: bytes,
        addition: bytes,
        crc32: Callable[[bytes], int],
    ) -> list[bytes]:
        """Encode the records; physical offsets are left 0.

        Args:
            topic_fields: for each of the queues its topic as records hold it.
            starts: for each of the queues the queue offset of its next message.
            now: the store timestamp.
            addition: the property that is added to each message.
            crc32: the checksum of a body.
        """
        ...

    def derivables(self, offsets: list[int], now: int) -> list[Derivable]:
        """What queues and index need of each record, as `Derivable` of the store; `offsets` are its physical offsets."""
        ...

    def answers(
        self,
        offsets: list[int],
        json_parts: tuple[bytes, bytes, bytes, bytes, bytes],
        binary_parts: tuple[bytes, bytes, bytes, bytes],
    ) -> bytes:
        """The frames of the answers to all requests that want one, for messages at these physical offsets.

        Args:
            json_parts: what is before, between and behind id, queue id, queue offset and opaque in a JSON header.
            binary_parts: a frame without its fields; the fields before the last 16 digits of the id; the beginnings of the
                fields queueId and queueOffset, up to their names.
        """
        ...


ScanSends = Callable[[bytes], SendRun | None]

Derivable = tuple[str, int, int, int, int, int, int, int, str, str, str]
"""As in `store/derived/dispatch.py`."""
IndexEntry = tuple[str, str, str, int, int]
"""As in `store/derived/index_keys.py`."""
UnitGroup = tuple[str, int, int, int, int, bytearray]
"""Successive units of a queue: topic, queue id, queue and physical offset of the first, end of the last record, units."""
GroupRecords = Callable[[list[Derivable]], tuple[list[UnitGroup], list[IndexEntry]] | None]
HashKeys = Callable[[Sequence[IndexEntry], int], tuple[list[int], list[int], list[int]]]
PackEntries = Callable[[Sequence[int], Sequence[int], Sequence[int], int, Sequence[int]], bytearray]


def _load() -> dict[str, Any]:
    """The compiled functions by their names; none of them if one is missing, so that nothing runs half in Python."""
    if os.environ.get(SWITCH) == "0":
        return {}
    try:
        module = import_module("._native", __name__)
        return {name: getattr(module, name) for name in ("scan_sends", "group_records", "hash_keys", "pack_entries")}
    except (ImportError, AttributeError):  # it was not built, or from the sources of another version
        return {}


_functions = _load()
# Each of these is None if everything runs in Python.
scan_sends: ScanSends | None = _functions.get("scan_sends")
"""Finds the run of plain sends with which received bytes begin; None if they begin with anything else."""
group_records: GroupRecords | None = _functions.get("group_records")
"""The units of records by queue, and their entries for the key index; None if a record needs a closer look."""
hash_keys: HashKeys | None = _functions.get("hash_keys")
"""Hash, physical offset and time of each key of records, without those of records below an offset or out of order."""
pack_entries: PackEntries | None = _functions.get("pack_entries")
"""The bytes of index entries, from hashes, physical offsets, times, the file's begin timestamp, and previous entries."""


def path_text() -> str:
    """Which path runs, for people."""
    return "Python" if scan_sends is None else "compiled"
