"""Calls for one queue or one group, shared by consumers and the admin client; each is one request and its answer.

All calls raise `Unreachable`, `NoAnswer`, `BadAnswer` or `Refused`; none of them retries.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from ..message.errors import JsonError
from ..message.json import dumps, loads
from ..message.message import MessageQueue
from ..remoting.codes import RequestCode
from ..remoting.command import RemotingCommand, wire_fields
from ..world.network import Address
from .errors import BadAnswer, NoAnswer, NotFound, NotSupported, Refused, SubscriptionRefused, Unreachable
from .session import CALL_SECONDS, Session
from .subscription import Subscription


def request(code: RequestCode, fields: Mapping[str, Any] | None = None, body: bytes = b"") -> RemotingCommand:
    """Make a request from Python values."""
    return RemotingCommand(code, wire_fields(fields or {}), body)


async def master_of(session: Session, queue: MessageQueue) -> Address:
    """The address of the queue's master; asks for the route once if it is not known.

    Raises:
        Unreachable: there is no master. NoRoute: the topic has no route.
    """
    address = session.routes.master(queue.broker_name)
    if address is None:
        await session.refresh_route(queue.topic)
        address = session.routes.master(queue.broker_name)
    if address is None:
        raise Unreachable(queue.broker_name, "its master is gone")
    return address


async def member_of(session: Session, queue: MessageQueue) -> Address:
    """The address of the queue's master, or of any other member while the master is gone; raises as `master_of` does."""
    found = session.routes.member(queue.broker_name, 0, session.avoided())
    return await master_of(session, queue) if found is None else found[0]


def _queue_fields(queue: MessageQueue) -> dict[str, Any]:
    return {"topic": queue.topic, "queueId": queue.queue_id, "bname": queue.broker_name}


async def _offset(session: Session, queue: MessageQueue, code: RequestCode, fields: Mapping[str, Any] | None = None) -> int:
    address = await member_of(session, queue)
    answer = await session.ask(address, request(code, {**_queue_fields(queue), **(fields or {})}))
    return integer_of(answer, "offset", address)


def integer_of(answer: RemotingCommand, name: str, address: Address) -> int:
    """A number in the fields of an answer.

    Raises:
        BadAnswer: the field is missing or not a number.
    """
    try:
        return int(answer.ext[name])
    except (KeyError, ValueError) as error:
        raise BadAnswer(str(address), name) from error


async def max_offset(session: Session, queue: MessageQueue) -> int:
    """The offset that the next message of the queue will get."""
    return await _offset(session, queue, RequestCode.GET_MAX_OFFSET)


async def min_offset(session: Session, queue: MessageQueue) -> int:
    """The offset of the oldest message of the queue."""
    return await _offset(session, queue, RequestCode.GET_MIN_OFFSET)


async def offset_at(session: Session, queue: MessageQueue, timestamp_ms: int) -> int:
    """The offset of the first message stored at or after `timestamp_ms`."""
    return await _offset(session, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": timestamp_ms})


async def committed_offset(session: Session, group: str, queue: MessageQueue) -> int | None:
    """The offset that `group` has committed in the queue; None if it never committed."""
    return (await asked_offset(session, group, queue, young_is_zero=False))[0]


async def asked_offset(
    session: Session, group: str, queue: MessageQueue, *, young_is_zero: bool = True
) -> tuple[int | None, bool]:
    """The offset at which `group` continues, and whether it is the master's: a slave gets commits late, and some never.

    With `young_is_zero` a broker answers 0 for a group without an offset if the queue still has its first messages.
    """
    address = await member_of(session, queue)
    by_master = address == session.routes.master(queue.broker_name)
    fields = {**_queue_fields(queue), "consumerGroup": group, "setZeroIfNotFound": young_is_zero}
    try:
        answer = await session.ask(address, request(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    except NotFound:
        return None, by_master
    return integer_of(answer, "offset", address), by_master


async def commit_offset(session: Session, group: str, queue: MessageQueue, offset: int) -> None:
    """Store the offset of `group` in the queue; it may be lower than before.

    Raises:
        Unreachable: the master has not stored it; while it is gone, a slave may have noted it.
    """
    if not await note_offset(session, group, queue, offset):
        raise only_noted(queue)


def only_noted(queue: MessageQueue) -> Unreachable:
    """The error for an offset that the master does not have."""
    return Unreachable(queue.broker_name, "its master is gone, and only a slave has noted the offset")


async def note_offset(
    session: Session, group: str, queue: MessageQueue, offset: int, timeout_seconds: float = CALL_SECONDS
) -> bool:
    """Store the offset of `group` in the queue, on another member if the master is gone.

    Returns: whether the master has stored it. While it is gone another member does, and the master may undo that later.
    """
    fields = {**_queue_fields(queue), "consumerGroup": group, "commitOffset": offset}
    address = await member_of(session, queue)
    try:
        await session.ask(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, fields), timeout_seconds)
    except Refused as error:
        if not error.invalid_metadata:
            raise
        # In DLedger mode another node may have become the leader, and the name servers know it.
        await session.refresh_route(queue.topic)
        address, refused_by = await member_of(session, queue), address
        if address == refused_by:
            raise
        await session.ask(address, request(RequestCode.UPDATE_CONSUMER_OFFSET, fields), timeout_seconds)
    return address == session.routes.master(queue.broker_name)


async def check_subscription(session: Session, group: str, subscription: Subscription, address: Address) -> None:
    """Ask a broker whether it supports a filter (RocketMQ `checkClientInBroker`).

    Raises:
        SubscriptionRefused: it does not.
    """
    body = dumps({"clientId": session.client_id, "group": group, "namespace": "", "subscriptionData": subscription.wire()})
    try:
        await session.ask(address, request(RequestCode.CHECK_CLIENT_CONFIG, body=body))
    except (Unreachable, NoAnswer, NotSupported):
        return  # a later pull shows whether the broker supports the filter
    except Refused as error:
        raise SubscriptionRefused(error.code, error.remark, error.address) from error


@contextmanager
def _readable(address: Address, what: str) -> Generator[None]:
    """Raise a `BadAnswer` for a body that has another structure than `what` has."""
    try:
        yield
    except (JsonError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadAnswer(str(address), what) from error


async def group_members(session: Session, group: str, address: Address) -> list[str]:
    """Client ids of the members of `group` that one broker knows."""
    answer = await session.ask(address, request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group}))
    with _readable(address, "a list of members"):
        body: Any = loads(answer.body) if answer.body else None
        return [str(client_id) for client_id in body["consumerIdList"]] if body else []


def _lock_body(session: Session, group: str, queues: Iterable[MessageQueue]) -> bytes:
    wanted = [{"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic} for queue in queues]
    return dumps({"clientId": session.client_id, "consumerGroup": group, "mqSet": wanted, "onlyThisBroker": False})


async def lock_queues(session: Session, group: str, address: Address, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
    """Lock queues of one broker for this client; returns those that are locked for us now."""
    answer = await session.ask(address, request(RequestCode.LOCK_BATCH_MQ, body=_lock_body(session, group, queues)))
    with _readable(address, "a list of locked queues"):
        body: Any = loads(answer.body) if answer.body else None
        locked: list[Any] = body.get("lockOKMQSet") or [] if body else []
        return {MessageQueue(item["topic"], item["brokerName"], int(item["queueId"])) for item in locked}


async def unlock_queues(
    session: Session, group: str, address: Address, queues: Iterable[MessageQueue], timeout_seconds: float = CALL_SECONDS
) -> None:
    """Release the locks of queues."""
    command = request(RequestCode.UNLOCK_BATCH_MQ, body=_lock_body(session, group, queues))
    await session.ask(address, command, timeout_seconds)
