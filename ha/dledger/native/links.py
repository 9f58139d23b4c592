"""Connections of the native dialect: one task per peer and lane dials and sends, one per accepted connection receives.

Votes, heartbeats and answers have a separate connection, so that they never wait behind entries. A message that cannot be sent
is dropped, because the Raft core repeats every message that matters.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

import attrs
import trio

from ....world.clock import Clock
from ....world.events import get_logger
from ....world.network import Address, Network, Stream
from ....world.randomness import Randomness
from ....world.ticks import next_tick
from ....world.workers import Workers
from ...envelopes import NONCE_SIZE
from ...errors import DamagedEntry, HaError, HaProtocolError, HaRefused, WrongRaftDialect
from ...raft.messages import Append, AppendResponse, HeartbeatResponse, Message, PreVoteResponse, VoteResponse
from ...raft.quorum import Configuration
from ...raft.units import LogIndex, PeerId, Term
from .frames import (
    KIND_ENTRY_DAMAGED,
    FrameReader,
    answered_lane,
    asks_for_answer,
    decode_mending_message,
    decode_message,
    encode_message,
    lane_of,
)
from .group_records import read_configuration
from .handshake import UNKNOWN, Dialler, Hello, Listener, LogBeginning, NodeCard, challenge_of
from .layout import LANE_CONTROL, LANE_ENTRIES
from .mending_messages import MendingMessage

log = get_logger(__name__)

HANDSHAKE_SECONDS = 2.0
"""Time-out of the handshake; then the connection is closed."""
CONNECT_SECONDS = 1.0
"""Time-out for connecting to a peer; then the attempt counts as failed."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 1.0
"""The first and the longest pause after a failed connection, in seconds; the pause doubles with each failure."""
REFUSED_SECONDS = 3.0
"""Pause after a refusal, in seconds; it is long because an operator has to act."""
REFUSAL_SHOWN_SECONDS = 3 * REFUSED_SECONDS
"""For how long the status shows why a node that dialled was refused."""
TURNED_AWAY_MAX = 8
"""How many such reasons are kept; a further one replaces the oldest."""
QUEUE_MAX = {LANE_CONTROL: 1024, LANE_ENTRIES: 512}
"""How many messages may wait for one connection; a further one drops the oldest."""
UNSENT_BYTES_MAX = 2 * 1024 * 1024
"""How many unsent bytes the kernel buffers for one connection; then sending waits."""
SILENT_SECONDS = 5.0
"""A connection on which a peer has not answered for this long is replaced, and another node may then connect with its id."""
SLOWEST_BYTES = 100_000
"""How many bytes a second a connection carries at least; one that is slower with a large message counts as silent."""
SWEEP_SECONDS = 1.0
"""Interval at which such connections are looked for."""
CONFIRMED_SECONDS = 2.0
"""For how long after a sign of life of the node at an address another start of the same node is refused without asking there
again. It is longer than the pause before a node dials again whose connection was closed."""
STRANGERS_MAX = 64
"""How many connections may be in the handshake; a further one ends the oldest."""
FAREWELL_SECONDS = 1.0
"""Time-out for sending the reason of a refusal; then the connection is closed without it."""
AT_ONCE_BYTES = 16 * 1024
"""A message with at most this many bytes of entries is sent at once, if no other message waits."""
COLD_BYTES = 256 * 1024
"""A slice of at least this many bytes may be out of the page cache, so a worker thread computes its checksum and reads it
thereby before the event loop does."""
_TO_LEADERS = (AppendResponse, HeartbeatResponse, VoteResponse, PreVoteResponse)
"""What a node sends to whoever leads or campaigns."""


@attrs.define(eq=False)
class Link:
    """The outgoing connection to one peer on one lane."""

    links: Links
    peer: PeerId
    lane: int
    address: Address
    connected: bool = False
    refusal: str | None = None
    """Why the last attempt ended, if an operator has to act."""
    node: bytes = b""
    start: bytes = UNKNOWN
    """The node at the address and its start, as its last welcome named them."""
    connected_at: float = 0.0
    unanswered_since: float | None = None
    """The time of the first message since the last answer that needs one, by the monotonic clock, later by what its entries may
    take; None if all are answered."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _connection: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _queue: deque[Message | MendingMessage] = attrs.field(factory=deque["Message | MendingMessage"])
    _rest: bytes = b""
    """What remains to be sent of the message that was sent at once."""
    _idle: Stream | None = None
    """The connection, while nothing waits to be sent."""
    _wake: trio.Event = attrs.field(factory=trio.Event)

    def send(self, message: Message | MendingMessage) -> None:
        """Send at once what is short and needs not wait, the rest in the background; without a connection it is dropped."""
        if not self.connected:
            return
        if self._idle is not None and _entries_size(message) <= AT_ONCE_BYTES:
            frame = b"".join(encode_message(message))
            self._rest = frame[self._idle.send_now(frame) :]
            self._note_sent(message)
            if self._rest:
                self._stop_idling()
            return
        self._stop_idling()
        if len(self._queue) >= QUEUE_MAX[self.lane]:
            self._queue.popleft()
        self._queue.append(message)

    def _stop_idling(self) -> None:
        self._idle = None
        self._wake.set()

    def _note_sent(self, message: Message | MendingMessage) -> None:
        if self.unanswered_since is None and asks_for_answer(message):
            self.unanswered_since = self.links.clock.monotonic() + _entries_size(message) / SLOWEST_BYTES

    async def run(self) -> None:
        """Keep a connection to the peer open until the scope is cancelled."""
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
            self._rest, self._idle, self.unanswered_since = b"", None, None
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
        self.node, self.start, self.connected_at = dialler.listener_node, dialler.listener_start, links.clock.monotonic()
        links.end_copies(self.peer, self.start)
        log.info("raft_peer_connected", peer=self.peer, address=str(self.address), lane=self.lane)
        if self.lane == LANE_ENTRIES:
            links.on_connected(self.peer)
        self._connection = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            self._connection = nursery.cancel_scope
            nursery.start_soon(self._notice_end, stream, nursery.cancel_scope)
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._send(stream)
            nursery.cancel_scope.cancel()

    def reconnect(self) -> None:
        """Close the current connection; `run` then opens a new one."""
        self._connection.cancel()

    async def _notice_end(self, stream: Stream, scope: trio.CancelScope) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.receive_some(1)  # a listener sends nothing more, so this returns when the connection ends
        scope.cancel()

    async def _send(self, stream: Stream) -> None:
        queue = self._queue
        stream.keep_unsent(UNSENT_BYTES_MAX)
        while True:
            if self._rest:
                rest, self._rest = self._rest, b""
                await stream.send_all(rest)
            while queue:
                message = queue.popleft()
                if _entries_size(message) >= COLD_BYTES:
                    parts = await self.links.workers.run(encode_message, message)
                else:
                    parts = encode_message(message)
                self._note_sent(message)
                await stream.send_parts(parts)
            self._wake = trio.Event()
            self._idle = stream
            await self._wake.wait()


def _address_in(hello: Hello) -> Address | None:
    try:
        return Address.parse(hello.card.address)
    except ValueError:
        return None


def _configuration_in(body: bytes) -> Configuration:
    return read_configuration(body).configuration


def _entries_size(message: Message | MendingMessage) -> int:
    """The bytes of the entries in a message."""
    return message.batch.size_bytes if isinstance(message, Append) and message.batch is not None else 0


@attrs.define(eq=False)
class Accepted:
    """One connection that a peer has dialled."""

    stream: Stream
    scope: trio.CancelScope
    peer: PeerId | None = None
    node: bytes = b""
    start: bytes = UNKNOWN
    lane: int = LANE_CONTROL
    heard: float = 0.0
    address: Address | None = None
    """Where the peer listens, if it has said so."""


@attrs.define(eq=False)
class Links:
    """All connections of one node."""

    identity: NodeCard
    beginning: Callable[[], LogBeginning]
    """Returns the beginning of the ledger, which is known from the first entry on."""
    group_id: Callable[[], bytes]
    """Returns the id of the group, which is known once its first configuration is committed here."""
    secret: bytes
    network: Network
    clock: Clock
    workers: Workers
    secrets: Randomness
    deliver: Callable[[Message], None]
    """Called with each received message; it raises HaRefused if the connection must be closed and an operator has to act."""
    on_delivered: Callable[[], None]
    """Called after the messages that were received together."""
    on_connected: Callable[[PeerId], None]
    """Called when entries can be sent to a peer again."""
    on_disconnected: Callable[[PeerId], None]
    """Called when the last connection from a peer has ended."""
    on_damaged: Callable[[PeerId, Term, LogIndex], None]
    """Called with the sender, term and index of a received entry that was damaged where the sender stored it."""
    on_mending: Callable[[MendingMessage], None]
    """Called with each received message about damaged entries."""
    outgoing: dict[tuple[PeerId, int], Link] = attrs.field(factory=dict[tuple[PeerId, int], Link])
    accepted: dict[Accepted, None] = attrs.field(factory=dict[Accepted, None])
    turned_away: dict[str, float] = attrs.field(factory=dict[str, float])
    """Why nodes that dialled were refused, if an operator has to act, and when that was last so."""
    serves: dict[PeerId, str] = attrs.field(factory=dict[PeerId, str])
    """The addresses where the peers' brokers serve clients, each from the peer's last handshake."""
    _members: dict[PeerId, Address] = attrs.field(factory=dict[PeerId, Address])
    _asking: dict[PeerId, Address] = attrs.field(factory=dict[PeerId, Address])
    """Those that lead or campaign, wait for answers and are no members here."""
    _nursery: trio.Nursery | None = None

    @property
    def card(self) -> NodeCard:
        """The card of this node, with the current beginning of its ledger."""
        return attrs.evolve(self.identity, beginning=self.beginning(), group_id=self.group_id())

    def nonce(self) -> bytes:
        return self.secrets.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE, "big")

    def refused(self, peer: PeerId | None, address: Address, error: HaError) -> None:
        """Log why a connection was refused or had to be closed."""
        if isinstance(error, WrongRaftDialect):
            log.error("raft_peer_speaks_other_dialect", peer=peer, address=str(address), set_raft_dialect=error.theirs)
        else:
            log.error("raft_connection_refused", peer=peer, address=str(address), reason=str(error))

    def refusals(self) -> tuple[str, ...]:
        """Why nodes that dial are refused or not answered at present."""
        now = self.clock.monotonic()
        refused = [reason for reason, last in self.turned_away.items() if now - last < REFUSAL_SHOWN_SECONDS]
        strangers = {accepted.peer: accepted.stream.peer.host for accepted in self.accepted if accepted.peer is not None}
        return (
            *refused,
            *(
                f"node {peer} at {host} is no member of group {self.identity.group} here: let it join with `ledgermq dledger "
                "add`, or correct dLegerGroup or dLegerPeers there"
                for peer, host in sorted(strangers.items())
                if peer not in self._members
            ),
        )

    def _turn_away(self, host: str, error: HaError) -> None:
        if isinstance(error, HaRefused | WrongRaftDialect):
            reason = f"a node at {host} is refused: {error}"
            self.turned_away.pop(reason, None)
            self.turned_away[reason] = self.clock.monotonic()
            if len(self.turned_away) > TURNED_AWAY_MAX:
                del self.turned_away[next(iter(self.turned_away))]

    def follow_members(self, addresses: dict[PeerId, Address]) -> None:
        """Keep connections to these peers, and to those that wait for answers; close the others."""
        self._members = addresses
        self._follow()

    def _follow(self) -> None:
        addresses = self._asking | self._members
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

    def send(self, message: Message | MendingMessage) -> None:
        """Send a message to its receiver, in the background."""
        link = self.outgoing.get((message.to, lane_of(message)))
        if link is not None:
            link.send(message)
        elif isinstance(message, _TO_LEADERS):
            self._dial_back(message.to)

    def _dial_back(self, peer: PeerId) -> None:
        """Dial who leads or campaigns and is no member here, as long as it is connected; its next message gets an answer.

        It may be a member by entries that are missing here. It can send these, or be elected, only if it gets answers.
        """
        addresses = [one.address for one in self.accepted if one.peer == peer and one.address is not None]
        if addresses:
            self._asking[peer] = addresses[-1]
            self._follow()

    async def run(self, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and dial until cancelled; `started` returns the port.

        Raises:
            OSError: the port is in use.
        """
        listeners = list(await self.network.open_listeners(host, port))
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for link in self.outgoing.values():
                    nursery.start_soon(link.run)
                nursery.start_soon(self._sweep)
                task_status.started(self.network.listener_port(listeners[0]))
                await trio.serve_listeners(self._accept, listeners)
            finally:
                self._nursery = None  # a node that is ending dials no more; its last write may end after this

    async def _sweep(self) -> None:
        """Replace connections that carry nothing, because the peer may have disappeared without closing them.

        After a long cut, TCP retries so rarely that a connection stays silent for as long as the cut lasted, although a new one
        would work. One connection to a peer may be silent while the others are not, so each is judged by the answers to what
        it carried. The answers themselves come over a connection that the peer has dialled; closing it makes the peer dial
        again.
        """
        while True:
            await next_tick(SWEEP_SECONDS)
            now = self.clock.monotonic()
            for (peer, lane), link in self.outgoing.items():
                since = link.unanswered_since
                if link.connected and since is not None and now - since > SILENT_SECONDS:
                    log.warning("silent_raft_peer_dialled_again", peer=peer, address=str(link.address), lane=lane)
                    link.reconnect()
                    for accepted in self.accepted:
                        if lane == LANE_CONTROL and accepted.peer == peer:
                            accepted.scope.cancel()

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
            self._turn_away(stream.peer.host, error)
        finally:
            del self.accepted[accepted]
            if (peer := accepted.peer) is not None and all(other.peer != peer for other in self.accepted):
                self.on_disconnected(peer)
                if self._asking.pop(peer, None) is not None:
                    self._follow()
            await trio.aclose_forcefully(stream)

    async def _serve(self, accepted: Accepted) -> None:
        stream = accepted.stream
        listener = Listener(self.card, self.secret, challenge_of(self.nonce()), self._judge)
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
        if self._may_be_a_copy(PeerId(hello.card.peer), hello.card.start):
            return  # whoever it is dials again; by then it is known which start listens at the node's address
        accepted.peer, accepted.node, accepted.lane = PeerId(hello.card.peer), hello.card.node, hello.lane
        accepted.start = hello.card.start
        self.serves[accepted.peer] = hello.card.serves
        accepted.address = _address_in(hello)
        self._replace_former(accepted)
        await self._receive(accepted, listener.rest)

    def _judge(self, hello: Hello) -> str | None:
        """Return why a node that knows the secret is refused, or None."""
        now = self.clock.monotonic()
        for other in self.accepted:
            if other.peer == hello.card.peer and other.node != hello.card.node and now - other.heard < SILENT_SECONDS:
                return (
                    f"two nodes of group {self.identity.group} have the id {hello.card.peer}, the other one at "
                    f"{other.stream.peer}: give each its own dLegerSelfId"
                )
        link = self._of_another_start(PeerId(hello.card.peer), hello.card.start)
        if link is None or now - self._last_sign(link) >= CONFIRMED_SECONDS:
            return None
        if link.node != hello.card.node:
            return (
                f"two nodes of group {self.identity.group} have the id {hello.card.peer}, the other one at {link.address}: "
                "give each its own dLegerSelfId"
            )
        return (
            f"node {hello.card.peer} of group {self.identity.group} runs at {link.address} already: what dials was started "
            "from a copy of its store. Stop it; a node must begin with an empty store, which the leader fills"
        )

    def _last_sign(self, link: Link) -> float:
        """When the start of a node that listens at its address last sent something here, by the monotonic clock."""
        heard = [one.heard for one in self.accepted if one.peer == link.peer and one.start == link.start]
        return max(link.connected_at, *heard, 0.0)

    def _of_another_start(self, peer: PeerId, start: bytes) -> Link | None:
        """The connection to the address of a peer, if another start than this one listens there."""
        for lane in (LANE_CONTROL, LANE_ENTRIES):
            link = self.outgoing.get((peer, lane))
            if link is not None and link.connected and UNKNOWN not in (start, link.start) and link.start != start:
                return link
        return None

    def _may_be_a_copy(self, peer: PeerId, start: bytes) -> bool:
        """Whether an older connection to the peer's address found another start there; connections to it are then opened anew.

        The node may have started again, and that connection did not notice, because its machine lost power.
        """
        if self._of_another_start(peer, start) is None:
            return False
        for lane in (LANE_CONTROL, LANE_ENTRIES):
            if (link := self.outgoing.get((peer, lane))) is not None:
                link.reconnect()
        return True

    def end_copies(self, peer: PeerId, start: bytes) -> None:
        """Close the connections from other starts of a peer than the one that listens at its address."""
        for accepted in list(self.accepted):
            if accepted.peer == peer and UNKNOWN not in (start, accepted.start) and accepted.start != start:
                accepted.scope.cancel()

    def _replace_former(self, accepted: Accepted) -> None:
        """Close an earlier connection of the same peer and lane, which is half-open or whose end was not noticed yet."""
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
                if kind >= KIND_ENTRY_DAMAGED:
                    self.on_mending(decode_mending_message(kind, content, peer, own))
                    continue
                try:
                    message = decode_message(kind, content, peer, own, _configuration_in)
                except DamagedEntry as error:
                    self.on_damaged(peer, error.term, error.index)
                    continue
                answered = answered_lane(message)
                if answered is not None and (peer, answered) in self.outgoing:
                    self.outgoing[peer, answered].unanswered_since = None
                self.deliver(message)
            if frames:
                self.on_delivered()
            count = await stream.receive_into(reader.room())
            if not count:
                return
            accepted.heard = self.clock.monotonic()
            frames = reader.received(count)
