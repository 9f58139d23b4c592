"""Who is let in, without a cluster."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator

import httpx
import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ledgermq.cli.dashboard.guard import FORM_BYTES_MAX, GUESSES_AT_ONCE, REQUESTS_AT_ONCE, Guard, Login, form_token, read_form


async def token_page(request: Request) -> Response:
    await trio.lowlevel.checkpoint()
    return PlainTextResponse(form_token(request))


async def form_page(request: Request) -> Response:
    return JSONResponse(dict(await read_form(request)))


def client(host: str = "127.0.0.1", *, login_needed: bool = False) -> httpx.AsyncClient:
    routes = [Route("/", token_page), Route("/form", form_page, methods=["POST"])]
    middleware = [Middleware(SessionMiddleware, secret_key=secrets.token_hex()), Middleware(Guard, login_needed=login_needed)]
    transport = httpx.ASGITransport(Starlette(routes=routes, middleware=middleware))
    return httpx.AsyncClient(transport=transport, base_url=f"http://{host}")


@pytest.mark.parametrize("host", ["127.0.0.1:8082", "localhost", "[::1]:8082"])
async def test_names_of_this_machine_are_answered(host: str) -> None:
    async with client(host) as visitor:
        assert (await visitor.get("/")).status_code == 200


@pytest.mark.parametrize("host", ["attacker.example", "127.0.0.1.attacker.example", "10.0.0.1", "localhost.", ""])
async def test_another_name_is_refused_where_no_password_is_needed(host: str) -> None:
    """A stranger's page may resolve its own name to our address; then its scripts would read ours as their own."""
    async with client() as visitor:
        answer = await visitor.get("/", headers={"Host": host})

    assert answer.status_code == 421
    assert "names of this machine" in answer.text


async def test_a_malformed_host_is_refused() -> None:
    async with client() as visitor:
        assert (await visitor.get("/", headers={"Host": "[::1"})).status_code == 421


async def test_with_a_password_any_name_leads_to_the_login() -> None:
    async with client("dashboard.example", login_needed=True) as visitor:
        answer = await visitor.get("/")

    assert (answer.status_code, answer.headers["location"]) == (303, "/login")


async def test_no_host_name_leads_past_the_login() -> None:
    """Its value becomes a part of addresses, in which a path would look like that of a file that everybody may have."""
    async with client(login_needed=True) as visitor:
        for host in ("x/static/", "x/login?", "x/static/#"):
            assert (await visitor.get("/", headers={"Host": host})).status_code == 303


async def test_a_form_that_comes_too_slowly_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """Whoever has not logged in could otherwise take all places at the form of the login."""

    async def slowly() -> AsyncGenerator[bytes]:
        for _ in range(100):
            await trio.sleep(1)
            yield b"a"

    async with client() as visitor:
        assert (await visitor.post("/form", content=slowly())).status_code == 408


async def test_a_form_brings_back_the_token_of_its_session() -> None:
    async with client() as visitor, client() as stranger:
        token = (await visitor.get("/")).text
        await stranger.get("/")

        assert (await visitor.post("/form", data={"token": token, "a": "é&="})).json() == {"token": token, "a": "é&="}
        assert (await stranger.post("/form", data={"token": token})).status_code == 403
        assert (await visitor.post("/form", data={})).status_code == 403


async def test_a_form_without_any_session_is_refused() -> None:
    async with client() as visitor:
        assert (await visitor.post("/form", data={"token": ""})).status_code == 403


@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")  # of a body that was not read to its end
@pytest.mark.parametrize(
    ("body", "status"), [(b"a" * (FORM_BYTES_MAX + 1), 413), (b"\xff", 400), (b"&".join([b"a=1"] * 17), 400)]
)
async def test_what_is_no_form_of_ours_is_refused(body: bytes, status: int) -> None:
    async with client() as visitor:
        await visitor.get("/")
        answer = await visitor.post("/form", content=body)

    assert answer.status_code == status
    assert "Nothing was changed" in answer.text


async def test_only_so_many_requests_are_worked_on_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """The others wait for their turn, so that a hundred open pages do not ask a cluster a hundred times as much."""
    working, most = 0, 0

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await trio.sleep(1)
        working -= 1
        await PlainTextResponse("done")(scope, receive, send)

    transport = httpx.ASGITransport(Guard(slow, login_needed=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as visitor, trio.open_nursery() as nursery:
        for _ in range(2 * REQUESTS_AT_ONCE):
            nursery.start_soon(visitor.get, "/")

    assert most == REQUESTS_AT_ONCE
    assert round(trio.current_time()) == 2


async def test_wrong_passwords_take_their_time(autojump_clock: trio.testing.MockClock) -> None:
    """However many ask at once, only so many are answered each second; a right one is answered when its turn comes."""
    login = Login("a long password")
    refused: list[float] = []

    async def guess() -> None:
        assert not await login.accepts("a wrong password")
        refused.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(3 * GUESSES_AT_ONCE):
            nursery.start_soon(guess)

    assert [round(at) for at in refused] == [1] * GUESSES_AT_ONCE + [2] * GUESSES_AT_ONCE + [3] * GUESSES_AT_ONCE
    assert await login.accepts("a long password")
    assert round(trio.current_time()) == 3
