"""Nodes of a classic group in one process: simulated disks, a network of lines that can be cut and stalled, virtual time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import trio
import trio.testing
from trio.abc import Listener

from ledgermq.ha.classic.authenticated import AuthenticatedSlave
from ledgermq.ha.classic.commitlog import ClassicCommitLog
from ledgermq.ha.classic.master import HAService
from ledgermq.ha.classic.node import ClassicNode
from ledgermq.ha.classic.slave import HAClient
from ledgermq.message.layout import encode_host
from ledgermq.message.message import IncomingMessage
from ledgermq.store.keeping.cleaning import Cleaner
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.message_store import MessageStore
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.network import Address, Stream
from ledgermq.world.real import World

SEGMENT = 16 * 1024
SECRET = b"secret"
MASTER_ADDRESS = Address("master", 10912)


@attrs.define(eq=False)
class Line:
    """What happens to one connection, either way."""

    stalled: bool = False
    """Nothing moves; senders wait."""
    half_open: bool = False
    """Nothing arrives any more, and neither end is notified."""
    piece_max: int = 1 << 20
    """Bytes that one receive gives at most."""
    ends: list[trio.abc.Stream] = attrs.field(factory=list[trio.abc.Stream])
    changed: trio.Event = attrs.field(factory=trio.Event)

    def release(self) -> None:
        self.stalled = False
        self.changed.set()

    async def cut(self) -> None:
        for end in self.ends:
            await trio.aclose_forcefully(end)


@attrs.define(eq=False)
class LineEnd(Stream):
    """One end of a line."""

    line: Line
    inner: trio.abc.Stream
    _local: Address
    _peer: Address

    @property
    def local(self) -> Address:
        return self._local

    @property
    def peer(self) -> Address:
        return self._peer

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        while self.line.stalled:
            await self.line.changed.wait()
        if self.line.half_open:
            await trio.lowlevel.checkpoint()
        else:
            await self.inner.send_all(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        while self.line.stalled:
            await self.line.changed.wait()
        if self.line.half_open:
            await trio.sleep_forever()
        received = await self.inner.receive_some(min(max_bytes or self.line.piece_max, self.line.piece_max))
        if self.line.half_open:
            await trio.sleep_forever()
        return received

    async def aclose(self) -> None:
        if self.line.half_open:
            await trio.lowlevel.checkpoint()
        else:
            await self.inner.aclose()


@attrs.define(eq=False)
class LineListener(Listener[Stream]):
    """Where connections arrive."""

    network: Lines
    port: int
    arrivals: trio.MemoryReceiveChannel[Stream]

    async def accept(self) -> Stream:
        return await self.arrivals.receive()

    async def aclose(self) -> None:
        self.network.listening.pop(self.port, None)
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Lines:
    """A network of lines; the newest is `lines[-1]`."""

    lines: list[Line] = attrs.field(factory=list[Line])
    listening: dict[int, trio.MemorySendChannel[Stream]] = attrs.field(factory=dict[int, "trio.MemorySendChannel[Stream]"])
    piece_max: int = 1 << 20
    stalled: bool = False
    """Nothing moves on new lines."""
    unreachable: bool = False
    """New lines neither come about nor fail."""

    async def open_stream(self, address: Address) -> Stream:
        if self.unreachable:
            await trio.sleep_forever()
        if address.port not in self.listening:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        line = Line(self.stalled, piece_max=self.piece_max)
        line.ends += [ours, theirs]
        self.lines.append(line)
        slave = Address("slave", len(self.lines) - 1)
        await self.listening[address.port].send(LineEnd(line, theirs, MASTER_ADDRESS, slave))
        return LineEnd(line, ours, MASTER_ADDRESS, slave)

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        send, receive = trio.open_memory_channel[Stream](100)
        self.listening[port] = send
        await trio.lowlevel.checkpoint()
        return [LineListener(self, port, receive)]

    def own_host(self) -> str:
        return "127.0.0.1"

    def listener_port(self, listener: Listener[Stream]) -> int:
        assert isinstance(listener, LineListener)
        return listener.port


@attrs.define(eq=False)
class Running:
    """A node that is up."""

    node: ClassicNode
    store: MessageStore
    world: World

    @property
    def disk(self) -> SimDisk:
        assert isinstance(self.world.disk, SimDisk)
        return self.world.disk

    @property
    def clock(self) -> SimClock:
        assert isinstance(self.world.clock, SimClock)
        return self.world.clock

    @property
    def service(self) -> HAService:
        """What serves slaves; only a master has it."""
        assert self.node.service is not None
        return self.node.service

    @property
    def client(self) -> HAClient:
        """What follows a master; only a slave has it."""
        assert self.node.client is not None
        return self.node.client

    @property
    def local_log(self) -> LocalCommitLog:
        """The log on this node's own disk."""
        log = self.store.log
        assert isinstance(log, ClassicCommitLog)
        assert isinstance(log.inner, LocalCommitLog)
        return log.inner

    @property
    def cleaner(self) -> Cleaner:
        assert self.store.cleaner is not None
        return self.store.cleaner

    def content(self, start: int = 0) -> bytes:
        """The log's bytes."""
        log, pieces = self.store.log, list[bytes]()
        at = max(start, log.min_offset)
        while piece := log.slice_from(at, 1 << 20):
            pieces.append(bytes(piece))
            at += len(piece)
        return b"".join(pieces)

    def put(self, count: int = 1, *, size: int = 100, topic: str = "T") -> int:
        """Append messages without waiting; returns the end of the log."""
        batch = self.store.put([incoming(size, topic) for _ in range(count)])
        assert all(status.stored for status in batch.statuses), batch.remark
        return batch.end

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        with trio.fail_after(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time, and any condition
                await trio.sleep(0.01)

    async def caught_up(self, master: Running) -> None:
        """Wait until this slave holds and has dispatched all that its master holds."""
        await self.until(lambda: self.store.log.max_offset == master.store.log.max_offset)
        await self.until(lambda: self.store.dispatch_behind_bytes == 0)


@attrs.frozen
class Bounds:
    """A log without a byte."""

    min_offset: int = 0
    max_offset: int = 0
    flushed_offset: int = 0
    readable_offset: int = 0


@attrs.define(eq=False)
class Hand:
    """A slave led by hand: it sends what the test says, keeps nothing, and its connection stays as it is."""

    stream: Stream
    core: AuthenticatedSlave

    async def hear(self) -> bytes:
        """Take what has come; returns the answer that is due."""
        _, answer = self.core.receive(await self.stream.receive_some(1 << 20), trio.current_time())
        return answer

    @property
    def held(self) -> int:
        """End of what has come."""
        return self.core._end  # pyright: ignore[reportPrivateUsage]

    async def report(self) -> None:
        """Say how much has come."""
        await self.stream.send_all(self.core.report(trio.current_time()))

    async def follow(self, end: int) -> None:
        """Take everything before `end`, and say so."""
        while self.held < end:
            await self.hear()
        await self.report()


def incoming(size: int = 100, topic: str = "T") -> IncomingMessage:
    body = random.Random(size).randbytes(size)
    return IncomingMessage(topic, 0, body, "", 0, 0, 1_700_000_000_000, encode_host("10.0.0.1", 4711))


OpenNode = Callable[..., AbstractAsyncContextManager[Running]]
Joined = Callable[..., Awaitable[None]]
JoinByHand = Callable[..., Awaitable[Hand]]


def message(size: int = 100) -> IncomingMessage:
    return IncomingMessage("T", 0, random.Random(size).randbytes(size), "", 0, 0, 1_700_000_000_000, bytes(8))


def events_of(logs: list[Any], name: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == name]


def copy_tree(source: SimDisk, target: SimDisk, path: str) -> None:
    target.make_directories(path)
    for name in source.list_directory(path):
        if source.is_directory(f"{path}/{name}"):
            copy_tree(source, target, f"{path}/{name}")
        else:
            content = source.open(f"{path}/{name}", read_only=True).read(0, source.size(f"{path}/{name}"))
            target.open(f"{path}/{name}", create_size=len(content)).write(content, 0)


def power_cut_in_the_log(disk: SimDisk, start: int, size: int = SEGMENT) -> SimDisk:
    """A power cut that loses something of the `size` bytes from `start` on in the first segment, which were not synced."""
    path = f"store/commitlog/{0:020d}"
    written = disk.open(path).read(start, size)
    cuts = (disk.power_cut(seed) for seed in range(100))
    return next(cut for cut in cuts if cut.open(path).read(start, size) != written)
