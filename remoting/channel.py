"""The trio shell of a remoting client connection: one reader task, one writer task, any number of callers.

Frames are sent in the order of their calls, including calls made before the connection was established or while its buffer
was full; frames of callers that run in the same turn of the event loop are sent in one write. When a call is cancelled or times
out, its frame is not sent if it still waits, and its answer is dropped. One sweeper task per channel keeps the deadlines of all
calls, because a cancel scope per call costs more than the rest of a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import attrs
import outcome
import trio

from ..world.events import get_logger
from ..world.logs import fault_of, trace_of
from ..world.network import RECEIVE_BYTES, Address, Network, Stream
from .command import ONEWAY_FLAG, RemotingCommand, encode_frame
from .connection import Connection
from .errors import CallTimeout, ConnectionLost, RemoteProtocolError
from .signature import Credentials, signed_frame

log = get_logger(__name__)

LONG_RECEIVE_BYTES = 256 * 1024
"""The limit of a receive behind one of `RECEIVE_BYTES`: long answers take fewer, and short ones do not pay for its memory."""
CONNECT_SECONDS = 3.0
"""How long connecting may take before it fails."""
UNSENT_BYTES_MAX = 8 * 1024 * 1024
"""Above this many bytes queued for one connection, further frames wait until the writer has made room."""

PeerRequest = Callable[["Channel", RemotingCommand], RemotingCommand | None]
"""Handles a request of the server; returns the answer, or None for none."""

Caller = tuple[trio.lowlevel.Task, float, int, float]
"""A waiting caller: its task, its deadline on trio's clock, and for the error the request code and the timeout in seconds."""


@attrs.define(eq=False)
class Channel:
    """One connection to a server; calls may be made before it is established."""

    address: Address
    _on_request: PeerRequest | None = None
    credentials: Credentials | None = None
    """What signs all requests; None if they are not signed."""
    local: Address | None = None
    """The address of our end, once connected."""
    connected: bool = False
    closed: bool = False
    close_reason: str = "closed by us"
    received_at: float = 0.0
    """When bytes were last received, or the connection was established, on trio's clock."""
    _stream: Stream | None = None
    _core: Connection[Caller] = attrs.field(factory=Connection[Caller])
    _flowing: bool = False
    """Whether a new frame may be queued for writing: connected, with room, and without waiting frames."""
    _waiting: deque[tuple[int, Sequence[bytes]]] = attrs.field(factory=deque[tuple[int, Sequence[bytes]]])
    """Frames that wait for the connection or for room, in the order of their calls, each with its opaque."""
    _posting: dict[int, trio.lowlevel.Task] = attrs.field(factory=dict[int, trio.lowlevel.Task])
    """Tasks whose oneway frames wait, by the negative number that such a frame has instead of an opaque."""
    _posts: int = 0
    _outgoing: list[bytes] = attrs.field(factory=list[bytes])
    _unsent: int = 0
    _writer: trio.lowlevel.Task | None = None
    _settled: trio.Event = attrs.field(factory=trio.Event)
    """Set when connecting has succeeded or failed."""
    _sweep_at: float = inf
    _sweep: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def waiting(self) -> bool:
        """Whether any call waits for its answer."""
        return bool(self._core.calls)

    async def wait_connected(self) -> None:
        """Wait until the connection is established; any number of tasks may wait.

        Raises:
            ConnectionLost: connecting failed, or the connection has ended since.
        """
        await self._settled.wait()
        if self.closed:
            raise self._lost(sent=False)

    async def call(self, command: RemotingCommand, timeout_seconds: float) -> RemotingCommand:
        """Send a request and wait for its answer.

        Raises:
            CallTimeout: no answer in time; the server may have carried it out.
            ConnectionLost: the connection ended first; the server may have carried it out.
        Cancellation: the answer is dropped; the server may have carried it out.
        """
        command.opaque = self.next_opaque()
        return await self.exchange(command.opaque, command.code, (encode_frame(command),), timeout_seconds)

    def next_opaque(self) -> int:
        """An opaque for a request that the caller encodes and sends with `exchange`."""
        return self._core.next_opaque()

    async def exchange(
        self, opaque: int, code: int, frame: Sequence[bytes], timeout_seconds: float, now: float | None = None
    ) -> RemotingCommand:
        """Send the parts of one encoded request and wait for its answer, as `call` does.

        Args:
            opaque: from `next_opaque`; the frame holds the same one.
            code: the code of the request, for the error only.
            frame: the whole frame in any number of pieces.
            timeout_seconds: after this time `CallTimeout` is raised.
            now: the time on trio's clock, if the caller has read it already.
        """
        if self.closed:
            raise self._lost(sent=False)
        if self.credentials is not None:
            frame = (signed_frame(frame, self.credentials),)
        deadline = (trio.current_time() if now is None else now) + timeout_seconds
        calls = self._core.calls
        calls[opaque] = (trio.lowlevel.current_task(), deadline, code, timeout_seconds)
        if deadline < self._sweep_at:
            self._sweep_at = self._sweep.deadline = deadline
        if self._flowing:
            self._queue(frame)
        else:
            self._waiting.append((opaque, frame))

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            calls.pop(opaque, None)
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(abort)  # type: ignore[no-any-return]

    async def send(self, command: RemotingCommand) -> None:
        """Send a oneway request; returns when it is queued for writing, which does not mean that it is sent.

        Raises:
            ConnectionLost: the connection has ended. Nothing was sent.
        """
        command.opaque = self._core.next_opaque()
        command.flag |= ONEWAY_FLAG
        await self.post((encode_frame(command),))

    async def post(self, frame: Sequence[bytes]) -> None:
        """Send the parts of one encoded oneway request, as `send` does."""
        if self.closed:
            raise self._lost(sent=False)
        if self.credentials is not None:
            frame = (signed_frame(frame, self.credentials),)
        if self._flowing:
            self._queue(frame)
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        self._posts -= 1
        number, posting = self._posts, self._posting
        posting[number] = trio.lowlevel.current_task()
        self._waiting.append((number, frame))

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            posting.pop(number, None)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def answer(self, command: RemotingCommand) -> None:
        """Answer a request of the server later than its handler returned; nothing happens on a closed channel."""
        if not self.closed:
            self._queue((encode_frame(command),))

    def close(self) -> None:
        """Give the connection up; waiting calls raise `ConnectionLost`, and what the server has not received is dropped.

        Otherwise a request that was given up, such as a commit, could arrive behind later ones over another connection.
        """
        self.closed = True
        if self._stream is not None:
            self._stream.drop_undelivered()
        self._scope.cancel()

    def _queue(self, frame: Sequence[bytes]) -> None:
        self._outgoing += frame
        unsent = self._unsent
        for part in frame:
            unsent += len(part)
        self._unsent = unsent
        if unsent > UNSENT_BYTES_MAX:
            self._flowing = False
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    def _admit(self) -> None:
        """Queue waiting frames while there is room; frames whose calls have ended are dropped."""
        waiting, calls, posting = self._waiting, self._core.calls, self._posting
        while waiting and self._unsent <= UNSENT_BYTES_MAX:
            number, frame = waiting.popleft()
            if number < 0 and (task := posting.pop(number, None)) is not None:
                trio.lowlevel.reschedule(task)
            elif number not in calls:
                continue
            self._queue(frame)
        self._flowing = not waiting and self._unsent <= UNSENT_BYTES_MAX

    async def _write(self) -> None:
        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        stream = self._stream
        assert stream is not None
        while True:
            if not self._outgoing:
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(abort)
            frames, self._outgoing = self._outgoing, []
            await stream.send_all(frames[0] if len(frames) == 1 else b"".join(frames))
            self._unsent = sum(map(len, self._outgoing))
            if not self._flowing:
                self._admit()

    async def _read(self) -> None:
        assert self._stream is not None
        receive_some, receive = self._stream.receive_some, self._core.receive
        limit = RECEIVE_BYTES
        while data := await receive_some(limit):
            limit = RECEIVE_BYTES if len(data) < RECEIVE_BYTES else LONG_RECEIVE_BYTES
            self.received_at = trio.current_time()
            requests, answers = receive(bytes(data))
            for caller, answer in answers:
                trio.lowlevel.reschedule(caller[0], outcome.Value(answer))
            for request in requests:
                answer_to_peer = self._on_request(self, request) if self._on_request is not None else None
                if answer_to_peer is not None and not request.is_oneway:
                    self._queue((encode_frame(answer_to_peer),))
        self.close_reason = "closed by the server"

    async def _expire(self) -> None:
        # Most calls have the same timeout, so this wakes about once per timeout and not once per call: a call with a deadline
        # before the next sweep moves that sweep forward, and an answered call needs no work.
        while True:
            with self._sweep:
                await trio.sleep_forever()
            now = trio.current_time()
            calls = self._core.calls
            due = [opaque for opaque, caller in calls.items() if caller[1] <= now]
            unsent = {number for number, _ in self._waiting} if due and self._waiting else frozenset[int]()
            for opaque in due:
                task, deadline, code, seconds = calls.pop(opaque)
                trio.lowlevel.reschedule(
                    task,
                    outcome.Error(
                        CallTimeout(
                            str(self.address),
                            code,
                            round(seconds * 1000),
                            sent=opaque not in unsent,
                            silent=self.received_at <= deadline - seconds,
                        )
                    ),
                )
            self._sweep_at = min((caller[1] for caller in calls.values()), default=inf)
            self._sweep = trio.CancelScope(deadline=self._sweep_at)

    async def run(
        self, network: Network, connect_seconds: float, on_close: Callable[[Channel], None], on_connect: Callable[[], None]
    ) -> None:
        """Connect, then read and write until the connection breaks or is closed.

        Args:
            network: opens the connection.
            connect_seconds: how long connecting may take before it fails.
            on_close: called once at the end, however the connection ended.
            on_connect: called once the connection is established, before anything is written.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._expire)
                    if await self._connect(network, connect_seconds):
                        on_connect()
                        nursery.start_soon(self._write)
                        await self._read()
                    nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            self.close_reason = str(group.exceptions[0].__cause__ or group.exceptions[0])
        except* RemoteProtocolError as group:
            self.close_reason = str(group.exceptions[0])
            log.warning("malformed_frame_received", remote=str(self.address), reason=self.close_reason)
        except* Exception as group:  # noqa: BLE001 - as in a server, one peer must not end the other connections
            # Input of the server met a bug of ours: the connection ends, but not the owner of the nursery.
            self.close_reason = fault_of(group.exceptions[0])
            log.error(
                "connection_failed",
                remote=str(self.address),
                reason=self.close_reason,
                trace=trace_of(group.exceptions[0]),
            )
        finally:
            self._close()
            on_close(self)
            if self._stream is not None:
                await trio.aclose_forcefully(self._stream)

    async def _connect(self, network: Network, connect_seconds: float) -> bool:
        try:
            with trio.fail_after(connect_seconds):
                stream = await network.open_stream(self.address)
        except trio.TooSlowError:
            self.close_reason = f"not connected within {connect_seconds} s"
            return False
        except OSError as error:
            self.close_reason = f"could not connect: {_cause(error)}"
            return False
        self._stream, self.local = stream, stream.local
        self.received_at = trio.current_time()
        self.connected = True
        self._settled.set()
        self._admit()
        return True

    def _close(self) -> None:
        self.closed, self._flowing = True, False
        unsent = {number for number, _ in self._waiting}
        self._waiting.clear()
        calls, self._core.calls = self._core.calls, {}
        for opaque, (task, *_) in calls.items():
            trio.lowlevel.reschedule(task, outcome.Error(self._lost(sent=opaque not in unsent)))
        posting, self._posting = self._posting, {}
        for task in posting.values():
            trio.lowlevel.reschedule(task, outcome.Error(self._lost(sent=False)))
        self._settled.set()

    def _lost(self, *, sent: bool) -> ConnectionLost:
        return ConnectionLost(str(self.address), self.close_reason, sent=sent)


def start_channel(
    address: Address,
    *,
    network: Network,
    nursery: trio.Nursery,
    on_request: PeerRequest | None = None,
    on_close: Callable[[Channel], None] = lambda _: None,
    on_connect: Callable[[Channel], None] = lambda _: None,
    connect_seconds: float = CONNECT_SECONDS,
    credentials: Credentials | None = None,
) -> Channel:
    """Begin to connect to a server; the channel lives in `nursery` until it fails, breaks or the nursery is cancelled.

    Calls that are made before the connection is established are sent in order afterwards; they fail if connecting fails.
    """
    channel = Channel(address, on_request, credentials)
    nursery.start_soon(channel.run, network, connect_seconds, on_close, lambda: on_connect(channel))
    return channel


async def open_channel(
    address: Address,
    *,
    network: Network,
    nursery: trio.Nursery,
    on_request: PeerRequest | None = None,
    on_close: Callable[[Channel], None] = lambda _: None,
    connect_seconds: float = CONNECT_SECONDS,
    credentials: Credentials | None = None,
) -> Channel:
    """Connect to a server; otherwise as `start_channel`.

    Raises:
        ConnectionLost: not connected within `connect_seconds`, or refused. Nothing stays open.
    """
    channel = start_channel(
        address,
        network=network,
        nursery=nursery,
        on_request=on_request,
        on_close=on_close,
        connect_seconds=connect_seconds,
        credentials=credentials,
    )
    try:
        await channel.wait_connected()
    except BaseException:
        channel.close()
        raise
    return channel


def _cause(error: OSError) -> str:
    """The error text of the first address of a host."""
    first: Any = getattr(error.__cause__, "exceptions", (error,))[0]
    text: str | None = getattr(first, "strerror", None)
    return text.rpartition(": ")[2] if text else str(first)


@asynccontextmanager
async def connected(
    address: Address, *, network: Network, on_request: PeerRequest | None = None, credentials: Credentials | None = None
) -> AsyncGenerator[Channel]:
    """A channel for the length of an `async with` block; raises as `open_channel` does.

    An exception of the block is raised unchanged, not inside the group that a nursery would raise.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield await open_channel(address, network=network, nursery=nursery, on_request=on_request, credentials=credentials)
        except BaseException as error:  # noqa: BLE001 - raised again outside the nursery
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
