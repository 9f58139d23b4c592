"""Who may see and change anything: host names, the login, forged forms, and the headers that keep foreign scripts out."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from contextlib import aclosing
from urllib.parse import parse_qsl, urlsplit

import attrs
import trio
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...world.address import is_loopback_host

LOGIN = "/login"
STATIC = "/static/"
SESSION_SECONDS = 12 * 3600
FORM_BYTES_MAX = 8192
FORM_SECONDS = 10.0
GUESSES_AT_ONCE = 8
"""How many wrong passwords are answered each second, whoever tries them."""
WRONG_PASSWORD_SECONDS = 1.0
REQUESTS_AT_ONCE = 32
"""How many requests are worked on at the same time; others wait. Each page asks many brokers."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # addresses of pages hold names and keys
    "Cache-Control": "no-store",
}


@attrs.define(eq=False)
class Guard:
    """ASGI middleware behind the session: lets only those pass who may, and adds `HEADERS` to every answer."""

    app: ASGIApp
    login_needed: bool
    _working: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(REQUESTS_AT_ONCE))
    _outside: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(REQUESTS_AT_ONCE))
    """For requests of those who have not logged in, who must not hold up those who have."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        if refusal := self._refusal(Request(scope)):
            await refusal(scope, receive, send_guarded)
            return
        is_inside = not self.login_needed or Request(scope).session.get("in")
        async with self._working if is_inside else self._outside:
            await self.app(scope, receive, send_guarded)

    def _refusal(self, request: Request) -> ASGIApp | None:
        """The answer to a request that may not pass; None if it may."""
        path: str = request.scope["path"]  # that of the routes: the one in the address depends on the header Host
        if not self.login_needed:
            # A page of a stranger may give its own name our address; only then does a browser send that name as the host.
            if not is_loopback_host(_host_of(request)):
                return PlainTextResponse("Without a password, this dashboard answers to names of this machine alone.", 421)
        elif not request.session.get("in") and path != LOGIN and not path.startswith(STATIC):
            if "HX-Request" in request.headers:
                return PlainTextResponse("The login has ended.", 401, {"HX-Refresh": "true"})
            return RedirectResponse(LOGIN, 303)
        return None


def _host_of(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def form_token(request: Request) -> str:
    """The token of this session that each of its forms has to bring back."""
    token: str = request.session.setdefault("token", secrets.token_urlsafe(16))
    return token


async def read_form(request: Request) -> Mapping[str, str]:
    """Read a form that was sent from a page of this session.

    Raises:
        HTTPException: it is too large, late, malformed, or lacks the session's token. Nothing was changed.
    """
    body = bytearray()
    with trio.move_on_after(FORM_SECONDS) as reading:
        async with aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > FORM_BYTES_MAX:
                    raise HTTPException(413, f"A form has at most {FORM_BYTES_MAX} bytes. Nothing was changed.")
    if reading.cancelled_caught:
        raise HTTPException(408, f"The form did not arrive within {FORM_SECONDS:g} s. Nothing was changed.")
    try:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=16))
    except ValueError as error:
        raise HTTPException(400, "That is no form of this dashboard. Nothing was changed.") from error
    if not hmac.compare_digest(
        form.get("token", "").encode(), str(request.session.get("token") or secrets.token_hex()).encode()
    ):
        raise HTTPException(403, "The form does not come from this session: load the page again. Nothing was changed.")
    return form


@attrs.define(eq=False)
class Login:
    """Compares passwords, slowly if they are wrong."""

    password: str = attrs.field(repr=False)
    _guesses: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(GUESSES_AT_ONCE))

    async def accepts(self, password: str) -> bool:
        """Whether this is the password; a wrong one is answered after `WRONG_PASSWORD_SECONDS`."""
        async with self._guesses:
            if hmac.compare_digest(password.encode(), self.password.encode()):
                return True
            await trio.sleep(WRONG_PASSWORD_SECONDS)
            return False
