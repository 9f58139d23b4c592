"""The pages, through an ASGI client and a real broker."""

from __future__ import annotations

import re

import httpx
import pytest
import trio

from ledgermq.cli.dashboard.guard import Login
from ledgermq.testing.embedded import StartedEmbedded

from .conftest import HOSTILE_KEY, Visit, send_form

PASSWORD = "correct horse battery"  # noqa: S105 - of a test
PAGES = [
    "/",
    "/broker?broker=broker-a",
    "/topics",
    "/topic?topic=orders",
    "/groups",
    "/group?group=slow",
    "/letters?group=slow",
    "/messages",
    "/messages?topic=orders&text=nothing",
    "/message?topic=orders&broker=broker-a&queue=0&offset=3",
    "/users",
]


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_is_whole_and_keeps_scripts_out(visit: Visit, path: str) -> None:
    async with visit() as client:
        answer = await client.get(path)

    assert answer.status_code == 200
    assert answer.text.startswith("<!doctype html>")
    assert answer.text.endswith("</html>")
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert re.findall(r"<script[^>]*>", answer.text) == ['<script src="/static/htmx-4.0.1.min.js" defer>']
    assert not re.findall(r"\s(?:style|on\w+)=", answer.text)


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_fetches_only_what_changes(visit: Visit, path: str) -> None:
    async with visit() as client:
        answer = await client.get(path, headers={"HX-Request": "true"})

    assert answer.status_code == 200
    assert not re.search("<html|<header|<h1|<form", answer.text)


@pytest.mark.parametrize("name", ["style.css", "icon.svg", "htmx-4.0.1.min.js", "LICENSE.htmx"])
async def test_what_a_page_needs_is_shipped(visit: Visit, name: str) -> None:
    async with visit() as client:
        assert (await client.get(f"/static/{name}")).status_code == 200


async def test_what_producers_and_addresses_say_is_escaped(visit: Visit) -> None:
    """Names, keys, properties, bodies, and what an address holds; control characters do not reach the reader either."""
    async with visit() as client:
        found = await client.get("/messages", params={"topic": "orders", "text": HOSTILE_KEY}, follow_redirects=True)
        texts = [found.text]
        for path in (
            "/topics",
            "/groups",
            "/messages",
            "/topic",
            "/group",
            "/letters",
            "/broker",
            "/users",
            "/nothing<script>",
        ):
            hostile: dict[str, str] = dict.fromkeys(("find", "topic", "group", "broker", "text"), HOSTILE_KEY)
            texts.append((await client.get(path, params=hostile)).text)

    assert found.url.path == "/message"
    assert "&lt;script&gt;alert(&#39;body&#39;)&lt;/script&gt;\\u202e &amp; co" in found.text
    assert "&lt;b&gt;" in found.text
    assert not [text for text in texts if "<script>" in text or "\u202e" in text]


async def test_a_large_body_is_cut(visit: Visit) -> None:
    async with visit() as client:
        text = (await client.get("/messages?topic=orders&text=large", follow_redirects=True)).text

    assert "Body, 100,000 bytes" in text
    assert "… 196,000 more" in text
    assert len(text) < 20_000


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/topic?topic=nothing", 404, "No broker has the topic nothing."),
        ("/group?group=nobody", 404, "there is no group"),
        ("/broker?broker=nothing", 404, "knows no broker nothing"),
        ("/message?topic=orders&broker=broker-a&queue=0&offset=999", 404, "no message with offset 999"),
        ("/topic?topic=a%20b", 400, "only the characters"),
        ("/topic", 400, "lacks topic="),
        ("/nothing", 404, "Not Found"),
    ],
)
async def test_a_page_about_nothing_says_so(visit: Visit, path: str, status: int, reason: str) -> None:
    async with visit() as client:
        answer = await client.get(path)

    assert answer.status_code == status
    assert reason in answer.text


async def test_a_cluster_that_does_not_answer_is_explained(visit: Visit) -> None:
    async with visit("127.0.0.1:1") as client:
        answer = await client.get("/")

    assert answer.status_code == 502
    assert "asked: 127.0.0.1:1" in answer.text


async def hang(_: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def test_a_broker_that_is_gone_is_named_on_the_page(cluster: StartedEmbedded, visit: Visit) -> None:
    """The name server knows it until its registration ends."""
    del cluster
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with visit() as client, trio.open_nursery() as nursery:
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, hang, listeners)
        answer = await client.get(
            "/message", params={"topic": "orders", "broker": f"127.0.0.1:{port}", "queue": 0, "offset": 0}
        )
        nursery.cancel_scope.cancel()

    assert answer.status_code == 200
    assert f"127.0.0.1:{port}" in answer.text


async def test_read_only_refuses_changes_and_shows_no_buttons(visit: Visit) -> None:
    async with visit(login=Login(PASSWORD)) as client:
        await send_form(client, "/login", "/login", {"password": PASSWORD})
        page = await client.get("/letters?group=slow")
        answer = await send_form(client, "/letters?group=slow", "/letters/redrive", {"group": "slow", "count": "1"})

    assert "read-only" in page.text
    assert "Redrive" not in page.text
    assert answer.status_code == 403
    assert "Start it with --allow-changes" in answer.text


@pytest.mark.parametrize("token", ["", "forged"])
async def test_a_form_of_another_page_changes_nothing(visit: Visit, token: str) -> None:
    async with visit(allow_changes=True) as client:
        await client.get("/letters?group=slow")
        answer = await client.post("/letters/redrive", data={"token": token, "group": "slow", "count": "2"})
        page = await client.get("/letters?group=slow")

    assert answer.status_code == 403
    assert "does not come from this session" in answer.text
    assert "not handed out again: 2." in page.text


@pytest.mark.parametrize("count", ["0", "1001", "x", ""])
async def test_a_redrive_has_a_bound(visit: Visit, count: str) -> None:
    async with visit(allow_changes=True) as client:
        answer = await send_form(client, "/letters?group=slow", "/letters/redrive", {"group": "slow", "count": count})

    assert answer.status_code == 400
    assert "takes 1 to 1000" in answer.text


async def test_a_change_that_the_cluster_refuses_says_why(visit: Visit) -> None:
    async with visit(allow_changes=True) as client:
        redriven = await send_form(client, "/letters?group=slow", "/letters/redrive", {"group": "nobody", "count": "1"})
        moved = await send_form(client, "/letters?group=slow", "/broker/transfer", {"broker": "broker-a", "node": "n1"})

    assert (redriven.status_code, moved.status_code) == (502, 409)
    assert "there is no group" in redriven.text
    assert "No node of broker-a leads now" in moved.text


async def test_a_login_is_asked_for_and_ends(visit: Visit) -> None:
    async with visit(login=Login(PASSWORD)) as client:
        first = await client.get("/topics")
        polled = await client.get("/topics", headers={"HX-Request": "true"})
        wrong = await send_form(client, "/login", "/login", {"password": "wrong"})
        refused = await client.get("/topics")
        right = await send_form(client, "/login", "/login", {"password": PASSWORD})
        inside = await client.get("/topics")
        left = await send_form(client, "/topics", "/logout", {})
        outside = await client.get("/topics")

    assert [(each.status_code, each.headers.get("location")) for each in (first, refused, outside)] == [(303, "/login")] * 3
    assert (polled.status_code, polled.headers["hx-refresh"]) == (401, "true")
    assert (wrong.status_code, right.status_code, inside.status_code, left.status_code) == (403, 303, 200, 303)
    assert "That is not the password." in wrong.text
    assert all(flag in right.headers["set-cookie"].lower() for flag in ("httponly", "samesite=lax"))


async def test_the_password_is_in_no_page_and_no_repr(visit: Visit) -> None:
    login = Login(PASSWORD)
    async with visit(login=login) as client:
        page: httpx.Response = await client.get("/login")

    assert PASSWORD not in page.text + repr(login)


async def test_without_a_password_there_is_no_login(visit: Visit) -> None:
    async with visit() as client:
        assert (await client.get("/login")).headers["location"] == "/"
