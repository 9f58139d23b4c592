"""Ports that are reserved for servers: servers get them, connections do not."""

from __future__ import annotations

import socket

import pytest
import trio

from ledgermq.testing.ports import BROKER_PORTS, reserved_ports

HOST = "127.0.0.1"


async def test_a_server_starts_again_and_again_on_a_reserved_port() -> None:
    """Also while a connection to its earlier life is not forgotten."""
    with reserved_ports(HOST, 2, BROKER_PORTS) as ports:
        for _ in range(2):
            for port in (port + distance for port in ports for distance in BROKER_PORTS):
                (listener,) = await trio.open_tcp_listeners(port, host=HOST)
                async with listener, await trio.open_tcp_stream(HOST, port) as near, await listener.accept() as far:
                    await far.send_all(b"here")
                    assert await near.receive_some() == b"here"


def test_a_connection_gets_no_reserved_port() -> None:
    """A connection that asks for the port is refused, as one that asks for any port is given another."""
    with reserved_ports(HOST, 1, BROKER_PORTS) as (port,), socket.socket() as stranger:
        for distance in BROKER_PORTS:
            with pytest.raises(OSError, match="in use"):
                stranger.bind((HOST, port + distance))


def test_a_port_whose_neighbour_is_reserved_by_somebody_else_is_not_reserved() -> None:
    """Otherwise two servers would be given one port. Of 150 neighbours of random ports some meet those of the first block."""
    with reserved_ports(HOST, 600) as taken, reserved_ports(HOST, 150, (0, 2)) as ports:
        every = [*taken, *(port + distance for port in ports for distance in (0, 2))]
        assert len(set(every)) == len(every)


def test_ports_are_free_behind_the_block() -> None:
    """Nothing stays bound."""
    with reserved_ports(HOST, 1) as (port,):
        pass
    with socket.socket() as anybody:
        anybody.bind((HOST, port))
