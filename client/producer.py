"""The producer: many sends in flight, one await each.

A send has one total time, inside which it is tried again elsewhere as `retry.py` decides. The first attempt is the hot path: no
task, no cancel scope and no object but the result. The trio shell around `sending.py`, `retry.py` and `latency.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import attrs
import trio

from ..message.message import Message, MessageQueue
from ..message.properties import UNIQUE_KEY
from ..message.strings import string_hash
from ..message.units import MASTER_ID
from ..remoting.channel import Channel
from ..remoting.codes import RequestCode
from ..remoting.command import RemotingCommand
from ..remoting.errors import CallTimeout, ConnectionLost
from ..world.events import get_logger
from ..world.real import World, real_world
from ..world.tls import ClientTls
from .arguments import (
    INT_MAX,
    check_group,
    check_integer,
    check_message,
    check_messages,
    check_queue,
    check_seconds,
    check_text,
    check_topic,
    shown,
)
from .compression import COMPRESS_OVER_BYTES, Compression, compress
from .errors import (
    ClientError,
    Closed,
    InvalidArgument,
    MessageTooLarge,
    NoAnswer,
    NoRoute,
    NoRouteReason,
    SendTimeout,
    Unreachable,
)
from .latency import BOUNDS_MS, BrokerLatencies
from .retry import RETRIES, SEND_TIMEOUT_SECONDS, Attempts, attempt_seconds, choose_queue
from .route import TopicRoute
from .sending import (
    MESSAGE_BYTES_MAX,
    Publication,
    SendResult,
    Target,
    batch_properties,
    encode_messages,
    frame_parts,
    json_text,
    property_text,
    result_of,
    results_of,
    target_of,
)
from .session import Session, open_session
from .unique_id import UniqueIds

log = get_logger(__name__)

DEFAULT_GROUP = "DEFAULT_PRODUCER"

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses the queue of a message from those that can be sent to."""

_SINGLE, _BATCH = int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_BATCH_MESSAGE)
_SLOW_SECONDS = BOUNDS_MS[2] / 1000
"""Faster answers change nothing about where the next send goes."""


@attrs.frozen
class ProducerOptions:
    """How a producer sends."""

    send_timeout_seconds: float = SEND_TIMEOUT_SECONDS
    """Total time of one send, all attempts together."""
    retries: int = RETRIES
    """Further attempts after a failure that may have stored the message; each may store it twice."""
    compression: Compression | None = Compression.ZLIB
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    message_bytes_max: int = MESSAGE_BYTES_MAX
    avoid_slow_brokers: bool = True
    """RocketMQ's `sendLatencyFaultEnable`."""
    plain_bytes_max: int = attrs.field(init=False)
    """Bodies up to this size need neither compression nor refusal."""

    def __attrs_post_init__(self) -> None:
        plain = self.message_bytes_max
        if self.compression is not None:
            plain = min(plain, self.compress_over_bytes - 1)
        object.__setattr__(self, "plain_bytes_max", plain)


@attrs.frozen
class _Outgoing:
    """A message on its way: what every attempt sends."""

    sys_flag: int
    born_ms: int
    flag: int
    properties: bytes
    body: bytes
    batch: bool = False


@attrs.define(eq=False)
class Producer:
    """Sends messages; made by `open_producer`. Any number of tasks may send through it at once."""

    group: str
    options: ProducerOptions
    _session: Session
    _ids: UniqueIds | None = None
    _publications: dict[str, Publication] = attrs.field(factory=dict[str, Publication])
    _routing: dict[str, trio.Lock] = attrs.field(factory=dict[str, trio.Lock])
    _latencies: BrokerLatencies = attrs.field(factory=BrokerLatencies)
    _channels: dict[Target, Channel] = attrs.field(factory=dict[Target, Channel])
    _closed: bool = False

    async def send(
        self,
        message: Message,
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send one message and wait for the broker's acknowledgement.

        Args:
            message: what to send.
            key: messages of one key go to one queue and so keep their order; the choice agrees with Java's by hash.
            queue: send there and nowhere else.
            selector: chooses the queue. Of `key`, `queue` and `selector` at most one is given; a message with one of them is
                retried on its own queue only.
            timeout_seconds: total time, instead of the producer's own.

        Raises:
            InvalidArgument, MessageTooLarge: the message cannot be sent. Nothing was sent.
            NoRoute: there is no queue to send to. Nothing was sent.
            SendTimeout, NoAnswer: no acknowledgement came; see `may_have_been_stored`.
            Refused: the broker refused; see its subclasses.
        Durability: what `SendResult.status` says, and with SEND_OK what the broker's mode promises.
        Cancellation: the message may have been sent and stored, or not; never a part of it.
        """
        options = self.options
        seconds = options.send_timeout_seconds if timeout_seconds is None else self._seconds(timeout_seconds)
        try:
            topic = message.topic
            publication = self._publications.get(topic)
            if publication is None:
                publication = await self._publish(topic, seconds)
            body, sys_flag = message.body, 0
            if type(body) is not bytes or len(body) > options.plain_bytes_max:
                body, sys_flag = self._packed(body)
            ids = self._ids
            if ids is None:
                ids = self._make_ids()
            born_ms = self._session.world.clock.wall_ms()
            unique_id = message.properties.get(UNIQUE_KEY) or ids.next(born_ms)
            properties = json_text(property_text(message, unique_id, key))
        except (AttributeError, TypeError):
            check_message(message)  # says which field cannot be sent; checking first would cost every message
            raise
        if key is None and queue is None and selector is None:
            target, fixed = self._next_target(publication), False
        else:
            target, fixed = self._chosen(publication, message, key, queue, selector), True

        started = trio.current_time()
        try:
            channel = self._channels.get(target)
            if channel is None or channel.closed:
                with trio.fail_after(seconds):
                    channel = self._channels[target] = await self._session.channel(target.address)
            opaque = channel.next_opaque()
            parts = frame_parts(target.single, sys_flag, born_ms, message.flag, properties, opaque, body)
            elsewhere = publication.broker_count > 1 and not fixed
            limit = attempt_seconds(seconds, options.retries, elsewhere=True) if elsewhere else seconds
            answer = await channel.exchange(opaque, _SINGLE, parts, limit, started)
            result = result_of(answer, unique_id, target.queue, target.address)
        except (ClientError, CallTimeout, ConnectionLost, trio.TooSlowError) as error:
            outgoing = _Outgoing(sys_flag, born_ms, message.flag, properties, body)
            failure = self._failed(target, error)
            answer, target = await self._send_again(
                publication, outgoing, target, failure, started + seconds, seconds, fixed=fixed
            )
            return result_of(answer, unique_id, target.queue, target.address)
        elapsed = channel.received_at - started
        if elapsed >= _SLOW_SECONDS or self._latencies.any:
            self._latencies.sent(target.queue.broker_name, elapsed, started + elapsed)
        return result

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_seconds: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic as one request to one queue, where they lie one after the other.

        Returns: one result per message, in order.
        Raises: as `send`; also if the batch has several topics, a delay, or passes `message_bytes_max` altogether.
        Cancellation: the batch is stored whole or not at all.
        """
        messages = check_messages(messages)
        if not messages:
            raise InvalidArgument("a batch has at least one message")
        topic = messages[0].topic
        seconds = self._seconds(timeout_seconds)
        publication = self._publications.get(topic) or await self._publish(topic, seconds)
        ids = self._ids or self._make_ids()
        born_ms = self._session.world.clock.wall_ms()
        unique_ids = [message.properties.get(UNIQUE_KEY) or ids.next(born_ms) for message in messages]
        batch = encode_messages(messages, unique_ids, self.options.message_bytes_max)
        target = self._next_target(publication) if queue is None else self._fixed_target(publication, queue)
        outgoing = _Outgoing(0, born_ms, 0, batch_properties(wait_stored=batch.wait_stored), batch.body, batch=True)
        answer, target = await self._send(publication, outgoing, target, seconds, fixed=queue is not None)
        return results_of(answer, batch, target.queue, target.address)

    async def send_oneway(self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None) -> None:
        """Send one message without an acknowledgement: fastest, and nobody knows whether it was stored.

        Raises: what `send` raises before anything was sent; `Unreachable` if there is no connection.
        """
        check_message(message)
        seconds = self.options.send_timeout_seconds
        publication = self._publications.get(message.topic) or await self._publish(message.topic, seconds)
        body, sys_flag = self._packed(message.body)
        born_ms = self._session.world.clock.wall_ms()
        properties = json_text(property_text(message, (self._ids or self._make_ids()).next(born_ms), key))
        target = self._chosen(publication, message, key, queue, None) if key or queue else self._next_target(publication)
        channel = await self._session.channel(target.address)
        opaque = channel.next_opaque()
        try:
            await channel.post(
                frame_parts(target.single, sys_flag, born_ms, message.flag, properties, opaque, body, oneway=True)
            )
        except ConnectionLost as error:
            raise Unreachable(str(target.address), str(error)) from error

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of `topic` that can be sent to.

        Raises:
            NoRoute: there is none.
        """
        check_topic(topic)
        publication = self._publications.get(topic) or await self._publish(topic, self.options.send_timeout_seconds)
        return publication.queues

    def _seconds(self, timeout_seconds: float | None) -> float:
        if timeout_seconds is None:
            return self.options.send_timeout_seconds
        return check_seconds("timeout_seconds", timeout_seconds)

    def _packed(self, body: object) -> tuple[bytes, int]:
        options = self.options
        if not isinstance(body, bytes):
            if not isinstance(body, bytearray | memoryview):
                raise InvalidArgument(f"a body is bytes (got {type(body).__name__})")
            body = bytes(cast("bytearray", body))
        if len(body) > options.message_bytes_max:
            raise MessageTooLarge("body", len(body), options.message_bytes_max)
        if options.compression is None or len(body) < options.compress_over_bytes:
            return body, 0
        return compress(body, options.compression)

    def _make_ids(self) -> UniqueIds:
        lots = self._session.world.randomness
        self._ids = UniqueIds(self._session.local_host or "127.0.0.1", lots.getrandbits(16), lots.getrandbits(32))
        return self._ids

    def _next_target(self, publication: Publication) -> Target:
        counter = publication.counter = publication.counter + 1
        if self._latencies.any and self.options.avoid_slow_brokers:
            avoid = self._latencies.to_avoid(trio.current_time())
            return publication.targets[choose_queue(publication.queues, counter, avoid)]
        return publication.targets[counter % len(publication.targets)]

    def _chosen(
        self,
        publication: Publication,
        message: Message,
        key: str | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
    ) -> Target:
        if (key is not None) + (queue is not None) + (selector is not None) > 1:
            raise InvalidArgument("give at most one of key, queue and selector")
        if key is not None:
            check_text("key", key)
            # Java's remainder keeps the sign of the hash, and the selector takes its absolute value.
            return publication.targets[abs(string_hash(key)) % len(publication.targets)]
        if selector is not None:
            queue = selector(publication.queues, message)
            if not isinstance(queue, MessageQueue):  # pyright: ignore[reportUnnecessaryIsInstance] - selectors are not ours
                raise InvalidArgument(f"selector must return one of the queues that it is given (it returned {shown(queue)})")
        assert queue is not None
        return self._fixed_target(publication, queue)

    def _fixed_target(self, publication: Publication, queue: MessageQueue) -> Target:
        check_queue("queue", queue)
        for target in publication.targets:
            if target.queue == queue:
                return target
        master = self._session.routes.master(queue.broker_name)
        if queue.topic != publication.topic or master is None:
            raise InvalidArgument(f"{queue} is no queue that {publication.topic!r} can be sent to now")
        return target_of(self.group, queue, master)

    async def _send(
        self, publication: Publication, outgoing: _Outgoing, target: Target, seconds: float, *, fixed: bool
    ) -> tuple[RemotingCommand, Target]:
        deadline = trio.current_time() + seconds
        elsewhere = publication.broker_count > 1 and not fixed
        limit = attempt_seconds(seconds, self.options.retries, elsewhere=elsewhere)
        try:
            return await self._attempt(target, outgoing, limit), target
        except ClientError as error:
            return await self._send_again(publication, outgoing, target, error, deadline, seconds, fixed=fixed)

    async def _send_again(
        self,
        publication: Publication,
        outgoing: _Outgoing,
        target: Target,
        failure: ClientError,
        deadline: float,
        seconds: float,
        *,
        fixed: bool,
    ) -> tuple[RemotingCommand, Target]:
        """The attempts after the first, failed one."""
        attempts = Attempts(self.options.retries)
        while True:
            if failure.invalid_metadata and not isinstance(failure, NoRoute):
                publication = await self._publish_again(publication, deadline)
            elsewhere = publication.broker_count > 1 and not fixed
            pause = attempts.again(failure, elsewhere=elsewhere, lot=self._session.world.randomness.random())
            if pause is None:
                failure.may_have_been_stored = attempts.may_have_been_stored  # by an earlier one, if not by the last
                raise failure
            left = deadline - trio.current_time() - pause
            if left <= 0:
                raise SendTimeout(
                    publication.topic,
                    round(seconds * 1000),
                    attempts.made - 1,
                    may_have_been_stored=attempts.may_have_been_stored,
                ) from failure
            log.debug("send_retried", topic=publication.topic, broker=target.queue.broker_name, reason=str(failure))
            await trio.sleep(pause)
            target = self._target_after(publication, target, fixed=fixed)
            limit = attempt_seconds(left, attempts.retries_left, elsewhere=elsewhere)
            try:
                return await self._attempt(target, outgoing, limit), target
            except ClientError as error:
                failure = error

    def _target_after(self, publication: Publication, target: Target, *, fixed: bool) -> Target:
        if fixed:
            master = self._session.routes.master(target.queue.broker_name)
            return target if master in (None, target.address) else target_of(self.group, target.queue, master)
        publication.counter += 1
        avoid = self._latencies.to_avoid(trio.current_time()) if self.options.avoid_slow_brokers else frozenset[str]()
        return publication.targets[choose_queue(publication.queues, publication.counter, avoid, target.queue.broker_name)]

    async def _attempt(self, target: Target, outgoing: _Outgoing, seconds: float) -> RemotingCommand:
        """Send once, and return an answer that says stored; every failure is a `ClientError` and noted against the broker."""
        started = trio.current_time()
        try:
            with trio.fail_after(seconds):
                channel = await self._session.channel(target.address)
            opaque = channel.next_opaque()
            template, code = (target.batch, _BATCH) if outgoing.batch else (target.single, _SINGLE)
            parts = frame_parts(
                template, outgoing.sys_flag, outgoing.born_ms, outgoing.flag, outgoing.properties, opaque, outgoing.body
            )
            answer = await channel.exchange(opaque, code, parts, max(started + seconds - trio.current_time(), 0.0))
            result_of(answer, "", target.queue, target.address)
        except (ClientError, CallTimeout, ConnectionLost, trio.TooSlowError) as error:
            raise self._failed(target, error) from error
        now = trio.current_time()
        self._latencies.sent(target.queue.broker_name, now - started, now)
        return answer

    def _failed(self, target: Target, error: Exception) -> ClientError:
        """Note a failed attempt; return what it means to the caller."""
        if self._closed:
            return Closed("the producer is closed")
        self._latencies.failed(target.queue.broker_name, trio.current_time())
        if isinstance(error, ClientError):
            return error
        failure: ClientError
        if isinstance(error, trio.TooSlowError):
            self._session.let_rest(target.address)
            failure = Unreachable(str(target.address), "no connection in time")
        else:
            failure = NoAnswer(str(target.address), str(error))
        failure.__cause__ = error
        return failure

    async def _publish(self, topic: str, seconds: float) -> Publication:
        """Find the queues of `topic` for the first time; concurrent senders share one search."""
        if self._closed:
            raise Closed("the producer is closed")
        check_topic(topic)
        with trio.move_on_after(seconds):
            # Without the lock, a thousand first sends would ask the name server a thousand times.
            async with self._routing.setdefault(topic, trio.Lock()):
                publication = self._publications.get(topic)
                if publication is None:
                    publication = self._take_route(await self._find_route(topic))
                return publication
        raise NoRoute(topic, NoRouteReason.NAME_SERVER_UNREACHABLE, f"no answer within {seconds} s")

    async def _find_route(self, topic: str) -> TopicRoute:
        try:
            route = await self._session.refresh_route(topic)
        except NoRoute as error:
            if error.reason is not NoRouteReason.TOPIC_UNKNOWN:
                raise
            route = await self._session.route_to_create(topic)
        self._session.topics.add(topic)
        return route

    async def _publish_again(self, publication: Publication, deadline: float) -> Publication:
        """Ask for the route anew after a failure that a new route may cure; without an answer, go on with the old one."""
        with trio.move_on_at(deadline):
            try:
                return self._take_route(await self._session.refresh_route(publication.topic))
            except NoRoute as error:
                log.debug("route_not_refreshed", topic=publication.topic, reason=error.reason.name)
        return publication

    def _take_route(self, route: TopicRoute) -> Publication:
        queues = tuple(route.publish_queues())
        if not queues:
            raise NoRoute(route.topic, route.why_not_publishable())
        before = self._publications.get(route.topic)
        masters = {broker.name: broker.addresses[MASTER_ID] for broker in route.brokers if MASTER_ID in broker.addresses}
        if (
            before is not None
            and before.queues == queues
            and all(target.address == masters[target.queue.broker_name] for target in before.targets)
        ):
            return before
        targets = tuple(target_of(self.group, queue, masters[queue.broker_name]) for queue in queues)
        counter = self._session.world.randomness.randrange(len(queues)) if before is None else before.counter
        brokers = {queue.broker_name for queue in queues}
        publication = Publication(route.topic, queues, targets, len(brokers), counter)
        self._publications[route.topic] = publication
        self._channels.clear()
        return publication

    def route_changed(self, route: TopicRoute) -> None:
        """Take a route that the session has refreshed; a topic without any queue left is searched for by the next send."""
        if route.topic in self._publications:
            try:
                self._take_route(route)
            except NoRoute as error:
                log.warning("topic_not_publishable", topic=route.topic, reason=error.reason.name)
                del self._publications[route.topic]

    def close(self) -> None:
        """Refuse further sends; called when the block of `open_producer` ends."""
        self._closed = True
        self._publications.clear()


@asynccontextmanager
async def open_producer(
    namesrv: str | Iterable[str],
    group: str = DEFAULT_GROUP,
    *,
    send_timeout_seconds: float = SEND_TIMEOUT_SECONDS,
    retries: int = RETRIES,
    compression: Compression | None = Compression.ZLIB,
    compress_over_bytes: int = COMPRESS_OVER_BYTES,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    avoid_slow_brokers: bool = True,
    instance_name: str | None = None,
    tls: bool | ClientTls = False,
    world: World | None = None,
) -> AsyncGenerator[Producer]:
    """A producer for the length of an `async with` block.

    Args:
        namesrv: `host:port`, several joined by `;`, or a sequence of them.
        group: the producer group.
        send_timeout_seconds: total time of one send, all attempts together.
        retries: further attempts after failures that may have stored the message.
        compression: how bodies of `compress_over_bytes` and more are compressed; None for never.
        compress_over_bytes: smaller bodies go out as they are.
        message_bytes_max: larger bodies and batches are refused; a broker has its own limit, 4 MiB by default.
        avoid_slow_brokers: keep away for a while from brokers that answered late or not at all.
        instance_name: replaces the random part of the client id.
        tls: encrypt every connection, to name servers too: `True` believes any certificate, `ClientTls(...)` says which.
        world: the outside, for tests and simulation.

    Raises:
        InvalidArgument: a name or an option that cannot be.
    Cancellation: sends that are out are cancelled with the block; the farewell takes at most a second.
    """
    check_group(group)
    check_seconds("send_timeout_seconds", send_timeout_seconds)
    check_integer("retries", retries, 0, INT_MAX)
    check_integer("compress_over_bytes", compress_over_bytes, 0, INT_MAX)
    check_integer("message_bytes_max", message_bytes_max, 1, INT_MAX)
    if compression not in (None, *Compression):
        raise InvalidArgument(f"compression must be None or one of {', '.join(map(str, Compression))} (got {compression!r})")
    options = ProducerOptions(
        send_timeout_seconds, retries, compression, compress_over_bytes, message_bytes_max, avoid_slow_brokers
    )
    async with open_session(namesrv, world or real_world(), instance_name=instance_name, tls=tls) as session:
        producer = Producer(group, options, session)
        session.producer_groups.add(group)
        session.on_route.append(producer.route_changed)
        try:
            yield producer
        finally:
            producer.close()
