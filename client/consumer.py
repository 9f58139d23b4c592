"""The consumer: messages of subscribed topics, shared with the other members of a group or all of them.

Messages are taken by `async for`, `get_one`, `get_many` or `process`, and are done with by `ack` or `retry`. Invariant: the
group's offset in a queue never passes a message that is not done with, so what was not finished is handed out again.
The trio shell over `assigned.py`, `fetch.py`, `delivery.py` and `membership.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from math import inf
from traceback import format_exception
from typing import Literal, get_args

import attrs
import trio

from ..message.message import RETRY_PREFIX, MessageQueue
from ..world.events import get_logger
from ..world.real import World, real_world
from ..world.tls import ClientTls
from .arguments import (
    INT_MAX,
    LONG_MAX,
    check_choice,
    check_group,
    check_integer,
    check_patience,
    check_text,
)
from .assigned import BYTES_PER_QUEUE_MAX, MESSAGES_PER_QUEUE_MAX, AssignedQueue
from .delivery import Line, Source
from .errors import ClientError, Closed, InvalidArgument, NoRoute, NoRouteReason
from .fetch import PULL_MESSAGES_MAX, Fetcher, PullPlan
from .membership import Membership
from .offsets import Offsets, changed_offsets, kept_offsets
from .peer_requests import PeerRequests
from .queue_calls import master_of, max_offset, min_offset, offset_at, unlock_queues
from .rebalance import Strategy, strategy_of
from .received import ReceivedMessage
from .send_back import SendBack
from .session import CALL_SECONDS, FAREWELL_SECONDS, Session, background_nursery, open_session
from .subscription import ConsumeFrom, Member, MessageModel, Subscription, subscriptions_of_member

log = get_logger(__name__)

COMMIT_SECONDS = 5.0
ORDERLY_SUSPEND_SECONDS = 1.0
REDELIVER_SECONDS = 5.0
"""After a broker took a failed message neither way, it is handed out again here."""
UNLOCK_WAIT_SECONDS = 20.0
"""How long a queue given away stays locked for messages that are still being worked on."""
MESSAGES_PER_GET = 256
MESSAGES_PER_TURN = 64
"""`async for` lets other tasks run after so many messages, and whenever it has to wait."""
CONSUME_AGO_MS = 30 * 60 * 1000
"""How far back `ConsumeFrom.TIMESTAMP` begins without a time (RocketMQ's `consumeTimestamp`)."""

AckMode = Literal["auto", "explicit"]
MessageHandler = Callable[[ReceivedMessage], Awaitable[object]]


@attrs.frozen
class ConsumerOptions:
    """How a consumer consumes."""

    ack: AckMode
    orderly: bool
    model: MessageModel
    consume_from: ConsumeFrom
    consume_timestamp_ms: int
    pull_messages_max: int
    messages_per_queue_max: int
    bytes_per_queue_max: int
    reconsume_times_max: int | None

    def __attrs_post_init__(self) -> None:
        if self.ack not in get_args(AckMode):
            raise InvalidArgument(f"ack must be one of {', '.join(get_args(AckMode))} (got {self.ack!r})")
        check_choice("model", self.model, MessageModel)
        check_choice("consume_from", self.consume_from, ConsumeFrom)
        check_integer("consume_timestamp_ms", self.consume_timestamp_ms, 0, LONG_MAX)
        check_integer("pull_messages_max", self.pull_messages_max, 1, INT_MAX)
        check_integer("messages_per_queue_max", self.messages_per_queue_max, 1, INT_MAX)
        check_integer("bytes_per_queue_max", self.bytes_per_queue_max, 1, INT_MAX)
        if self.reconsume_times_max is not None:
            check_integer("reconsume_times_max", self.reconsume_times_max, 0, INT_MAX)


@attrs.define(eq=False)
class Consumer:
    """Receives messages; made by `open_consumer`. Any number of tasks may take from it at once."""

    group: str
    options: ConsumerOptions
    subscriptions: Mapping[str, Subscription]
    _session: Session
    _nursery: trio.Nursery
    _offsets: Offsets
    _send_back: SendBack
    _membership: Membership = attrs.field(init=False)
    _line: Line = attrs.field(factory=Line)
    _in_hand: list[ReceivedMessage] = attrs.field(factory=list[ReceivedMessage])
    """Handed out by `get_one` and `get_many`, to be acknowledged by the next call in auto mode."""
    _iterations: set[Iteration] = attrs.field(factory=lambda: set[Iteration]())  # noqa: PLW0108 - the class comes below
    _direct: list[ReceivedMessage] = attrs.field(factory=list[ReceivedMessage])
    """Messages that a broker wants consumed at once, before all others."""
    _closed: bool = False

    def __repr__(self) -> str:
        return f"<Consumer {self.client_id} of {self.group} on {','.join(sorted(self.subscriptions))}>"

    # ------------------------------------------------------------------------------------------------- taking messages

    def __aiter__(self) -> Iteration:
        """Iterate over messages without end; in auto mode a message is acknowledged when the next one is asked for."""
        iteration = Iteration(self, acknowledges=self.options.ack == "auto")
        self._iterations.add(iteration)
        return iteration

    async def get_one(self, timeout_seconds: float | None = None) -> ReceivedMessage | None:
        """Take the next message; None after `timeout_seconds` without one. See `get_many` for auto mode."""
        messages = await self.get_many(1, timeout_seconds)
        return messages[0] if messages else None

    async def get_many(
        self, messages_max: int = MESSAGES_PER_GET, timeout_seconds: float | None = None
    ) -> list[ReceivedMessage]:
        """Take what is there, at least one message; an empty list after `timeout_seconds` without one.

        In auto mode this call acknowledges what the previous one returned. Several tasks that take from one consumer in auto
        mode use `async for`, where each task has its own previous message.

        Cancellation: nothing is taken and nothing acknowledged beyond what the previous call returned.
        """
        check_integer("messages_max", messages_max, 1, INT_MAX)
        check_patience("timeout_seconds", timeout_seconds)
        if self.options.ack == "auto":
            self._finish(self._in_hand)
        messages = await self.take(messages_max, inf if timeout_seconds is None else timeout_seconds)
        if self.options.ack == "auto":
            self._in_hand = messages
        return messages

    async def process(self, handler: MessageHandler, *, tasks: int = 1) -> None:
        """Give every message to `handler`, in `tasks` tasks at once, until cancelled.

        A message is acknowledged when the handler returns and retried when it raises.
        """
        if not callable(handler):
            raise InvalidArgument(f"handler must be an async function that takes a message (got {handler!r})")
        check_integer("tasks", tasks, 1, INT_MAX)

        async def work() -> None:
            async for message in Iteration(self, acknowledges=False):
                try:
                    await handler(message)
                except Exception as error:  # noqa: BLE001 - the message comes again
                    # As text, because a renderer that shows local variables would take seconds over a message each.
                    trace = "".join(format_exception(error))
                    log.warning("message_failed", queue=str(message.queue), offset=message.queue_offset, traceback=trace)
                    await message.retry()
                else:
                    message.ack_now()

        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(work)

    async def take(self, messages_max: int, timeout_seconds: float) -> list[ReceivedMessage]:
        """Take messages that the caller acknowledges itself, whatever the mode is; otherwise as `get_many`."""
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
        """Take one message that is here already."""
        if self._closed or self._direct:
            return self._take_now(1)[0]
        return self._line.take_one()

    def _take_now(self, messages_max: int) -> list[ReceivedMessage]:
        if self._closed:
            raise Closed("the consumer is closed")
        if self._direct:
            return [self._direct.pop(0)]
        return self._line.take(messages_max)

    def _finish(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            message.ack_now()
        messages.clear()

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
        """How brokers and other members know this consumer."""
        return self._session.client_id

    @property
    def properties(self) -> Mapping[str, str]:
        """Settings, as brokers show them to administrators."""
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

    async def commit(self) -> None:
        """Tell the broker now how far the group is in every queue; it is also told every 5 seconds and at close."""
        await self._commit(list(self._membership.sources.values()), CALL_SECONDS)

    # ------------------------------------------------------------------------------------------------------ inner life

    def members_changed(self) -> None:
        self._membership.want_rebalance()

    def move_to(self, source: Source, offset: int) -> None:
        """Go on at another offset, at once: the pull that is out is given up."""
        source.assigned.reset(offset)
        source.scope.cancel()
        self._start_fetching(source)
        self._nursery.start_soon(self._commit, [source], CALL_SECONDS)

    def consume_directly(self, message: ReceivedMessage) -> None:
        self._direct.append(message)
        self._line.wake_one()

    def join(self, strategy: Strategy) -> None:
        """Become a member of the group, as far as that is in our hands."""
        session, options = self._session, self.options
        orderly = options.orderly and options.model is MessageModel.CLUSTERING
        self._membership = Membership(
            session,
            self.group,
            dict(self.subscriptions),
            options.model,
            strategy,
            orderly,
            self.take_queue,
            self.give_queue,
        )
        subscriptions = tuple(self.subscriptions.values())
        session.members.append(Member(self.group, subscriptions, options.model, options.consume_from))
        session.topics.update(self.subscriptions)
        session.handlers.update(PeerRequests(self).handlers())

    async def run(self) -> None:
        """Start everything: returns when the first share of queues is being read."""
        session = self._session
        for topic in self.subscriptions:
            try:
                await session.refresh_route(topic)
            except NoRoute as error:
                if error.reason is NoRouteReason.NAME_SERVER_UNREACHABLE:
                    raise
                log.debug("topic_without_route", topic=topic, reason=error.reason.name)
        await session.heartbeat_everywhere()
        await self._membership.rebalance()
        session.on_route.append(self._membership.route_changed)
        self._nursery.start_soon(self._membership.run)
        self._nursery.start_soon(self._commit_forever)
        if self.options.orderly:
            self._nursery.start_soon(self._membership.renew_locks)

    async def close(self, *, finished: bool) -> None:
        """Commit, give locks back, and refuse further calls; bounded in time whatever the brokers do."""
        if finished and self.options.ack == "auto":
            self._finish(self._in_hand)
            for iteration in self._iterations:
                iteration.finish()
        self._closed = True
        sources = list(self._membership.sources.values())
        self._membership.sources.clear()
        for source in sources:
            source.dropped = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + FAREWELL_SECONDS):
            await self._commit(sources, FAREWELL_SECONDS)
            if self.options.orderly:
                async with trio.open_nursery() as nursery:
                    for source in sources:
                        nursery.start_soon(self._unlock, source)

    async def take_queue(self, queue: MessageQueue, subscription: Subscription) -> Source:
        """Start reading a queue where the group stands."""
        committed = await self._offsets.read(queue)
        options = self.options
        assigned = AssignedQueue(
            queue,
            await self._first_offset(queue) if committed is None else committed,
            options.messages_per_queue_max,
            options.bytes_per_queue_max,
            committed=committed,
        )
        source = Source(assigned, options.orderly, self._line, self._retry)
        self._start_fetching(source, subscription)
        return source

    async def give_queue(self, source: Source) -> None:
        """Stop reading a queue that another member reads from now on."""
        source.dropped = True
        source.scope.cancel()
        await self._commit([source], CALL_SECONDS)
        if self.options.orderly:
            self._nursery.start_soon(self._unlock_when_idle, source)

    async def _first_offset(self, queue: MessageQueue) -> int:
        retry = queue.topic.startswith(RETRY_PREFIX)
        consume_from = self.options.consume_from
        if consume_from is ConsumeFrom.FIRST:
            return await min_offset(self._session, queue)
        if consume_from is ConsumeFrom.TIMESTAMP and not retry:
            return await offset_at(self._session, queue, self.options.consume_timestamp_ms)
        # RocketMQ: what lies in a retry topic was given to the group before, so a new member starts at its beginning.
        return 0 if retry and consume_from is ConsumeFrom.LAST else await max_offset(self._session, queue)

    def _start_fetching(self, source: Source, subscription: Subscription | None = None) -> None:
        subscription = subscription or self.subscriptions[source.queue.topic]
        clustering = self.options.model is MessageModel.CLUSTERING
        plan = PullPlan(self.group, subscription, commits=clustering, messages_max=self.options.pull_messages_max)

        def moved(offset: int) -> None:
            source.assigned.move(offset)
            self._nursery.start_soon(self._commit, [source], CALL_SECONDS)

        def arrived() -> None:
            self._line.offer(source)

        source.fetcher = Fetcher(self._session, plan, source.assigned, source, arrived, moved)
        source.start(self._nursery)

    async def _commit_forever(self) -> None:
        while True:
            await trio.sleep(COMMIT_SECONDS)
            await self._commit(list(self._membership.sources.values()), CALL_SECONDS)

    async def _commit(self, sources: list[Source], timeout_seconds: float) -> None:
        positions = {source.queue: source.assigned for source in sources}
        offsets = changed_offsets((queue, each.committable, each.committed) for queue, each in positions.items())
        if offsets:
            for queue in await self._offsets.write(offsets, timeout_seconds):
                positions[queue].committed = offsets[queue]

    async def _unlock_when_idle(self, source: Source) -> None:
        if source.assigned.handed_out:
            with trio.move_on_after(UNLOCK_WAIT_SECONDS):
                await source.on_idle.wait()
            await self._commit([source], CALL_SECONDS)
        await self._unlock(source)

    async def _unlock(self, source: Source) -> None:
        try:
            address = await master_of(self._session, source.queue)
            await unlock_queues(self._session, self.group, address, [source.queue])
        except ClientError as error:
            log.warning("queue_not_unlocked", queue=str(source.queue), reason=str(error))

    async def _retry(self, source: Source, message: ReceivedMessage, delay_level: int) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        if self.options.model is MessageModel.BROADCASTING:
            log.warning("message_dropped", queue=str(source.queue), offset=message.queue_offset, reason="broadcasting")
            source.ack(message)
        elif self.options.orderly:
            await self._retry_in_order(source, message, delay_level)
        elif await self._send_back.send(message, delay_level):
            source.ack(message)
        else:
            self._nursery.start_soon(self._redeliver_later, source, message)

    async def _retry_in_order(self, source: Source, message: ReceivedMessage, delay_level: int) -> None:
        times_max = self.options.reconsume_times_max
        used_up = times_max is not None and message.reconsume_times >= times_max
        if (delay_level < 0 or used_up) and await self._send_back.resend(message, -1):
            source.ack(message)
            return
        source.suspended = True
        if source.assigned.put_back_from(message):
            self._nursery.start_soon(self._resume_later, source)

    async def _resume_later(self, source: Source) -> None:
        await trio.sleep(ORDERLY_SUSPEND_SECONDS)
        source.suspended = False
        self._line.offer(source)

    async def _redeliver_later(self, source: Source, message: ReceivedMessage) -> None:
        await trio.sleep(REDELIVER_SECONDS)
        if source.assigned.put_back(message):
            self._line.offer(source)


@attrs.define(eq=False)
class Iteration:
    """One `async for` over a consumer."""

    _consumer: Consumer
    acknowledges: bool
    _last: ReceivedMessage | None = None
    _taken: int = 0

    def __aiter__(self) -> Iteration:
        return self

    async def __anext__(self) -> ReceivedMessage:
        self.finish()
        self._taken += 1
        message = self._consumer.take_now() if self._taken % MESSAGES_PER_TURN else None
        if message is None:
            message = (await self._consumer.take(1, inf))[0]
        if self.acknowledges:
            self._last = message
        return message

    def finish(self) -> None:
        """Acknowledge the message that was handed out last, in auto mode."""
        if self._last is not None:
            self._last.ack_now()
            self._last = None


@asynccontextmanager
async def open_consumer(
    namesrv: str | Iterable[str],
    group: str,
    topics: str | Iterable[str] | Mapping[str, str | Subscription],
    *,
    ack: AckMode = "auto",
    orderly: bool = False,
    model: MessageModel = MessageModel.CLUSTERING,
    consume_from: ConsumeFrom = ConsumeFrom.LAST,
    consume_timestamp_ms: int | None = None,
    strategy: str | Strategy = "average",
    pull_messages_max: int = PULL_MESSAGES_MAX,
    messages_per_queue_max: int = MESSAGES_PER_QUEUE_MAX,
    bytes_per_queue_max: int = BYTES_PER_QUEUE_MAX,
    reconsume_times_max: int | None = None,
    offsets_path: str | None = None,
    instance_name: str | None = None,
    tls: bool | ClientTls = False,
    world: World | None = None,
) -> AsyncGenerator[Consumer]:
    """A consumer for the length of an `async with` block; on entry its first share of queues is being read.

    Leaving the block normally acknowledges in auto mode what was handed out last; leaving it by an exception or cancellation
    does not, so that message is handed out again to somebody.

    Args:
        namesrv: `host:port`, several joined by `;`, or a sequence of them.
        group: the consumer group.
        topics: one topic, several, or a mapping of topics to tag expressions such as `"a || b"` (or to `sql(...)`).
        ack: `auto` acknowledges a message when the next one is asked for; with `explicit` that is the application's.
        orderly: one message of a queue at a time, in order; queues are locked for this member.
        model: share the messages with the group, or get all of them.
        consume_from: where to start in a queue without an offset of the group.
        consume_timestamp_ms: for `ConsumeFrom.TIMESTAMP`; half an hour ago by default.
        strategy: how the group divides queues: `average`, `circle`, `consistent_hash`, or a function.
        pull_messages_max: per pull; brokers give 32 at most by default.
        messages_per_queue_max: pulled and not done with; a full queue is not pulled.
        bytes_per_queue_max: the same in bytes.
        reconsume_times_max: failed deliveries before a message is a dead letter; by default what the group's configuration
            says, and without end in orderly consumption.
        offsets_path: the file in which a broadcasting consumer keeps its offsets; without it they are kept in memory.
        instance_name: replaces the random part of the client id.
        tls: encrypt every connection, to name servers too: `True` believes any certificate, `ClientTls(...)` says which.
        world: the outside, for tests and simulation.

    Raises:
        InvalidArgument: a name, expression or option that cannot be. NoRoute: no name server answers.
    Cancellation: offsets are committed and locks given back within two seconds, then everything is closed.
    """
    world = world or real_world()
    check_group(group)
    now_ms = world.clock.wall_ms()
    subscriptions = subscriptions_of_member(group, topics, model, now_ms)
    options = ConsumerOptions(
        ack,
        orderly,
        model,
        consume_from,
        now_ms - CONSUME_AGO_MS if consume_timestamp_ms is None else consume_timestamp_ms,
        pull_messages_max,
        messages_per_queue_max,
        bytes_per_queue_max,
        reconsume_times_max,
    )
    divide = strategy_of(strategy)
    if offsets_path is not None:
        check_text("offsets_path", offsets_path)
    async with (
        open_session(namesrv, world, instance_name=instance_name, tls=tls) as session,
        _joined(session, group, options, subscriptions, divide, offsets_path) as consumer,
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
) -> AsyncGenerator[Consumer]:
    """A consumer that reads its share of queues, for the length of a block; then it leaves the group in order."""
    offsets = kept_offsets(session, group, options.model, offsets_path)
    finished = False
    consumer: Consumer | None = None
    try:
        async with background_nursery() as nursery:
            send_back = SendBack(session, group, options.reconsume_times_max)
            consumer = Consumer(group, options, subscriptions, session, nursery, offsets, send_back)
            consumer.join(divide)
            await consumer.run()
            yield consumer
            finished = True
    finally:
        if consumer is not None:
            await consumer.close(finished=finished)
