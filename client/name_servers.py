"""Asking name servers: first the one that answered last, then the others if it is slow, unreachable or lacks the topic.

A name server that hangs must not use up the caller's time, and one that has just started knows less than the others.
So the next one is asked when the one before has failed, when it does not know the topic, or after `NEXT_SERVER_SECONDS`;
the first answer is returned, and its name server is asked first from then on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import attrs
import trio

from ..remoting.command import RemotingCommand
from ..world.network import Address
from .arguments import check_text
from .errors import ClientError, InvalidArgument, NoAnswer, TopicNotExist, Unreachable

NEXT_SERVER_SECONDS = 0.5
"""How long we wait for one name server before the next one is asked too."""

DEFAULT_NAMESRV_PORT = 9876

Ask = Callable[[Address, RemotingCommand, float], Awaitable[RemotingCommand]]
"""Sends a request to an address, with a time limit in seconds; returns an answer of success or raises a `ClientError`."""


@attrs.define(eq=False)
class NameServers:
    """The name servers of one client."""

    addresses: tuple[Address, ...]
    _ask: Ask
    _first: int = 0
    """The index of the name server that is asked first."""

    async def ask(self, command: RemotingCommand, timeout_seconds: float) -> RemotingCommand:
        """Ask until one name server answers success; once one has refused, the others have `NEXT_SERVER_SECONDS` left.

        Raises:
            Unreachable, NoAnswer: none of them answered.
            Refused: one of them refused; it is `TopicNotExist` only if none refused for another reason.
        """
        addresses, deadline = self.addresses, trio.current_time() + timeout_seconds
        order = [(self._first + step) % len(addresses) for step in range(len(addresses))]
        failures: list[ClientError] = []
        asked = 0
        send, receive = trio.open_memory_channel[tuple[int, RemotingCommand | ClientError]](len(order))

        async def ask(index: int) -> None:
            own = RemotingCommand(command.code, command.ext, command.body)
            try:
                outcome = await self._ask(addresses[index], own, max(deadline - trio.current_time(), 0.0))
            except ClientError as error:
                send.send_nowait((index, error))
            else:
                send.send_nowait((index, outcome))

        with send, receive:
            async with trio.open_nursery() as nursery:
                while len(failures) < len(order):
                    if asked < len(order):
                        nursery.start_soon(ask, order[asked])
                        asked += 1
                    refused = any(not isinstance(failure, Unreachable | NoAnswer) for failure in failures)
                    last_wait = asked == len(order)
                    wait_seconds = timeout_seconds if last_wait and not refused else NEXT_SERVER_SECONDS
                    with trio.move_on_at(min(deadline, trio.current_time() + wait_seconds)) as waiting:
                        index, outcome = await receive.receive()
                        if isinstance(outcome, RemotingCommand):
                            self._first = index
                            nursery.cancel_scope.cancel()
                            return outcome
                        failures.append(outcome)
                    if trio.current_time() >= deadline or (waiting.cancelled_caught and last_wait):
                        break
                nursery.cancel_scope.cancel()
        raise (
            _worst(failures)
            if failures
            else NoAnswer(";".join(map(str, addresses)), f"no name server answered within {round(timeout_seconds * 1000)} ms")
        )


def _worst(failures: list[ClientError]) -> ClientError:
    """The most informative failure: a refusal, else an unknown topic, else that no name server answered."""
    answered = [failure for failure in failures if not isinstance(failure, Unreachable | NoAnswer)]
    return next((failure for failure in answered if not isinstance(failure, TopicNotExist)), (answered or failures)[0])


def parse_name_servers(namesrv: str | Iterable[str]) -> tuple[Address, ...]:
    """Read `host:port;host:port`, in which a comma separates too, or several such texts; the default port is 9876.

    Raises:
        InvalidArgument: an address is malformed, or there is none.
    """
    try:
        texts = [namesrv] if isinstance(namesrv, str) else [check_text("each name server", text) for text in namesrv]
    except TypeError as error:  # most likely None, from a missing setting
        raise InvalidArgument(f"name servers are given as HOST:PORT;HOST:PORT (got {namesrv!r})") from error
    parts = [part.strip() for text in texts for part in text.replace(",", ";").split(";")]
    try:
        addresses = tuple(Address.parse(_with_port(part)) for part in parts if part)
    except ValueError as error:
        raise InvalidArgument(f"name server: {error}") from error
    if not addresses:
        raise InvalidArgument("a client needs the address of at least one name server")
    return addresses


def _with_port(name_server: str) -> str:
    has_port = ":" in name_server and not name_server.endswith("]")
    return name_server if has_port else f"{name_server}:{DEFAULT_NAMESRV_PORT}"
