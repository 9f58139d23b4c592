"""The HTTP server for operators' tools, over connections in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from ledgermq.remoting.http import CONNECTIONS_MAX, EXCHANGE_SECONDS, serve_pages
from ledgermq.remoting.pages import TEXT, Page
from ledgermq.testing.logs import capture_logs
from ledgermq.world.network import Address, Network, Stream

SOMEWHERE = Address("server", 5557)


async def page(body: bytes | Callable[[], AsyncIterator[bytes]]) -> Page:
    await trio.lowlevel.checkpoint()
    return Page(200, TEXT, body if isinstance(body, bytes) else body())


async def parts() -> AsyncGenerator[bytes]:
    for number in range(3):
        await trio.lowlevel.checkpoint()
        yield b"part %d\n" % number


async def breaks_off() -> AsyncGenerator[bytes]:
    yield b"part 0\n"
    await trio.lowlevel.checkpoint()
    raise ValueError("no such row")


async def waits() -> Page:
    await trio.sleep(EXCHANGE_SECONDS / 2)
    return Page(200, TEXT, b"at last\n")


async def fails() -> Page:
    await trio.lowlevel.checkpoint()
    raise ValueError("no such table")


PAGES: dict[str, Callable[[], Awaitable[Page]]] = {
    "/whole": partial(page, b"all at once\n"),
    "/parts": partial(page, parts),
    "/fails": fails,
    "/waits": waits,
    "/breaks": partial(page, breaks_off),
}


@asynccontextmanager
async def serving(network: Network) -> AsyncGenerator[None]:
    listeners = list(await network.open_listeners("server", 5557))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_pages, PAGES, listeners)
        yield
        nursery.cancel_scope.cancel()


async def received(stream: Stream) -> bytes:
    text = b""
    while piece := await stream.receive_some(65536):
        text += bytes(piece)
    return text


async def asked(network: Network, request: bytes) -> tuple[str, bytes]:
    """The first line of the answer, and its body."""
    async with await network.open_stream(SOMEWHERE) as stream:
        await stream.send_all(request)
        head, _, body = (await received(stream)).partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        ("GET /whole", "200", b"all at once\n"),
        ("GET /whole?query=1", "200", b"all at once\n"),
        ("HEAD /whole", "200", b""),
        ("GET /none", "404", b"there are /breaks, /fails, /parts, /waits, /whole\n"),
        ("POST /whole", "405", b"only GET and HEAD are served here\n"),
    ],
)
async def test_pages_are_served_by_their_paths(network: Network, request_line: str, status: str, body: bytes) -> None:
    """The connection ends with the answer."""
    async with serving(network):
        line, found = await asked(network, f"{request_line} HTTP/1.1\r\nHost: server\r\n\r\n".encode())

    assert line.split()[1] == status
    assert found == body


async def test_a_long_page_comes_in_parts(network: Network) -> None:
    """So that other tasks run between them."""
    async with serving(network):
        _, found = await asked(network, b"GET /parts HTTP/1.1\r\nHost: server\r\n\r\n")

    assert found == b"7\r\npart 0\n\r\n7\r\npart 1\n\r\n7\r\npart 2\n\r\n0\r\n\r\n"


async def test_a_page_that_cannot_be_made_is_an_error_of_the_server(network: Network) -> None:
    """The peer learns no more than that; the log has the reason, and the next page is served."""
    with capture_logs() as logs:
        async with serving(network):
            failed, _ = await asked(network, b"GET /fails HTTP/1.1\r\nHost: server\r\n\r\n")
            whole, _ = await asked(network, b"GET /whole HTTP/1.1\r\nHost: server\r\n\r\n")

    assert (failed.split()[1], whole.split()[1]) == ("500", "200")
    assert [(event["event"], event["reason"]) for event in logs] == [("http_page_failed", "ValueError: no such table")]


async def test_a_page_that_breaks_off_ends_its_connection_alone(network: Network) -> None:
    """The log has the reason, and the listeners go on."""
    with capture_logs() as logs:
        async with serving(network):
            broken, _ = await asked(network, b"GET /breaks HTTP/1.1\r\nHost: server\r\n\r\n")
            whole, _ = await asked(network, b"GET /whole HTTP/1.1\r\nHost: server\r\n\r\n")

    assert (broken.split()[1], whole.split()[1]) == ("200", "200")
    assert [(event["event"], event["reason"]) for event in logs] == [("http_exchange_broken", "ValueError: no such row")]


@pytest.mark.parametrize(
    "garbage", [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /whole HTTP/9\r\n\r\n", b"A" * 70_000]
)
async def test_what_is_no_request_is_refused(network: Network, garbage: bytes) -> None:
    """Headers without an end are no memory that a stranger fills: h11 refuses them after 16 KiB."""
    async with serving(network):
        line, _ = await asked(network, garbage)

    assert line.split()[1].startswith("4")


async def test_nobody_holds_a_connection_for_long(network: Network, autojump_clock: trio.testing.MockClock) -> None:
    """Neither a peer that sends nothing nor one that reads nothing."""
    began = trio.current_time()
    async with serving(network):
        silent = [await network.open_stream(SOMEWHERE) for _ in range(CONNECTIONS_MAX)]
        for stream in silent:
            assert await received(stream) == b""

        assert trio.current_time() == began + EXCHANGE_SECONDS
        line, _ = await asked(network, b"GET /whole HTTP/1.1\r\nHost: server\r\n\r\n")
    assert line.split()[1] == "200"


async def test_idle_connections_lock_nobody_out(network: Network, autojump_clock: trio.testing.MockClock) -> None:
    """At the bound a further connection ends the oldest one that has sent no complete request."""
    began = trio.current_time()
    async with serving(network):
        silent = [await network.open_stream(SOMEWHERE) for _ in range(CONNECTIONS_MAX)]
        await trio.testing.wait_all_tasks_blocked()

        line, _ = await asked(network, b"GET /whole HTTP/1.1\r\nHost: server\r\n\r\n")

        assert line.split()[1] == "200"
        assert await received(silent[0]) == b""
        assert trio.current_time() == began


async def test_a_connection_beyond_the_bound_is_closed_while_all_others_are_answered(
    network: Network, autojump_clock: trio.testing.MockClock
) -> None:
    """What has been asked for is not broken off."""
    async with serving(network):
        answered = [await network.open_stream(SOMEWHERE) for _ in range(CONNECTIONS_MAX)]
        for stream in answered:
            await stream.send_all(b"GET /waits HTTP/1.1\r\nHost: server\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        async with await network.open_stream(SOMEWHERE) as beyond:
            assert await received(beyond) == b""

        for stream in answered:
            assert (await received(stream)).endswith(b"at last\n")
