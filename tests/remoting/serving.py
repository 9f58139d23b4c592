"""A server over in-memory connections, and a client that speaks frames without any of our client's code."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio
from trio.abc import Listener

from ledgermq.remoting.command import RemotingCommand, decode_command, encode_frame
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.frame import FrameReader
from ledgermq.remoting.server import RemotingServer, ServerLimits
from ledgermq.world.clock import Clock
from ledgermq.world.network import Address, Network, Stream

SOMEWHERE = Address("server", 9876)


class StallingNetwork(Network, Protocol):
    def stall(self) -> None: ...


@attrs.define(eq=False)
class SteppingClock:
    """A clock that a test moves."""

    seconds: float = 0.0

    def wall_ms(self) -> int:
        return round(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


@attrs.define(eq=False)
class Peer:
    """A client that speaks frames without any of our client's code."""

    stream: Stream
    _reader: FrameReader = attrs.field(factory=FrameReader)
    _received: list[RemotingCommand] = attrs.field(factory=list[RemotingCommand])

    async def send(self, *commands: RemotingCommand) -> None:
        await self.stream.send_all(b"".join(encode_frame(command) for command in commands))

    async def receive(self) -> RemotingCommand:
        while not self._received:
            piece = await self.stream.receive_some(65536)
            assert piece, "the server closed the connection"
            self._received += [decode_command(*frame) for frame in self._reader.feed(bytes(piece))]
        return self._received.pop(0)

    async def ask(self, code: int, body: bytes = b"", **ext: str) -> RemotingCommand:
        await self.send(RemotingCommand(code, ext, body))
        return await self.receive()

    async def wait_closed(self) -> None:
        while await self.stream.receive_some(65536):
            pass


@attrs.define(eq=False)
class Serving:
    dispatcher: Dispatcher
    server: RemotingServer
    network: Network

    async def connect(self) -> Peer:
        return Peer(await self.network.open_stream(SOMEWHERE))


@asynccontextmanager
async def serving(network: Network, clock: Clock, limits: ServerLimits | None = None) -> AsyncGenerator[Serving]:
    dispatcher = Dispatcher()
    dispatcher.register(1, lambda _, request: request.response(body=request.body))
    server = RemotingServer(dispatcher, network, clock, limits or ServerLimits())
    async with trio.open_nursery() as nursery:
        dispatcher.nursery = nursery
        listeners: list[Listener[Stream]] = list(await network.open_listeners("", 0))
        await nursery.start(server.serve, listeners)
        yield Serving(dispatcher, server, network)
        nursery.cancel_scope.cancel()
    assert not server.connections
