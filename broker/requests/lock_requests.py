"""Requests of clients for locks on queues (RocketMQ AdminBrokerProcessor): codes 41 and 42."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ...message.json import dumps
from ...message.message import MessageQueue
from ...message.numbers import int_of
from ...message.units import QueueId
from ...remoting.bounds import checked_name
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand, encode_frame
from ...remoting.dispatcher import AnswerPolicy, Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...store.message_store import MessageStore
from ...world.clock import Clock
from ..request_bodies import body_of
from ..tables.locks import QueueLocks
from ..tables.table_log import TableLog
from ..tables.topics import TopicTable
from .client_requests import CLIENT_ID_CHARACTERS_MAX


@attrs.define(eq=False, kw_only=True, repr=False)
class LockRequests:
    """The handlers of lock requests."""

    broker_name: str
    """The name that queues of this broker have; a queue with another name is given to nobody."""
    clock: Clock
    topics: TopicTable
    locks: QueueLocks
    table_log: TableLog
    store: MessageStore
    policy: AnswerPolicy | None
    """Which nodes decide."""
    _dispatcher: Dispatcher = attrs.field(init=False)

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        self._dispatcher = dispatcher
        dispatcher.register(RequestCode.LOCK_BATCH_MQ, self.lock, policy=self.policy)
        dispatcher.register(RequestCode.UNLOCK_BATCH_MQ, self.unlock, policy=self.policy)

    def lock(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
        """Answer a renewal at once, and a new lock when it is applied, and as safe as it can be now: no restart loses it."""
        self._dispatcher.check_room(connection, request)
        group, client_id, queues = self._lock_request(request)
        known = [queue for queue in queues if self._is_here(queue)]
        held, wanted = self.locks.lock(group, client_id, known, self.clock.monotonic())
        if not wanted:
            return _locked(request, held)
        end = self.table_log.put_leases(wanted)
        if not self.store.waits and self.store.dispatcher.dispatched_offset >= end:
            return _locked(request, self.locks.owned(group, client_id, known))
        self._dispatcher.start_counted(connection, request, self._answer_when_kept, end, (group, client_id, known))
        return None

    async def _answer_when_kept(
        self,
        connection: ServerConnection,
        request: RemotingCommand,
        end: int,
        asked: tuple[str, str, list[MessageQueue]],
    ) -> None:
        # A lock that only this node has is given all the same: while a slave is away, no other master can give it.
        if (status := await self.store.event_status(end)).stored:
            answer = _locked(request, self.locks.owned(*asked))
        else:
            answer = request.response(
                ResponseCode.SYSTEM_ERROR, remark=f"whether the queues are locked is unknown: {status.name}"
            )
        connection.push(encode_frame(answer))

    def _is_here(self, queue: MessageQueue) -> bool:
        config = self.topics.get(queue.topic) if queue.broker_name == self.broker_name else None
        return config is not None and 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def unlock(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        group, client_id, queues = self._lock_request(request)
        if released := self.locks.unlock(group, client_id, queues):
            self.table_log.put_leases(released)
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


def _locked(request: RemotingCommand, held: Iterable[MessageQueue]) -> RemotingCommand:
    return request.response(body=dumps({"lockOKMQSet": list(map(queue_to_json, held))}))


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    """A message queue as JSON, as it is in bodies."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
