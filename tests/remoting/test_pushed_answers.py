"""Answers that come after their request has been handled, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import trio

from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.server import RemotingServer, ServerConnection
from ledgermq.world.clock import SystemClock
from ledgermq.world.network import TcpNetwork

ASK = 1
ANSWER_BYTES = 1 << 20


@attrs.define(eq=False)
class Asked:
    """Requests that wait for their answer, as a put waits for its flush."""

    waiting: list[tuple[ServerConnection, RemotingCommand]] = attrs.field(
        factory=list[tuple[ServerConnection, RemotingCommand]]
    )
    came: trio.Event = attrs.field(factory=trio.Event)

    def take(self, connection: ServerConnection, request: RemotingCommand) -> None:
        self.waiting.append((connection, request))
        self.came.set()


@asynccontextmanager
async def asking(requests: int) -> AsyncGenerator[tuple[Asked, socket.socket]]:
    """A server with a request in hand, and the plain socket it came from."""
    asked, network, dispatcher = Asked(), TcpNetwork(), Dispatcher()
    dispatcher.register(ASK, asked.take)
    async with trio.open_nursery() as nursery:
        listeners = list(await network.open_listeners("127.0.0.1", 0))
        await nursery.start(RemotingServer(dispatcher, network, SystemClock()).serve, listeners)
        with socket.create_connection(("127.0.0.1", network.listener_port(listeners[0])), timeout=60) as peer:
            peer.sendall(b"".join(encode_frame(RemotingCommand(ASK, {}, opaque=number)) for number in range(requests)))
            with trio.fail_after(60):
                while len(asked.waiting) < requests:
                    asked.came = trio.Event()
                    await asked.came.wait()
            yield asked, peer
        nursery.cancel_scope.cancel()


async def test_an_answer_that_was_waited_for_leaves_within_the_same_turn_of_the_loop() -> None:
    """No other task has run when the peer holds it: a producer does not wait for a turn of the writer."""
    async with asking(1) as (asked, peer):
        connection, request = asked.waiting[0]

        connection.answer(request, body=b"done")

        assert peer.recv(4096).endswith(b"done")


async def test_answers_that_the_socket_does_not_take_at_once_arrive_whole_and_in_order() -> None:
    """What a slow peer leaves over goes out through the writer, and later answers stay behind it."""
    async with asking(12) as (asked, peer):
        expected = b""
        for number, (connection, request) in enumerate(asked.waiting):
            body = bytes([number]) * ANSWER_BYTES
            connection.answer(request, body=body)
            expected += encode_frame(request.response(body=body))

        received = await trio.to_thread.run_sync(read_exactly, peer, len(expected))

        assert received == expected


def read_exactly(peer: socket.socket, size: int) -> bytes:
    """Read `size` bytes."""
    received = bytearray()
    while len(received) < size:
        piece = peer.recv(1 << 20)
        assert piece, f"closed after {len(received)} of {size} bytes"
        received += piece
    return bytes(received)
