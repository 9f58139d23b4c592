"""Connections of the native dialect: one task per peer and lane dials and sends, one per accepted connection receives.

Votes, heartbeats and answers have a connection of their own, so that they never wait behind entries. A message that cannot be
sent is dropped: the Raft core repeats what matters.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

import attrs
import trio

from ...message.checksum import crc32
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.network import Address, Network, Stream
from ...world.randomness import Randomness
from ...world.workers import Workers
from ..errors import HaError, HaProtocolError, HaRefused, WrongRaftDialect
from ..raft.messages import Append, Message
from ..raft.units import PeerId
from .group_records import read_configuration
from .handshake import Dialler, Hello, Listener, LogBeginning, NodeCard
from .native import FrameReader, decode_message, encode_message, lane_of
from .native_layout import LANE_CONTROL, LANE_ENTRIES, NONCE_SIZE

log = get_logger(__name__)

HANDSHAKE_SECONDS = 2.0
CONNECT_SECONDS = 1.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 1.0
"""Pause after a failed connection; it doubles up to the maximum."""
REFUSED_SECONDS = 3.0
"""Pause after a refusal, which a person has to act upon."""
QUEUE_MAX = {LANE_CONTROL: 1024, LANE_ENTRIES: 512}
"""Messages that wait for one connection; beyond it the oldest one is dropped."""
UNSENT_BYTES_MAX = 2 * 1024 * 1024
SILENT_SECONDS = 5.0
"""A peer that answers nothing for so long is dialled again; one that has sent nothing for so long does not keep its id."""
SWEEP_SECONDS = 1.0
STRANGERS_MAX = 64
"""Connections that have not shaken hands yet; one more ends the oldest."""
FAREWELL_SECONDS = 1.0
COLD_BYTES = 256 * 1024
"""A slice this large may have left the page cache: a worker thread touches it before the event loop does."""


@attrs.define(eq=False)
class Link:
    """What goes to one peer on one lane."""

    links: Links
    peer: PeerId
    lane: int
    address: Address
    connected: bool = False
    refusal: str | None = None
    """Why the last attempt ended, if a person has to act."""
    sent_at: float = 0.0
    """When something was sent last, by the monotonic clock."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _connection: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _queue: deque[Message] = attrs.field(factory=deque[Message])
    _wake: trio.Event = attrs.field(factory=trio.Event)

    def send(self, message: Message) -> None:
        """Send in the background; dropped where there is no connection."""
        if not self.connected:
            return
        if len(self._queue) >= QUEUE_MAX[self.lane]:
            self._queue.popleft()
        self._queue.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Keep a connection to the peer until the scope is cancelled."""
        pause = RETRY_SECONDS_MIN
        with self.scope:
            while True:
                began = self.links.clock.monotonic()
                await self._connect_and_send()
                lasted = self.links.clock.monotonic() - began
                pause = RETRY_SECONDS_MIN if lasted > RETRY_SECONDS_MAX else min(2 * pause, RETRY_SECONDS_MAX)
                await trio.sleep(REFUSED_SECONDS if self.refusal is not None else pause)

    async def _connect_and_send(self) -> None:
        links = self.links
        try:
            with trio.fail_after(CONNECT_SECONDS):
                stream = await links.network.open_stream(self.address)
        except (OSError, trio.TooSlowError):
            return
        try:
            await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass
        except HaError as error:
            if self.refusal != str(error):
                self.refusal = str(error)
                links.refused(self.peer, self.address, error)
        finally:
            if self.connected:
                log.info("raft_peer_disconnected", peer=self.peer, address=str(self.address), lane=self.lane)
            self.connected = False
            self._queue.clear()
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: Stream) -> None:
        links = self.links
        nonce = links.nonce()
        dialler = Dialler(Hello(links.card, self.lane, self.peer, nonce), links.secret)
        with trio.fail_after(HANDSHAKE_SECONDS):
            await stream.send_all(dialler.opening())
            while not dialler.done:
                received = await stream.receive_some(4096)
                if not received:
                    return
                if answer := dialler.receive(bytes(received)):
                    await stream.send_all(answer)
        self.connected, self.refusal = True, None
        log.info("raft_peer_connected", peer=self.peer, address=str(self.address), lane=self.lane)
        if self.lane == LANE_ENTRIES:
            links.on_connected(self.peer)
        self._connection = trio.CancelScope()
        self.sent_at = links.clock.monotonic()
        async with trio.open_nursery() as nursery:
            self._connection = nursery.cancel_scope
            nursery.start_soon(self._notice_end, stream, nursery.cancel_scope)
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._send(stream)
            nursery.cancel_scope.cancel()

    def reconnect(self) -> None:
        """End the present connection; another one follows."""
        self._connection.cancel()

    async def _notice_end(self, stream: Stream, scope: trio.CancelScope) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.receive_some(1)  # a listener sends nothing more, so this is the end
        scope.cancel()

    async def _send(self, stream: Stream) -> None:
        queue = self._queue
        stream.keep_unsent(UNSENT_BYTES_MAX)
        while True:
            while queue:
                message = queue.popleft()
                if isinstance(message, Append) and message.batch is not None and message.batch.size_bytes >= COLD_BYTES:
                    await self.links.workers.run(crc32, message.batch.payload.entries)
                await stream.send_parts(encode_message(message))
                self.sent_at = self.links.clock.monotonic()
            self._wake = trio.Event()
            await self._wake.wait()


@attrs.define(eq=False)
class Accepted:
    """One connection that a peer has dialled."""

    stream: Stream
    scope: trio.CancelScope
    peer: PeerId | None = None
    node: bytes = b""
    lane: int = LANE_CONTROL
    heard: float = 0.0


@attrs.define(eq=False)
class Links:
    """All connections of one node."""

    identity: NodeCard
    beginning: Callable[[], LogBeginning]
    """Where the ledger begins, which the first entry decides."""
    secret: bytes
    network: Network
    clock: Clock
    workers: Workers
    secrets: Randomness
    deliver: Callable[[Message], None]
    """Takes each message that came."""
    on_connected: Callable[[PeerId], None]
    """Called when entries can be sent to a peer again."""
    on_disconnected: Callable[[PeerId], None]
    """Called when a connection over which a peer sent has ended, and no other one has taken its place."""
    outgoing: dict[tuple[PeerId, int], Link] = attrs.field(factory=dict[tuple[PeerId, int], Link])
    accepted: dict[Accepted, None] = attrs.field(factory=dict[Accepted, None])
    heard: dict[PeerId, float] = attrs.field(factory=dict[PeerId, float])
    """When each peer was heard last, by the monotonic clock."""
    serves: dict[PeerId, str] = attrs.field(factory=dict[PeerId, str])
    """Where the brokers of the peers serve clients, as each said when it connected last."""
    _nursery: trio.Nursery | None = None

    @property
    def card(self) -> NodeCard:
        """Who this node is now."""
        return attrs.evolve(self.identity, beginning=self.beginning())

    def nonce(self) -> bytes:
        return self.secrets.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE, "big")

    def refused(self, peer: PeerId | None, address: Address, error: HaError) -> None:
        """Log why a connection is of no use."""
        if isinstance(error, WrongRaftDialect):
            log.error("raft_peer_speaks_other_dialect", peer=peer, address=str(address), set_raft_dialect=error.theirs)
        else:
            log.error("raft_connection_refused", peer=peer, address=str(address), reason=str(error))

    def follow_members(self, addresses: dict[PeerId, Address]) -> None:
        """Dial these peers, and no others."""
        for (peer, lane), link in list(self.outgoing.items()):
            if addresses.get(peer) != link.address:
                link.scope.cancel()
                del self.outgoing[peer, lane]
        for peer, address in addresses.items():
            for lane in (LANE_CONTROL, LANE_ENTRIES):
                if peer != self.identity.peer and (peer, lane) not in self.outgoing:
                    link = self.outgoing[peer, lane] = Link(self, peer, lane, address)
                    if self._nursery is not None:
                        self._nursery.start_soon(link.run)

    def send(self, message: Message) -> None:
        """Send a message to its receiver, in the background."""
        link = self.outgoing.get((message.to, lane_of(message)))
        if link is not None:
            link.send(message)

    async def run(self, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; reports the port.

        Raises:
            OSError: the port is taken.
        """
        listeners = list(await self.network.open_listeners(host, port))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for link in self.outgoing.values():
                nursery.start_soon(link.run)
            nursery.start_soon(self._sweep)
            task_status.started(self.network.listener_port(listeners[0]))
            await trio.serve_listeners(self._accept, listeners)

    async def _sweep(self) -> None:
        """Dial peers again that answer nothing: the other end of the connection may be gone without a word."""
        while True:
            await trio.sleep(SWEEP_SECONDS)
            for (peer, _), link in self.outgoing.items():
                if link.connected and link.sent_at > self.heard.get(peer, 0.0) + SILENT_SECONDS:
                    log.warning("silent_raft_peer_dialled_again", peer=peer, address=str(link.address))
                    self.heard[peer] = self.clock.monotonic()
                    link.reconnect()

    async def _accept(self, stream: Stream) -> None:
        accepted = Accepted(stream, trio.CancelScope(), heard=self.clock.monotonic())
        strangers = [one for one in self.accepted if one.peer is None]
        if len(strangers) >= STRANGERS_MAX:
            log.warning("raft_strangers_limit_reached", remote=str(strangers[0].stream.peer), strangers_max=STRANGERS_MAX)
            strangers[0].scope.cancel()
        self.accepted[accepted] = None
        try:
            with accepted.scope:
                await self._serve(accepted)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            pass
        except HaError as error:
            self.refused(accepted.peer, stream.peer, error)
        finally:
            del self.accepted[accepted]
            if (peer := accepted.peer) is not None and all(other.peer != peer for other in self.accepted):
                self.on_disconnected(peer)
            await trio.aclose_forcefully(stream)

    async def _serve(self, accepted: Accepted) -> None:
        stream = accepted.stream
        listener = Listener(self.card, self.secret, self.nonce(), self._judge)
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                while listener.peer is None:
                    received = await stream.receive_some(4096)
                    if not received:
                        return
                    if answer := listener.receive(bytes(received)):
                        await stream.send_all(answer)
        except (HaRefused, HaProtocolError):
            with trio.move_on_after(FAREWELL_SECONDS):
                if listener.farewell:
                    await stream.send_all(listener.farewell)
            raise
        hello = listener.peer
        accepted.peer, accepted.node, accepted.lane = PeerId(hello.card.peer), hello.card.node, hello.lane
        self.serves[accepted.peer] = hello.card.serves
        self._replace_former(accepted)
        await self._receive(accepted, listener.rest)

    def _judge(self, hello: Hello) -> str | None:
        """Why a node that knows the secret may not join in."""
        now = self.clock.monotonic()
        for other in self.accepted:
            if other.peer == hello.card.peer and other.node != hello.card.node and now - other.heard < SILENT_SECONDS:
                return (
                    f"two nodes of group {self.identity.group} have the id {hello.card.peer}, the other one at "
                    f"{other.stream.peer}: give each its own dLegerSelfId"
                )
        return None

    def _replace_former(self, accepted: Accepted) -> None:
        """A peer has one connection per lane; an earlier one is half-open, or its end was not noticed yet."""
        for other in list(self.accepted):
            if other is not accepted and (other.peer, other.lane) == (accepted.peer, accepted.lane):
                other.scope.cancel()

    async def _receive(self, accepted: Accepted, rest: bytes) -> None:
        reader, stream, peer = FrameReader.for_lane(accepted.lane), accepted.stream, accepted.peer
        assert peer is not None
        own = PeerId(self.identity.peer)
        frames = reader.feed(rest)
        while True:
            for kind, content in frames:
                self.deliver(decode_message(kind, content, peer, own, lambda body: read_configuration(body).configuration))
            count = await stream.receive_into(reader.room())
            if not count:
                return
            accepted.heard = self.heard[peer] = self.clock.monotonic()
            frames = reader.received(count)
