"""Connections as the rest of the project sees them: a `Stream` with trio's interface and a fast path, made by a `Network`.

Real sockets and simulated ones implement the same fast path, so that the simulator runs what production runs.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Protocol

import attrs
import trio
from trio.abc import HalfCloseableStream, Listener

from .address import Address as Address  # noqa: PLC0414 - most of the project names it from here

BACKLOG = 1024  # RocketMQ's SO_BACKLOG
RECEIVE_BYTES = 64 * 1024
_RESET_AT_CLOSE = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
_GATHERS = hasattr(socket.socket, "sendmsg")
"""Whether several buffers can be sent in one call, which Windows cannot."""


class Stream(trio.abc.Stream, ABC):
    """One end of a connection.

    The methods below are the fast path. Their defaults are correct for every stream but not faster; a stream that can receive
    in place, send several pieces in one call or act without waiting overrides them.
    """

    @property
    @abstractmethod
    def local(self) -> Address:
        """The address of our end."""

    @property
    @abstractmethod
    def peer(self) -> Address:
        """The address of the other end; port 0 when it is gone already."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Wait for data and put it into `buffer`, as much as fits; returns how much, 0 at the peer's end of sending.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: as `receive_some`.
        """
        received = await self.receive_some(len(buffer))
        buffer[: len(received)] = received
        return len(received)

    def receive_now(self, buffer: memoryview) -> int | None:  # noqa: ARG002 - overrides use it
        """Put what has already arrived into `buffer`, without waiting; returns how much, 0 at the peer's end of sending.

        Returns None if nothing has arrived, if only a waiting receive can know, or if the next waiting receive will raise.
        No other task may be receiving.
        """
        return None

    async def send_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send all of `parts`, none of them empty, in order.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: as `send_all`.
        """
        await self.send_all(b"".join(parts))

    def send_now(self, data: bytes) -> int:  # noqa: ARG002 - overrides use it
        """Send the part of `data` that can go out without waiting; returns its size in bytes.

        It is 0, too, if the next send that waits will raise. No other task may be sending.
        """
        return 0

    def keep_unsent(self, size: int) -> None:
        """Let up to `size` bytes wait in the send buffer before it counts as full, where that can be set.

        Trio sets 16 KiB, which detects a slow peer early but wakes a task that sends in bulk once for every few messages.
        """

    def drop_undelivered(self) -> None:
        """Let the next close drop what the peer has not received yet, where that can be set, instead of delivering it."""


@attrs.define(eq=False)
class PlainStream(Stream):
    """A stream of trio's own kinds, TLS or memory: it has no fast path, and its addresses are given."""

    inner: trio.abc.Stream
    _local: Address
    _peer: Address

    @property
    def local(self) -> Address:
        return self._local

    @property
    def peer(self) -> Address:
        return self._peer

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self.inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self.inner.aclose()


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

    def listener_port(self, listener: Listener[Stream]) -> int:
        """The port that `listener` is bound to."""
        ...

    def own_host(self) -> str:
        """The address under which other machines reach this one; 127.0.0.1 if there is no network."""
        ...


@attrs.define(eq=False)
class TcpStream(Stream, HalfCloseableStream):
    """A TCP connection whose receives are exactly one checkpoint and whose sends are none unless the peer is slow.

    Trio's own stream takes a turn of the scheduler for every send and for every receive, and tries a receive before it waits. A
    server that answers what it received wants one turn for both: other tasks run meanwhile, and more of what the peer sends
    arrives, so that the next receive takes it at once. One receive and one send take 0.6 times the processor time of trio's
    stream (`bench/shortcuts.py`).
    """

    socket: socket.socket
    """In non-blocking mode."""

    @property
    def local(self) -> Address:
        return _address(self.socket.getsockname())

    @property
    def peer(self) -> Address:
        try:
            return _address(self.socket.getpeername())
        except OSError:
            return Address("0.0.0.0", 0)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for data and take it; b"" at the peer's end of sending."""
        while True:
            try:
                await trio.lowlevel.wait_readable(self.socket)
                return self.socket.recv(max_bytes or RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._broken(error) from error

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            try:
                await trio.lowlevel.wait_readable(self.socket)
                return self.socket.recv_into(buffer)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._broken(error) from error

    def receive_now(self, buffer: memoryview) -> int | None:
        try:
            return self.socket.recv_into(buffer)
        except OSError:
            return None

    async def send_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send all of `parts`, in one system call if the peer keeps up."""
        if not _GATHERS:
            await self.send_all(b"".join(parts))
            return
        rest: list[bytes | memoryview] = list(parts)
        while rest:
            try:
                sent = self.socket.sendmsg(rest)
            except BlockingIOError:
                await self.wait_send_all_might_not_block()
                continue
            except OSError as error:
                raise self._broken(error) from error
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if sent:
                rest[0] = memoryview(rest[0])[sent:]

    def send_now(self, data: bytes) -> int:
        try:
            return self.socket.send(data)
        except OSError:
            return 0

    def keep_unsent(self, size: int) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)

    def drop_undelivered(self) -> None:
        with suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of `data`."""
        rest: bytes | bytearray | memoryview = data
        while rest:
            try:
                sent = self.socket.send(rest)
                if sent == len(rest):
                    return
                rest = memoryview(rest)[sent:]
            except BlockingIOError:
                await self.wait_send_all_might_not_block()
            except OSError as error:
                raise self._broken(error) from error

    async def wait_send_all_might_not_block(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self.socket)
        except OSError as error:
            raise self._broken(error) from error

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise self._broken(error) from error

    async def aclose(self) -> None:
        if self.socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self.socket)
            _end(self.socket)
            self.socket.close()
        await trio.lowlevel.checkpoint()

    def _broken(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self.socket.fileno() < 0:
            return trio.ClosedResourceError("this connection was closed by us")
        return trio.BrokenResourceError(f"connection broken: {error.strerror or error}")


@attrs.define(eq=False)
class TcpListener(Listener[Stream]):
    """Accepts connections as `TcpStream`s."""

    listener: trio.SocketListener

    async def accept(self) -> TcpStream:
        return _lean(await self.listener.accept())

    async def aclose(self) -> None:
        _end(self.listener.socket)
        await self.listener.aclose()


@asynccontextmanager
async def closing(listeners: Iterable[Listener[Stream]]) -> AsyncGenerator[None]:
    """Close listeners at the end of an `async with` block, whether or not a server has begun to accept from them."""
    async with AsyncExitStack() as opened:
        for listener in listeners:
            opened.push_async_callback(listener.aclose)
        yield


def _end(opened: socket.socket | trio.socket.SocketType) -> None:
    """End a socket also for processes that were forked while it was open; what was sent before is delivered."""
    with suppress(OSError):  # the peer has left, or it is closed already
        opened.shutdown(socket.SHUT_RDWR)


def _lean(stream: trio.SocketStream) -> TcpStream:
    plain = socket.socket(fileno=stream.socket.detach())
    plain.setblocking(False)
    return TcpStream(plain)


@attrs.frozen
class TcpNetwork:
    """Real TCP sockets, TCP_NODELAY on (trio's default)."""

    async def open_stream(self, address: Address) -> Stream:
        try:
            return _lean(await trio.open_tcp_stream(address.host, address.port))
        except ValueError as error:  # a name that cannot be encoded for the resolver
            raise OSError(errno.EINVAL, f"{address} is not an address: {error}") from error

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        try:
            listeners = await trio.open_tcp_listeners(port, host=host or None, backlog=BACKLOG)
        except OSError as error:  # its text does not name the address
            raise OSError(error.errno, f"cannot listen on {host or '*'}:{port}: {error.strerror}") from error
        return [TcpListener(listener) for listener in listeners]

    def listener_port(self, listener: Listener[Stream]) -> int:
        assert isinstance(listener, TcpListener)
        return int(listener.listener.socket.getsockname()[1])

    def own_host(self) -> str:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(
                    ("192.0.2.1", 9)
                )  # an address reserved for documentation; connecting a datagram socket sends nothing
            except OSError:
                return "127.0.0.1"
            return str(probe.getsockname()[0])


def _address(name: tuple[str, int]) -> Address:
    # An IPv4 peer of a dual-stack listener shows as ::ffff:a.b.c.d.
    return Address(name[0].removeprefix("::ffff:"), name[1])
