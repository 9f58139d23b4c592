"""Where a slave receives: one buffer used round and round, so that bulk data costs no memory of its own.

Invariant: bytes once received do not change until `release` has let go of them. A piece that is still looked at, by a worker
thread or as the beginning of a frame whose rest has not come, is never overwritten; what is received next lies behind it.
"""

from __future__ import annotations

import attrs

from .layout import DATA, FRAME_BODY_MAX

RECEIVE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of one receive: enough that changing to a worker thread and back costs nothing, and a millisecond of the event loop."""
RING_BYTES = FRAME_BODY_MAX + DATA.size + 3 * RECEIVE_BYTES_MAX
"""The longest frame but its last byte, one piece being taken, one being received, and one to spare at the end of the buffer."""


@attrs.define(eq=False)
class Ring:
    """The buffer; positions count all bytes ever received."""

    size: int = RING_BYTES
    receive_max: int = RECEIVE_BYTES_MAX
    filled: int = 0
    """Bytes received so far."""
    released: int = 0
    """Bytes before it are not needed any more."""
    _base: int = 0
    """Position that lies at the beginning of the buffer, or whole rounds behind it."""
    _buffer: memoryview = attrs.field(init=False)
    _room: memoryview = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._buffer = memoryview(bytearray(self.size))
        self._room = self._buffer[:0]

    def room(self) -> memoryview:
        """Where the next bytes are to be received; empty if all of the buffer is needed."""
        if self.released == self.filled:
            self._base = self.filled  # memory that was used a moment ago is still in the processor's cache
        at = (self.filled - self._base) % self.size
        free = self.size - (self.filled - self.released)
        self._room = self._buffer[at : at + min(free, self.size - at, self.receive_max)]
        return self._room

    def fill(self, count: int) -> memoryview:
        """Take note that the first `count` bytes of the last `room` have been received; returns them."""
        self.filled += count
        return self._room[:count]

    def release(self, position: int, held: int) -> None:
        """Let go of what lies before `position`, except for the last `held` bytes."""
        self.released = max(self.released, position - held)
