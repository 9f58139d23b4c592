"""Opens consumers: checks the options, and connects the parts of which a consumer is made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from ..message.message import Body
from ..remoting.signature import Credentials
from ..world.real import World, real_world
from ..world.tls import ClientTls
from . import environment
from .arguments import check_function, check_group, check_text, shown
from .assigned import HeldBytes
from .background import background_nursery, call_at_end
from .consumer_options import AckMode, ConsumerOptions
from .delivery import Line
from .errors import InvalidArgument
from .fetch import OnOffsetMoved
from .membership import Membership
from .offsets import kept_offsets
from .push_consumer import Consumer
from .queue_keeping import QueueKeeper, ReadingPlan
from .rebalance import Strategy, strategy_of
from .rebalance_callbacks import OnAssigned, OnRevoked, RebalanceCallbacks
from .redelivery import Redelivery
from .send_back import SendBack
from .session import Session, open_session
from .subscription import ConsumeFrom, MessageModel, ReadFrom, Subscription, subscriptions_of_member

__all__ = ["Consumer", "open_consumer"]

CONSUME_AGO_MS = 30 * 60 * 1000
"""How far back in time `ConsumeFrom.TIMESTAMP` begins by default (RocketMQ's `consumeTimestamp`)."""


@asynccontextmanager
async def open_consumer(
    namesrv: str | Iterable[str] | None = None,
    group: str = "",
    topics: str | Iterable[str] | Mapping[str, str | Subscription] = (),
    *,
    decode: Callable[[bytes], Body] | None = None,
    ack: AckMode = "auto",
    orderly: bool = False,
    model: MessageModel = MessageModel.CLUSTERING,
    consume_from: ConsumeFrom = ConsumeFrom.LAST,
    consume_timestamp_ms: int | None = None,
    strategy: str | Strategy = "average",
    pull_messages_max: int | None = None,
    messages_per_queue_max: int | None = None,
    bytes_per_queue_max: int | None = None,
    bytes_max: int | None = None,
    reconsume_times_max: int | None = None,
    read_from: ReadFrom | None = None,
    on_offset_moved: OnOffsetMoved | None = None,
    on_assigned: OnAssigned | None = None,
    on_revoked: OnRevoked | None = None,
    offsets_path: str | None = None,
    instance_name: str | None = None,
    tls: bool | ClientTls | None = None,
    credentials: Credentials | None = None,
    world: World | None = None,
) -> AsyncGenerator[Consumer[Body]]:
    """A consumer for the length of an `async with` block; on entry its first share of queues is being read.

    Leaving the block acknowledges nothing: the member that reads a queue next is given its unacknowledged messages again. What
    was given back before the block ended in order, such as the message of a cancelled handler, is at a broker first, unless
    that takes more than a second; so what was acknowledged behind it is committed.
    It also releases the locks of ordered queues, so the code that handles their messages has to end before.

    Args: one that is None is read from the environment, if it has a variable (`client/environment.py`), or has its default.
        namesrv: `host:port`, several joined by `;` or `,`, or a sequence of them; by default `$LEDGERMQ_NAMESRV`. A port that
            is left out is 9876.
        group: the consumer group, which is always given.
        topics: always given: one topic, several, or a mapping from topics to tag expressions such as `"a || b"` (or to
            `sql(...)`). They are the same for all members of a group: it has one position in each queue, so what one member's
            expression leaves out is passed for all of them. The broker warns of a member that differs (`subscriptions_differ`).
        decode: makes `message.value` of a body, for example `msgspec.json.Decoder(Order).decode`, when a message is handed out;
            it runs in the client's thread. One that raises fails this delivery of the message, with the reason in the event
            `message_not_decoded`. The message comes again and is a dead letter in the end, in orderly consumption only with
            `reconsume_times_max`; a broadcasting member tries it again every 5 seconds without end.
        ack: with `auto` a loop acknowledges a message when it asks for the next one; with `explicit` the application does.
        orderly: hand out one message of a queue at a time, in order; queues are locked for this member, unless broadcasting.
        model: whether the members of the group share the messages, or each gets all of them. No broker delivers a message to a
            broadcasting member again: one that it retries, or whose handler raises, is dropped, with the warning
            `message_dropped`; one that is given back comes again in this member after 5 seconds.
        consume_from: where to start in a queue in which the group has no offset.
        consume_timestamp_ms: where `ConsumeFrom.TIMESTAMP` starts, and for it alone; half an hour ago by default.
        strategy: how the group divides queues: `average`, `circle`, `consistent_hash`, or a function of this member's client
            id, all queues of a topic and all client ids, both sorted, that returns this member's queues. While it raises, the
            consumer keeps the queues that it has.
        pull_messages_max: how many messages one pull asks for, 32 by default; by default brokers return no more.
        messages_per_queue_max: a queue with this many messages that are pulled and not done is not pulled; 1,000 by default.
        bytes_per_queue_max: the same in bytes, 16 MiB by default; a pull answer is kept in memory until its last message is
            done.
        bytes_max: the same over all queues, 64 MiB by default; while they hold this many bytes, only empty queues are pulled.
        reconsume_times_max: failed deliveries before a message is a dead letter; by default as the group's configuration
            says, and without limit in orderly consumption.
        read_from: which member of a broker's group is read: the suggested one, by default, the master or a slave.
        on_offset_moved: called when a group cannot continue where it was to, for example because messages have expired that it
            has not read; it runs in the event loop, and what it raises is logged.
        on_assigned: called with the queues of all topics that this consumer has taken, those of the group's retries among them,
            before it reads them; it may be async. It may return the offsets at which to continue, by queue, for example those
            that the application keeps in a database.
        on_revoked: called with the queues of which nothing more is handed out, before their offsets are committed for the last
            time: what it acknowledges counts. With `orderly` no other member reads them before it has ended; otherwise another
            one may read them already. It is also called after the lock of an ordered queue was lost, and when the consumer
            closes, where nothing can be acknowledged any more. Each queue that was assigned is revoked once, and revoked before
            it is assigned again. Both callbacks are called one after the other and waited for, 10 seconds at most each; what
            they raise is logged, and the consumer goes on.
        offsets_path: the file in which a broadcasting consumer keeps its offsets; without it they are kept in memory. Each
            consumer needs a file of its own, and has the lock of one beside it that ends in `.lock`.
        instance_name: replaces the random part of the client id.
        tls: encrypt every connection, also to name servers: `True` accepts any certificate, `ClientTls(...)` defines which;
            by default as the file `$LEDGERMQ_TLS_CONFIG` says, and without it not.
        credentials: the user who signs every request, for brokers with access control; by default `$LEDGERMQ_ACCESS_KEY`.
        world: replaces disk, network and clock in tests and simulations.

    Raises:
        InvalidArgument: a name, expression or option is invalid.
        NoRoute: no name server answers.
        SubscriptionRefused: a broker does not support the filter.
        OffsetsUnreadable: the file at `offsets_path` cannot be read or understood, or another consumer uses it.
    Cancellation: offsets are committed and locks released within three seconds, then everything is closed;
        `on_revoked` has its own time in between.
    """
    world = world or real_world()
    check_group(group)
    if consume_timestamp_ms is not None and consume_from is not ConsumeFrom.TIMESTAMP:
        raise InvalidArgument(f"consume_timestamp_ms needs consume_from=ConsumeFrom.TIMESTAMP (got {shown(consume_from)})")
    now_ms = world.clock.wall_ms()
    subscriptions = subscriptions_of_member(group, topics, model, now_ms)
    options = ConsumerOptions(
        ack,
        orderly,
        model,
        consume_from,
        now_ms - CONSUME_AGO_MS if consume_timestamp_ms is None else consume_timestamp_ms,
        environment.PULL_MESSAGES.value(pull_messages_max),
        environment.MESSAGES_PER_QUEUE.value(messages_per_queue_max),
        environment.BYTES_PER_QUEUE.value(bytes_per_queue_max),
        environment.BYTES.value(bytes_max),
        environment.RECONSUME_TIMES.value(reconsume_times_max),
        environment.READ_FROM.value(read_from),
    )
    divide = strategy_of(strategy)
    check_function("decode", decode)
    check_function("on_offset_moved", on_offset_moved)
    check_function("on_assigned", on_assigned, may_be_async=True)
    check_function("on_revoked", on_revoked, may_be_async=True)
    if offsets_path is not None:
        check_text("offsets_path", offsets_path)
        if model is not MessageModel.BROADCASTING:
            raise InvalidArgument("offsets_path needs MessageModel.BROADCASTING: otherwise the brokers keep a group's offsets")
    async with (
        open_session(namesrv, world, instance_name=instance_name, tls=tls, credentials=credentials) as session,
        _joined(
            session,
            group,
            options,
            subscriptions,
            divide,
            offsets_path,
            on_offset_moved,
            RebalanceCallbacks(on_assigned, on_revoked),
            decode,
        ) as consumer,
    ):
        yield consumer


@asynccontextmanager
async def _joined(
    session: Session,
    group: str,
    options: ConsumerOptions,
    subscriptions: Mapping[str, Subscription],
    divide: Strategy,
    offsets_path: str | None,
    on_offset_moved: OnOffsetMoved | None,
    callbacks: RebalanceCallbacks,
    decode: Callable[[bytes], Body] | None,
) -> AsyncGenerator[Consumer[Body]]:
    """A consumer that reads its share of queues, for the length of a block, and then leaves the group."""
    broadcasting = options.model is MessageModel.BROADCASTING
    plan = ReadingPlan(
        group,
        options.orderly,
        options.model,
        options.consume_from,
        options.consume_timestamp_ms,
        options.pull_messages_max,
        options.messages_per_queue_max,
        options.bytes_per_queue_max,
        options.read_from,
        on_offset_moved,
    )
    consumer: Consumer[Body] | None = None
    with kept_offsets(session, group, options.model, offsets_path) as offsets:
        try:
            async with background_nursery() as nursery:
                line, send_back = Line(), SendBack(session, group, options.reconsume_times_max)
                redelivery = Redelivery(nursery, send_back, line, options.orderly, broadcasting, options.reconsume_times_max)
                held = HeldBytes(options.bytes_max)
                keeper = QueueKeeper(session, nursery, plan, subscriptions, offsets, line, redelivery, held, callbacks)
                membership = Membership(session, group, subscriptions, options.model, divide, plan.locks, keeper)
                consumer = Consumer(group, options, subscriptions, session, nursery, line, keeper, membership, decode=decode)
                consumer.join()
                nursery.start_soon(call_at_end, line.close)
                await consumer.begin()
                yield consumer
                await redelivery.settle()  # only now that the block has ended in order
        finally:
            if consumer is not None:
                await consumer.close()
