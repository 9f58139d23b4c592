"""Sends that wait for a change of their topic, such as its creation by the first of them, in their order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import attrs

from ..remoting.codes import ResponseCode
from ..remoting.command import RemotingCommand
from ..remoting.dispatcher import Dispatcher, Wait
from ..remoting.errors import RequestRefused
from ..remoting.server import ServerConnection


@attrs.define(eq=False)
class PostponedSends:
    """The requests by topic."""

    dispatcher: Dispatcher
    handle: Callable[[ServerConnection, list[RemotingCommand]], int]
    """Handles requests of one connection again, and returns how many it has taken in this turn."""
    _waiting: dict[str, list[tuple[ServerConnection, RemotingCommand]]] = attrs.field(
        factory=dict[str, "list[tuple[ServerConnection, RemotingCommand]]"]
    )
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
        refusal: RequestRefused | None = None
        try:
            await ready()
        except RequestRefused as error:
            refusal = error
        waiting = self._waiting.pop(topic)
        self._bytes -= sum(len(request.body) for _, request in waiting)
        for connection, group in groupby(waiting, lambda each: each[0]):
            requests = [request for _, request in group]
            while requests and not connection.is_given_up:
                if refusal is not None:
                    connection.answer(requests.pop(0), refusal.code, remark=refusal.remark)
                else:
                    del requests[: self.handle(connection, requests)]
