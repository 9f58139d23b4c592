"""Connections to servers for plain threads, with several pending requests each, and the pool of a process.

Workers of Spark run many tasks, so connections are kept between tasks. A link that failed is opened again by the next request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import attrs

from ..remoting.command import RemotingCommand, encode_frame
from ..remoting.connection import Connection
from ..remoting.errors import RemoteProtocolError
from ..remoting.frame import FrameReader
from ..remoting.signature import Credentials, sign
from ..world.address import Address
from ..world.clock import Clock, SystemClock
from ..world.sockets import Socket, Sockets, TcpSockets
from .options import Servers

RECEIVE_BYTES = 1024 * 1024
CONNECT_SECONDS = 3.0


class LinkLost(OSError):
    """A connection ended, or an answer did not come in time. The server may have carried out the pending requests."""

    def __init__(self, address: Address, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(f"{address}: {reason}")
        self.address, self.reason, self.timed_out = address, reason, timed_out


@attrs.define(eq=False)
class Link:
    """One connection, which the first request opens. Answers are matched to requests by their opaque and come in any order."""

    address: Address
    sockets: Sockets = attrs.field(factory=TcpSockets)
    clock: Clock = attrs.field(factory=SystemClock)
    credentials: Credentials | None = None
    """Credentials that sign every request."""
    _socket: Socket | None = None
    _core: Connection[int] = attrs.field(factory=Connection[int])
    _answers: dict[int, RemotingCommand] = attrs.field(factory=dict[int, RemotingCommand])

    def submit(self, command: RemotingCommand, timeout_seconds: float) -> int:
        """Send a request; returns its opaque.

        Raises:
            LinkLost: the request was not sent, or not completely.
        """
        try:
            if self._socket is None:
                self._socket = self.sockets.connect(self.address, min(CONNECT_SECONDS, timeout_seconds))
                self._answers = {}
            opaque = command.opaque = self._core.next_opaque()
            if self.credentials is not None:
                sign(command, self.credentials)
            self._socket.settimeout(timeout_seconds)
            self._socket.sendall(encode_frame(command))
        except OSError as error:
            self.close()
            raise LinkLost(self.address, _reason(error)) from error
        self._core.calls[opaque] = opaque
        return opaque

    def answer(self, opaque: int, timeout_seconds: float) -> RemotingCommand:
        """Wait for the answer to a request.

        Raises:
            LinkLost: no answer came. The connection is closed, and all other pending requests fail too.
        """
        deadline = self.clock.monotonic() + timeout_seconds
        while opaque not in self._answers:
            self._receive(opaque, deadline)
        return self._answers.pop(opaque)

    def call(self, command: RemotingCommand, timeout_seconds: float) -> RemotingCommand:
        """Send a request and wait for its answer; raises as `answer` does."""
        return self.answer(self.submit(command, timeout_seconds), timeout_seconds)

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            # Opaques go on, so that no answer on the next connection is taken for one to a request of this one.
            self._core.reader = FrameReader()
            self._core.calls.clear()

    def _receive(self, opaque: int, deadline: float) -> None:
        if self._socket is None or opaque not in self._core.calls:
            raise LinkLost(self.address, "the connection of the request is closed")
        try:
            self._socket.settimeout(max(deadline - self.clock.monotonic(), 1e-3))
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("closed by the server")
            _, answers = self._core.receive(data)
        except TimeoutError as error:
            self.close()
            raise LinkLost(self.address, "no answer in time", timed_out=True) from error
        except (OSError, RemoteProtocolError) as error:
            self.close()
            raise LinkLost(self.address, _reason(error)) from error
        self._answers.update(answers)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


_links: dict[tuple[int, Address, tuple[tuple[str, str], ...], Credentials | None], Link] = {}


def link_to(address: Address, servers: Servers) -> Link:
    """Return the connection of this thread to a server. Threads share none, because a link matches answers without locks."""
    key = (threading.get_ident(), address, servers.tls, servers.credentials)
    if key not in _links:
        _links[key] = Link(address, _sockets(servers), credentials=servers.credentials)
    return _links[key]


def _sockets(servers: Servers) -> Sockets:
    given = dict(servers.tls)
    if given.pop("tls.enable", "false") != "true":
        return TcpSockets()
    # Imported by name, because they import trio, which workers without TLS do not need.
    settings: Callable[..., Any] = import_module("ledgermq.remoting.tls").TlsSettings
    sockets: Callable[..., Sockets] = import_module("ledgermq.world.tls").TlsSockets
    return sockets(settings({"tls.enable": "true", **given}).client())


def close_links() -> None:
    """Close all connections of this process; no other thread may use one meanwhile."""
    while _links:
        _links.popitem()[1].close()
