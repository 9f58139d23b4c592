"""Writes the files of a store without a broker, and reads them naively: what the vectorised reader is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from ledgermq.message.control import CONTROL_TOPIC, KIND_PROPERTY, deletion_of
from ledgermq.message.flags import TRANSACTION_ROLLBACK
from ledgermq.message.json import dumps_strict
from ledgermq.message.layout import BLANK, MAGIC_BLANK, encode_host, encode_record
from ledgermq.message.properties import encode_properties
from ledgermq.message.strings import string_hash
from ledgermq.store.checkpoint import FILE_SIZE, MARK_AT
from ledgermq.store.derived.consumequeue import UNIT, UNIT_SIZE
from ledgermq.store.recovery_mark import RecoveryMark

HOST = "127.0.0.1"


@attrs.frozen
class Stored:
    """One message to be stored."""

    topic: str = "T"
    queue_id: int = 0
    body: bytes = b"body"
    properties: Mapping[str, str] = attrs.field(factory=dict[str, str])
    born_host: str = HOST
    store_host: str = HOST
    sys_flag: int = 0
    store_timestamp: int = 1_700_000_000_000
    born_timestamp: int = 1_600_000_000_123
    raw_properties: bytes | None = None


@attrs.define
class StoreFiles:
    """A store that is being written."""

    root: Path
    segment_size: int = 1 << 16
    queue_file_units: int = 100
    position: int = 0
    offsets: dict[tuple[str, int], int] = attrs.field(factory=dict[tuple[str, int], int])
    placed: list[tuple[Stored, int, int, int]] = attrs.field(factory=list[Any])
    """Messages with their queue offsets, physical offsets and sizes."""

    def append(self, messages: Iterable[Stored]) -> None:
        for message in messages:
            key = (message.topic, message.queue_id)
            offset = self.offsets.get(key, 0)
            record = self._record(message, offset, self.position)
            left = self.segment_size - self.position % self.segment_size
            if len(record) + BLANK.size > left:
                self._write(self.position, BLANK.pack(remaining=left, magic=MAGIC_BLANK))
                self.position += left
                record = self._record(message, offset, self.position)
            self._write(self.position, record)
            self._unit(key, offset, self.position, len(record), message)
            self.placed.append((message, offset, self.position, len(record)))
            self.position += len(record)
            self.offsets[key] = offset + 1

    def delete_topic(self, topic: str) -> tuple[int, int]:
        """Append the control record of a deletion; returns its physical offset and size. Tables are not changed."""
        queues = {queue_id: offset for (name, queue_id), offset in self.offsets.items() if name == topic}
        control = deletion_of(topic, queues)
        message = Stored(
            CONTROL_TOPIC,
            body=dumps_strict(control.content),
            properties={KIND_PROPERTY: control.kind},
            sys_flag=TRANSACTION_ROLLBACK,
        )
        size = len(self._record(message, 0, 0))
        left = self.segment_size - self.position % self.segment_size
        if size + BLANK.size > left:
            self._write(self.position, BLANK.pack(remaining=left, magic=MAGIC_BLANK))
            self.position += left
        at = self.position
        self._write(at, self._record(message, 0, at))
        self.position += size
        return at, size

    def mark(self, position: int) -> None:
        """Write a checkpoint whose recovery mark is at a physical offset."""
        mark = RecoveryMark(position, position, -1, 0, 0, position, "f" * 36).encode()
        (self.root / "checkpoint").write_bytes(bytes(MARK_AT) + mark.ljust(FILE_SIZE - MARK_AT, b"\0"))

    def _record(self, message: Stored, offset: int, position: int) -> bytes:
        raw = message.raw_properties
        return encode_record(
            topic=message.topic.encode(),
            queue_id=message.queue_id,
            queue_offset=offset,
            body=message.body,
            properties=encode_properties(message.properties).encode() if raw is None else raw,
            flag=7,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=encode_host(message.born_host, 1234),
            store_timestamp=message.store_timestamp,
            store_host=encode_host(message.store_host, 10911),
            reconsume_times=2,
            prepared_transaction_offset=0,
            physical_offset=position,
        )

    def _write(self, position: int, data: bytes) -> None:
        start = position - position % self.segment_size
        path = self.root / "commitlog" / f"{start:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(bytes(self.segment_size))
        with path.open("r+b") as file:
            file.seek(position - start)
            file.write(data)

    def _unit(self, key: tuple[str, int], offset: int, position: int, size: int, message: Stored) -> None:
        tag = message.properties.get("TAGS")
        first = offset - offset % self.queue_file_units
        directory = self.root / "consumequeue" / key[0] / str(key[1])
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{first * UNIT_SIZE:020d}"
        if not path.exists():
            path.write_bytes(bytes(self.queue_file_units * UNIT_SIZE))
        with path.open("r+b") as file:
            file.seek((offset - first) * UNIT_SIZE)
            file.write(UNIT.pack(physical_offset=position, size=size, tags_code=string_hash(tag) if tag else 0))


def interleaved(count: int, queues: int = 3, body_size: int = 50, topic: str = "T") -> list[Stored]:
    """Messages that go round the queues."""
    return [
        Stored(
            topic,
            number % queues,
            b"%06d" % number + b"x" * (number * 7 % body_size),
            {"TAGS": "paid" if number % 2 else "new", "KEYS": f"k{number}", "UNIQ_KEY": f"U{number:06d}"},
            store_timestamp=1_700_000_000_000 + number,
        )
        for number in range(count)
    ]
