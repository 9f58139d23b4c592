"""The numbers of one producer's sends, by which a broker of ours recognises a repeated one. Pure.

Each send keeps its number through all its attempts. A number says which is the oldest send that may still be repeated, so that
the broker forgets the others.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import deque

import attrs

from ..message.send_number import REQUEST_FIELD


@attrs.define(eq=False)
class SendNumbers:
    """Gives numbers to the sends of one producer."""

    producer_id: str
    """If it is empty, requests have no numbers."""
    _next: int = 0
    _pending: deque[int] = attrs.field(factory=deque[int])
    """The sequences of sends that have begun, in order; those that have ended remain while an older one is pending."""
    _ended: set[int] = attrs.field(factory=set[int])

    @classmethod
    def of(cls, random_bits: int) -> SendNumbers:
        """The numbers of a new producer, whose id has these 128 random bits."""
        return cls(urlsafe_b64encode(random_bits.to_bytes(16, "big")).rstrip(b"=").decode())

    def begin(self, count: int = 1) -> int:
        """The sequence of a send of `count` messages; `end` must follow."""
        sequence = self._next
        self._next += count
        self._pending.append(sequence)
        return sequence

    def field(self, sequence: int) -> bytes:
        """The field of a request with the number of a send, as a piece of JSON."""
        if not self.producer_id:
            return b""
        return b',"%b":"%b.0.%d.%d"' % (REQUEST_FIELD.encode(), self.producer_id.encode(), sequence, self._pending[0])

    def end(self, sequence: int) -> None:
        """Record that a send is not repeated any more."""
        pending, ended = self._pending, self._ended
        if pending[0] != sequence:
            ended.add(sequence)
            return
        pending.popleft()
        while pending and pending[0] in ended:
            ended.remove(pending.popleft())
