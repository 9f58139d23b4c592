"""The pages and the changes of the dashboard, as an ASGI application that any server on trio runs."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import attrs
import click
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ...client.admin import Admin
from ...client.admin.errors import NoSuchGroup
from ...client.errors import ClientError, InvalidArgument, NoPermission, NoRoute, NoRouteReason, NotFound, TopicNotExist
from ...message.message import MessageQueue, StoredMessage
from ...message.units import QueueId
from ...world.clock import SystemClock
from ...world.events import get_logger
from ...world.tls import ClientTls
from ..clients import credentials_hint, explain
from ..cluster import degradations_of, outages_of, state_of
from ..dledger import leaders_of, nodes_of, rows_of
from ..output import one_line, text_or_hex, when
from ..redrive import redrive
from .broker_groups import broker_groups, nodes_of_group
from .facts import (
    ask_group,
    ask_letters,
    ask_way,
    find_messages,
    lags_in_topic,
    list_groups,
    list_topics,
    list_users,
    paged,
    queues_of_topic,
)
from .guard import LOGIN, SESSION_SECONDS, Guard, Login, form_token, read_form
from .survey import Survey

log = get_logger(__name__)

HERE = Path(__file__).parent
BODY_CHARACTERS = 4000
"""How much of a body is shown."""
TEXT_CHARACTERS = 500
REDRIVE_MAX = 1000
"""How many dead letters one click hands out at most."""

Change = Callable[[Mapping[str, str]], Awaitable[tuple[str, str]]]
"""Makes a change from a form; returns what was done, and the address of the page that shows it."""


@attrs.define(eq=False)
class Dashboard:
    """A cluster as pages."""

    admin: Admin
    namesrv: str
    tls: bool | ClientTls = False
    allow_changes: bool = False
    login: Login | None = None
    _templates: Environment = attrs.field(init=False)
    _redriven: set[str] = attrs.field(factory=set[str])
    """The groups whose dead letters are being handed out."""

    def __attrs_post_init__(self) -> None:
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            number=_number_text, when=when, line=_line, body=_body, text=text_or_hex, credentials_hint=credentials_hint
        )

    def application(self) -> Starlette:
        """The ASGI application; a session ends with it, because each one signs with a key of its own."""
        middleware = [
            Middleware(
                SessionMiddleware, secret_key=secrets.token_hex(), session_cookie="ledgermq_dashboard", max_age=SESSION_SECONDS
            ),
            Middleware(Guard, login_needed=self.login is not None),
        ]
        pages = {
            "/": self._cluster,
            "/broker": self._broker,
            "/topics": self._topics,
            "/topic": self._topic,
            "/groups": self._groups,
            "/group": self._group,
            "/letters": self._letters,
            "/messages": self._messages,
            "/message": self._message,
            "/users": self._users,
            LOGIN: self._login,
        }
        routes = [
            *(Route(path, page) for path, page in pages.items()),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/letters/redrive", self._changing(self._redrive), methods=["POST"]),
            Route("/users/switch", self._changing(self._switch_user), methods=["POST"]),
            Route("/broker/transfer", self._changing(self._transfer), methods=["POST"]),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]
        return Starlette(
            routes=routes,
            middleware=middleware,
            exception_handlers={ClientError: self._explain, HTTPException: self._refuse},
        )

    def _page(
        self,
        request: Request,
        name: str,
        *,
        refresh_seconds: int = 5,
        status: int = 200,
        notes: Sequence[str] = (),
        **facts: Any,
    ) -> Response:
        """Render a page, or only the part of it that changes when the page itself asks for that."""
        fragment = "HX-Request" in request.headers
        text = self._templates.get_template(name).render(
            ui=self._templates.get_template("parts.html").module,
            fragment=fragment,
            status=status,
            refresh_seconds=refresh_seconds,
            notes=notes,
            path=request.url.path,
            here=f"{request.url.path}?{request.url.query}",
            query=request.query_params,
            allow_changes=self.allow_changes,
            logged_in=bool(request.session.get("in")),
            token=form_token(request),
            said=None if fragment else request.session.pop("said", None),
            now=when(SystemClock().wall_ms()),
            **facts,
        )
        return HTMLResponse(text, status)

    async def _cluster(self, request: Request) -> Response:
        rows, nodes = await state_of(self.admin)
        faults = [*outages_of(rows, nodes), *degradations_of(rows, nodes)]
        return self._page(request, "cluster.html", rows=rows, groups=broker_groups(rows, nodes), notes=faults)

    async def _broker(self, request: Request) -> Response:
        name = _given(request, "broker")
        rows, nodes = await state_of(self.admin)
        group = next((each for each in broker_groups(rows, nodes) if each.name == name), None)
        if group is None:
            raise HTTPException(404, f"The name server knows no broker {name}.")
        return self._page(request, "broker.html", group=group, nodes=list(nodes_of_group(rows_of(nodes), group)))

    async def _topics(self, request: Request) -> Response:
        survey = await Survey.begin(self.admin)
        page = await list_topics(survey, request.query_params.get("find", ""), _number(request, "page"))
        return self._page(request, "topics.html", refresh_seconds=10, page=page, notes=survey.notes)

    async def _topic(self, request: Request) -> Response:
        topic, survey = _given(request, "topic"), await Survey.begin(self.admin)
        queues = await queues_of_topic(survey, topic)
        if not queues and survey.complete:
            raise HTTPException(404, f"No broker has the topic {topic}.")
        lags = await lags_in_topic(survey, topic)
        most = max((held.max_offset - held.min_offset for held in queues.values()), default=0)
        page = paged(list(queues.items()), _number(request, "page"))
        return self._page(request, "topic.html", topic=topic, page=page, most=most, lags=lags, notes=survey.notes)

    async def _groups(self, request: Request) -> Response:
        survey = await Survey.begin(self.admin)
        page, asked = await list_groups(survey, request.query_params.get("find", ""), _number(request, "page"))
        return self._page(request, "groups.html", refresh_seconds=10, page=page, notes=survey.notes, asked=asked)

    async def _group(self, request: Request) -> Response:
        group, survey = _given(request, "group"), await Survey.begin(self.admin)
        found = await ask_group(survey, group)
        page = paged(list(found.positions.items()), _number(request, "page"))
        return self._page(request, "group.html", group=group, found=found, page=page, notes=survey.notes)

    async def _letters(self, request: Request) -> Response:
        group, survey = _given(request, "group"), await Survey.begin(self.admin)
        page, left = await ask_letters(survey, group, _number(request, "page"))
        return self._page(
            request, "letters.html", group=group, page=page, left=left, notes=survey.notes, redrive_max=REDRIVE_MAX
        )

    async def _messages(self, request: Request) -> Response:
        topic, text = request.query_params.get("topic", ""), request.query_params.get("text", "").strip()
        found: list[tuple[str, StoredMessage]] = []
        notes: list[str] = []
        if topic and text:
            survey = await Survey.begin(self.admin)
            found, notes = await find_messages(survey, topic, text), survey.notes
        if len(found) == 1 and not notes:
            ((broker, message),) = found
            place = {"topic": topic, "broker": broker, "queue": message.queue_id, "offset": message.queue_offset}
            return RedirectResponse(f"/message?{urlencode(place)}", 303)
        return self._page(request, "messages.html", refresh_seconds=0, found=found, notes=notes, asked=bool(topic and text))

    async def _message(self, request: Request) -> Response:
        topic, broker, offset = _given(request, "topic"), _given(request, "broker"), _number(request, "offset")
        queue, survey = MessageQueue(topic, broker, QueueId(_number(request, "queue"))), await Survey.begin(self.admin)
        found = await survey.ask([(broker, offset)], lambda _, at: self.admin.message_at(queue, at))
        if not found and survey.complete:
            raise HTTPException(404, f"There is no message with offset {offset} in {queue}.")
        message = found.get((broker, offset))
        readers = await ask_way(survey, broker, message) if message else []
        return self._page(
            request, "message.html", refresh_seconds=10, broker=broker, message=message, readers=readers, notes=survey.notes
        )

    async def _users(self, request: Request) -> Response:
        survey = await Survey.begin(self.admin)
        page = await list_users(survey, request.query_params.get("find", ""), _number(request, "page"))
        return self._page(request, "users.html", refresh_seconds=10, page=page, notes=survey.notes)

    async def _login(self, request: Request) -> Response:
        if self.login is None:
            return RedirectResponse("/", 303)
        return self._page(request, "login.html", refresh_seconds=0)

    async def _log_in(self, request: Request) -> Response:
        form = await read_form(request)
        if self.login is None or not await self.login.accepts(form.get("password", "")):
            log.warning("dashboard_login_refused", remote=_remote(request))
            return self._page(request, "login.html", refresh_seconds=0, status=403, notes=["That is not the password."])
        request.session.clear()
        request.session["in"] = True
        return RedirectResponse("/", 303)

    async def _log_out(self, request: Request) -> Response:
        await read_form(request)
        request.session.clear()
        return RedirectResponse(LOGIN if self.login else "/", 303)

    def _changing(self, change: Change) -> Callable[[Request], Awaitable[Response]]:
        """The handler of a form that changes something: refused unless changes are allowed, and logged."""

        async def handle(request: Request) -> Response:
            form = await read_form(request)
            if not self.allow_changes:
                raise HTTPException(
                    403, "This dashboard only shows. Start it with --allow-changes to change something. Nothing was changed."
                )
            try:
                done, path = await change(form)
            except (ClientError, click.ClickException) as error:
                reason = explain(error, self.namesrv) if isinstance(error, ClientError) else error.message
                log.warning("dashboard_change_failed", path=request.url.path, remote=_remote(request), reason=reason)
                raise HTTPException(_status_of(error), reason) from error
            log.info("dashboard_changed", what=done, remote=_remote(request))
            request.session["said"] = done
            return RedirectResponse(path, 303)

        return handle

    async def _redrive(self, form: Mapping[str, str]) -> tuple[str, str]:
        group, count = form.get("group", ""), form.get("count", "")
        if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= REDRIVE_MAX:
            raise HTTPException(400, f"A redrive takes 1 to {REDRIVE_MAX} dead letters. Nothing was changed.")
        if group in self._redriven:
            raise HTTPException(409, f"Dead letters of {group} are being handed out just now. Nothing was changed.")
        self._redriven.add(group)
        try:
            done = await redrive(self.namesrv, group, int(count), self.tls)
        finally:
            self._redriven.discard(group)
        return f"Dead letters handed out to {group} again: {done}.", f"/letters?{urlencode({'group': group})}"

    async def _transfer(self, form: Mapping[str, str]) -> tuple[str, str]:
        broker, node = form.get("broker", ""), form.get("node", "")
        leader = next((each for each in leaders_of(await nodes_of(self.admin)) if each["broker"] == broker), None)
        if leader is None:
            raise HTTPException(409, f"No node of {broker} leads now, so none can hand over. Nothing was changed.")
        await self.admin.change_dledger_group(leader["address"], "transfer", node)
        return f"{node} leads {broker}.", f"/broker?{urlencode({'broker': broker})}"

    async def _switch_user(self, form: Mapping[str, str]) -> tuple[str, str]:
        broker, user, to = form.get("broker", ""), form.get("user", ""), form.get("to", "")
        if to not in ("enabled", "disabled"):
            raise HTTPException(400, "A user is switched to enabled or disabled. Nothing was changed.")
        await self.admin.update_user(user, is_enabled=to == "enabled", broker=broker)
        return f"User {user} of {broker} is {to}.", "/users"

    async def _explain(self, request: Request, error: Exception) -> Response:
        """Say why the cluster has no answer."""
        assert isinstance(error, ClientError)
        return self._page(request, "error.html", status=_status_of(error), notes=explain(error, self.namesrv).splitlines())

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._page(request, "error.html", status=error.status_code, notes=error.detail.splitlines())


def _status_of(error: Exception) -> int:
    """The status of HTTP for an error of the cluster."""
    topic_unknown = isinstance(error, NoRoute) and error.reason is NoRouteReason.TOPIC_UNKNOWN
    if topic_unknown or isinstance(error, NoSuchGroup | NotFound | TopicNotExist):
        return 404
    return 403 if isinstance(error, NoPermission) else 400 if isinstance(error, InvalidArgument) else 502


def _number_text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _line(text: object, characters_max: int = TEXT_CHARACTERS) -> str:
    return one_line(_cut(str(text), characters_max))


def _body(body: bytes) -> str:
    return "\n".join(map(one_line, _cut(text_or_hex(body), BODY_CHARACTERS).splitlines()))


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{text[:characters_max]} … {len(text) - characters_max:,} more"


def _given(request: Request, name: str) -> str:
    if value := request.query_params.get(name):
        return value
    raise HTTPException(400, f"The address of this page lacks {name}=.")


def _number(request: Request, name: str) -> int:
    """A number of the address; a malformed or missing one counts as 0."""
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else 0


def _remote(request: Request) -> str:
    return request.client.host if request.client else ""
