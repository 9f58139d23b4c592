"""The producer: sends messages, many of them concurrently, with one await each.

A send has one total time limit, within which it is retried as `retry.py` decides. The first attempt is the hot path: no
task, no cancel scope and no object but the result. This is the trio shell around `sending.py`, `retry.py` and `latency.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from typing import Any, Generic, cast

import attrs
import trio

from ..message.message import Body, Message, MessageQueue
from ..message.properties import UNIQUE_KEY
from ..remoting.channel import Channel
from ..remoting.errors import CallTimeout, ConnectionLost
from ..remoting.signature import Credentials
from ..world.real import World, real_world
from ..world.tls import ClientTls
from . import environment
from .arguments import (
    INT_MAX,
    check_function,
    check_group,
    check_integer,
    check_message,
    check_seconds,
    check_several,
    check_switch,
    check_topic,
)
from .cancelled import note_outcomes, unknown
from .compression import Compression, compress
from .errors import (
    ClientError,
    InvalidArgument,
    MessageTooLarge,
)
from .latency import BOUNDS_MS, BrokerLatencies
from .publications import Publications
from .replaced_masters import watch_masters
from .retry import attempt_seconds
from .send_many import Item, Lanes
from .send_numbers import SendNumbers
from .sending import (
    Outgoing,
    ProducerOptions,
    Publication,
    SendResult,
    Target,
    batch_properties,
    encode_messages,
    encoded,
    frame_parts,
    json_text,
    property_text,
    result_of,
    results_of,
)
from .session import Session, open_session
from .statistics import ProducerStatistics
from .transmit import SINGLE, Choose, QueueSelector, Transmitter
from .unique_id import UniqueIds

DEFAULT_GROUP = "DEFAULT_PRODUCER"

_SLOW_SECONDS = BOUNDS_MS[2] / 1000
"""A faster answer does not affect the choice of brokers, so it is not recorded."""


@attrs.define(eq=False)
class Producer(Generic[Body]):
    """Sends messages; made by `open_producer`. Any number of tasks may send concurrently."""

    _transmitter: Transmitter
    _session: Session
    _publications: dict[str, Publication]
    """By topic, the publications that sends may use without a search."""
    _latencies: BrokerLatencies
    _body_of: Callable[[Body], bytes] | None = None
    _ids: UniqueIds | None = None
    _channels: dict[Target, Channel] = attrs.field(factory=dict[Target, Channel])
    lanes: Lanes = attrs.field(init=False)
    """Makes the sends of `send_many`, and those of asyncio tasks."""

    def __attrs_post_init__(self) -> None:
        self.lanes = Lanes(self._transmitter, self._send_one, self._new_id, self._body_of)

    def __repr__(self) -> str:
        return f"<Producer of {self.group} at {self._session.name_servers_text}>"

    @property
    def group(self) -> str:
        return self._transmitter.group

    @property
    def options(self) -> ProducerOptions:
        return self._transmitter.options

    async def send(
        self,
        message: Message[Body],
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send one message and wait for the broker's acknowledgement.

        After an error its `may_have_been_stored` says whether any of the attempts may have stored the message.

        Args:
            message: the message to send.
            key: messages of one key go to one queue and keep their order; Java's hash selector chooses the same queue.
            queue: the only queue to send to.
            selector: chooses the queue. Of `key`, `queue` and `selector` at most one is given; a message with one of them is
                retried on its own queue only.
            timeout_seconds: the total time limit, instead of the producer's.

        Raises:
            InvalidArgument, MessageTooLarge: the message cannot be sent.
            NoRoute, Unreachable: there is no queue to send to, or its broker cannot be connected.
            SendTimeout, NoAnswer, BadAnswer: no acknowledgement came, or one that lacks a field.
            Closed: the producer is closed, or was closed during the send.
            Refused: the broker refused; see its subclasses.
        Durability: as `SendResult.status` says; SEND_OK means what the broker's flush and replication modes guarantee.
        Cancellation: the message may or may not have been stored, but never in part; `may_have_been_stored(error)` says whether
            it can be ruled out.
        """
        plain: Message[Any] = message if self._body_of is None else self._plain(message)  # most need no call here
        transmitter = self._transmitter
        seconds = transmitter.options.send_timeout_seconds if timeout_seconds is None else self._seconds(timeout_seconds)
        started = trio.current_time()
        try:
            topic = plain.topic
            publication = self._publications.get(topic)
            if publication is None:
                publication = await transmitter.publications.find(topic, seconds)
                now = trio.current_time()
                seconds, started = seconds - (now - started), now
            unique_id = self._new_id(plain)
        except (AttributeError, TypeError):
            check_message(plain)  # raises with the name of the bad field; checking before would slow down every message
            raise
        except trio.Cancelled as error:
            note_outcomes(error, unknown(1, begun=False))
            raise
        choose: Choose | None = None
        if key is None and queue is None and selector is None:
            target = transmitter.next_target(publication)
        else:
            choose = partial(transmitter.chosen, message=plain, key=key, queue=queue, selector=selector)
            target = choose(publication)
        try:
            return await self._send_one(plain, unique_id, key, publication, target, choose, seconds, started)
        except trio.Cancelled as error:
            note_outcomes(error, unknown(1, begun=True))
            raise

    async def _send_one(
        self,
        message: Message[Any],
        unique_id: str,
        key: str | None,
        publication: Publication,
        target: Target,
        choose: Choose | None,
        seconds: float,
        started: float,
    ) -> SendResult:
        """Send one message to a queue that was chosen, in `seconds` from `started` on.

        Args:
            message: its body is bytes.
            choose: chooses the queue again if the first attempt fails; None if any queue will do then.
        """
        transmitter = self._transmitter
        options = transmitter.options
        try:
            body, sys_flag = message.body, 0
            if type(body) is not bytes or len(body) > options.plain_bytes_max:
                body, sys_flag = self._packed(body)
            properties = json_text(property_text(message, unique_id, key))
        except (AttributeError, TypeError):
            check_message(message)
            raise
        born_ms = self._session.world.clock.wall_ms()
        # There is no await before `exchange` writes the frame to the connection, so frames keep the order of the sends.
        # The functions that batches and repeated attempts use would cost a quarter more (`bench/shortcuts.py`).
        numbers = transmitter.numbers
        sequence = numbers.begin()
        number = numbers.field(sequence)
        try:
            channel = self._channels.get(target)
            if channel is None or channel.closed:
                channel = self._channels[target] = self._session.channel_to(target.address)
            opaque = channel.next_opaque()
            parts = frame_parts(target.single, sys_flag, born_ms, message.flag, properties, opaque, body, number)
            elsewhere = publication.broker_count > 1 and choose is None
            limit = attempt_seconds(seconds, options.retries, elsewhere=True) if elsewhere else seconds
            answer = await channel.exchange(opaque, SINGLE, parts, limit, started)
            result = result_of(answer, unique_id, target.queue, target.address)
            transmitter.stored += 1
            if answer.code and options.retry_unless_ok and choose is None:
                outgoing = Outgoing(sys_flag, born_ms, message.flag, properties, body, number=number)
                answer, target = await transmitter.with_guarantees(
                    publication, outgoing, target, answer, started + seconds, None
                )
                return result_of(answer, unique_id, target.queue, target.address)
        except (ClientError, CallTimeout, ConnectionLost) as error:
            outgoing = Outgoing(sys_flag, born_ms, message.flag, properties, body, number=number)
            failure = transmitter.failed(target, error)
            answer, target = await transmitter.send_again(
                publication, outgoing, target, failure, started + seconds, seconds, choose
            )
            return result_of(answer, unique_id, target.queue, target.address)
        finally:
            numbers.end(sequence)
        elapsed = channel.received_at - started
        if elapsed >= _SLOW_SECONDS or self._latencies.any:
            self._latencies.sent(target.queue.broker_name, elapsed, started + elapsed)
        return result

    def statistics(self) -> ProducerStatistics:
        """What this producer has done since it was opened."""
        transmitter = self._transmitter
        return ProducerStatistics(transmitter.stored, transmitter.failed_messages, transmitter.retries)

    async def send_batch(
        self,
        messages: Iterable[Message[Body]],
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in one request to one queue, where they are stored consecutively.

        Args:
            messages: messages of one topic, without delays.
            key: the key of all of them, which chooses the queue as in `send`.
            queue: the only queue to send to.
            selector: chooses the queue; it is given the first message. Of the three at most one is given.
            timeout_seconds: the total time limit, instead of the producer's.

        Returns: one result per message, in order.
        Raises: as `send`; also if the batch has several topics or a delay, or is larger than `message_bytes_max`.
        Cancellation: the batch is stored whole or not at all; `may_have_been_stored(error)` says whether it can be ruled out.
        """
        plain = [check_message(self._plain(message)) for message in check_several(messages)]
        if not plain:
            raise InvalidArgument("a batch has at least one message")
        topic = plain[0].topic
        seconds, started = self._seconds(timeout_seconds), trio.current_time()
        publication = self._publications.get(topic)
        if publication is None:
            try:
                publication = await self._transmitter.publications.find(topic, seconds)
            except trio.Cancelled as error:
                note_outcomes(error, unknown(len(plain), begun=False))
                raise
            seconds -= trio.current_time() - started
        ids = self._ids or self._make_ids()
        born_ms = self._session.world.clock.wall_ms()
        unique_ids = [message.properties.get(UNIQUE_KEY) or ids.next(born_ms) for message in plain]
        batch = encode_messages(plain, unique_ids, self.options.message_bytes_max, repeat(key))
        transmitter = self._transmitter
        choose: Choose | None = None
        if key is not None or queue is not None or selector is not None:
            choose = partial(transmitter.chosen, message=plain[0], key=key, queue=queue, selector=selector)
        target = transmitter.next_target(publication) if choose is None else choose(publication)
        outgoing = Outgoing(0, born_ms, 0, batch_properties(wait_stored=batch.wait_stored), batch.body, batch=True)
        try:
            answer, target = await transmitter.send(publication, outgoing, target, seconds, choose, len(plain))
        except trio.Cancelled as error:
            note_outcomes(error, unknown(len(plain), begun=True))
            raise
        return results_of(answer, batch, target.queue, target.address)

    async def send_many(
        self,
        messages: Iterable[Message[Body]],
        *,
        key: str | Callable[[Message[Body]], str | None] | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult | ClientError]:
        """Send many messages, and return the result or the error of each.

        The messages of one queue are stored in the given order, even if some have to be sent again. This holds for the
        messages of one key, with `queue`, and of a topic with one queue. If several brokers have the topic, a message whose
        queue nothing chooses moves to another broker when its own fails, and is stored behind what was sent there before.
        The order holds between concurrent calls too, but not between them and concurrent calls of `send`. A message is also
        sent if the one before it has failed.

        Args:
            messages: messages of any topics.
            key: messages of one key go to one queue, as in `send`; one key for all, or a function that returns the key of each.
            queue: the queue to send all of them to.
            selector: chooses the queue of each message. Of `key`, `queue` and `selector` at most one is given.
            timeout_seconds: the time limit of one request, which carries up to 256 messages, instead of the producer's.

        Returns: for each message, in order, its `SendResult`, or the error that `send` would have raised.
        Cancellation: of each queue a prefix of its messages may have been stored; `known_outcomes(error)` says what is known of
            each message.
        """
        if (key is not None) + (queue is not None) + (selector is not None) > 1:
            raise InvalidArgument("give at most one of key, queue and selector")
        check_function("selector", selector)
        several = check_several(messages)
        seconds = self._seconds(timeout_seconds)
        choose = None if selector is None else _refusing(selector)
        keys = [key(message) if callable(key) else key for message in several]
        return await self.lanes.send(
            [Item(message, own, queue, choose, seconds) for message, own in zip(several, keys, strict=True)]
        )

    def _plain(self, message: Message[Body]) -> Message:
        """The message with the bytes of its body."""
        return cast("Message", message) if self._body_of is None else encoded(message, self._body_of)

    def _new_id(self, message: Message) -> str:
        ids = self._ids or self._make_ids()
        return message.properties.get(UNIQUE_KEY) or ids.next(self._session.world.clock.wall_ms())

    async def send_oneway(self, message: Message[Body], *, key: str | None = None, queue: MessageQueue | None = None) -> None:
        """Send one message without an acknowledgement; this is the fastest way, but the message may be lost unnoticed.

        Raises: the errors that `send` raises before anything is sent; `Unreachable` if there is no connection.
        """
        plain = check_message(self._plain(message))
        seconds = self.options.send_timeout_seconds
        publication = self._publications.get(plain.topic) or await self._transmitter.publications.find(plain.topic, seconds)
        body, sys_flag = self._packed(plain.body)
        born_ms = self._session.world.clock.wall_ms()
        properties = json_text(property_text(plain, (self._ids or self._make_ids()).next(born_ms), key))
        chosen = key is not None or queue is not None
        transmitter = self._transmitter
        target = transmitter.chosen(publication, plain, key, queue, None) if chosen else transmitter.next_target(publication)
        channel = self._session.channel_to(target.address)
        opaque = channel.next_opaque()
        try:
            await channel.post(frame_parts(target.single, sys_flag, born_ms, plain.flag, properties, opaque, body, oneway=True))
        except ConnectionLost as error:
            raise self._session.failure_of(target.address, error) from error

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of `topic` that can be written; of a topic that its first send would create, those that it would have.

        Raises:
            NoRoute: there is no such queue, or no name server answers within the time limit of a send.
        """
        check_topic(topic)
        publication = self._publications.get(topic) or await self._transmitter.publications.find(
            topic, self.options.send_timeout_seconds
        )
        return publication.queues

    def update_name_servers(self, namesrv: str | Iterable[str]) -> None:
        """Ask these name servers from now on, and no longer those that were given before.

        Routes that are known stay in use until one of the new name servers has answered, which is asked at once; a request that
        an old one does not answer any more goes to the new ones.

        Args:
            namesrv: as for `open_producer`.

        Raises:
            InvalidArgument: an address is malformed, or there is none. Nothing was changed.
            Closed: the client is closed.
        """
        self._session.update_name_servers(namesrv)

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
        rng = self._session.world.randomness
        self._ids = UniqueIds(self._session.local_host or "127.0.0.1", rng.getrandbits(16), rng.getrandbits(32))
        return self._ids

    def targets_changed(self) -> None:
        """Drop the cached connections, because targets have changed."""
        self._channels.clear()

    def close(self) -> None:
        """Refuse further sends; called when the block of `open_producer` ends."""
        self._transmitter.closed = True
        self._transmitter.publications.close()
        self._publications.clear()


def _refusing(selector: QueueSelector) -> QueueSelector:
    """A selector whose failure is the `InvalidArgument` of the message for which it was called."""

    def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        try:
            return selector(queues, message)
        except ClientError:
            raise
        except Exception as error:
            raise InvalidArgument(f"the selector failed: {error!r}") from error

    return choose


@asynccontextmanager
async def open_producer(
    namesrv: str | Iterable[str] | None = None,
    group: str = DEFAULT_GROUP,
    *,
    encode: Callable[[Body], bytes] | None = None,
    send_timeout_seconds: float | None = None,
    retries: int | None = None,
    compression: Compression | None = Compression.ZLIB,
    compress_over_bytes: int | None = None,
    message_bytes_max: int | None = None,
    avoid_slow_brokers: bool = True,
    retry_unless_ok: bool = False,
    idempotent: bool = True,
    instance_name: str | None = None,
    tls: bool | ClientTls | None = None,
    credentials: Credentials | None = None,
    world: World | None = None,
) -> AsyncGenerator[Producer[Body]]:
    """A producer for the length of an `async with` block.

    Args: one that is None is read from the environment, if it has a variable (`client/environment.py`), or has its default.
        namesrv: `host:port`, several joined by `;` or `,`, or a sequence of them; by default `$LEDGERMQ_NAMESRV`. A port that
            is left out is 9876.
        group: the producer group.
        encode: makes the bytes of each body that is sent, for example `msgspec.json.Encoder().encode`; it runs in the client's
            thread. A send whose body it cannot encode raises `InvalidArgument`, and nothing is sent.
        send_timeout_seconds: the time limit of one send, for all attempts together; 3 by default.
        retries: how often a send is retried after failures that may have stored the message, if the retry may store it again;
            2 by default.
        compression: the algorithm for bodies of at least `compress_over_bytes`; None compresses nothing.
        compress_over_bytes: smaller bodies are sent as they are; 4 KiB by default.
        message_bytes_max: larger bodies and batches are refused, 4 MiB by default; a broker has its own limit.
        avoid_slow_brokers: avoid brokers for some time after they answered late or not at all.
        retry_unless_ok: send a message to other brokers too that its broker has stored with another status than SEND_OK, for
            example because it has no slave; it is then delivered twice (RocketMQ `retryAnotherBrokerWhenNotStoreOK`).
        idempotent: let brokers of ours store a message once however often its send is retried. After a failure that may have
            stored the message, such a send stays at its broker; without this, it moves to another one and may be stored twice.
        instance_name: replaces the random part of the client id.
        tls: encrypt every connection, also to name servers: `True` accepts any certificate, `ClientTls(...)` defines which;
            by default as the file `$LEDGERMQ_TLS_CONFIG` says, and without it not.
        credentials: the user who signs every request, for brokers with access control; by default `$LEDGERMQ_ACCESS_KEY`.
        world: replaces disk, network and clock in tests and simulations.

    Raises:
        InvalidArgument: a name or an option is invalid.
    Cancellation: pending sends are cancelled with the block; unregistering takes at most a second.
    """
    send_timeout_seconds = environment.SEND_TIMEOUT.value(send_timeout_seconds)
    retries = environment.SEND_RETRIES.value(retries)
    compress_over_bytes = environment.COMPRESS_OVER.value(compress_over_bytes)
    message_bytes_max = environment.MESSAGE_BYTES.value(message_bytes_max)
    check_group(group)
    check_function("encode", encode)
    check_seconds("send_timeout_seconds", send_timeout_seconds)
    check_integer("retries", retries, 0, INT_MAX)
    check_integer("compress_over_bytes", compress_over_bytes, 0, INT_MAX)
    check_integer("message_bytes_max", message_bytes_max, 1, INT_MAX)
    check_switch("avoid_slow_brokers", avoid_slow_brokers)
    check_switch("retry_unless_ok", retry_unless_ok)
    check_switch("idempotent", idempotent)
    if compression not in (None, *Compression):
        raise InvalidArgument(f"compression must be None or one of {', '.join(map(str, Compression))} (got {compression!r})")
    options = ProducerOptions(
        send_timeout_seconds,
        retries,
        compression,
        compress_over_bytes,
        message_bytes_max,
        avoid_slow_brokers,
        retry_unless_ok,
        idempotent,
    )
    async with open_session(
        namesrv, world or real_world(), instance_name=instance_name, tls=tls, credentials=credentials
    ) as session:
        publications = Publications(session, group)
        numbers = SendNumbers.of(session.world.randomness.getrandbits(128)) if idempotent else SendNumbers("")
        transmitter = Transmitter(group, options, publications, session, numbers)
        producer = Producer(transmitter, session, publications.known, transmitter.latencies, encode)
        publications.on_change = producer.targets_changed
        session.producer_groups.add(group)
        session.on_route.append(publications.route_changed)
        session.nursery.start_soon(watch_masters, session)
        try:
            yield producer
        finally:
            producer.close()
