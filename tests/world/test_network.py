"""Streams over real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from ledgermq.world.network import Address, PlainStream, Stream, TcpListener, TcpNetwork, TcpStream

NOWHERE = Address("0.0.0.0", 0)


@asynccontextmanager
async def pair() -> AsyncGenerator[tuple[Stream, Stream]]:
    """Two ends of one connection."""
    network = TcpNetwork()
    (listener,) = await network.open_listeners("127.0.0.1", 0)
    async with listener:
        near = await network.open_stream(Address("127.0.0.1", network.listener_port(listener)))
        far = await listener.accept()
        async with near, far:
            yield near, far


async def test_what_has_arrived_is_received_without_waiting() -> None:
    """What has not is None, which is not the end; that is 0."""
    async with pair() as (near, far):
        buffer = memoryview(bytearray(100))
        assert far.receive_now(buffer) is None
        await near.send_all(b"first")
        with trio.fail_after(60):
            assert await far.receive_into(buffer[:2]) == 2
        assert far.receive_now(buffer[2:]) == 3
        assert buffer[:5] == b"first"

        await near.aclose()
        with trio.fail_after(60):
            assert await far.receive_into(buffer) == 0
        assert far.receive_now(buffer) == 0


async def test_a_stream_without_a_fast_path_receives_nothing_without_waiting() -> None:
    """TLS cannot tell what has arrived."""
    near, far = trio.testing.memory_stream_pair()
    await near.send_all(b"first")
    assert PlainStream(far, NOWHERE, NOWHERE).receive_now(memoryview(bytearray(100))) is None


async def test_a_socket_for_bulk_takes_more_before_it_is_full() -> None:
    """A peer that reads nothing leaves it at the limit it was given, not at 16 KiB."""
    async with pair() as (near, _):
        assert isinstance(near, TcpStream)
        near.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        near.keep_unsent(1 << 19)
        assert near.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 1 << 19


@pytest.mark.parametrize("dropped", [False, True])
async def test_a_close_delivers_what_was_sent_unless_that_is_to_be_dropped(dropped: bool) -> None:
    """A peer that reads nothing has received only what its buffer takes."""
    async with pair() as (near, far):
        sent = 0
        with trio.move_on_after(0.5):
            while True:
                await near.wait_send_all_might_not_block()
                sent += near.send_now(bytes(1 << 16))
        if dropped:
            near.drop_undelivered()
        await near.aclose()

        received = 0
        with trio.fail_after(60), suppress(trio.BrokenResourceError):
            while data := await far.receive_some():
                received += len(data)

    assert received < sent if dropped else received == sent


@pytest.mark.parametrize("host", ["a..b", "a\0b", "x" * 70])
async def test_a_name_that_cannot_be_resolved_is_an_os_error(host: str) -> None:
    """As any other host that cannot be reached."""
    with pytest.raises(OSError):
        await TcpNetwork().open_stream(Address(host, 1))


async def test_a_closed_connection_ends_though_a_forked_process_has_its_socket() -> None:
    """What was sent before arrives all the same; a copy of the descriptor stands for the forked process."""
    sent = bytes(300_000)
    async with pair() as (near, far):
        assert isinstance(near, TcpStream)
        with near.socket.dup(), trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                received = bytearray()

                async def receive() -> None:
                    while piece := await far.receive_some(1000):
                        received.extend(piece)

                nursery.start_soon(receive)
                await near.send_all(sent)
                await near.aclose()

    assert received == sent


async def test_a_closed_port_is_free_though_a_forked_process_has_its_socket() -> None:
    """Nobody connects to it any more, and a server can listen there again."""
    network = TcpNetwork()
    (listener,) = await network.open_listeners("127.0.0.1", 0)
    assert isinstance(listener, TcpListener)
    port = network.listener_port(listener)
    with socket.socket(fileno=os.dup(listener.listener.socket.fileno())):
        await listener.aclose()

        with pytest.raises(OSError):
            await network.open_stream(Address("127.0.0.1", port))
        (again,) = await network.open_listeners("127.0.0.1", port)
        await again.aclose()
