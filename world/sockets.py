"""Blocking sockets as the rest of the project sees them, for plain threads; importing this does not import trio."""

from __future__ import annotations

import socket
from typing import Protocol

import attrs

from .address import Address


class Socket(Protocol):
    """The part of a blocking socket that the project uses; `socket.socket` satisfies it."""

    def settimeout(self, value: float, /) -> None: ...
    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class Sockets(Protocol):
    """Opens connections for plain threads."""

    def connect(self, address: Address, timeout_seconds: float) -> Socket:
        """Connect to `address`.

        Raises:
            TimeoutError: not within `timeout_seconds`. Nothing stays open.
            OSError: refused, unreachable or unknown host. Nothing stays open.
        """
        ...


@attrs.frozen
class TcpSockets:
    """Real blocking TCP sockets, TCP_NODELAY on."""

    def connect(self, address: Address, timeout_seconds: float) -> socket.socket:
        connection = socket.create_connection((address.host, address.port), timeout_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
