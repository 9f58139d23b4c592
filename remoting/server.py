"""The trio shell of a remoting server: accept, receive, hand over as one batch, write answers, close.

One `receive_some` is one batch: it is decoded, handed to the handler, and answered in one write. A handler that has answered
`TURN_BYTES` or worked for `TURN_SECONDS` leaves the rest for later: it gets it when those answers are sent and every other task
has had its turn. Answers that come later (flush, long polling) are pushed from elsewhere and gathered by the connection's
writer. Bounds: connections (`connections_max`), bytes of incomplete frames (`partial_bytes_max`) and of unread answers
(`all_unsent_bytes_max`) over all connections, and unread answers of one peer (`unsent_bytes_max`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Protocol

import attrs
import trio
from trio.abc import Listener

from ..world.clock import Clock
from ..world.descriptors import descriptors_max
from ..world.events import get_logger
from ..world.logs import fault_of, trace_of
from ..world.network import Address, Network, Stream
from ..world.ticks import next_tick
from ..world.tls import TLS_HANDSHAKE, TlsAcceptor, TlsFailed
from .command import ONEWAY_FLAG, RemotingCommand, encode_frame
from .connection import Connection
from .errors import CallTimeout, ConnectionLost, RemoteProtocolError

log = get_logger(__name__)

RECEIVE_BYTES = 96 * 1024
"""Some seventy messages of 1 KiB. Buffers of 128 KiB and more would be mapped, faulted in and unmapped anew each time."""
IDLE_SECONDS = 120.0  # RocketMQ closes a connection without traffic after this
SWEEP_SECONDS = 5.0
TURN_BYTES = 1024 * 1024
"""Answers to one peer in one turn of the event loop. The next requests of its batch wait until these have been sent."""
TURN_SECONDS = 0.01
"""Time of one turn that requests of one batch may take before other tasks get theirs."""
STORE_DESCRIPTORS_SHARE = 2
"""One in so many descriptors of the process is left to the store: each queue and each file of the log takes one."""
CONNECTIONS_MAX = 20_000
"""Each costs some 20 KiB and a descriptor."""


class BatchHandler(Protocol):
    """What a server does with requests; called on the event loop, must not block."""

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> int:
        """Take requests of one receive, in order; answer through `connection`, now or later.

        Returns how many were taken, at least one. The others are handed over again when other tasks have had their turn.
        """
        ...

    def connection_closed(self, connection: ServerConnection) -> None:
        """The connection is gone; forget what was kept for it."""
        ...


def _nothing() -> None:
    pass


@attrs.frozen
class ServerLimits:
    """Bounds of a server."""

    connections_max: int = attrs.field(factory=lambda: min(CONNECTIONS_MAX, descriptors_max() // STORE_DESCRIPTORS_SHARE))
    """More are closed at once."""
    partial_bytes_max: int = 256 * 1024 * 1024
    """Incomplete frames of all connections together; beyond it the connection that holds most of them is closed."""
    unsent_bytes_max: int = 64 * 1024 * 1024
    """Answers that one peer has not read; beyond it the peer is closed."""
    all_unsent_bytes_max: int = 256 * 1024 * 1024
    """Answers that no peer has read, together; beyond it the peer that has read least is closed."""
    idle_seconds: float = IDLE_SECONDS


@attrs.define(eq=False)
class Unsent:
    """Bytes of answers that wait in all connections of a server."""

    bytes: int = 0
    on_growth: Callable[[], None] = _nothing
    """Called when a connection could not send at once what it was given."""


@attrs.define(eq=False)
class _Call:
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: RemotingCommand | None = None


@attrs.define(eq=False)
class ServerConnection:
    """One accepted connection."""

    stream: Stream
    remote: Address
    clock: Clock
    _limits: ServerLimits
    _all_unsent: Unsent = attrs.field(factory=Unsent)
    _core: Connection[_Call] = attrs.field(factory=Connection[_Call])
    _outgoing: list[bytes] = attrs.field(factory=list[bytes])
    unsent_bytes: int = 0
    """Bytes that the peer has not taken yet, those that are being sent included."""
    _sent: trio.Event = attrs.field(factory=trio.Event)
    """Set and replaced whenever something has been sent."""
    _sending: bool = False
    _handling: bool = False
    """Requests are being handled: what that pushes goes out right behind them, and need not wake the writer."""
    _wake: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancelled to close the connection."""
    closed: bool = False
    is_over_partial: bool = False
    """Whether it is being closed for the incomplete frame that it holds."""
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
                self.last_activity = self.clock.monotonic()
                if sent == len(frame):
                    return
                frame = frame[sent:]
        if self.scope.cancel_called:
            return  # nobody will send it
        self._outgoing.append(frame)
        self.unsent_bytes += len(frame)
        self._all_unsent.bytes += len(frame)
        if self.unsent_bytes > self._limits.unsent_bytes_max:
            self.give_up_unread()
        self._all_unsent.on_growth()
        if not self._sending and not self._handling:
            self._wake.set()

    def give_up_unread(self) -> None:
        """Close a connection whose peer does not read, and free what waits for it."""
        log.warning("unread_answers_limit_reached", remote=str(self.remote), bytes=self.unsent_bytes)
        self.scope.cancel()
        self._forget_unsent()

    def _forget_unsent(self) -> None:
        self._outgoing.clear()
        self._all_unsent.bytes -= self.unsent_bytes
        self.unsent_bytes = 0

    def is_turn_over(self, began: float) -> bool:
        """Whether the other requests of a batch must wait; `began` is when its handling began, by the monotonic clock."""
        return self.unsent_bytes > TURN_BYTES or self.clock.monotonic() - began > TURN_SECONDS

    @property
    def is_given_up(self) -> bool:
        """Whether nothing more will be sent to the peer."""
        return self.closed or self.scope.cancel_called

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
        self, handle: Callable[[ServerConnection, list[RemotingCommand]], int], requests: list[RemotingCommand]
    ) -> None:
        """Let requests be handled, and send in one write what that pushes to their sender.

        If the handler leaves some for later, they wait until the peer has read the answers to the first ones.
        """
        while True:
            self._handling = True
            try:
                taken = handle(self, requests)
            finally:
                self._handling = False
            await self.drain()
            if taken >= len(requests):
                return
            requests = requests[taken:]
            await trio.lowlevel.checkpoint()
            while self.unsent_bytes > TURN_BYTES:  # another task is sending
                await self._sent.wait()

    async def drain(self) -> None:
        """Send what is queued, unless another task is at it already (it then sends this too)."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._outgoing:
                frames, self._outgoing = self._outgoing, []
                # Large answers are sent one by one: joined they would take their memory twice.
                for part in frames if len(frames) == 1 or self.unsent_bytes > TURN_BYTES else (b"".join(frames),):
                    await self.stream.send_all(part)
                    if self.is_given_up:
                        return
                    self.last_activity = self.clock.monotonic()
                    self.unsent_bytes -= len(part)
                    self._all_unsent.bytes -= len(part)
                self._sent.set()
                self._sent = trio.Event()
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
        self._forget_unsent()


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
    _unsent: Unsent = attrs.field(init=False)
    _forgetting: trio.Lock = attrs.field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self._unsent = Unsent(on_growth=self._bound_unsent)

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
        connection = ServerConnection(stream, stream.peer, self.clock, self.limits, self._unsent)
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
            if not connection.is_over_partial:
                self._partial_bytes -= connection.partial_bytes
            connection.mark_closed()
            await self._forget(connection)
            await trio.aclose_forcefully(stream)

    async def _forget(self, connection: ServerConnection) -> None:
        """Let the handler forget a connection; of many that end together one in each turn of the event loop."""
        if trio.current_effective_deadline() == -inf:  # the server stops
            self.handler.connection_closed(connection)
            return
        with trio.CancelScope(shield=True):
            async with self._forgetting:
                self.handler.connection_closed(connection)

    def _bound_unsent(self) -> None:
        while self._unsent.bytes > self.limits.all_unsent_bytes_max:
            slowest = max(self.connections, key=lambda connection: connection.unsent_bytes)
            if not slowest.unsent_bytes:
                return
            slowest.give_up_unread()

    def _bound_partial(self) -> None:
        # Closing whoever brought the last byte would let those who hold the most stay.
        while self._partial_bytes > self.limits.partial_bytes_max:
            largest = max(
                (connection for connection in self.connections if not connection.is_over_partial),
                key=lambda connection: connection.partial_bytes,
            )
            log.warning("partial_frames_limit_reached", remote=str(largest.remote), bytes=largest.partial_bytes)
            largest.is_over_partial = True
            self._partial_bytes -= largest.partial_bytes
            self.close_connection(largest)

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
                if self._partial_bytes > self.limits.partial_bytes_max:
                    self._bound_partial()
                    if connection.is_over_partial:
                        return
                if requests:
                    await connection.handle(handle, requests)
                data = await receive(RECEIVE_BYTES)
        except RemoteProtocolError as error:
            log.warning("malformed_frame_received", remote=str(connection.remote), reason=str(error))
        except TlsFailed as error:
            log.warning("tls_handshake_failed", remote=str(connection.remote), reason=str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except Exception as error:  # noqa: BLE001 - what one peer sent has met a fault of ours; the others keep the server
            log.error("connection_failed", remote=str(connection.remote), reason=fault_of(error), trace=trace_of(error))

    async def _begin(self, connection: ServerConnection, tls: TlsAcceptor, first: bytes) -> bytes | bytearray:
        """See from a connection's first bytes what it speaks; the bytes to begin with, none if it is not taken."""
        if first[0] != TLS_HANDSHAKE:
            if tls.takes_plain:
                return first
            log.warning("plain_connection_refused", remote=str(connection.remote))
            return b""
        if not tls.takes_tls:
            log.warning("tls_connection_refused", remote=str(connection.remote))
            return b""
        connection.stream = await tls.accept(connection.stream, first)
        return await connection.stream.receive_some(RECEIVE_BYTES)


async def _until_broken(write: Callable[[], Any], scope: trio.CancelScope) -> None:
    try:
        await write()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        scope.cancel()  # the reader may be waiting for a peer that is gone
