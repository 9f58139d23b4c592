"""The pull consumer: the application chooses queues, offsets and when to commit (RocketMQ lite pull consumer).

Queues are not divided among members, and nothing is committed automatically. Messages of assigned queues are prefetched within
the limits of the push consumer. `poll` hands them out, and `commit` commits the offset behind the last of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from math import inf

import attrs
import trio

from ..message.message import MessageQueue
from ..remoting.signature import Credentials
from ..world.real import World, real_world
from ..world.tls import ClientTls
from . import environment
from .arguments import (
    INT_MAX,
    LONG_MAX,
    check_choice,
    check_function,
    check_group,
    check_integer,
    check_queue,
    check_queues,
    check_text,
    check_timeout,
    check_topic,
)
from .assigned import AssignedQueue, HeldBytes
from .background import background_nursery, call_at_end
from .delivery import Line, Source
from .errors import ClientError, Closed, InvalidArgument
from .fetch import Fetcher, OnOffsetMoved, PullPlan
from .offsets import commit_offsets
from .queue_calls import commit_offset, committed_offset, min_offset
from .received import ReceivedMessage
from .seeking import Seeks
from .session import Session, open_session
from .subscription import ALL, ConsumeFrom, Member, MessageModel, ReadFrom, Subscription, check_expression

SUSPEND_MS = 20_000
MESSAGES_PER_POLL = 256


@attrs.define(eq=False)
class PullConsumer(Seeks):
    """Reads queues; made by `open_pull_consumer`."""

    group: str
    _session: Session
    _nursery: trio.Nursery
    _messages_per_queue_max: int
    _bytes_per_queue_max: int
    _pull_messages_max: int
    _held: HeldBytes
    _read_from: ReadFrom
    _on_offset_moved: OnOffsetMoved | None
    _line: Line = attrs.field(factory=Line)
    _sources: dict[MessageQueue, Source] = attrs.field(factory=dict[MessageQueue, Source])
    _positions: dict[MessageQueue, int] = attrs.field(factory=dict[MessageQueue, int])
    """The offset behind the last message that `poll` handed out."""
    _assigning: trio.Lock = attrs.field(factory=trio.Lock)
    """Calls of `assign` that overlap follow each other: both would find a queue new, or leave the queues of the other."""
    _closed: bool = False

    def __repr__(self) -> str:
        return f"<PullConsumer of {self.group} at {self._session.name_servers_text}>"

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of `topic` that can be read.

        Raises:
            NoRoute: the topic is unknown, or no name server answers.
        """
        check_topic(topic)
        self._session.topics.add(topic)
        return (await self._session.refresh_route(topic)).subscribe_queues()

    async def assign(self, queues: Iterable[MessageQueue], expression: str = ALL) -> None:
        """Read these queues and no others; new ones from the group's committed offset, or from their beginning.

        Args:
            queues: queues of any topics.
            expression: the tag expression for the new queues.

        Raises:
            Closed: the consumer is closed, or was closed during the call.
            ClientError: where to begin in one of the queues cannot be found now. The same queues are read as before.
        """
        wanted = set(check_queues("queues", queues))
        check_expression("expression", check_text("expression", expression))
        async with self._assigning:
            self._check_open()
            starts: dict[MessageQueue, int] = {}
            for queue in sorted(wanted - self._sources.keys()):
                if queue.topic not in self._session.routes.routes:
                    await self.queues(queue.topic)
                committed = await self.committed(queue)
                starts[queue] = await min_offset(self._session, queue) if committed is None else committed
            self._check_open()  # it may have been closed meanwhile
            for queue in [queue for queue in self._sources if queue not in wanted]:
                self._drop(queue)
            for queue, start in starts.items():
                self._read(queue, start, Subscription(queue.topic, expression))
            await self._notify_brokers(expression)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        return sorted(self._sources)

    def _check_read(self, queue: MessageQueue) -> None:
        self._source(queue)

    def _move(self, queue: MessageQueue, offset: int) -> None:
        before = self._source(queue)
        assert before.fetcher is not None
        self._drop(queue)
        self._read(queue, offset, before.fetcher.plan.subscription)
        assigned = self._sources[queue].assigned
        assigned.paused, assigned.broker_id = before.assigned.paused, before.assigned.broker_id

    def unpoll(self, messages: Iterable[ReceivedMessage]) -> None:
        """Go back before messages that `poll` returned but the application has not seen, unless their queue was moved since.

        What other calls have taken behind them comes again with them: a position cannot leave a gap.
        """
        for message in () if self._closed else messages:
            source, offset = self._sources.get(message.queue), message.queue_offset
            if source is not None and source is message.origin and offset < self._positions[message.queue]:
                source.scope.cancel()
                source.assigned.reset(offset)
                self._positions[source.queue] = offset
                assert source.fetcher is not None
                self._start(source, source.fetcher.plan)

    async def poll(self, messages_max: int = MESSAGES_PER_POLL, timeout_seconds: float | None = None) -> list[ReceivedMessage]:
        """Take the messages that have arrived, or wait for at least one; an empty list after `timeout_seconds` without one.

        Cancellation: no message is taken. Under asyncio and in threads, what a concurrent `poll` has taken behind them in the
            meantime comes again; nothing is left out.
        """
        check_integer("messages_max", messages_max, 1, INT_MAX)
        check_timeout("timeout_seconds", timeout_seconds)
        await trio.lowlevel.checkpoint()
        messages = self._take(messages_max)
        if not messages and (timeout_seconds is None or timeout_seconds > 0):
            with trio.move_on_after(inf if timeout_seconds is None else timeout_seconds):
                while not messages:
                    await self._line.wait()
                    messages = self._take(messages_max)
        return messages

    def position(self, queue: MessageQueue) -> int:
        """The offset behind the last message that `poll` handed out of an assigned queue."""
        self._source(queue)
        return self._positions[queue]

    def read_offset(self, queue: MessageQueue) -> int:
        """The offset below which every message of an assigned queue that matches the expression has been handed out."""
        assigned = self._source(queue).assigned
        return min((message.queue_offset for message in assigned.buffered), default=assigned.next_offset)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no messages of these assigned queues until `resume`; prefetched ones are kept."""
        for queue in check_queues("queues", queues):
            self._source(queue).assigned.paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand messages of these queues out again."""
        for queue in check_queues("queues", queues):
            self._source(queue).resume()

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group has committed in `queue`; None if it never committed there."""
        check_queue("queue", queue)
        return await committed_offset(self._session, self.group, queue)

    async def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Commit the position of one assigned queue or of all, or `offset` for one queue.

        Raises:
            ClientError: the first reason why a position was not stored; positions of other queues may be stored.
        Durability: on return the broker has it in memory; it writes offsets to its disk every 5 seconds.
        """
        if offset is not None:
            if queue is None:
                raise InvalidArgument("an offset is committed for one queue")
            check_queue("queue", queue)
            check_integer("offset", offset, 0, LONG_MAX)
            await commit_offset(self._session, self.group, queue, offset)
            return
        positions = {each: self.position(each) for each in (self._sources if queue is None else (queue,))}
        failures: list[ClientError] = []
        await commit_offsets(self._session, self.group, positions, lambda _, error: failures.append(error))
        if failures:
            raise failures[0]

    def update_name_servers(self, namesrv: str | Iterable[str]) -> None:
        """Ask these name servers from now on; see `Producer.update_name_servers`."""
        self._session.update_name_servers(namesrv)

    def close(self) -> None:
        """Refuse further calls, and wake those that wait, which then raise `Closed`."""
        self._closed = True
        self._line.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the pull consumer is closed")

    def _source(self, queue: MessageQueue) -> Source:
        self._check_open()
        source = self._sources.get(check_queue("queue", queue))
        if source is None:
            raise InvalidArgument(f"{queue} is not assigned")
        return source

    def _take(self, messages_max: int) -> list[ReceivedMessage]:
        self._check_open()
        messages = self._line.take(messages_max)
        for message in messages:
            message.settle()  # frees its memory; the application commits positions itself
            self._positions[message.queue] = message.queue_offset + 1
        return messages

    def _read(self, queue: MessageQueue, start: int, subscription: Subscription) -> None:
        assigned = AssignedQueue(queue, start, self._messages_per_queue_max, self._bytes_per_queue_max, all_queues=self._held)
        source = self._sources[queue] = Source(assigned, orderly=False, line=self._line, takes_back=_NoRetries())
        self._positions[queue] = start
        plan = PullPlan(
            self.group,
            subscription,
            commits=False,
            lite=True,
            messages_max=self._pull_messages_max,
            suspend_ms=SUSPEND_MS,
            read_from=self._read_from,
            on_offset_moved=self._on_offset_moved,
        )
        self._start(source, plan)

    def _start(self, source: Source, plan: PullPlan) -> None:
        def moved(offset: int) -> None:
            waiting = source.assigned.next_offset > offset  # prefetched messages below `offset` may still be handed out
            source.assigned.move(offset)
            self._positions[source.queue] = min(self._positions[source.queue], offset) if waiting else offset

        def arrived() -> None:
            self._line.offer(source)

        source.fetcher = Fetcher(self._session, plan, source.assigned, source, arrived, moved)
        source.start(self._nursery)

    def _drop(self, queue: MessageQueue) -> None:
        source = self._sources.pop(queue)
        source.drop()
        del self._positions[queue]

    async def _notify_brokers(self, expression: str) -> None:
        version = self._session.world.clock.wall_ms()
        topics = sorted({queue.topic for queue in self._sources})
        subscriptions = tuple(Subscription(topic, expression, version=version) for topic in topics)
        member = Member(self.group, subscriptions, MessageModel.CLUSTERING, ConsumeFrom.LAST, passive=False)
        self._session.members[:] = [member]
        await self._session.heartbeat_everywhere()


class _NoRetries:
    """Refuses retries: messages are done when they are handed out."""

    async def retry(self, source: Source, message: ReceivedMessage, delay_level: int) -> None:
        del source, message, delay_level
        raise InvalidArgument("a pull consumer has no retries: seek back to the message, or commit behind it")

    def give_back(self, source: Source, message: ReceivedMessage) -> None: ...


@asynccontextmanager
async def open_pull_consumer(
    namesrv: str | Iterable[str] | None = None,
    group: str = "",
    *,
    pull_messages_max: int | None = None,
    messages_per_queue_max: int | None = None,
    bytes_per_queue_max: int | None = None,
    bytes_max: int | None = None,
    read_from: ReadFrom | None = None,
    on_offset_moved: OnOffsetMoved | None = None,
    instance_name: str | None = None,
    tls: bool | ClientTls | None = None,
    credentials: Credentials | None = None,
    world: World | None = None,
) -> AsyncGenerator[PullConsumer]:
    """A pull consumer for the length of an `async with` block; it reads no queue before `assign`.

    Nothing is committed at the end of the block. The arguments are those of `open_consumer`; a group is always given.
    """
    pull_messages_max = environment.PULL_MESSAGES.value(pull_messages_max)
    messages_per_queue_max = environment.MESSAGES_PER_QUEUE.value(messages_per_queue_max)
    bytes_per_queue_max = environment.BYTES_PER_QUEUE.value(bytes_per_queue_max)
    bytes_max = environment.BYTES.value(bytes_max)
    read_from = environment.READ_FROM.value(read_from)
    check_group(group)
    check_integer("pull_messages_max", pull_messages_max, 1, INT_MAX)
    check_integer("messages_per_queue_max", messages_per_queue_max, 1, INT_MAX)
    check_integer("bytes_per_queue_max", bytes_per_queue_max, 1, INT_MAX)
    check_integer("bytes_max", bytes_max, 1, LONG_MAX)
    check_choice("read_from", read_from, ReadFrom)
    check_function("on_offset_moved", on_offset_moved)
    async with (
        open_session(namesrv, world or real_world(), instance_name=instance_name, tls=tls, credentials=credentials) as session,
        background_nursery() as nursery,
    ):
        consumer = PullConsumer(
            group,
            session,
            nursery,
            messages_per_queue_max,
            bytes_per_queue_max,
            pull_messages_max,
            HeldBytes(bytes_max),
            read_from,
            on_offset_moved,
        )
        nursery.start_soon(call_at_end, consumer.close)
        yield consumer
