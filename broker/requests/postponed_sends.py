"""Sends that wait for a change of their topic, such as its creation by the first of them, in their order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import attrs
import trio

from ...remoting.codes import ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import Dispatcher, Wait, answer_failure
from ...remoting.server import ServerConnection

_Sends = list[tuple[ServerConnection, RemotingCommand]]


@attrs.define(eq=False)
class PostponedSends:
    """The requests by topic."""

    dispatcher: Dispatcher
    handle: Callable[[ServerConnection, list[RemotingCommand]], int]
    """Handles requests of one connection again, and returns how many it has taken in this turn."""
    _waiting: dict[str, _Sends] = attrs.field(factory=dict[str, _Sends])
    _bytes: int = 0

    def __contains__(self, topic: str) -> bool:
        """Whether requests for the topic wait, behind which later ones have to wait, too."""
        return topic in self._waiting

    def add(self, connection: ServerConnection, request: RemotingCommand, ready: Wait) -> None:
        """Let a request wait until `ready` returns for the first one of its topic; SYSTEM_BUSY if too many wait."""
        topic, count, size = request.ext["b"], sum(map(len, self._waiting.values())), self._bytes + len(request.body)
        if count >= self.dispatcher.waiting_max or size > self.dispatcher.waiting_bytes_max:
            remark = f"[OVERLOAD] {count} sends wait for topics that are being changed; this message was not stored"
            connection.answer(request, ResponseCode.SYSTEM_BUSY, remark=remark)
            return
        self._bytes = size
        if topic in self._waiting:
            self._waiting[topic].append((connection, request))
        else:
            self._waiting[topic] = [(connection, request)]
            self.dispatcher.start_soon(self._resume, topic, ready)

    async def _resume(self, topic: str, ready: Wait) -> None:
        """Handle the requests that wait for a topic, those of one connection in their order."""
        failure: Exception | None = None
        try:
            await ready()
        except Exception as error:  # noqa: BLE001 - answered to the peers, and logged unless it is a refusal
            failure = error
        while self._handle_some(topic, failure):
            await trio.lowlevel.checkpoint()
        del failure  # an error and this frame refer to each other

    def _handle_some(self, topic: str, failure: Exception | None) -> bool:
        """Handle as many of the requests that wait for a topic as one turn allows; returns whether others are left."""
        left = self._waiting.pop(topic)  # for the handler, nothing that waits is before these
        self._bytes -= _bytes_of(left)
        began, is_turn_over = left[0][0].clock.monotonic(), False
        while left and not is_turn_over:
            connection, run = next(groupby(left, lambda each: each[0]))
            requests = [request for _, request in run]
            taken = self._handle_run(connection, requests, failure)
            del left[:taken]
            is_turn_over = taken < len(requests) or connection.is_turn_over(began)
        self._bytes += _bytes_of(left)
        if topic in self._waiting:  # the topic is changed again, and another task handles these after the change
            self._waiting[topic] += left
            return False
        if left:
            self._waiting[topic] = left
        return bool(left)

    def _handle_run(self, connection: ServerConnection, requests: list[RemotingCommand], failure: Exception | None) -> int:
        """Handle requests of one connection, or answer them with a failure; returns how many were taken."""
        if connection.is_given_up:
            return len(requests)
        if failure is None:
            try:
                return self.handle(connection, requests)
            except Exception as error:  # noqa: BLE001 - as `failure`
                failure = error
        for request in requests:
            answer_failure(connection, request, failure)
        del failure
        return len(requests)


def _bytes_of(sends: _Sends) -> int:
    return sum(len(request.body) for _, request in sends)
