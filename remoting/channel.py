"""The trio shell of a remoting client connection: one reader task, one writer task, any number of callers.

Frames of callers that run in the same turn of the event loop leave in one write. A call that is cancelled or times out leaves
nothing behind: its answer, should it still come, is dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import outcome
import structlog
import trio
from trio.abc import Stream

from ..world.network import Address, Network
from .command import ONEWAY_FLAG, RemotingCommand, encode_frame
from .connection import Connection
from .errors import CallTimeout, ConnectionLost, RemoteProtocolError

log = structlog.get_logger()

RECEIVE_BYTES = 256 * 1024
CONNECT_SECONDS = 3.0
UNSENT_BYTES_MAX = 8 * 1024 * 1024
"""Frames queued for one connection before callers have to wait for the writer."""

PeerRequest = Callable[["Channel", RemotingCommand], RemotingCommand | None]
"""Takes a request that the server sends to us; returns the answer, None for none."""


@attrs.define(eq=False)
class Channel:
    """One open connection to a server."""

    address: Address
    local: Address
    _stream: Stream
    _on_request: PeerRequest | None
    _core: Connection[trio.lowlevel.Task] = attrs.field(factory=lambda: Connection[trio.lowlevel.Task]())
    _outgoing: list[bytes] = attrs.field(factory=list)
    _unsent: int = 0
    _writer: trio.lowlevel.Task | None = None
    _room: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    closed: bool = False
    close_reason: str = "closed by us"

    async def call(self, command: RemotingCommand, timeout_seconds: float) -> RemotingCommand:
        """Send a request and wait for its answer.

        Raises:
            CallTimeout: no answer in time; the server may have carried it out.
            ConnectionLost: the connection ended first; the server may have carried it out.
        Cancellation: the answer is dropped; the server may have carried it out.
        """
        with trio.move_on_after(timeout_seconds):
            return await self.exchange(command)
        raise CallTimeout(str(self.address), command.code, round(timeout_seconds * 1000))

    async def exchange(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request and wait for its answer as long as the surrounding scope allows (see `call`)."""
        await self._room_for_one()
        core = self._core
        opaque = command.opaque = core.next_opaque()
        frame = encode_frame(command)
        core.calls[opaque] = trio.lowlevel.current_task()
        self._queue(frame)

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            core.calls.pop(opaque, None)
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(abort)  # type: ignore[no-any-return]

    async def send(self, command: RemotingCommand) -> None:
        """Send a oneway request; returns when it is queued for writing, which promises nothing.

        Raises:
            ConnectionLost: the connection has ended. Nothing was sent.
        """
        await self._room_for_one()
        command.opaque = self._core.next_opaque()
        command.flag |= ONEWAY_FLAG
        self._queue(encode_frame(command))
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _room_for_one(self) -> None:
        while self._unsent > UNSENT_BYTES_MAX and not self.closed:
            await self._room.park()
        if self.closed:
            raise ConnectionLost(str(self.address), self.close_reason)

    def _queue(self, frame: bytes) -> None:
        self._outgoing.append(frame)
        self._unsent += len(frame)
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    async def _write(self) -> None:
        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            if not self._outgoing:
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(abort)
            frames, self._outgoing = self._outgoing, []
            await self._stream.send_all(frames[0] if len(frames) == 1 else b"".join(frames))
            self._unsent = sum(map(len, self._outgoing))
            self._room.unpark_all()

    async def _read(self) -> None:
        receive_some, receive = self._stream.receive_some, self._core.receive
        while data := await receive_some(RECEIVE_BYTES):
            requests, answers = receive(bytes(data))
            for task, answer in answers:
                trio.lowlevel.reschedule(task, outcome.Value(answer))
            for request in requests:
                answer_to_peer = self._on_request(self, request) if self._on_request is not None else None
                if answer_to_peer is not None and not request.is_oneway:
                    self._queue(encode_frame(answer_to_peer))
        self.close_reason = "closed by the server"

    async def _run(self, on_close: Callable[[Channel], None]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                await self._read()
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            self.close_reason = str(group.exceptions[0].__cause__ or group.exceptions[0])
        except* RemoteProtocolError as group:
            self.close_reason = str(group.exceptions[0])
            log.warning("malformed_frame_received", remote=str(self.address), reason=self.close_reason)
        finally:
            self._close()
            on_close(self)
            await trio.aclose_forcefully(self._stream)

    def _close(self) -> None:
        self.closed = True
        calls, self._core.calls = self._core.calls, {}
        for task in calls.values():
            trio.lowlevel.reschedule(task, outcome.Error(ConnectionLost(str(self.address), self.close_reason)))
        self._room.unpark_all()


async def open_channel(
    address: Address,
    *,
    network: Network,
    nursery: trio.Nursery,
    on_request: PeerRequest | None = None,
    on_close: Callable[[Channel], None] = lambda _: None,
    connect_seconds: float = CONNECT_SECONDS,
) -> Channel:
    """Connect to a server; the channel lives in `nursery` until it breaks or the nursery is cancelled.

    Raises:
        ConnectionLost: not connected within `connect_seconds`, or refused. Nothing stays open.
    """
    try:
        with trio.fail_after(connect_seconds):
            stream = await network.open_stream(address)
    except trio.TooSlowError as error:
        raise ConnectionLost(str(address), f"not connected within {connect_seconds} s") from error
    except OSError as error:
        raise ConnectionLost(str(address), f"could not connect: {error.strerror or error}") from error
    channel = Channel(address, network.local_address(stream), stream, on_request)
    nursery.start_soon(channel._run, on_close)  # noqa: SLF001
    return channel


@asynccontextmanager
async def connected(address: Address, *, network: Network, on_request: PeerRequest | None = None) -> AsyncIterator[Channel]:
    """A channel for the length of an `async with` block."""
    async with trio.open_nursery() as nursery:
        yield await open_channel(address, network=network, nursery=nursery, on_request=on_request)
        nursery.cancel_scope.cancel()
