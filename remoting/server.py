"""The trio shell of a remoting server: accept, receive, handle as one batch, write answers, close.

One `receive_some` is one batch: it is decoded, passed to the handler, and answered in one write. A handler that has answered
`TURN_BYTES` or worked for `TURN_SECONDS` leaves the rest of the batch, which is passed to it again when those answers are sent
and every other task had its turn. Later answers (flush, long polling) are pushed by other tasks and sent by the connection's
writer. Bounds: connections (`connections_max`), bytes of incomplete frames (`partial_bytes_max`) and of unread answers
(`all_unsent_bytes_max`) over all connections, and unread answers of one peer (`unsent_bytes_max`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio
from trio.abc import Listener

from ..native import ScanSends
from ..world.clock import Clock
from ..world.descriptors import descriptors_max
from ..world.events import EventLogger, get_logger
from ..world.logs import fault_of, trace_of
from ..world.network import Address, Network, Stream
from ..world.ticks import next_tick
from ..world.tls import TLS_HANDSHAKE, TlsAcceptor, TlsFailed
from .command import ONEWAY_FLAG, RemotingCommand, encode_frame
from .connection import Connection
from .errors import CallTimeout, ConnectionLost, RemoteProtocolError

if TYPE_CHECKING:
    from ..native import SendRun

log = get_logger(__name__)

RECEIVE_BYTES = 96 * 1024
"""The size of one receive: some seventy messages of 1 KiB. Buffers from 128 KiB on would be mapped and unmapped each time."""
IDLE_SECONDS = 120.0  # RocketMQ closes a connection without traffic after this
SWEEP_SECONDS = 5.0
"""How often idle connections are looked for."""
TURN_BYTES = 1024 * 1024
"""After this many bytes of answers to one peer, the other requests of its batch wait until these have been sent."""
TURN_SECONDS = 0.01
"""After this time the other requests of a batch wait until all other tasks had a turn."""
STORE_DESCRIPTORS_SHARE = 2
"""Connections may use one in this many descriptors of the process; the store needs one for each queue and file of the log."""
CONNECTIONS_MAX = 20_000
"""How many connections a server accepts at most; each costs some 20 KiB and a descriptor."""


class BatchHandler(Protocol):
    """Handles the requests of a server; it is called on the event loop and must not block."""

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> int:
        """Handle requests of one receive, in order; answer through `connection`, now or later.

        Returns how many were handled: at least one, or none but `connection.sends`, which come first and are taken from it. The
        others are passed again when other tasks had a turn. Of sends that must be handled one by one, the handler inserts the
        requests at the beginning of `requests`. A request that is refused before its handler is removed from `requests`.
        """
        ...

    def connection_closed(self, connection: ServerConnection) -> None:
        """Drop the state of a connection that has ended."""
        ...


def _nothing() -> None:
    pass


@attrs.frozen
class ServerLimits:
    """Bounds of a server."""

    connections_max: int = attrs.field(factory=lambda: min(CONNECTIONS_MAX, descriptors_max() // STORE_DESCRIPTORS_SHARE))
    """Beyond this number each new connection ends the oldest one that has sent no complete request, or is itself closed."""
    partial_bytes_max: int = 256 * 1024 * 1024
    """Bytes of incomplete frames of all connections; beyond it the connection with the most is closed."""
    unsent_bytes_max: int = 64 * 1024 * 1024
    """Bytes of answers that one peer has not read; beyond it its connection is closed."""
    all_unsent_bytes_max: int = 256 * 1024 * 1024
    """Bytes of unread answers of all peers; beyond it the connection with the most is closed."""
    idle_seconds: float = IDLE_SECONDS


@attrs.define(eq=False)
class Unsent:
    """Counts the bytes of answers that wait in all connections of a server."""

    bytes: int = 0
    on_growth: Callable[[], None] = _nothing
    """Called when a connection could not send an answer without waiting."""


@attrs.define(eq=False)
class _Call:
    done: trio.Event = attrs.field(factory=trio.Event)
    answer: RemotingCommand | None = None


@attrs.define(eq=False, repr=False)
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
    """Bytes that wait to be sent, including those that are being sent."""
    _sent: trio.Event = attrs.field(factory=trio.Event)
    """Set and replaced whenever something has been sent."""
    _sending: bool = False
    _handling: bool = False
    """Whether requests are being handled: their answers are sent right afterwards, without waking the writer."""
    _wake: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancelled to close the connection."""
    closed: bool = False
    counted_partial_bytes: int = 0
    """How many bytes of the incomplete frame the server has counted."""
    is_over_partial: bool = False
    """Whether the connection is being closed because of its incomplete frame."""
    last_activity: float = 0.0
    scan: ScanSends | None = None
    """Finds the plain sends with which received bytes begin; None if every request is decoded."""
    sends: SendRun | None = None
    """The plain sends before the requests that are handled next."""
    waiting_requests: int = 0
    """How many requests of the peer wait in tasks of their own."""
    attachments: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """State of handlers that belongs to this connection."""

    @property
    def log(self) -> EventLogger:
        """Logs events that name the peer."""
        return log.bind(remote=str(self.remote))

    def push(self, frame: bytes) -> None:
        """Queue a whole encoded frame (or several) for sending; nothing happens on a closed connection."""
        if self.closed:
            return
        if not self._sending and not self._handling and not self._outgoing:
            # Later answers (after a flush, a slave's report, an arrival) are whole batches: the writer would only add a turn.
            sent = self.stream.send_now(frame)
            if sent:
                self.last_activity = self.clock.monotonic()
                if sent == len(frame):
                    return
                frame = frame[sent:]
        if self.scope.cancel_called:
            return  # the frame will never be sent
        self._outgoing.append(frame)
        self.unsent_bytes += len(frame)
        self._all_unsent.bytes += len(frame)
        if self.unsent_bytes > self._limits.unsent_bytes_max:
            self.give_up_unread()
        self._all_unsent.on_growth()
        if not self._sending and not self._handling:
            self._wake.set()

    def give_up_unread(self) -> None:
        """Close a connection whose peer does not read, and free its waiting answers."""
        self.log.warning("unread_answers_limit_reached", bytes=self.unsent_bytes)
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
        """Pass requests to the handler, and send the answers that it pushes in one write.

        Requests that the handler leaves wait until the answers to the first ones have been sent.
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
        """Send the queued frames, unless another task is sending; that task then sends them too."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._outgoing:
                frames, self._outgoing = self._outgoing, []
                # Large answers are sent one by one, because joining them would take their memory twice.
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
        """The writer: send the frames that other tasks push, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await self.drain()

    @property
    def partial_bytes(self) -> int:
        """Bytes of the incomplete frame that was received so far."""
        return self._core.reader.held

    def receive(self, data: bytes) -> list[RemotingCommand]:
        """Decode received bytes, wake the calls that they answer, and return the requests of the peer.

        Plain sends with which they begin are put aside as `sends`; the handler takes these first.
        """
        gathered = self._core.reader.gather(data)
        self.sends = self.scan(gathered) if self.scan is not None else None
        requests, answers = self._core.decode(gathered, self.sends.end if self.sends is not None else 0)
        for call, answer in answers:
            call.answer = answer
            call.done.set()
        return requests

    def mark_closed(self) -> None:
        """Mark the connection as closed, wake our calls, which get no answer any more, and drop what waits to be sent."""
        self.closed = True
        for call in self._core.calls.values():
            call.done.set()
        self._forget_unsent()


@attrs.define(eq=False, repr=False)
class RemotingServer:
    """Passes the requests of any number of listeners to one handler."""

    handler: BatchHandler
    network: Network
    clock: Clock
    limits: ServerLimits = attrs.field(factory=ServerLimits)
    tls: TlsAcceptor | None = None
    """If None, connections that begin with TLS are closed."""
    scan: ScanSends | None = None
    """See `ServerConnection.scan`."""
    connections: set[ServerConnection] = attrs.field(factory=set[ServerConnection])
    _silent: dict[ServerConnection, None] = attrs.field(factory=dict[ServerConnection, None])
    """The connections that have not sent a complete request yet, the oldest first."""
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
                    connection.log.debug("idle_connection_closed")
                    self.close_connection(connection)

    async def _serve_stream(self, stream: Stream) -> None:
        connection = ServerConnection(stream, stream.peer, self.clock, self.limits, self._unsent, scan=self.scan)
        connection.last_activity = self.clock.monotonic()
        if len(self.connections) >= self.limits.connections_max:
            if not self._silent:
                connection.log.warning("connection_refused", connections_max=self.limits.connections_max)
                await trio.aclose_forcefully(stream)
                return
            oldest = next(iter(self._silent))
            oldest.log.warning("silent_connection_closed", connections_max=self.limits.connections_max)
            del self._silent[oldest]
            self.close_connection(oldest)
        self.connections.add(connection)
        self._silent[connection] = None
        try:
            with connection.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_until_broken, connection.write_pushed, connection.scope)
                    await self._read(connection)
                    nursery.cancel_scope.cancel()
        finally:
            self.connections.discard(connection)
            self._silent.pop(connection, None)
            self._count_partial(connection, 0)
            connection.mark_closed()
            await self._forget(connection)
            await trio.aclose_forcefully(stream)

    async def _forget(self, connection: ServerConnection) -> None:
        """Let the handler drop its state of a connection; of many that end together, one per turn of the event loop."""
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

    def _count_partial(self, connection: ServerConnection, held: int) -> None:
        """Count this many bytes for the incomplete frame of a connection, instead of what was counted for it before.

        So whatever ends a connection, a malformed frame for instance, what it held is given back.
        """
        self._partial_bytes += held - connection.counted_partial_bytes
        connection.counted_partial_bytes = held

    def _bound_partial(self) -> None:
        # The connection that sent the last byte is not closed for it: those with the largest incomplete frames are.
        while self._partial_bytes > self.limits.partial_bytes_max:
            largest = max(
                (connection for connection in self.connections if not connection.is_over_partial),
                key=lambda connection: connection.counted_partial_bytes,
            )
            largest.log.warning("partial_frames_limit_reached", bytes=largest.counted_partial_bytes)
            largest.is_over_partial = True
            self._count_partial(largest, 0)
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
                requests = connection.receive(bytes(data))
                if (held := connection.partial_bytes) != connection.counted_partial_bytes:
                    self._count_partial(connection, held)
                    if self._partial_bytes > self.limits.partial_bytes_max:
                        self._bound_partial()
                if connection.is_over_partial:
                    return
                if requests or connection.sends is not None:
                    self._silent.pop(connection, None)
                    await connection.handle(handle, requests)
                data = await receive(RECEIVE_BYTES)
        except RemoteProtocolError as error:
            connection.log.warning("malformed_frame_received", reason=str(error))
        except TlsFailed as error:
            connection.log.warning("tls_handshake_failed", reason=str(error))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except Exception as error:  # noqa: BLE001 - input of one peer met a bug; the server goes on for the others
            connection.log.error("connection_failed", reason=fault_of(error), trace=trace_of(error))

    async def _begin(self, connection: ServerConnection, tls: TlsAcceptor, first: bytes) -> bytes | bytearray:
        """Tell TLS from plain by the first bytes; returns the first plain bytes, or none if the connection is refused."""
        if first[0] != TLS_HANDSHAKE:
            if tls.takes_plain:
                return first
            connection.log.warning("plain_connection_refused")
            return b""
        if not tls.takes_tls:
            connection.log.warning("tls_connection_refused")
            return b""
        connection.stream = await tls.accept(connection.stream, first)
        return await connection.stream.receive_some(RECEIVE_BYTES)


async def _until_broken(write: Callable[[], Any], scope: trio.CancelScope) -> None:
    try:
        await write()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        scope.cancel()  # the reader may be waiting for a peer that is gone
