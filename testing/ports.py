"""Ports that are reserved for servers which start later, or stop and start again on the same port."""

from __future__ import annotations

import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

BROKER_PORTS = (0, -2, 1)
"""The ports of a broker relative to its listen port: that port, the one for old clients, and the one for slaves."""


@contextmanager
def reserved_ports(host: str, count: int, distances: Sequence[int] = (0,)) -> Generator[list[int]]:
    """Reserve ports for the length of a `with` block.

    A socket is bound to each of them and never listens. The kernel therefore gives the port to no outgoing connection and to
    nobody who asks for any free port, and a server that asks for this port by its number gets it as often as it starts.
    Without that a port is lost to a connection of any process, also for the minute after it was closed.

    Args:
        count: the number of ports.
        distances: what is reserved with each port, as distances from it.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            with ExitStack() as attempt:
                port = _bound(attempt, host, 0)
                try:
                    for distance in distances:
                        if distance:
                            _bound(attempt, host, port + distance)
                except (OSError, OverflowError):  # a neighbour is taken, or beyond the last port
                    continue
                ports.append(port)
                stack.enter_context(attempt.pop_all())
        yield ports


def _bound(stack: ExitStack, host: str, port: int) -> int:
    """Bind a socket that lives as long as `stack`; returns its port."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    one = stack.enter_context(socket.socket(family))
    # Without the option the kernel refuses a port that somebody else has reserved; with it a server can have this one.
    one.bind((host, port))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return int(one.getsockname()[1])
