"""A small HTTP server for what operators' tools ask: one GET for each connection, on a port of its own.

h11 reads and writes HTTP; this is the shell around it. A peer can hold a connection for `EXCHANGE_SECONDS` at most, and at most
`CONNECTIONS_MAX` are served at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import h11
import trio
from trio.abc import Listener

from ..world.events import get_logger
from ..world.logs import fault_of, trace_of
from ..world.network import Stream
from .pages import TEXT, Page, Pages

log = get_logger(__name__)

CONNECTIONS_MAX = 16
"""How many connections are served at a time: a few collectors and probes. A further one ends the oldest one that has sent no
complete request, so that idle connections lock out no probe; if there is none, it is closed itself."""
EXCHANGE_SECONDS = 10.0
"""How long one exchange may take, the default time-out of a Prometheus scrape. Then the connection is closed."""
RECEIVE_BYTES = 4096


async def serve_pages(pages: Pages, listeners: list[Listener[Stream]]) -> None:
    """Serve until cancelled."""
    served, silent = 0, dict[trio.CancelScope, None]()

    async def serve_one(stream: Stream) -> None:
        nonlocal served
        if served >= CONNECTIONS_MAX:
            if not silent:
                await stream.aclose()
                return
            oldest = next(iter(silent))
            del silent[oldest]
            oldest.cancel()
        served += 1
        scope = trio.move_on_after(EXCHANGE_SECONDS)
        silent[scope] = None
        try:
            with scope:
                await _exchange(pages, stream, lambda: silent.pop(scope, None))
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError) as error:
            log.debug("http_exchange_failed", remote=str(stream.peer), reason=str(error))
        except Exception as error:  # noqa: BLE001 - a fault of ours in one exchange must not close the listeners
            log.error("http_exchange_broken", remote=str(stream.peer), reason=fault_of(error), trace=trace_of(error))
        finally:
            served -= 1
            silent.pop(scope, None)
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve_one, listeners)


async def _exchange(pages: Pages, stream: Stream, asked: Callable[[], object]) -> None:
    connection = h11.Connection(h11.SERVER)
    try:
        request = await _request(connection, stream)
    except h11.RemoteProtocolError as error:
        request, page = None, Page(error.error_status_hint, TEXT, b"this is not a request of HTTP/1.1\n")
    else:
        asked()
        page = await _page_of(pages, request)
    await _send(connection, stream, page, bodiless=request is not None and request.method == b"HEAD")


async def _request(connection: h11.Connection, stream: Stream) -> h11.Request | None:
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None  # the peer left


async def _page_of(pages: Pages, request: h11.Request | None) -> Page:
    if request is None:
        return Page(400, TEXT, b"")
    if request.method not in (b"GET", b"HEAD"):
        return Page(405, TEXT, b"only GET and HEAD are served here\n")
    found = pages.get(request.target.partition(b"?")[0].decode("ascii", "replace"))
    if found is None:
        return Page(404, TEXT, f"there are {', '.join(sorted(pages))}\n".encode())
    try:
        return await found()
    except Exception as error:  # noqa: BLE001 - one page that cannot be made must not end the server
        log.error(
            "http_page_failed", path=request.target.decode("ascii", "replace"), reason=fault_of(error), trace=trace_of(error)
        )
        return Page(500, TEXT, b"the page could not be made; the server's log has the reason\n")


async def _send(connection: h11.Connection, stream: Stream, page: Page, *, bodiless: bool) -> None:
    if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return  # the request is not one that could be answered
    headers = [("Content-Type", page.content_type), ("Connection", "close")]
    body = page.body
    if isinstance(body, bytes):
        headers.append(("Content-Length", str(len(body))))
    await _out(connection, stream, h11.Response(status_code=page.status, headers=headers))
    if not bodiless:
        if isinstance(body, bytes):
            await _out(connection, stream, h11.Data(data=body))
        else:
            async for part in body:
                await _out(connection, stream, h11.Data(data=part))
        await _out(connection, stream, h11.EndOfMessage())


async def _out(connection: h11.Connection, stream: Stream, event: h11.Event) -> None:
    data = connection.send(event)
    if data:
        await stream.send_all(data)
