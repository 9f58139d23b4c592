"""A remoting connection without I/O: bytes in, commands out, and the pairing of answers with calls.

Both peers count their opaques from 0 independently, so an answer is paired by its direction (the response flag) and its opaque,
never by the opaque alone. Client and server use the same class.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import attrs

from .command import RESPONSE_FLAG, RemotingCommand, decode_command
from .frame import FrameReader

Waiter = TypeVar("Waiter")

_OPAQUE_MASK = 0x7FFFFFFF


@attrs.define(eq=False)
class Connection(Generic[Waiter]):
    """One end of a connection; `Waiter` is whatever the shell wakes with an answer."""

    reader: FrameReader = attrs.field(factory=FrameReader)
    calls: dict[int, Waiter] = attrs.field(factory=dict[int, Waiter])
    """Calls without an answer yet, by opaque."""
    _opaque: int = 0

    def receive(self, data: bytes) -> tuple[list[RemotingCommand], list[tuple[Waiter, RemotingCommand]]]:
        """Decode received bytes; returns requests of the peer, and its answers each with its waiter.

        Answers without a waiter are dropped.

        Raises:
            RemoteProtocolError: the bytes are not remoting; the caller must close the connection.
        """
        return self.decode(self.reader.gather(data))

    def decode(self, data: bytes, position: int = 0) -> tuple[list[RemotingCommand], list[tuple[Waiter, RemotingCommand]]]:
        """Decode the frames of bytes that the reader has gathered, from a position on, as `receive` does."""
        requests: list[RemotingCommand] = []
        answers: list[tuple[Waiter, RemotingCommand]] = []
        for wire, header, body in self.reader.cut(data, position):
            command = decode_command(wire, header, body)
            if not command.flag & RESPONSE_FLAG:
                requests.append(command)
            elif (waiter := self.calls.pop(command.opaque, None)) is not None:
                answers.append((waiter, command))
        return requests, answers

    def next_opaque(self) -> int:
        """An opaque that no waiting call of ours has."""
        self._opaque = self._opaque + 1 & _OPAQUE_MASK
        while self._opaque in self.calls:
            self._opaque = self._opaque + 1 & _OPAQUE_MASK
        return self._opaque
