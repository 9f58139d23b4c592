"""The table from request code to handler of a server.

There are three kinds of handlers: for one request (returns its answer), for a run of requests with related codes (answers
through the connection), and for work that must wait (runs in a task, bounded in number). An unknown code is answered with 3.
A code may have an `AnswerPolicy`, which says who may decide a request and how safe its effect is before it is answered. With
access control, every request of every kind is checked here before its handler runs, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from ..message.errors import JsonError
from ..world.events import get_logger
from ..world.logs import fault_of, trace_of
from .codes import RequestCode, ResponseCode
from .command import RemotingCommand, decode_command, encode_frame
from .errors import LocalProtocolError, RequestRefused
from .frame import FrameReader
from .metrics import Latencies
from .server import ServerConnection

if TYPE_CHECKING:
    from ..native import SendRun

log = get_logger(__name__)

WAITING_MAX = 1024
"""How many requests of all connections may wait in tasks; further ones are answered SYSTEM_BUSY."""

WAITING_PER_CONNECTION_MAX = 256
"""How many requests of one connection may wait in tasks, so that no single peer takes the room of all others."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""How many bytes the requests that wait in tasks may have together; further ones are answered SYSTEM_BUSY."""

BODY_BYTES_MAX = 256 * 1024
"""The largest body of a request, unless its code is registered with another bound; a larger one is refused. Bodies are JSON,
which is read on the event loop at some 100 ns per byte. The heartbeat of a thousand subscriptions fits."""

Handler = Callable[[ServerConnection, RemotingCommand], RemotingCommand | None]
RunHandler = Callable[[ServerConnection, list[RemotingCommand]], int]
WaitingHandler = Callable[[ServerConnection, RemotingCommand], Awaitable[RemotingCommand | None]]
Wait = Callable[[], Awaitable[None]]
_Outcome = RemotingCommand | Exception | None


class Postponed(Exception):
    """A handler has changed nothing yet, and wants the request again when `ready` has returned."""

    def __init__(self, ready: Wait) -> None:
        super().__init__("the request is handled again later")
        self.ready = ready


class AnswerPolicy(Protocol):
    """Who may decide the requests of a code, and when they are answered."""

    def check(self) -> None:
        """Refuse a request before its handler runs.

        Raises:
            RequestRefused: this server may not decide it. Nothing was done.
        """
        ...

    def settling(self) -> Wait | None:
        """What to wait for before the answer is sent, called when the handler has run; None to answer at once.

        The wait raises RequestRefused if what the handler did is not as safe as it should be; its remark says so.
        """
        ...


class AccessCheck(Protocol):
    """Who may send which requests."""

    def refusal(self, connection: ServerConnection, request: RemotingCommand) -> RequestRefused | None:
        """Why a request may not be carried out; None if it may. It is called before anything is done."""
        ...


class Service(Protocol):
    """Something of a server that answers requests."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Enter a handler for each of its request codes."""
        ...


@attrs.define(eq=False, repr=False)
class Dispatcher:
    """Satisfies `BatchHandler` with a table of handlers."""

    nursery: trio.Nursery | None = None
    """The nursery of waiting handlers; it must be set before serving if there are any."""
    on_close: list[Callable[[ServerConnection], None]] = attrs.field(factory=list[Callable[[ServerConnection], None]])
    latencies: Latencies | None = None
    """Counts how long requests take; None while nobody asks."""
    take_sends: Callable[[ServerConnection, SendRun], bool] | None = None
    """Handles a run of plain sends; returns False, and has done nothing, if these must be handled one by one."""
    access: AccessCheck | None = None
    """Checks every request before its handler; None if everybody may do everything."""
    waiting_max: int = WAITING_MAX
    waiting_per_connection_max: int = WAITING_PER_CONNECTION_MAX
    waiting_bytes_max: int = WAITING_BYTES_MAX
    _handlers: dict[int, Handler] = attrs.field(factory=dict[int, Handler])
    _runs: dict[int, RunHandler] = attrs.field(factory=dict[int, RunHandler])
    _waiting: dict[int, WaitingHandler] = attrs.field(factory=dict[int, WaitingHandler])
    _policies: dict[int, AnswerPolicy] = attrs.field(factory=dict[int, AnswerPolicy])
    _waiting_now: int = 0
    _waiting_bytes: int = 0
    _body_bytes_max: dict[int, int] = attrs.field(factory=dict[int, int])

    def register(
        self, code: int, handler: Handler, *, body_bytes_max: int = BODY_BYTES_MAX, policy: AnswerPolicy | None = None
    ) -> None:
        """Let `handler` answer requests with `code`; it returns the answer, or None to answer later or never.

        Args:
            body_bytes_max: requests with a larger body are refused without being decoded.
        """
        self._handlers[code] = handler
        self._describe(code, body_bytes_max, policy)

    def register_run(self, codes: Iterable[int], handler: RunHandler) -> None:
        """Let `handler` take runs of successive requests of one receive whose codes are all in `codes`.

        It returns how many it has taken, one at least; the others come again in the next turn of the event loop.
        """
        for code in codes:
            self._runs[code] = handler

    def register_long(self, codes: Mapping[int, WaitingHandler], *, policy: AnswerPolicy | None = None) -> None:
        """Let handlers answer requests whose long work is divided among turns of the event loop, one request after the other.

        Each holds megabytes meanwhile, of an answer or of a list of what is to be done; hundreds that take turns would hold
        gigabytes and end no sooner.
        """
        lock = trio.Lock()
        for code, handler in codes.items():
            self.register_waiting(code, _one_after_the_other(lock, handler), policy=policy)

    def register_waiting(
        self, code: int, handler: WaitingHandler, *, body_bytes_max: int = BODY_BYTES_MAX, policy: AnswerPolicy | None = None
    ) -> None:
        """Let `handler` answer requests with `code` in a task of its own; requests with more body are refused unread."""
        self._waiting[code] = handler
        self._describe(code, body_bytes_max, policy)

    def _describe(self, code: int, body_bytes_max: int, policy: AnswerPolicy | None) -> None:
        self._body_bytes_max[code] = body_bytes_max
        if policy is not None:
            self._policies[code] = policy

    def start_soon(self, answer_later: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Run the rest of a handler that has returned None, or another piece of work, in a task of its own."""
        assert self.nursery is not None, "requests are handled while the server serves"
        self.nursery.start_soon(answer_later, *arguments)

    def check_room(self, connection: ServerConnection, request: RemotingCommand) -> None:
        """Refuse a request that may have to wait while too many others do, of its connection or of all.

        Raises:
            RequestRefused: SYSTEM_BUSY. Nothing was done.
        """
        if (own := connection.waiting_requests) >= self.waiting_per_connection_max:
            remark = f"[OVERLOAD] {own} requests of this connection are waiting already; this one was not taken"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, remark)
        if self._waiting_now >= self.waiting_max or self._waiting_bytes + _bytes_of(request) > self.waiting_bytes_max:
            waiting = f"{self._waiting_now} requests with {self._waiting_bytes} bytes"
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, f"[OVERLOAD] {waiting} are waiting already; this one was not taken")

    def start_counted(
        self,
        connection: ServerConnection,
        request: RemotingCommand,
        wait: Callable[..., Awaitable[None]],
        *arguments: object,
    ) -> None:
        """Run `wait(connection, request, *arguments)`, which answers a request, in a task of its own.

        If it raises, the request is answered with that. Before, `check_room` must have found room for the request.
        """
        self._count(connection, request, 1)
        self.start_soon(self._counted, connection, request, wait, arguments)

    async def _counted(
        self,
        connection: ServerConnection,
        request: RemotingCommand,
        wait: Callable[..., Awaitable[None]],
        arguments: tuple[object, ...],
    ) -> None:
        try:
            await wait(connection, request, *arguments)
        except Exception as error:  # noqa: BLE001 - answered to the peer, and logged unless it is a refusal
            answer_failure(connection, request, error)
        finally:
            self._count(connection, request, -1)

    def _count(self, connection: ServerConnection, request: RemotingCommand, change: int) -> None:
        self._waiting_now += change
        connection.waiting_requests += change
        self._waiting_bytes += change * _bytes_of(request)

    @property
    def codes(self) -> frozenset[int]:
        """Every request code that has a handler."""
        return frozenset((*self._handlers, *self._runs, *self._waiting))

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> int:
        began = connection.clock.monotonic()
        sends_taken = connection.sends is not None and self._take_sends(connection, requests)
        at, count, access = 0, len(requests), self.access
        while at < count:
            if (at or sends_taken) and (connection.is_given_up or connection.is_turn_over(began)):
                return count if connection.is_given_up else at
            run_handler = self._runs.get(requests[at].code)
            latencies = self.latencies
            run_began = 0.0 if latencies is None else latencies.clock.monotonic()
            if run_handler is None:
                self._handle_one(connection, requests[at])
                if latencies is not None and requests[at].code in self._handlers:
                    latencies.add(requests[at].code, run_began)
                at += 1
                continue
            start, code = at, requests[at].code
            while at < count and (requests[at].code == code or self._runs.get(requests[at].code) == run_handler):
                if access is not None and self._is_refused(connection, access, requests[at]):
                    del requests[at]  # it is answered, and not passed again with those that the handler leaves
                    count -= 1
                else:
                    at += 1
            taken = at - start
            if not taken:
                continue
            try:
                taken = run_handler(connection, requests[start:at])
            except Exception as error:  # noqa: BLE001 - answered to the peer, and logged unless it is a refusal
                for request in requests[start:at]:
                    answer_failure(connection, request, error)
            if latencies is not None:
                latencies.add(code, run_began, taken)
            if taken < at - start:
                return start + taken
        return count

    def _take_sends(self, connection: ServerConnection, requests: list[RemotingCommand]) -> bool:
        """Handle the plain sends before the requests, or insert them there; returns whether they have been handled."""
        run, connection.sends = connection.sends, None
        assert run is not None, "there is a run to take"
        # A send that is not plain and the plain ones before it are one run, which is put and answered together.
        is_whole = not requests or requests[0].code not in self._runs
        latencies = self.latencies
        began = 0.0 if latencies is None else latencies.clock.monotonic()
        try:
            # With access control each send is checked by itself: an unsigned one may be allowed because of its address.
            may_take = self.access is None and is_whole
            if not (may_take and self.take_sends is not None and self.take_sends(connection, run)):
                requests[:0] = _requests_of(run)
                return False
        except Exception as error:  # noqa: BLE001 - answered to the peer, and logged unless it is a refusal
            for request in _requests_of(run):
                answer_failure(connection, request, error)
        if latencies is not None:
            latencies.add(RequestCode.SEND_MESSAGE_V2, began, len(run))
        return True

    def connection_closed(self, connection: ServerConnection) -> None:
        for forget in self.on_close:
            try:
                forget(connection)
            except Exception as error:  # noqa: BLE001 - one failing observer must not keep the others from running, nor end the server
                log.error("connection_not_forgotten", reason=fault_of(error), trace=trace_of(error))

    def _handle_one(self, connection: ServerConnection, request: RemotingCommand) -> None:
        if len(request.body) > (most := self._body_bytes_max.get(request.code, BODY_BYTES_MAX)):
            connection.answer(
                request,
                ResponseCode.SYSTEM_ERROR,
                remark=f"a body of {len(request.body)} bytes; request {request.code} may have {most}; nothing was done",
            )
        elif self.access is not None and self._is_refused(connection, self.access, request):
            return
        elif (handler := self._handlers.get(request.code)) is not None:
            self._handle_now(connection, request, handler)
        elif request.code not in self._waiting:
            connection.answer(
                request,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request code {request.code} is not supported here",
            )
        else:
            try:
                self.check_room(connection, request)
            except RequestRefused as refusal:
                connection.answer(request, refusal.code, remark=refusal.remark)
            else:
                self.start_counted(connection, request, self._wait)

    @staticmethod
    def _is_refused(connection: ServerConnection, access: AccessCheck, request: RemotingCommand) -> bool:
        """Whether the sender may not do what a request asks for; then the request is answered."""
        try:
            refusal: Exception | None = access.refusal(connection, request)
        except Exception as error:  # noqa: BLE001 - a request that cannot be checked is not carried out
            refusal = error
        if refusal is None:
            return False
        answer_failure(connection, request, refusal)
        del refusal  # an error and this frame refer to each other
        return True

    def _handle_now(self, connection: ServerConnection, request: RemotingCommand, handler: Handler) -> None:
        policy, settling = self._policies.get(request.code), None
        outcome: _Outcome = None
        try:
            if policy is not None:
                policy.check()
                self.check_room(connection, request)  # before anything is changed, because the answer may have to wait
            try:
                outcome = handler(connection, request)
            except RequestRefused as refusal:  # which may also say what has been changed
                outcome = refusal
            settling = policy.settling() if policy is not None else None
        except Postponed as postponed:
            self._postpone(connection, request, postponed.ready)
            return
        except Exception as error:  # noqa: BLE001 - answered to the peer, and logged unless it is a refusal
            outcome = error
        if settling is None:
            _send_outcome(connection, request, outcome)
        else:
            self.start_counted(connection, request, self._answer_settled, outcome, settling)
        del outcome  # an error and this frame refer to each other: a cycle would wait for the collector

    def _postpone(self, connection: ServerConnection, request: RemotingCommand, ready: Wait) -> None:
        try:
            self.check_room(connection, request)
        except RequestRefused as refusal:
            connection.answer(request, refusal.code, remark=refusal.remark)
        else:
            self.start_counted(connection, request, self._handle_again, ready)

    async def _handle_again(self, connection: ServerConnection, request: RemotingCommand, ready: Wait) -> None:
        await ready()
        self._count(connection, request, -1)  # there is room for it if it has to wait again
        try:
            self._handle_one(connection, request)
        finally:
            self._count(connection, request, 1)

    async def _wait(self, connection: ServerConnection, request: RemotingCommand) -> None:
        latencies = self.latencies
        began = 0.0 if latencies is None else latencies.clock.monotonic()
        await self._carry_out(connection, request)
        if latencies is not None:
            latencies.add(request.code, began)

    async def _carry_out(self, connection: ServerConnection, request: RemotingCommand) -> None:
        policy, settling = self._policies.get(request.code), None
        outcome: _Outcome = None
        try:
            if policy is not None:
                policy.check()
            try:
                outcome = await self._waiting[request.code](connection, request)
            except RequestRefused as refusal:  # which may also say what has been changed
                outcome = refusal
            settling = policy.settling() if policy is not None else None
        except Exception as error:  # noqa: BLE001 - answered to the peer, and logged unless it is a refusal
            outcome = error
        if settling is None:
            _send_outcome(connection, request, outcome)
        else:
            await self._answer_settled(connection, request, outcome, settling)
        del outcome

    async def _answer_settled(
        self, connection: ServerConnection, request: RemotingCommand, outcome: _Outcome, settling: Wait
    ) -> None:
        try:
            await settling()
        except RequestRefused as unsettled:
            before = f"{outcome.remark}; " if isinstance(outcome, RequestRefused) else ""
            outcome = RequestRefused(unsettled.code, f"{before}{unsettled.remark}")
        except Exception as error:  # noqa: BLE001 - answered to the peer, and logged
            outcome = error
        _send_outcome(connection, request, outcome)
        del outcome


def _requests_of(run: SendRun) -> list[RemotingCommand]:
    return [decode_command(*frame) for frame in FrameReader().cut(run.received[: run.end])]


def _bytes_of(request: RemotingCommand) -> int:
    return len(request.body) + sum(len(name) + len(value) for name, value in request.ext.items())


def _one_after_the_other(lock: trio.Lock, handler: WaitingHandler) -> WaitingHandler:
    async def handle(connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
        async with lock:
            return None if connection.is_given_up else await handler(connection, request)

    return handle


def _send_answer(connection: ServerConnection, request: RemotingCommand, answer: RemotingCommand | None) -> None:
    if answer is not None and not request.is_oneway:
        connection.push(encode_frame(answer))


def _send_outcome(connection: ServerConnection, request: RemotingCommand, outcome: _Outcome) -> None:
    if isinstance(outcome, Exception):
        answer_failure(connection, request, outcome)
        return
    try:
        _send_answer(connection, request, outcome)
    except Exception as error:  # noqa: BLE001 - an answer that cannot be encoded is answered with the reason
        answer_failure(connection, request, error)


def answer_failure(connection: ServerConnection, request: RemotingCommand, error: Exception) -> None:
    """Answer a request whose handling has raised, and log that unless it is a refusal or the peer's mistake."""
    if isinstance(error, RequestRefused):
        connection.answer(request, error.code, remark=error.remark)
        return
    if isinstance(error, JsonError):  # the peer's mistake
        connection.answer(request, ResponseCode.SYSTEM_ERROR, remark=f"the body of request {request.code} is {error}")
        return
    if isinstance(error, LocalProtocolError):  # the answer does not fit a frame
        connection.answer(request, ResponseCode.SYSTEM_ERROR, remark=f"the answer to request {request.code}: {error}")
        return
    reason = fault_of(error)
    connection.log.error("request_failed", code=request.code, reason=reason, trace=trace_of(error))
    connection.answer(request, ResponseCode.SYSTEM_ERROR, remark=reason)
