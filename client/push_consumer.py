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
from typing import Any, Generic, cast

import attrs
import trio

from ..message.message import Body, MessageQueue
from ..world.events import get_logger
from .arguments import (
    INT_MAX,
    check_integer,
    check_queue,
    check_queues,
    check_seconds,
    check_timeout,
)
from .consumer_options import ConsumerOptions
from .delivery import Line, Source
from .direct import DirectMessages
from .errors import ClientError, Closed, InvalidArgument, NoRoute, NoRouteReason, Stopped, Unreachable
from .health import CLOSED, STOPPED, Health
from .iteration import Iteration
from .membership import Membership
from .peer_requests import PeerRequests
from .queue_calls import check_subscription, max_offset
from .queue_keeping import COMMIT_SECONDS, QueueKeeper
from .received import ReceivedMessage, RecordView, give_back_unfinished, retry_unfinished
from .seeking import Seeks
from .session import CALL_SECONDS, Session
from .statistics import ConsumerStatistics
from .stopping import STOP_SECONDS, run_until_signal
from .subscription import TAG_EXPRESSION, Member, Subscription

log = get_logger(__name__)

MESSAGES_PER_GET = 256
COMMIT_AT_CLOSE_SECONDS, COMMIT_PAUSE_SECONDS = 2.0, 0.1
"""For how long, and after which pauses, the commits of a consumer that closes are repeated; an election takes less."""
COMMIT_TRY_AT_CLOSE_SECONDS = COMMIT_AT_CLOSE_SECONDS - 2 * COMMIT_PAUSE_SECONDS
"""The limit of one of them: its outcome is known before the time is over."""
LOOK_AT_LOCKS_SECONDS = 1.0
UNLOCK_AT_CLOSE_SECONDS = 1.0
"""For how long a consumer that closes tries to release its locks; then it leaves them to expire."""


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
class Consumer(Seeks, Generic[Body]):
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
    _decode: Callable[[bytes], Body] | None = attrs.field(default=None, alias="decode")
    _direct: DirectMessages = attrs.field(factory=DirectMessages)
    _closed: bool = False
    stopped: bool = False

    def __repr__(self) -> str:
        return f"<Consumer {self.client_id} of {self.group} on {','.join(sorted(self.subscriptions))}>"

    # ------------------------------------------------------------------------------------------------- taking messages

    def __aiter__(self) -> Iteration[Body]:
        """Iterate over messages without end.

        With `ack="auto"`, a message is acknowledged when this iterator is asked for the next one, or by `ack`, and in no other
        way. A loop that is left by an exception, `break`, `return` or cancellation drops its iterator and so gives back the
        message that it has not acknowledged: it comes again as after `retry`. CPython drops the iterator at once. An iterator
        that the application keeps, itself or in a suspended generator, gives its message back when it is collected, when a new
        loop begins over it, or when the consumer closes. No loop acknowledges what an earlier loop was given.
        """
        return Iteration(self, acknowledges=self.options.ack == "auto")

    async def get_one(self, timeout_seconds: float | None = None) -> ReceivedMessage[Body] | None:
        """Take the next message; None after `timeout_seconds` without one. See `get_many`."""
        messages = await self.get_many(1, timeout_seconds)
        return messages[0] if messages else None

    async def get_many(
        self, messages_max: int = MESSAGES_PER_GET, timeout_seconds: float | None = None
    ) -> list[ReceivedMessage[Body]]:
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
    ) -> AsyncGenerator[list[ReceivedMessage[Body]]]:
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

    async def process(self, handler: Callable[[ReceivedMessage[Body]], Awaitable[object] | None], *, tasks: int = 1) -> None:
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

        async def work(iteration: Iteration[Body]) -> None:
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
                    with suppress(Closed):
                        await retry_unfinished(message)
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

    async def run(
        self,
        handler: Callable[[ReceivedMessage[Body]], Awaitable[object] | None],
        *,
        concurrency: int = 1,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        """Run `process` in `concurrency` tasks until SIGTERM or Ctrl-C, and then until they have ended.

        Handlers finish what they have, and the end of the consumer's block commits it. Those that need more than `stop_seconds`
        after the signal, or that are still at work at a second signal, are cancelled, and their messages come again.

        Raises: as `process`; also `ValueError` in any thread but the main one, which alone receives signals.
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

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out no messages of these queues until `resume`; prefetched ones are kept, and those in hand go on.

        The queues stay assigned, so no other member reads them. A queue that goes to another member and comes back is not
        paused any more.

        Args:
            queues: queues that are read now; None for all, those that are taken later among them.

        Raises:
            InvalidArgument: one of them is not read now. None of them was paused.
            Closed: the consumer is closed.
        """
        for source in self._chosen(queues):
            source.assigned.paused = True
        self._membership.paused = self._membership.paused or queues is None

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Hand out messages of these queues again, or of all; raises as `pause` does."""
        for source in self._chosen(queues):
            source.resume()
        self._membership.paused = self._membership.paused and queues is not None

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that are read now and hand out nothing until `resume`, sorted."""
        return sorted(queue for queue, source in list(self._membership.sources.items()) if source.assigned.paused)

    def _chosen(self, queues: Iterable[MessageQueue] | None) -> list[Source]:
        if self._closed:
            raise Closed("the consumer is closed")
        if queues is None:
            return list(self._membership.sources.values())
        chosen = check_queues("queues", queues)
        for queue in chosen:
            self._check_read(queue)
        return [self._membership.sources[queue] for queue in chosen]

    def _check_read(self, queue: MessageQueue) -> None:
        if self._closed:
            raise Closed("the consumer is closed")
        if check_queue("queue", queue) not in self._membership.sources:
            raise InvalidArgument(f"this consumer does not read {queue} now")

    def _move(self, queue: MessageQueue, offset: int) -> None:
        self._membership.reset(queue, offset)

    async def receive(self, messages_max: int, timeout_seconds: float) -> list[ReceivedMessage[Body]]:
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

    def take_now(self) -> ReceivedMessage[Body] | None:
        """Take one message without waiting; None if there is none."""
        if self._closed or self.stopped or self._direct.waiting or self._decode is not None:
            messages = self._take_now(1)
            return messages[0] if messages else None
        return self._line.take_one()

    def give_back_soon(self, message: ReceivedMessage[Body]) -> None:
        """Give back what a loop had in hand; the garbage collector may call this in any thread and at any point."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(message.give_back)

    def _take_now(self, messages_max: int) -> list[ReceivedMessage[Body]]:
        if self._closed:
            raise Closed("the consumer is closed")
        if self.stopped:
            raise Stopped("the consumer has been stopped")
        while taken := [self._direct.take()] if self._direct.waiting else self._line.take(messages_max):
            messages = cast("list[ReceivedMessage[Body]]", taken)
            if self._decode is None or (messages := self._decoded(messages, self._decode)):
                return messages
        return []

    def _decoded(self, messages: list[ReceivedMessage[Body]], decode: Callable[[bytes], Body]) -> list[ReceivedMessage[Body]]:
        """Decode messages; those that cannot be decoded are given back, each as a delivery that has failed.

        A `SystemExit` or its like fails one delivery too, and is raised to the caller, who does not get the other messages.
        """
        decoded: list[ReceivedMessage[Body]] = []
        for at, message in enumerate(messages):
            try:
                message.decode(decode)
            except Exception as error:
                log.error("message_not_decoded", exc_info=error, queue=str(message.queue), offset=message.queue_offset)
                if self.options.orderly:  # what is behind it in its queue waits for it
                    give_back_unfinished(messages[at:], ordered=True)
                    break
                message.give_back()
            except BaseException:
                for unseen in reversed([*decoded, *messages[at + 1 :]]):
                    unseen.put_back()
                message.give_back()
                raise
            else:
                decoded.append(message)
        return decoded

    # ------------------------------------------------------------------------------------------------ what is read now

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read now, sorted; those of the group's retries, `%RETRY%` and its name, are among them."""
        return sorted(self._membership.sources)

    @property
    def sources(self) -> Mapping[MessageQueue, Source]:
        return self._membership.sources

    @property
    def monotonic(self) -> Callable[[], float]:
        """The clock of its world."""
        return self._session.world.clock.monotonic

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
        sources = list(self._membership.sources.values())
        changed = [each for each in sources if each.assigned.committed != each.assigned.committable]
        lost = [each.queue for each in changed if not each.is_locked]  # another member may read them by now
        failures = await self._keeper.commit(sources, CALL_SECONDS)
        failures += [Unreachable(queue.broker_name, f"the lock of {queue} was not renewed in time") for queue in lost]
        if failures:
            raise failures[0]

    async def healthy(self) -> Health:
        """Whether this consumer can do its work, as a readiness probe asks.

        It can if a broker is connected and has answered a heartbeat lately, all queues of its share are read, and no broker has
        refused the last pull of one; a member without a share, or of a topic that does not exist yet, has nothing to read and
        is healthy. `problems` says what is not so, also of a consumer that is stopped or closed.
        """
        await trio.lowlevel.checkpoint()
        if self._closed:
            return CLOSED
        return STOPPED if self.stopped else Health((*self._session.problems(), *self._membership.all_problems()))

    def statistics(self) -> ConsumerStatistics:
        """What this consumer has done since it was opened, and what it holds now."""
        held, queues = self._keeper.held, [source.assigned for source in list(self._membership.sources.values())]
        waiting, in_hand = sum(len(each.buffered) for each in queues), sum(each.handed_out for each in queues)
        return ConsumerStatistics(held.received, held.acknowledged, held.failed, waiting, in_hand, held.held)

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
        if self._membership.orderly:  # before the first share, whose callbacks may take longer than a lock lasts
            self._nursery.start_soon(self._membership.renew_locks)
            self._nursery.start_soon(self._look_at_locks)
        await self._membership.rebalance()
        session.on_route.append(self._membership.route_changed)
        self._nursery.start_soon(self._membership.run)
        self._nursery.start_soon(self._commit_forever)

    async def _check_filters(self) -> None:
        """Ask the brokers of each topic whether they support the filter: one that does not would never send a message."""
        for topic, subscription in self.subscriptions.items():
            route = self._session.routes.routes.get(topic)
            if subscription.expression_type != TAG_EXPRESSION and route is not None:
                for broker in route.brokers:
                    for address in list(broker.addresses.values())[:1]:
                        await check_subscription(self._session, self.group, subscription, address)

    async def close(self) -> None:
        """Wake the tasks that wait for messages, commit, notify the application and release locks; each of it has a limit."""
        self._direct.close()
        self._closed = True
        self._line.close()
        sources = [*self._membership.sources.values(), *self._keeper.leaving]
        self._membership.sources.clear()
        for source in sources:
            source.drop()
        failures: list[ClientError] = []
        with trio.CancelScope(shield=True):
            with trio.move_on_after(COMMIT_AT_CLOSE_SECONDS):
                while failures := await self._keeper.commit(sources, COMMIT_TRY_AT_CLOSE_SECONDS):
                    await trio.sleep(COMMIT_PAUSE_SECONDS)  # a group that has lost its master has another one in a moment
                    for topic in self.subscriptions:
                        with suppress(ClientError):
                            await self._session.refresh_route(topic)
            if uncommitted := self._keeper.uncommitted(sources):
                reasons = dict.fromkeys(map(str, failures)) or [f"no answer within {COMMIT_AT_CLOSE_SECONDS} s"]
                log.warning("offsets_not_committed", group=self.group, queues=uncommitted, reason="; ".join(reasons))
            # After the commit, because nobody renews the locks any more. The callback can acknowledge nothing, and is limited.
            await self._keeper.notify_revoked(sources)
            if self._membership.orderly:
                with trio.move_on_after(UNLOCK_AT_CLOSE_SECONDS):
                    async with trio.open_nursery() as nursery:
                        for source in sources:
                            nursery.start_soon(self._keeper.unlock, source.queue)

    async def _look_at_locks(self) -> None:
        """Let loops in other threads, which cannot read trio's clock, notice that a lock has expired."""
        while True:
            await trio.sleep(LOOK_AT_LOCKS_SECONDS)
            for source in self._membership.sources.values():
                source.lock_expired = not source.is_locked

    async def _commit_forever(self) -> None:
        while True:
            await trio.sleep(COMMIT_SECONDS)
            for source in [*self._membership.sources.values(), *self._keeper.leaving]:
                give_back_unfinished(source.assigned.dropped(), ordered=self.options.orderly)
                await trio.lowlevel.checkpoint()  # a consumer of many queues holds many messages
            await self._keeper.commit(list(self._membership.sources.values()), CALL_SECONDS)


def message_failed(message: RecordView[Any], error: BaseException) -> None:
    """Log that a handler has failed."""
    log.error("message_failed", exc_info=error, queue=str(message.queue), offset=message.queue_offset)
