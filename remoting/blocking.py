"""A remoting client connection for plain threads, on a plain socket: the same core, no event loop and no thread of its own.

One call runs at a time, and its thread also reads the socket; threads that call concurrently need one channel each. Answers to
calls that timed out are dropped. Requests of the server that arrive during a call are passed to `on_request`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import attrs

from ..world.address import Address
from ..world.clock import Clock, SystemClock
from ..world.sockets import Socket, Sockets, TcpSockets
from .command import ONEWAY_FLAG, RemotingCommand, encode_frame
from .connection import Connection
from .errors import CallTimeout, ConnectionLost, RemoteProtocolError

RECEIVE_BYTES = 256 * 1024
CONNECT_SECONDS = 3.0

AnswerPeer = Callable[[RemotingCommand], RemotingCommand | None]


@attrs.define(eq=False)
class BlockingChannel:
    """A connection to one server, opened by the first call; after an error the next call opens it again."""

    address: Address
    sockets: Sockets = attrs.field(factory=TcpSockets)
    clock: Clock = attrs.field(factory=SystemClock)
    on_request: AnswerPeer | None = None
    connect_seconds: float = CONNECT_SECONDS
    _socket: Socket | None = None
    _core: Connection[int] = attrs.field(factory=Connection[int])
    # Without the lock two threads that read one socket would get each other's answers.
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def call(self, command: RemotingCommand, timeout_seconds: float) -> RemotingCommand:
        """Send a request and wait for its answer.

        Raises:
            CallTimeout: no answer in time, waiting for other callers included; the server may have carried it out.
            ConnectionLost: not connected, or the connection ended; in the second case the server may have carried it out.
        """
        deadline = self.clock.monotonic() + timeout_seconds
        late = CallTimeout(str(self.address), command.code, round(timeout_seconds * 1000))
        if not self._lock.acquire(timeout=max(0.0, timeout_seconds)):
            raise late
        try:
            opaque = self._send(command, deadline)
            self._core.calls[opaque] = opaque
            try:
                return self._receive(opaque, deadline)
            finally:
                self._core.calls.pop(opaque, None)
        except TimeoutError as error:
            raise late from error
        except (OSError, RemoteProtocolError) as error:
            self._drop()
            raise ConnectionLost(str(self.address), str(error)) from error
        finally:
            self._lock.release()

    def send(self, command: RemotingCommand, timeout_seconds: float = CONNECT_SECONDS) -> None:
        """Send a oneway request; on return it was passed to the operating system, and no more is known.

        Raises:
            CallTimeout, ConnectionLost: nothing or only a part of it was sent.
        """
        command.flag |= ONEWAY_FLAG
        with self._lock:
            try:
                self._send(command, self.clock.monotonic() + timeout_seconds)
            except TimeoutError as error:
                self._drop()
                raise CallTimeout(str(self.address), command.code, round(timeout_seconds * 1000)) from error
            except OSError as error:
                self._drop()
                raise ConnectionLost(str(self.address), str(error)) from error

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _send(self, command: RemotingCommand, deadline: float) -> int:
        if self._socket is None:
            left = min(self.connect_seconds, self._left(deadline))
            try:
                self._socket = self.sockets.connect(self.address, left)
            except TimeoutError as error:
                raise ConnectionLost(str(self.address), f"not connected within {left:.1f} s") from error
            self._core = Connection[int]()
        opaque = command.opaque = self._core.next_opaque()
        frame = encode_frame(command)
        self._socket.settimeout(self._left(deadline))
        try:
            self._socket.sendall(frame)
        except TimeoutError:
            self._drop()  # a part of the frame may have been sent, so no other frame can follow
            raise
        return opaque

    def _receive(self, opaque: int, deadline: float) -> RemotingCommand:
        assert self._socket is not None
        while True:
            self._socket.settimeout(self._left(deadline))
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("closed by the server")
            requests, answers = self._core.receive(data)
            for request in requests:
                answer = self.on_request(request) if self.on_request is not None else None
                if answer is not None and not request.is_oneway:
                    self._socket.sendall(encode_frame(answer))
            for waiter, command in answers:
                if waiter == opaque:
                    return command

    def _left(self, deadline: float) -> float:
        left = deadline - self.clock.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
