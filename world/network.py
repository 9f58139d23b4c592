"""Connections as the rest of the project sees them: trio's stream and listener interfaces, made by a `Network`.

A peer's address is asked of the stream through `peer_address`; simulated streams carry one too.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol, cast

import attrs
import trio
from trio.abc import Listener, Stream

BACKLOG = 1024  # RocketMQ's SO_BACKLOG


@attrs.frozen
class Address:
    """Host and port of one end of a connection; `str()` gives RocketMQ's `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port`.

        Raises:
            ValueError: no port, or one outside 0..65535.
        """
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"an address is HOST:PORT (got {text!r})")
        return cls(host, int(port))


class Network(Protocol):
    """Opens connections and listeners."""

    async def open_stream(self, address: Address) -> Stream:
        """Connect to `address`.

        Raises:
            OSError: refused, unreachable or unknown host. Nothing stays open.
        """
        ...

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        """Listen on `host` and `port` (0: a free port).

        Raises:
            OSError: the port is taken or the host is not ours. Nothing stays open.
        """
        ...

    def peer_address(self, stream: Stream) -> Address:
        """Where the other end of `stream` is; port 0 when it is gone already."""
        ...

    def local_address(self, stream: Stream) -> Address:
        """Where our end of `stream` is."""
        ...

    def listener_port(self, listener: Listener[Stream]) -> int:
        """The port that `listener` is bound to."""
        ...

    def own_host(self) -> str:
        """The address under which other machines reach this one; 127.0.0.1 if there is no network."""
        ...


@attrs.frozen
class TcpNetwork:
    """Real TCP sockets, TCP_NODELAY on (trio's default)."""

    async def open_stream(self, address: Address) -> Stream:
        return await trio.open_tcp_stream(address.host, address.port)

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        try:
            return cast("Sequence[Listener[Stream]]", await trio.open_tcp_listeners(port, host=host or None, backlog=BACKLOG))
        except OSError as error:  # which does not say where
            raise OSError(error.errno, f"cannot listen on {host or '*'}:{port}: {error.strerror}") from error

    def peer_address(self, stream: Stream) -> Address:
        socket = _socket_of(stream)
        try:
            return _address(socket.getpeername())
        except OSError:
            return Address("0.0.0.0", 0)

    def local_address(self, stream: Stream) -> Address:
        return _address(_socket_of(stream).getsockname())

    def listener_port(self, listener: Listener[Stream]) -> int:
        assert isinstance(listener, trio.SocketListener)
        return int(listener.socket.getsockname()[1])

    def own_host(self) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(("192.0.2.1", 9))  # an address for documentation; choosing the way there sends nothing
            except OSError:
                return "127.0.0.1"
            return str(probe.getsockname()[0])


def _socket_of(stream: Stream) -> trio.socket.SocketType:
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    assert isinstance(stream, trio.SocketStream)
    return stream.socket


def _address(name: tuple[str, int]) -> Address:
    # An IPv4 peer of a dual-stack listener shows as ::ffff:a.b.c.d.
    return Address(name[0].removeprefix("::ffff:"), name[1])


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

    def connect(self, address: Address, timeout_seconds: float) -> Socket:
        connection = socket.create_connection((address.host, address.port), timeout_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
