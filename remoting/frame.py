"""Splits a byte stream into frames: `i32 length | u8 encoding, u24 header length | header | body`.

The reader holds at most one incomplete frame, in the pieces in which it was received. They are joined once, at its end; only
tiny ones are joined earlier.
"""

from __future__ import annotations

import attrs

from .command import FRAME_HEAD, FRAME_SIZE_MAX, HEADER_SIZE_MAX
from .errors import RemoteProtocolError

_LENGTH_SIZE = 4
_HEAD_SIZE = FRAME_HEAD.size
_SMALL = 1024
"""Adjacent pieces shorter than this are joined."""

Frame = tuple[int, bytes, bytes]
"""Header encoding, header, body."""


@attrs.define(eq=False)
class FrameReader:
    """Turns received bytes into frames."""

    frame_size_max: int = FRAME_SIZE_MAX
    _pieces: list[bytes] = attrs.field(factory=list[bytes])
    _held: int = 0
    _needed: int = _HEAD_SIZE

    @property
    def held(self) -> int:
        """Bytes of the incomplete frame."""
        return self._held

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes; returns the frames that they complete.

        Raises:
            RemoteProtocolError: a length is impossible. The following frames cannot be found.
        """
        return self.cut(self.gather(data))

    def gather(self, data: bytes) -> bytes:
        """Add received bytes; returns all bytes for `cut`, or none while they complete no frame."""
        if self._held:
            if len(data) < _SMALL and len(self._pieces[-1]) < _SMALL:
                # Otherwise single bytes would each cost an object many times their size.
                self._pieces[-1] += data
            else:
                self._pieces.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return b""
            data = b"".join(self._pieces)
            self._pieces.clear()
            self._held = 0
        return data

    def cut(self, data: bytes, position: int = 0) -> list[Frame]:
        """Cut bytes into frames from a position on, and hold those of the incomplete frame.

        Raises:
            RemoteProtocolError: a length is impossible. The following frames cannot be found.
        """
        if position == len(data):  # the frames before it have been taken, or an incomplete frame is held
            return []
        frames: list[Frame] = []
        append, unpack = frames.append, FRAME_HEAD.unpack_from
        end, length_max = len(data), self.frame_size_max - _LENGTH_SIZE
        while end - position >= _HEAD_SIZE:
            length, word = unpack(data, position)
            if not _LENGTH_SIZE <= length <= length_max:
                raise RemoteProtocolError(f"a frame of {length} bytes after its length; 4 to {length_max} are allowed")
            stop = position + _LENGTH_SIZE + length
            header_at = position + _HEAD_SIZE
            body_at = header_at + (word & 0xFFFFFF)
            if body_at > stop or body_at > header_at + HEADER_SIZE_MAX:
                raise RemoteProtocolError(
                    f"a header of {word & 0xFFFFFF} bytes in a frame of {length}; {HEADER_SIZE_MAX} are allowed"
                )
            if stop > end:
                self._needed = stop - position
                break
            append((word >> 24, data[header_at:body_at], data[body_at:stop]))
            position = stop
        else:
            self._needed = _HEAD_SIZE
        if position < end:
            self._pieces.append(data[position:] if position else data)
            self._held = end - position
        return frames
