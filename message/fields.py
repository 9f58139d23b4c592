"""Tables of fields: one table gives the `struct`, the offsets, the encoder, the decoder and the page in the documentation."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import attrs

Buffer = bytes | bytearray | memoryview


@attrs.frozen
class Field:
    """One field of a fixed layout.

    `code` is its `struct` code; `reason` says in a few words what it is for.
    """

    name: str
    code: str
    reason: str


@attrs.frozen(init=False)
class Layout:
    """A big-endian record without padding, made from its fields in order."""

    name: str
    fields: tuple[Field, ...]
    codec: struct.Struct
    offsets: dict[str, int]

    def __init__(self, name: str, fields: Sequence[Field]) -> None:
        position = 0
        offsets = {}
        for field in fields:
            offsets[field.name] = position
            position += struct.calcsize(">" + field.code)
        self.__attrs_init__(  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            name, tuple(fields), struct.Struct(">" + "".join(field.code for field in fields)), offsets
        )

    @property
    def size(self) -> int:
        """Bytes of one record."""
        return self.codec.size

    def pack(self, **values: Any) -> bytes:
        """Encode one record; every field by name."""
        return self.codec.pack(*(values[field.name] for field in self.fields))

    def unpack(self, buffer: Buffer, position: int = 0) -> dict[str, Any]:
        """Decode the record at `position` into a dict by field name."""
        return dict(zip((field.name for field in self.fields), self.codec.unpack_from(buffer, position), strict=True))

    def picking(self, *names: str) -> struct.Struct:
        """A codec of these fields alone, in the order of the layout; it skips the bytes of the others."""
        return struct.Struct(
            ">" + "".join(field.code if field.name in names else f"{struct.calcsize(field.code)}x" for field in self.fields)
        )

    def field_struct(self, name: str) -> tuple[struct.Struct, int]:
        """The codec and the offset of one field, for patching it in place."""
        code = next(field.code for field in self.fields if field.name == name)
        return struct.Struct(">" + code), self.offsets[name]
