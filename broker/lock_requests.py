"""Requests of clients for locks on queues (RocketMQ AdminBrokerProcessor): codes 41 and 42."""

from __future__ import annotations

from typing import Any

import attrs

from ..message.json import dumps
from ..message.message import MessageQueue
from ..message.numbers import int_of
from ..message.units import QueueId
from ..remoting.bounds import checked_name
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand, encode_frame
from ..remoting.dispatcher import Dispatcher
from ..remoting.errors import RequestRefused
from ..remoting.server import ServerConnection
from ..world.clock import Clock
from .client_requests import CLIENT_ID_CHARACTERS_MAX
from .locks import QueueLocks
from .persistence import LOCKS_FILE, Persistence
from .replicated_tables import ReplicatedTables
from .request_bodies import body_of
from .topics import TopicTable


@attrs.define(eq=False, kw_only=True, repr=False)
class LockRequests:
    """The handlers of lock requests."""

    broker_name: str
    """The name that queues of this broker have; a queue with another name is given to nobody."""
    clock: Clock
    topics: TopicTable
    locks: QueueLocks
    persistence: Persistence
    replicated: ReplicatedTables | None
    """In DLedger mode, the tables in the log, in which a new lock is on a majority before it is answered; otherwise None."""
    _dispatcher: Dispatcher = attrs.field(init=False)

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        self._dispatcher = dispatcher
        dispatcher.register(RequestCode.LOCK_BATCH_MQ, self.lock)
        dispatcher.register(RequestCode.UNLOCK_BATCH_MQ, self.unlock)

    def lock(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
        """Answer a renewal at once, and a new lock when it is on disk or on a majority, so that no restart loses it."""
        self._dispatcher.check_room(request)
        group, client_id, queues = self._lock_request(request)
        changes = self.locks.changes
        known = filter(self._is_here, queues)
        held = self.locks.lock(group, client_id, known, self.clock.monotonic())
        answer = request.response(body=dumps({"lockOKMQSet": list(map(queue_to_json, held))}))
        # What is renewed may have been given a moment ago, by a request that still waits for the majority.
        if self.locks.changes == changes and (self.replicated is None or self.replicated.locks_settled):
            return answer
        self._dispatcher.start_counted(request, self._answer_when_kept, connection, request, answer)
        return None

    async def _answer_when_kept(self, connection: ServerConnection, request: RemotingCommand, answer: RemotingCommand) -> None:
        if self.replicated is None:
            await self.persistence.write(LOCKS_FILE)  # a failed write is logged and stops no consumer
        else:
            try:
                await self.replicated.settled()
            except RequestRefused as refusal:
                answer = request.response(refusal.code, remark=refusal.remark)
        connection.push(encode_frame(answer))

    def _is_here(self, queue: MessageQueue) -> bool:
        config = self.topics.get(queue.topic) if queue.broker_name == self.broker_name else None
        return config is not None and 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def unlock(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        group, client_id, queues = self._lock_request(request)
        self.locks.unlock(group, client_id, queues)
        self.persistence.tables[LOCKS_FILE].wake()
        return request.response()

    def _lock_request(self, request: RemotingCommand) -> tuple[str, str, list[MessageQueue]]:
        body = body_of(request)
        try:
            queues = [
                MessageQueue(str(item["topic"]), str(item["brokerName"]), QueueId(int_of(item["queueId"])))
                for item in body.get("mqSet") or ()
            ]
            group = checked_name("group", str(body["consumerGroup"]))
            return group, checked_name("client id", str(body["clientId"]), CLIENT_ID_CHARACTERS_MAX), queues
        except (KeyError, TypeError, ValueError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the lock request is not one: {type(error).__name__}: {error}"
            ) from error


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    """A message queue as JSON, as it is in bodies."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
