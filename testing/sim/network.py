"""A network in memory, with delays, lost, half-open and forgotten connections, partitions, one-way cuts, and failing hosts.

Connections behave as in TCP: bytes arrive in order and once, in pieces of any size, or the connection breaks. A path that is
cut delivers nothing; what is in transit arrives when the path is healed, unless the sender has given up before. A machine that
loses power closes no connection: its peers' connections stay half-open until they send. A connection that a middlebox has
forgotten delivers nothing more, and neither end notices. A host that hangs accepts connections and what fits into its socket
buffers, and does nothing; one that swallows packets behaves as if it were off. Satisfies `Network`.
"""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio
from trio.abc import Listener

from ...world.network import BACKLOG, Address, Stream
from .processor import SimProcessor

SEND_BUFFER_BYTES = 65_536
LONG_DELAY_SECONDS = 0.01
"""Bytes that take longer count as an injected delay."""
GIVE_UP_SECONDS = 15.0
"""How long a sender keeps trying on a path that delivers nothing, and how long a connection attempt waits."""
FORGOTTEN_GIVE_UP_SECONDS = 900.0
"""How long a sender keeps trying on a connection that a middlebox has forgotten: about as long as Linux does."""
FIRST_FREE_PORT = 40_000


@attrs.define(eq=False)
class _Direction:
    """Bytes in transit from one end to the other."""

    fabric: SimFabric
    source: str
    target: str
    chunks: deque[tuple[float, bytes]] = attrs.field(factory=deque[tuple[float, bytes]])
    buffered: int = 0
    last_at: float = 0.0
    finished: bool = False
    """Whether the sender has closed, so that the stream ends behind the last chunk."""
    doomed_at: float | None = None
    """When the sender notices that its peer is gone."""
    forgotten: bool = False
    """Whether a middlebox drops everything that is sent here."""
    changed: trio.Event = attrs.field(factory=trio.Event)

    @property
    def blocked(self) -> bool:
        return self.fabric.is_cut(self.source, self.target)

    @property
    def stalled(self) -> bool:
        """Whether bytes in transit cannot be received now."""
        return self.blocked or self.forgotten or not self.fabric.hanging.isdisjoint((self.source, self.target))

    def notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def put(self, data: bytes) -> None:
        fabric, now = self.fabric, trio.current_time()
        self.last_at = max(self.last_at, fabric.handled_at(self.source, now) + fabric.delay())
        if self.last_at - now > LONG_DELAY_SECONDS:
            fabric.count("delay")
        if self.last_at < fabric.latest_at:
            fabric.count("reordering")
        fabric.latest_at = max(fabric.latest_at, self.last_at)
        self.chunks.append((self.last_at, data))
        self.buffered += len(data)
        self.notify()

    def arrives_at(self) -> float:
        """When the target can read the first bytes in transit."""
        return self.fabric.handled_at(self.target, self.chunks[0][0])

    def take(self, size_max: int) -> bytes:
        at, data = self.chunks.popleft()
        if len(data) > size_max:
            self.chunks.appendleft((at, data[size_max:]))
            data = data[:size_max]
        self.buffered -= len(data)
        self.notify()
        return data

    def drop(self) -> None:
        """Drop what has not arrived at the target's machine."""
        now = trio.current_time()
        while self.chunks and (self.blocked or self.forgotten or self.chunks[-1][0] > now):
            self.buffered -= len(self.chunks.pop()[1])

    def given_up_at(self) -> float | None:
        """When the sender breaks the connection if nothing changes; None if it does not."""
        if self.forgotten:
            return self.chunks[0][0] + FORGOTTEN_GIVE_UP_SECONDS if self.chunks else None
        if self.blocked and self.chunks:
            stuck = self.chunks[0][0] + GIVE_UP_SECONDS
            return stuck if self.doomed_at is None else min(stuck, self.doomed_at)
        return self.doomed_at


@attrs.define(eq=False)
class SimStream(Stream):
    """One end of a connection."""

    fabric: SimFabric
    _local: Address
    _peer: Address
    incoming: _Direction
    outgoing: _Direction
    other: SimStream | None = None
    closed: bool = False
    broken: bool = False
    vanished: bool = False
    """Whether its machine has lost power."""
    _drops: bool = False
    """Whether closing drops what has not arrived."""
    _sending: bool = False
    _receiving: bool = False

    @property
    def local(self) -> Address:
        return self._local

    @property
    def peer(self) -> Address:
        return self._peer

    def _check(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError
        given_up = self.outgoing.given_up_at()
        if given_up is not None and trio.current_time() >= given_up:
            self.broken = True
        if self.broken or self.vanished:
            raise trio.BrokenResourceError("the simulated connection is lost")

    # As with `TcpStream`, a send yields to the scheduler only if the peer is slow, and a receive that waits yields.

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is sending")
        self._sending = True
        try:
            rest = bytes(data)
            self._check()
            while rest:
                self._check_peer()
                if sent := self._put(rest):
                    rest = rest[sent:]
                else:
                    await self._wait(self.outgoing, None)
        finally:
            self._sending = False

    async def send_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        await self.send_all(b"".join(parts))

    def send_now(self, data: bytes) -> int:
        assert not self._sending, "another task is sending"
        try:
            self._check()
            self._check_peer()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return 0
        return self._put(self.fabric.part_to_send(data))

    def _put(self, data: bytes) -> int:
        """Send as much as the send buffer has room for; returns how much."""
        room = self.fabric.send_buffer_bytes - self.outgoing.buffered
        if room <= 0 or not data:
            return 0
        if room < len(data):
            self.fabric.count("short_write")
        self.outgoing.put(data[:room])
        return min(room, len(data))

    def _check_peer(self) -> None:
        other = self.other
        assert other is not None
        gone = other.vanished or (other.closed and not self.outgoing.stalled)
        if gone and not self.outgoing.forgotten and self.outgoing.doomed_at is None:
            # A machine that does not know the connection, or has closed it, resets it; one that is off does not answer.
            wait = self.fabric.delay() if self.peer.host in self.fabric.machines_on else GIVE_UP_SECONDS
            self.outgoing.doomed_at = trio.current_time() + wait
            self.incoming.notify()
        self._check()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        self._check()
        while self.outgoing.buffered >= self.fabric.send_buffer_bytes:
            await self._wait(self.outgoing, None)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await self._wait_readable()
        return self._take(max_bytes or SEND_BUFFER_BYTES)

    async def receive_into(self, buffer: memoryview) -> int:
        await self._wait_readable()
        received = self._take(len(buffer))
        buffer[: len(received)] = received
        return len(received)

    def receive_now(self, buffer: memoryview) -> int | None:
        assert not self._receiving, "another task is receiving"
        try:
            self._check()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        if not self._readable:
            return None
        received = self._take(len(buffer))
        buffer[: len(received)] = received
        return len(received)

    @property
    def _readable(self) -> bool:
        """Whether data, or the end of it, has arrived."""
        incoming = self.incoming
        if incoming.stalled:
            return False
        return incoming.arrives_at() <= trio.current_time() if incoming.chunks else incoming.finished

    def _take(self, size_max: int) -> bytes:
        """Data that has arrived; b"" at the end of the stream."""
        chunks = self.incoming.chunks
        if not chunks:
            return b""
        size = self.fabric.piece(size_max)
        if size < len(chunks[0][1]):
            self.fabric.count("short_read")
        return self.incoming.take(size)

    async def _wait_readable(self) -> None:
        if self._receiving:
            raise trio.BusyResourceError("another task is receiving")
        self._receiving = True
        try:
            await trio.lowlevel.checkpoint()
            self._check()
            incoming = self.incoming
            while not self._readable:
                ready_at = incoming.arrives_at() if incoming.chunks else None
                await self._wait(incoming, None if incoming.stalled else ready_at)
        finally:
            self._receiving = False

    async def _wait(self, direction: _Direction, until: float | None) -> None:
        given_up = self.outgoing.given_up_at()
        deadlines = [time for time in (until, given_up) if time is not None]
        changed = direction.changed
        if deadlines:
            with trio.move_on_at(min(deadlines)):
                await changed.wait()
        else:  # a scope that never ends the wait would cost as much as the wait
            await changed.wait()
        self._check()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def drop_undelivered(self) -> None:
        self._drops = True

    def close(self) -> None:
        """Close as the operating system does for a process that ends."""
        if not self.closed:
            self.closed = True
            self.fabric.streams.pop(self, None)
            if self._drops:
                self.outgoing.drop()
            self.outgoing.finished = True
            self.outgoing.notify()
            self.incoming.notify()

    def lose(self) -> None:
        """Break the connection for this end."""
        self.broken = True
        self.incoming.notify()
        self.outgoing.notify()


@attrs.define(eq=False)
class SimListener(Listener[Stream]):
    """Accepts connections to one port of one machine."""

    fabric: SimFabric
    address: Address
    _send: trio.MemorySendChannel[SimStream]
    _receive: trio.MemoryReceiveChannel[SimStream]

    async def accept(self) -> Stream:
        return await self._receive.receive()

    def deliver(self, stream: SimStream) -> None:
        self._send.send_nowait(stream)

    async def aclose(self) -> None:
        with suppress(trio.WouldBlock, trio.ClosedResourceError):
            while True:  # the operating system resets the connections that nobody has accepted
                waiting = self._receive.receive_nowait()
                waiting.close()
                if waiting.other is not None:
                    waiting.other.lose()
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        if self.fabric.listeners.get(self.address) is self:
            del self.fabric.listeners[self.address]
        self._receive.close()


@attrs.define(eq=False)
class SimFabric:
    """The network of all machines."""

    rng: random.Random = attrs.field(factory=lambda: random.Random(0))  # noqa: S311 - never secrets
    delay_seconds: tuple[float, float] = (0.0001, 0.001)
    short_reads: float = 0.1
    """The probability that a read returns less than has arrived."""
    short_sends: float = 0.05
    """The probability that a send that may not wait sends less than there is room for."""
    send_buffer_bytes: int = SEND_BUFFER_BYTES
    """How many bytes may be in transit in one direction; a larger send waits until the receiver has read."""
    cuts: set[tuple[str, str]] = attrs.field(factory=set[tuple[str, str]])
    """Pairs of hosts: nothing is delivered from the first to the second."""
    swallowing: set[str] = attrs.field(factory=set[str])
    """Hosts from and to which nothing is delivered."""
    hanging: set[str] = attrs.field(factory=set[str])
    """Hosts that receive what is sent to them, but neither read nor answer it."""
    safe: set[str] = attrs.field(factory=set[str])
    """Hosts between which no connection is ever broken or forgotten."""
    listeners: dict[Address, SimListener] = attrs.field(factory=dict[Address, SimListener])
    streams: dict[SimStream, None] = attrs.field(factory=dict[SimStream, None])
    machines_on: set[str] = attrs.field(factory=set[str])
    processors: dict[str, SimProcessor] = attrs.field(factory=dict[str, SimProcessor])
    """The processors of the hosts whose work may take time."""
    injected: dict[str, int] = attrs.field(factory=dict[str, int])
    """How often each fault happened."""
    latest_at: float = 0.0
    """When the last of all bytes in transit, on any connection, arrive."""
    _next_port: int = FIRST_FREE_PORT

    def machine(self, host: str) -> SimNetwork:
        """The network as the machine `host` sees it; also after it lost power and was switched on again."""
        self.machines_on.add(host)
        return SimNetwork(self, host)

    def left_open(self, host: str) -> list[str]:
        """The listeners and connections that a host has open, which are none after a process has closed what it opened."""
        listeners = [f"listener on port {address.port}" for address in self.listeners if address.host == host]
        return listeners + [f"connection to {stream.peer}" for stream in self.streams if stream.local.host == host]

    def handled_at(self, host: str, at: float) -> float:
        """When the processor of a host handles what happens there at a time."""
        processor = self.processors.get(host)
        return at if processor is None else processor.handled_at(at)

    def delay(self) -> float:
        low, high = self.delay_seconds
        return low + (high - low) * self.rng.random() ** 2

    def piece(self, size_max: int) -> int:
        return 1 + self.rng.randrange(min(size_max, 100)) if self.rng.random() < self.short_reads else size_max

    def part_to_send(self, data: bytes) -> bytes:
        """The part of `data` that a send that may not wait sends: sometimes not all of it."""
        if not data or self.rng.random() >= self.short_sends:
            return data
        self.count("short_send")
        return data[: self.rng.randrange(len(data))]

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def count(self, kind: str) -> None:
        self.injected[kind] = self.injected.get(kind, 0) + 1

    # ---------------------------------------------------------------- faults

    def cut(self, source: str, target: str) -> None:
        """Deliver nothing from `source` to `target`; the other direction is not changed."""
        if (source, target) not in self.cuts:
            self.count("one_way_cut")
        self.cuts.add((source, target))
        self._notify_all()

    def part(self, some: Sequence[str], others: Sequence[str]) -> None:
        """Deliver nothing between the two groups."""
        self.count("partition")
        for one in some:
            for other in others:
                self.cuts |= {(one, other), (other, one)}
        self._notify_all()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing is delivered from one host to another."""
        return (source, target) in self.cuts or not self.swallowing.isdisjoint((source, target))

    def swallow(self, host: str) -> None:
        """Deliver nothing from and to a host, until `spare`."""
        self.count("swallowing_host")
        self.swallowing.add(host)
        self._notify_all()

    def hang(self, host: str) -> None:
        """Let a host do nothing, while its connections stay open, until `spare`."""
        self.count("hanging_host")
        self.hanging.add(host)
        self._notify_all()

    def spare(self, host: str) -> None:
        """Let a host work again that hangs or swallows packets."""
        self.swallowing.discard(host)
        self.hanging.discard(host)
        self._notify_all()

    def heal(self) -> None:
        """Remove all cuts."""
        self.cuts.clear()
        self._notify_all()

    def _notify_all(self) -> None:
        for stream in self.streams:
            stream.incoming.notify()
            stream.outgoing.notify()

    def lose_connection(self) -> None:
        """Break a random connection at both ends."""
        if (stream := self._any_stream()) is not None:
            self.count("connection_lost")
            assert stream.other is not None
            stream.lose()
            stream.other.lose()

    def lose_one_end(self) -> None:
        """Remove one end of a random connection; the other stays half-open until it sends."""
        if (stream := self._any_stream()) is not None:
            self._vanish(stream)

    def forget_connection(self) -> None:
        """Let a middlebox forget a random connection: it delivers nothing more, and neither end notices."""
        if (stream := self._any_stream()) is not None:
            self.count("forgotten_connection")
            for direction in (stream.incoming, stream.outgoing):
                direction.forgotten = True
                direction.notify()

    def _any_stream(self) -> SimStream | None:
        streams = [stream for stream in self.streams if not {stream.local.host, stream.peer.host} <= self.safe]
        return self.rng.choice(streams) if streams else None

    def _vanish(self, stream: SimStream) -> None:
        assert stream.other is not None
        if not stream.other.closed:
            self.count("half_open")
        stream.vanished = True
        self.streams.pop(stream, None)
        stream.incoming.notify()
        stream.outgoing.notify()

    def power_off(self, host: str) -> None:
        """Switch a machine off without notice to its peers."""
        self.count("power_off")
        self.machines_on.discard(host)
        for address in [address for address in self.listeners if address.host == host]:
            self.listeners[address].close()
        for stream in [stream for stream in self.streams if stream.local.host == host]:
            self._vanish(stream)

    def end_process(self, host: str) -> None:
        """Close all that a killed process had open."""
        self.count("process_end")
        for address in [address for address in self.listeners if address.host == host]:
            self.listeners[address].close()
        for stream in [stream for stream in self.streams if stream.local.host == host]:
            stream.close()


@attrs.frozen
class SimNetwork:
    """The network as one machine sees it."""

    fabric: SimFabric
    host: str

    async def open_stream(self, address: Address) -> Stream:
        fabric = self.fabric
        await trio.sleep(fabric.delay())
        cut = fabric.is_cut(self.host, address.host) or fabric.is_cut(address.host, self.host)
        if address.host not in fabric.machines_on or cut:
            await trio.sleep(GIVE_UP_SECONDS)
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        listener = fabric.listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        local = Address(self.host, fabric.free_port())
        there, back = _Direction(fabric, self.host, address.host), _Direction(fabric, address.host, self.host)
        ours = SimStream(fabric, local, address, back, there)
        theirs = SimStream(fabric, address, local, there, back)
        ours.other, theirs.other = theirs, ours
        try:
            listener.deliver(theirs)
        except (trio.WouldBlock, trio.BrokenResourceError):
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)) from None
        fabric.streams[ours] = fabric.streams[theirs] = None
        try:
            await trio.sleep(fabric.delay())
        except trio.Cancelled:
            ours.close()
            raise
        return ours

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        await trio.lowlevel.checkpoint()
        if host not in ("", "0.0.0.0", self.host):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        address = Address(self.host, port or self.fabric.free_port())
        if address in self.fabric.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        send, receive = trio.open_memory_channel[SimStream](BACKLOG)
        listener = self.fabric.listeners[address] = SimListener(self.fabric, address, send, receive)
        return [listener]

    def listener_port(self, listener: Listener[Stream]) -> int:
        assert isinstance(listener, SimListener)
        return listener.address.port

    def own_host(self) -> str:
        return self.host
