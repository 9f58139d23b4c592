"""The consumer: receives the messages of subscribed topics, a share of them as a member of a group, or all.

A message from `async for` is done when the same iterator is asked for the next one, one from `take` when its block ends
normally, one of `process` when its handler returns, and one from `get_one` or `get_many` after `ack` or `retry`. No rule
depends on which task or thread calls. Invariant: the group's offset in a queue never passes a message that is not done, so
unfinished messages are handed out again.
This is the trio shell over `assigned.py`, `fetch.py`, `delivery.py` and `membership.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from inspect import isawaitable
from math import inf

import attrs
import trio

from ..message.message import MessageQueue
from ..world.events import get_logger
from ..world.real import World, real_world
from ..world.tls import ClientTls
from . import environment
from .arguments import (
    INT_MAX,
    check_function,
    check_group,
    check_integer,
    check_seconds,
    check_text,
    check_timeout,
    shown,
)
from .assigned import HeldBytes
from .background import background_nursery
from .consumer_options import AckMode, ConsumerOptions
from .delivery import Line, Source
from .direct import DirectMessages
from .errors import ClientError, Closed, InvalidArgument, NoRoute, NoRouteReason, Stopped
from .fetch import OnOffsetMoved
from .iteration import Iteration
from .membership import Membership
from .offsets import kept_offsets
from .peer_requests import PeerRequests
from .queue_calls import check_subscription, max_offset
from .queue_keeping import COMMIT_SECONDS, QueueKeeper, ReadingPlan
from .rebalance import Strategy, strategy_of
from .received import ReceivedMessage, RecordView, give_back_unfinished
from .redelivery import Redelivery
from .send_back import SendBack
from .session import CALL_SECONDS, Session, open_session
from .stopping import STOP_SECONDS, run_until_signal
from .subscription import TAG_EXPRESSION, ConsumeFrom, Member, MessageModel, ReadFrom, Subscription, subscriptions_of_member

log = get_logger(__name__)

MESSAGES_PER_GET = 256
CONSUME_AGO_MS = 30 * 60 * 1000
"""How far back in time `ConsumeFrom.TIMESTAMP` begins by default (RocketMQ's `consumeTimestamp`)."""

COMMIT_AT_CLOSE_SECONDS, COMMIT_PAUSE_SECONDS = 2.0, 0.1
"""For how long, and after which pauses, the commits of a consumer that closes are repeated; an election takes less."""
LEAVE_SECONDS = COMMIT_AT_CLOSE_SECONDS + 1.0
"""How long a consumer takes to leave its group at most; then it leaves its locks to expire."""

MessageHandler = Callable[[ReceivedMessage], Awaitable[object] | None]


@attrs.frozen
class QueueProgress:
    """How far a consumer is in a queue: all messages below `position` are done, and the next message gets the offset `end`."""

    position: int
    end: int

    @property
    def lag(self) -> int:
        """How many messages of the queue are not done."""
        return max(0, self.end - self.position)


@attrs.define(eq=False)
class Consumer:
    """Receives messages; made by `open_consumer`. Any number of tasks may take from it concurrently."""

    group: str
    options: ConsumerOptions
    subscriptions: Mapping[str, Subscription]
    _session: Session
    _nursery: trio.Nursery
    _line: Line
    _keeper: QueueKeeper
    _membership: Membership
    _token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    _direct: DirectMessages = attrs.field(factory=DirectMessages)
    _closed: bool = False
    stopped: bool = False

    def __repr__(self) -> str:
        return f"<Consumer {self.client_id} of {self.group} on {','.join(sorted(self.subscriptions))}>"

    # ------------------------------------------------------------------------------------------------- taking messages

    def __aiter__(self) -> Iteration:
        """Iterate over messages without end.

        With `ack="auto"`, a message is acknowledged when this iterator is asked for the next one, or by `ack`, and in no other
        way. A loop that is left by an exception, `break`, `return` or cancellation drops its iterator and so gives back the
        message that it has not acknowledged: it comes again as after `retry`. CPython drops the iterator at once. An iterator
        that the application keeps, itself or in a suspended generator, gives its message back when it is collected, when a new
        loop begins over it, or when the consumer closes. No loop acknowledges what an earlier loop was given.
        """
        return Iteration(self, acknowledges=self.options.ack == "auto")

    async def get_one(self, timeout_seconds: float | None = None) -> ReceivedMessage | None:
        """Take the next message; None after `timeout_seconds` without one. See `get_many`."""
        messages = await self.get_many(1, timeout_seconds)
        return messages[0] if messages else None

    async def get_many(
        self, messages_max: int = MESSAGES_PER_GET, timeout_seconds: float | None = None
    ) -> list[ReceivedMessage]:
        """Take the messages that have arrived, or wait for at least one; an empty list after `timeout_seconds` without one.

        Each has to be acknowledged (`await message.ack()`) or retried; no later call does so. A message that the application
        drops without either is given back within `COMMIT_SECONDS` and comes again as after `retry`; one that it keeps, when the
        consumer is closed.

        Raises:
            Closed: the consumer is closed, or was closed during the wait.
        Cancellation: no message is taken.
        """
        check_integer("messages_max", messages_max, 1, INT_MAX)
        check_timeout("timeout_seconds", timeout_seconds)
        return await self.receive(messages_max, inf if timeout_seconds is None else timeout_seconds)

    @asynccontextmanager
    async def take(
        self, messages_max: int = MESSAGES_PER_GET, timeout_seconds: float | None = None
    ) -> AsyncGenerator[list[ReceivedMessage]]:
        """Take messages as `get_many` does, for the length of an `async with` block that finishes them all.

        When the block ends normally, those that it has neither acknowledged nor retried are acknowledged; when it ends by an
        exception or is cancelled, they are given back and come again as after `retry`. Of an ordered queue, only the first of
        them counts as failed.

        Raises:
            Closed: the consumer is closed, or was closed during the wait or the block. Nothing is acknowledged.
        """
        messages = await self.get_many(messages_max, timeout_seconds)
        try:
            yield messages
        except BaseException:
            give_back_unfinished(messages, ordered=self.options.orderly)
            raise
        for message in messages:
            if message.in_hand:
                message.ack_now()

    async def process(self, handler: MessageHandler, *, tasks: int = 1) -> None:
        """Call `handler` with every message, in `tasks` concurrent tasks, until cancelled or until `stop`.

        A message is acknowledged when the handler returns and retried when it raises. A handler that is a plain function runs
        in the event loop, so it must not block.

        Raises:
            Closed: the consumer was closed in the meantime.
        Cancellation: messages whose handlers are cancelled are given back and come again as after `retry`.
        """
        if not callable(handler):
            raise InvalidArgument(f"handler must be a function that takes a message (got {handler!r})")
        check_integer("tasks", tasks, 1, INT_MAX)

        iterations = [Iteration(self, acknowledges=False) for _ in range(tasks)]

        async def work(iteration: Iteration) -> None:
            while True:
                try:
                    message = await anext(iteration)
                except (Closed, StopAsyncIteration):
                    return  # and so do the other tasks
                try:
                    handled = handler(message)
                    if isawaitable(handled):
                        await handled
                except Exception as error:  # noqa: BLE001 - handlers are the application's
                    message_failed(message, error)
                    if message.in_hand:  # otherwise the handler has acknowledged or retried it itself
                        with suppress(Closed):
                            await message.retry()
                except BaseException:
                    message.give_back()  # the handler was cancelled
                    raise
                else:
                    message.settle()

        async with trio.open_nursery() as nursery:
            for iteration in iterations:
                nursery.start_soon(work, iteration)
        if self._closed:
            raise Closed("the consumer was closed")

    async def run(self, handler: MessageHandler, *, concurrency: int = 1, stop_seconds: float = STOP_SECONDS) -> None:
        """Run `process` in `concurrency` tasks until SIGTERM or Ctrl-C, and then until they have ended.

        Handlers finish what they have, and the end of the consumer's block commits it. Those that need more than `stop_seconds`
        after the signal, or that are still at work at a second signal, are cancelled, and their messages come again.

        Raises: as `process`; also `RuntimeError` in any thread but the main one, which alone receives signals.
        """
        check_integer("concurrency", concurrency, 1, INT_MAX)
        check_seconds("stop_seconds", stop_seconds)
        await run_until_signal(self, partial(self.process, handler, tasks=concurrency), stop_seconds)

    def stop(self) -> None:
        """Hand out no more messages: loops and `process` end when they have finished what they have.

        Other calls raise `Stopped`. What was acknowledged is committed when the block of the consumer ends.
        """
        self.stopped = True
        self._line.wake_all()

    async def receive(self, messages_max: int, timeout_seconds: float) -> list[ReceivedMessage]:
        """Take messages as `get_many` does, with arguments that were checked; a time-out of infinity is none."""
        await trio.lowlevel.checkpoint()
        messages = self._take_now(messages_max)
        if messages or timeout_seconds <= 0:
            return messages
        with trio.move_on_after(timeout_seconds):
            while not messages:
                await self._line.wait()
                messages = self._take_now(messages_max)
        return messages

    def take_now(self) -> ReceivedMessage | None:
        """Take one message without waiting; None if there is none."""
        if self._closed or self.stopped or self._direct.waiting:
            return self._take_now(1)[0]
        return self._line.take_one()

    def give_back_soon(self, message: ReceivedMessage) -> None:
        """Give back what a loop had in hand; the garbage collector may call this in any thread and at any point."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(message.give_back)

    def _take_now(self, messages_max: int) -> list[ReceivedMessage]:
        if self._closed:
            raise Closed("the consumer is closed")
        if self.stopped:
            raise Stopped("the consumer has been stopped")
        if self._direct.waiting:
            return [self._direct.take()]
        return self._line.take(messages_max)

    # ------------------------------------------------------------------------------------------------ what is read now

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read now, sorted."""
        return sorted(self._membership.sources)

    @property
    def sources(self) -> Mapping[MessageQueue, Source]:
        return self._membership.sources

    @property
    def client_id(self) -> str:
        """The id by which brokers and other members identify this consumer."""
        return self._session.client_id

    @property
    def properties(self) -> Mapping[str, str]:
        """The settings of the consumer, as brokers report them to administrators."""
        options = self.options
        return {
            "PROP_NAMESERVER_ADDR": ";".join(map(str, self._session.name_servers)) + ";",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": "true" if options.orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": "1",
            "PROP_CONSUMER_START_TIMESTAMP": str(next(iter(self.subscriptions.values())).version),
            "messageModel": options.model.value,
            "consumeFromWhere": options.consume_from.value,
            "consumerGroup": self.group,
        }

    def update_name_servers(self, namesrv: str | Iterable[str]) -> None:
        """Ask these name servers from now on; see `Producer.update_name_servers`."""
        self._session.update_name_servers(namesrv)

    async def commit(self) -> None:
        """Commit the group's offsets in every queue now; they are also committed every 5 seconds and at close.

        Raises:
            ClientError: the first reason why an offset was not stored; other offsets may be stored. Commits are repeated later.
        """
        if self._closed:
            raise Closed("the consumer is closed")
        failures = await self._keeper.commit(list(self._membership.sources.values()), CALL_SECONDS)
        if failures:
            raise failures[0]

    async def progress(self) -> dict[MessageQueue, QueueProgress]:
        """How far this consumer is in each queue that it reads; their brokers are asked where the queues end.

        Other members of the group read other queues: `Admin.group_stats` covers the whole group, as far as it has committed.

        Raises:
            Closed: the consumer is closed.
            ClientError: a broker cannot be reached, does not answer or refuses.
        """
        if self._closed:
            raise Closed("the consumer is closed")
        found: dict[MessageQueue, QueueProgress] = {}
        for queue in self.queues:
            end = await max_offset(self._session, queue)
            if (source := self._membership.sources.get(queue)) is not None:  # it may have gone to another member meanwhile
                found[queue] = QueueProgress(source.assigned.committable, end)
        return found

    # ------------------------------------------------------------------------------------------------------ inner life

    def members_changed(self) -> None:
        self._membership.want_rebalance()

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset in one of our queues, at once; nothing happens if another member reads it."""
        self._membership.reset(queue, offset)

    def consume_directly(self, message: ReceivedMessage) -> bool:
        return self._direct.add(message, self._nursery, self._line)

    def join(self) -> None:
        """Enter the group's data into the session, so that heartbeats announce this member and requests of brokers reach it."""
        session, options = self._session, self.options
        subscriptions = tuple(self.subscriptions.values())
        session.members.append(Member(self.group, subscriptions, options.model, options.consume_from))
        session.topics.update(self.subscriptions)
        session.handlers.update(PeerRequests(self).handlers())
        self._keeper.on_left = self._membership.want_rebalance

    async def begin(self) -> None:
        """Start reading; returns when the first share of queues is being read."""
        session = self._session
        for topic in self.subscriptions:
            try:
                await session.refresh_route(topic)
            except NoRoute as error:
                if error.reason is NoRouteReason.NAME_SERVER_UNREACHABLE:
                    raise
                log.debug("topic_without_route", topic=topic, reason=error.reason.name)
        await self._check_filters()
        await session.heartbeat_everywhere()
        await self._membership.rebalance()
        session.on_route.append(self._membership.route_changed)
        self._nursery.start_soon(self._membership.run)
        self._nursery.start_soon(self._commit_forever)
        if self._membership.orderly:
            self._nursery.start_soon(self._membership.renew_locks)

    async def _check_filters(self) -> None:
        """Ask the brokers of each topic whether they support the filter: one that does not would never send a message."""
        for topic, subscription in self.subscriptions.items():
            route = self._session.routes.routes.get(topic)
            if subscription.expression_type != TAG_EXPRESSION and route is not None:
                for broker in route.brokers:
                    for address in list(broker.addresses.values())[:1]:
                        await check_subscription(self._session, self.group, subscription, address)

    async def close(self) -> None:
        """Commit, release locks and wake the tasks that wait for messages, within `LEAVE_SECONDS`."""
        self._direct.close()
        self._closed = True
        self._line.close()
        sources = [*self._membership.sources.values(), *self._keeper.leaving]
        self._membership.sources.clear()
        for source in sources:
            source.drop()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVE_SECONDS):
            with trio.move_on_after(COMMIT_AT_CLOSE_SECONDS):
                while await self._keeper.commit(sources, COMMIT_AT_CLOSE_SECONDS):
                    await trio.sleep(COMMIT_PAUSE_SECONDS)  # a group that has lost its master has another one in a moment
                    for topic in self.subscriptions:
                        with suppress(ClientError):
                            await self._session.refresh_route(topic)
            if self._membership.orderly:
                async with trio.open_nursery() as nursery:
                    for source in sources:
                        nursery.start_soon(self._keeper.unlock, source.queue)

    async def _commit_forever(self) -> None:
        while True:
            await trio.sleep(COMMIT_SECONDS)
            for source in [*self._membership.sources.values(), *self._keeper.leaving]:
                give_back_unfinished(source.assigned.dropped(), ordered=self.options.orderly)
                await trio.lowlevel.checkpoint()  # a consumer of many queues holds many messages
            await self._keeper.commit(list(self._membership.sources.values()), CALL_SECONDS)


def message_failed(message: RecordView, error: BaseException) -> None:
    """Log that a handler has failed."""
    log.error("message_failed", exc_info=error, queue=str(message.queue), offset=message.queue_offset)


@asynccontextmanager
async def open_consumer(
    namesrv: str | Iterable[str] | None = None,
    group: str = "",
    topics: str | Iterable[str] | Mapping[str, str | Subscription] = (),
    *,
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
    offsets_path: str | None = None,
    instance_name: str | None = None,
    tls: bool | ClientTls | None = None,
    world: World | None = None,
) -> AsyncGenerator[Consumer]:
    """A consumer for the length of an `async with` block; on entry its first share of queues is being read.

    Leaving the block acknowledges nothing: the member that reads a queue next is given its unacknowledged messages again.
    It also releases the locks of ordered queues, so the code that handles their messages has to end before.

    Args: one that is None is read from the environment, if it has a variable (`client/environment.py`), or has its default.
        namesrv: `host:port`, several joined by `;`, or a sequence of them; by default `$LEDGERMQ_NAMESRV`.
        group: the consumer group, which is always given.
        topics: always given: one topic, several, or a mapping from topics to tag expressions such as `"a || b"` (or to
            `sql(...)`). They are the same for all members of a group: it has one position in each queue, so what one member's
            expression leaves out is passed for all of them. The broker warns of a member that differs (`subscriptions_differ`).
        ack: with `auto` a loop acknowledges a message when it asks for the next one; with `explicit` the application does.
        orderly: hand out one message of a queue at a time, in order; queues are locked for this member, unless broadcasting.
        model: whether the members of the group share the messages, or each gets all of them. A broadcasting member cannot ask
            for a message again: one that it retries or gives back is dropped, with the warning `message_dropped`.
        consume_from: where to start in a queue in which the group has no offset.
        consume_timestamp_ms: where `ConsumeFrom.TIMESTAMP` starts, and for it alone; half an hour ago by default.
        strategy: how the group divides queues: `average`, `circle`, `consistent_hash`, or a function.
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
        offsets_path: the file in which a broadcasting consumer keeps its offsets; without it they are kept in memory.
        instance_name: replaces the random part of the client id.
        tls: encrypt every connection, also to name servers: `True` accepts any certificate, `ClientTls(...)` defines which;
            by default as the file `$LEDGERMQ_TLS_CONFIG` says, and without it not.
        world: replaces disk, network and clock in tests and simulations.

    Raises:
        InvalidArgument: a name, expression or option is invalid.
        NoRoute: no name server answers.
        SubscriptionRefused: a broker does not support the filter.
        OffsetsUnreadable: the file at `offsets_path` cannot be read or understood.
    Cancellation: offsets are committed and locks released within three seconds, then everything is closed.
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
    check_function("on_offset_moved", on_offset_moved)
    if offsets_path is not None:
        check_text("offsets_path", offsets_path)
        if model is not MessageModel.BROADCASTING:
            raise InvalidArgument("offsets_path needs MessageModel.BROADCASTING: otherwise the brokers keep a group's offsets")
    async with (
        open_session(namesrv, world, instance_name=instance_name, tls=tls) as session,
        _joined(session, group, options, subscriptions, divide, offsets_path, on_offset_moved) as consumer,
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
) -> AsyncGenerator[Consumer]:
    """A consumer that reads its share of queues, for the length of a block, and then leaves the group."""
    offsets = kept_offsets(session, group, options.model, offsets_path)
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
    consumer: Consumer | None = None
    try:
        async with background_nursery() as nursery:
            line, send_back = Line(), SendBack(session, group, options.reconsume_times_max)
            redelivery = Redelivery(nursery, send_back, line, options.orderly, broadcasting, options.reconsume_times_max)
            held = HeldBytes(options.bytes_max)
            keeper = QueueKeeper(session, nursery, plan, subscriptions, offsets, line, redelivery, held)
            membership = Membership(session, group, subscriptions, options.model, divide, plan.locks, keeper)
            consumer = Consumer(group, options, subscriptions, session, nursery, line, keeper, membership)
            consumer.join()
            try:
                await consumer.begin()
                yield consumer
            finally:
                line.close()  # from here on no task is started, because the nursery is about to be closed
    finally:
        if consumer is not None:
            await consumer.close()
