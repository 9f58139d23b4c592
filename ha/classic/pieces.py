"""A received byte stream, kept in the pieces in which it was received until a whole part is complete.

Pieces are not joined unless they must be: log bytes are taken as views of the received pieces, to be appended one by one.
"""

from __future__ import annotations

from collections import deque

import attrs

from ...message.fields import Buffer

SMALL = 1024
"""Adjacent pieces shorter than this are joined."""


@attrs.define(eq=False)
class Pieces:
    """Bytes that were received and not yet taken."""

    _pieces: deque[memoryview] = attrs.field(factory=deque[memoryview])
    size: int = 0

    def feed(self, received: Buffer) -> None:
        """Add received bytes; they must not change before they are taken or `settle` has been called."""
        self.size += len(received)
        if len(received) < SMALL and self._pieces and len(self._pieces[-1]) < SMALL:
            # Otherwise single bytes would each cost a view of a hundred times their size.
            received = bytes(self._pieces.pop()) + received
        if len(received):
            self._pieces.append(memoryview(received))

    def settle(self) -> None:
        """Copy the remaining bytes that were fed last, because their memory is about to be reused for receiving."""
        if self._pieces:
            self._pieces[-1] = memoryview(bytes(self._pieces[-1]))

    def peek(self, size: int) -> bytes:
        """The first `size` bytes, without removing them; there must be as many."""
        first = self._pieces[0]
        if len(first) >= size:
            return bytes(first[:size])
        found = bytearray()
        for piece in self._pieces:
            found += piece[: size - len(found)]
            if len(found) == size:
                break
        return bytes(found)

    def take(self, size: int) -> list[memoryview]:
        """Remove the first `size` bytes, as views; there must be as many."""
        taken: list[memoryview] = []
        self.size -= size
        while size:
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        return taken

    def read(self, size: int) -> bytes:
        """Remove the first `size` bytes, joined; there must be as many."""
        return b"".join(self.take(size))
