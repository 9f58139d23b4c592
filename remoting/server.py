"""The trio shell of a remoting server: accept, receive, hand over as one batch, write answers, close.

One `receive_some` is one batch: it is decoded, handed to the handler in one call, and answered in one write. Answers that come
later (flush, long polling) are pushed from elsewhere and gathered by the connection's writer. Bounds: bytes of incomplete
frames over all connections (`partial_bytes_max`), connections (`connections_max`), unread answers of one peer
(`unsent_bytes_max`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Protocol

import attrs
import structlog
import trio
from trio.abc import Listener

from ..world.clock import Clock
from ..world.logs import fault_of, trace_of
from ..world.network import Address, Network, Stream
from ..world.ticks import next_tick
from ..world.tls import TLS_HANDSHAKE, TlsAcceptor, TlsFailed
from .command import ONEWAY_FLAG, RemotingCommand, encode_frame
from .connection import Connection
from .errors import CallTimeout, ConnectionLost, RemoteProtocolError

log = structlog.get_logger()

RECEIVE_BYTES = 96 * 1024
"""Some seventy messages of 1 KiB. Buffers of 128 KiB and more would be mapped, faulted in and unmapped anew each time."""
IDLE_SECONDS = 120.0  # RocketMQ closes a connection without traffic after this
SWEEP_SECONDS = 5.0


class BatchHandler(Protocol):
    """What a server does with requests; called on the event loop, must not block."""

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> None:
        """Take all requests of one receive, in order; answer through `connection`, now or later."""
        ...

    def connection_closed(self, connection: ServerConnection) -> None:
        """The connection is gone; forget what was kept for it."""
        ...


@attrs.frozen
class ServerLimits:
    """Bounds of a server."""

    connections_max: int = 20_000
    """More are closed at once; each costs some 20 KiB and a descriptor."""
    partial_bytes_max: int = 256 * 1024 * 1024
    """Incomplete frames of all connections together; whoever passes it is closed."""
    unsent_bytes_max: int = 64 * 1024 * 1024
    """Answers that one peer has not read; beyond it the peer is closed rather than remembered."""
    idle_seconds: float = IDLE_SECONDS


@attrs.define(eq=False)
class _Call:
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: RemotingCommand | None = None


@attrs.define(eq=False)
class ServerConnection:
    """One accepted connection."""

    stream: Stream
    remote: Address
    _clock: Clock
    _limits: ServerLimits
    _core: Connection[_Call] = attrs.field(factory=Connection[_Call])
    _outgoing: list[bytes] = attrs.field(factory=list[bytes])
    _unsent: int = 0
    _sending: bool = False
    _handling: bool = False
    """Requests are being handled: what that pushes goes out right behind them, and need not wake the writer."""
    _wake: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancelled to close the connection."""
    closed: bool = False
    last_activity: float = 0.0
    attachments: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """What handlers keep about this connection."""

    def push(self, frame: bytes) -> None:
        """Queue a whole encoded frame (or several) for sending; nothing happens on a closed connection."""
        if self.closed:
            return
        if not self._sending and not self._handling and not self._outgoing:
            # Whoever answers later (a flush, a slave, an arrival) answers whole batches: the writer would only add its turn.
            sent = self.stream.send_now(frame)
            if sent:
                self.last_activity = self._clock.monotonic()
                if sent == len(frame):
                    return
                frame = frame[sent:]
        self._outgoing.append(frame)
        self._unsent += len(frame)
        if self._unsent > self._limits.unsent_bytes_max and not self.scope.cancel_called:
            # The peer does not read; we would rather close it than remember for it.
            log.warning("unread_answers_limit_reached", remote=str(self.remote), bytes=self._unsent)
            self.scope.cancel()
        if not self._sending and not self._handling:
            self._wake.set()

    def answer(
        self,
        request: RemotingCommand,
        code: int = 0,
        ext: Mapping[str, Any] | None = None,
        body: bytes = b"",
        remark: str | None = None,
    ) -> None:
        """Answer `request`; a oneway request gets no answer."""
        if not request.flag & ONEWAY_FLAG:
            self.push(encode_frame(request.response(code, ext, body, remark)))

    def notify(self, command: RemotingCommand) -> None:
        """Send a oneway request to the peer."""
        command.opaque = self._core.next_opaque()
        command.flag |= ONEWAY_FLAG
        self.push(encode_frame(command))

    async def call(self, command: RemotingCommand, timeout_seconds: float) -> RemotingCommand:
        """Send a request to the peer and wait for its answer.

        Raises:
            CallTimeout: no answer in time; the peer may still act on it.
            ConnectionLost: the connection ended first.
        """
        if self.closed:
            raise ConnectionLost(str(self.remote), "already closed")
        command.opaque = self._core.next_opaque()
        call = _Call()
        self._core.calls[command.opaque] = call
        try:
            self.push(encode_frame(command))
            with trio.move_on_after(timeout_seconds):
                await call.done.wait()
        finally:
            self._core.calls.pop(command.opaque, None)
        if call.answer is not None:
            return call.answer
        if self.closed:
            raise ConnectionLost(str(self.remote), "closed while waiting")
        raise CallTimeout(str(self.remote), command.code, round(timeout_seconds * 1000))

    async def handle(
        self, handle: Callable[[ServerConnection, list[RemotingCommand]], None], requests: list[RemotingCommand]
    ) -> None:
        """Let requests be handled, and send in one write what that pushes to their sender."""
        self._handling = True
        try:
            handle(self, requests)
        finally:
            self._handling = False
        await self.drain()

    async def drain(self) -> None:
        """Send what is queued, unless another task is at it already (it then sends this too)."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._outgoing:
                frames, self._outgoing = self._outgoing, []
                self._unsent = 0
                await self.stream.send_all(frames[0] if len(frames) == 1 else b"".join(frames))
                self.last_activity = self._clock.monotonic()
        finally:
            self._sending = False

    async def write_pushed(self) -> None:
        """The writer: send what other tasks have pushed, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await self.drain()

    @property
    def partial_bytes(self) -> int:
        """Bytes held of an incomplete frame."""
        return self._core.reader.held

    def receive(self, data: bytes) -> list[RemotingCommand]:
        """Feed the core; wake calls that got their answer; return the peer's requests."""
        requests, answers = self._core.receive(data)
        for call, answer in answers:
            call.answer = answer
            call.done.set()
        return requests

    def mark_closed(self) -> None:
        """Let every waiting call of ours know that no answer will come."""
        self.closed = True
        for call in self._core.calls.values():
            call.done.set()
        self._outgoing.clear()


@attrs.define(eq=False)
class RemotingServer:
    """Serves one handler on any number of listeners."""

    handler: BatchHandler
    network: Network
    clock: Clock
    limits: ServerLimits = attrs.field(factory=ServerLimits)
    tls: TlsAcceptor | None = None
    """Without one, connections that speak TLS are closed."""
    connections: set[ServerConnection] = attrs.field(factory=set[ServerConnection])
    _partial_bytes: int = 0
    _strange: int = 0
    _strange_told_at: float = -inf

    async def serve(
        self,
        listeners: list[Listener[Stream]],
        *,
        task_status: trio.TaskStatus[list[Listener[Stream]]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; every connection is closed then.

        Cancellation: answers that are queued but not yet written are lost, as in any stop.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            await trio.serve_listeners(self._serve_stream, listeners, handler_nursery=nursery, task_status=task_status)

    def close_connection(self, connection: ServerConnection) -> None:
        """Close a connection from our side; its reader ends and cleans up."""
        connection.scope.cancel()

    async def _sweep(self) -> None:
        while True:
            await next_tick(SWEEP_SECONDS)
            oldest = self.clock.monotonic() - self.limits.idle_seconds
            for connection in list(self.connections):
                if connection.last_activity < oldest:
                    log.debug("idle_connection_closed", remote=str(connection.remote))
                    self.close_connection(connection)

    async def _serve_stream(self, stream: Stream) -> None:
        connection = ServerConnection(stream, stream.peer, self.clock, self.limits)
        connection.last_activity = self.clock.monotonic()
        if len(self.connections) >= self.limits.connections_max:
            log.warning("connection_refused", remote=str(connection.remote), connections_max=self.limits.connections_max)
            await trio.aclose_forcefully(stream)
            return
        self.connections.add(connection)
        try:
            with connection.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_until_broken, connection.write_pushed, connection.scope)
                    await self._read(connection)
                    nursery.cancel_scope.cancel()
        finally:
            self.connections.discard(connection)
            self._partial_bytes -= connection.partial_bytes
            connection.mark_closed()
            self.handler.connection_closed(connection)
            await trio.aclose_forcefully(stream)

    def _strange_untold(self) -> int:
        """Count what a stranger did wrong; how many did since that was told last, 0 if it is too early to tell again.

        A stranger must not be able to fill the log: one line a second says how many there were.
        """
        self._strange += 1
        now = self.clock.monotonic()
        if now < self._strange_told_at + 1:
            return 0
        count, self._strange, self._strange_told_at = self._strange, 0, now
        return count

    async def _read(self, connection: ServerConnection) -> None:
        clock, handle = self.clock, self.handler.handle
        try:
            data = await connection.stream.receive_some(RECEIVE_BYTES)
            if self.tls is not None and data:
                data = await self._begin(connection, self.tls, bytes(data))
            receive = connection.stream.receive_some
            while data:
                connection.last_activity = clock.monotonic()
                held = connection.partial_bytes
                requests = connection.receive(bytes(data))
                self._partial_bytes += connection.partial_bytes - held
                if self._partial_bytes > self.limits.partial_bytes_max and connection.partial_bytes:
                    log.warning("partial_frames_limit_reached", remote=str(connection.remote), bytes=self._partial_bytes)
                    return
                if requests:
                    await connection.handle(handle, requests)
                data = await receive(RECEIVE_BYTES)
        except RemoteProtocolError as error:
            if count := self._strange_untold():
                log.warning("malformed_frame_received", remote=str(connection.remote), reason=str(error), count=count)
        except TlsFailed as error:
            if count := self._strange_untold():
                log.warning("tls_handshake_failed", remote=str(connection.remote), reason=str(error), count=count)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except Exception as error:  # noqa: BLE001 - what one peer sent has met a fault of ours; the others keep the server
            log.error("connection_failed", remote=str(connection.remote), reason=fault_of(error), trace=trace_of(error))

    async def _begin(self, connection: ServerConnection, tls: TlsAcceptor, first: bytes) -> bytes | bytearray:
        """See from a connection's first bytes what it speaks; the bytes to begin with, none if it is not taken."""
        if first[0] != TLS_HANDSHAKE:
            if tls.takes_plain:
                return first
            if count := self._strange_untold():
                log.warning("plain_connection_refused", remote=str(connection.remote), count=count)
            return b""
        if not tls.takes_tls:
            if count := self._strange_untold():
                log.warning("tls_connection_refused", remote=str(connection.remote), count=count)
            return b""
        connection.stream = await tls.accept(connection.stream, first)
        return await connection.stream.receive_some(RECEIVE_BYTES)


async def _until_broken(write: Callable[[], Any], scope: trio.CancelScope) -> None:
    try:
        await write()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        scope.cancel()  # the reader may be waiting for a peer that is gone
