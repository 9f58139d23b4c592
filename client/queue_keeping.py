"""The queues that a consumer reads: their first offset, their commits, and their handover to another member.

A group that has no offset in a queue gets one when the queue is taken, before any pull: otherwise it would begin again,
at another offset, when it returns after a time without messages. An orderly queue is given up when none of its messages is
being processed any more, and its lock is kept until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import trio

from ..message.message import RETRY_PREFIX, MessageQueue
from ..world.events import get_logger
from .assigned import AssignedQueue, HeldBytes
from .delivery import Line, Source, TakesBack
from .errors import ClientError, NoAnswer
from .fetch import Fetcher, OnOffsetMoved, PullPlan
from .offsets import Offsets, Position, changed_offsets
from .queue_calls import master_of, max_offset, min_offset, offset_at, unlock_queues
from .rebalance_callbacks import RebalanceCallbacks
from .session import CALL_SECONDS, Session
from .subscription import ConsumeFrom, MessageModel, ReadFrom, Subscription

log = get_logger(__name__)

COMMIT_SECONDS = 5.0


@attrs.frozen
class ReadingPlan:
    """The options with which a consumer reads its queues."""

    group: str
    orderly: bool
    model: MessageModel
    consume_from: ConsumeFrom
    consume_timestamp_ms: int
    pull_messages_max: int
    messages_per_queue_max: int
    bytes_per_queue_max: int
    read_from: ReadFrom = ReadFrom.SUGGESTED
    on_offset_moved: OnOffsetMoved | None = None

    @property
    def locks(self) -> bool:
        """Whether each queue is locked for the member that reads it."""
        return self.orderly and self.model is MessageModel.CLUSTERING


@attrs.define(eq=False)
class QueueKeeper:
    """Takes queues, gives them up and commits their offsets, for one consumer."""

    _session: Session
    _nursery: trio.Nursery
    _plan: ReadingPlan
    _subscriptions: Mapping[str, Subscription]
    _offsets: Offsets
    _line: Line
    _takes_back: TakesBack
    held: HeldBytes
    callbacks: RebalanceCallbacks
    leaving: list[Source] = attrs.field(factory=list[Source])
    """The queues that are being given up. We have the lock of an orderly one until none of its messages is being processed."""
    on_left: Callable[[], None] = lambda: None
    """Called when a queue of `leaving` has been unlocked."""

    async def take(self, queue: MessageQueue, *, is_new: bool, locked_until: float) -> Source:
        """Prepare reading a queue from the group's offset; the caller commits that offset next and then calls `read`.

        Args:
            queue: the queue to take.
            is_new: whether it was created after this consumer started.
            locked_until: when our lock on it expires.

        Raises:
            ClientError: the group's offset cannot be read now. The queue is not taken.
        """
        plan = self._plan
        position = await self._offsets.read(queue)
        # Brokers also answer 0 for young queues in which a group has committed nothing yet.
        known = position.offset is not None and position.offset > 0
        start = position.offset if known or position.certain else None
        if start is None:
            start = await self._first_offset(queue, position, is_new=is_new)
        assigned = AssignedQueue(
            queue,
            start,
            plan.messages_per_queue_max,
            plan.bytes_per_queue_max,
            committed=start if known else None,
            may_commit=known or position.certain,
            all_queues=self.held,
        )
        return Source(assigned, plan.orderly, self._line, self._takes_back, locked_until=locked_until)

    async def _first_offset(self, queue: MessageQueue, position: Position, *, is_new: bool) -> int:
        consume_from = self._plan.consume_from
        if consume_from is ConsumeFrom.FIRST:
            return await min_offset(self._session, queue)
        if not position.certain:
            # Its master may have an offset, and beginning at the end would skip the messages between them.
            raise _only_its_master_knows(queue)
        if is_new or queue.topic.startswith(RETRY_PREFIX):
            # The messages of a new queue were sent after we started, and those of a retry topic were given to the group before.
            return await min_offset(self._session, queue)
        if consume_from is ConsumeFrom.TIMESTAMP:
            return await offset_at(self._session, queue, self._plan.consume_timestamp_ms)
        return await max_offset(self._session, queue)

    async def _ask_master(self, source: Source) -> ClientError | None:
        """Allow commits of a group that began at the first message, because a slave had no offset, if the master answers now.

        The master may have an offset; then the group continues there. If it is lower than ours it may be that of a reset, which
        the master takes as followed by whoever has asked for it.

        Returns: why the master's answer is not known, and nothing may be committed.
        """
        assigned = source.assigned
        try:
            position = await self._offsets.read(source.queue, young_is_zero=False)
        except ClientError as error:
            return error
        if assigned.may_commit:  # it has been moved meanwhile
            return None
        if not position.certain:
            return _only_its_master_knows(source.queue)
        if position.offset is not None and position.offset != assigned.committable:
            log.info("master_knew_offset", queue=str(source.queue), offset=position.offset)
            if source.dropped:
                return None  # the next member continues at the master's offset
            assigned.committed = position.offset
            self.move_to(source, position.offset)
        assigned.may_commit = True
        return None

    async def give(self, sources: Sequence[Source], *, locked: bool) -> None:
        """Stop reading queues that another member reads from now on; offsets are committed unless we have lost the locks.

        They are committed once more when the application has been notified, with what it acknowledges then. Of a locked queue
        it is notified when none of its messages is being processed any more. The member that gets another queue does not wait
        for that, so the offset is committed before as well.
        """
        for source in sources:
            source.drop()
            self.leaving.append(source)  # until the end: if the consumer closes meanwhile, it finishes what remains to be done
        uncommitted = sources
        if not self._plan.locks:
            before = {source: source.assigned.committable for source in sources}
            await self.commit(sources, CALL_SECONDS)
            await self.notify_revoked(sources)
            # Whoever reads the others now may have committed there, and would be set back.
            uncommitted = [source for source in sources if source.assigned.committable != before[source]]
        if locked:
            await self.commit(uncommitted, CALL_SECONDS)
        for source in sources:
            if self._plan.locks:
                self._nursery.start_soon(self._leave, source, locked)
            else:
                self.leaving.remove(source)

    async def _leave(self, source: Source, locked: bool) -> None:
        if source.assigned.in_work:
            await source.on_idle.wait()
        if locked:  # messages may have been acknowledged since the commit of `give` began
            await self.commit([source], CALL_SECONDS)
        await self.notify_revoked([source])
        source.locked_until = 0.0  # otherwise a renewal could lock the queue again
        await self.unlock(source.queue)
        self.leaving.remove(source)
        self.on_left()

    async def notify_revoked(self, sources: Iterable[Source]) -> None:
        """Call `on_revoked` with those queues that the application counts as assigned, sorted, in one call."""
        announced = [source for source in sources if source.announced]
        await self.callbacks.revoked(sorted(source.queue for source in announced))
        for source in announced:
            source.announced = False

    async def unlock(self, queue: MessageQueue) -> None:
        """Release the lock of a queue; after a failure, which is logged, the lock expires by itself."""
        try:
            address = await master_of(self._session, queue)
            await unlock_queues(self._session, self._plan.group, address, [queue])
        except ClientError as error:
            log.warning("queue_not_unlocked", queue=str(queue), reason=str(error))

    def read(self, source: Source) -> None:
        """Pull a queue from its next offset on, in a task of its own."""
        plan = self._plan
        # A member that has lost its lock must not commit, so its pulls must not carry a commit either.
        commits = plan.model is MessageModel.CLUSTERING and not plan.locks
        subscription = self._subscriptions[source.queue.topic]

        def moved(offset: int) -> None:
            source.assigned.move(offset)
            self._nursery.start_soon(self.commit, [source], CALL_SECONDS)

        def arrived() -> None:
            self._line.offer(source)

        pulls = PullPlan(
            plan.group,
            subscription,
            commits=commits,
            messages_max=plan.pull_messages_max,
            read_from=plan.read_from,
            on_offset_moved=plan.on_offset_moved,
        )
        source.fetcher = Fetcher(self._session, pulls, source.assigned, source, arrived, moved)
        source.start(self._nursery)

    def move_to(self, source: Source, offset: int) -> None:
        """Continue at another offset at once; the pending pull is cancelled."""
        source.assigned.reset(offset)
        source.assigned.may_commit = True  # whatever offset its master has, the group is here now
        source.scope.cancel()
        if not self._line.closed:  # a consumer that is being closed reads no more, and commits at its end
            if source.fetcher is not None:  # a queue that was just taken is read when the application has been notified
                self.read(source)
            self._nursery.start_soon(self.commit, [source], CALL_SECONDS)

    async def commit(self, sources: Iterable[Source], timeout_seconds: float) -> list[ClientError]:
        """Commit the offsets of those queues whose lock we have, if locks are needed; returns the failures."""
        positions: dict[MessageQueue, Source] = {}
        failures: list[ClientError] = []
        sources = list(sources)
        given = {source for source in sources if source.dropped}

        def latest(queue: MessageQueue) -> int | None:
            source = positions[queue]
            return None if source.dropped and source not in given else source.assigned.committable

        for source in sources:
            if not self._is_ours(source):
                continue
            if not source.assigned.may_commit and (failure := await self._ask_master(source)) is not None:
                failures.append(failure)
            if source.assigned.may_commit:
                positions[source.queue] = source
        offsets = changed_offsets(
            (queue, each.assigned.committable, each.assigned.committed) for queue, each in positions.items()
        )
        if offsets:
            written = await self._offsets.write(offsets, timeout_seconds, lambda _, error: failures.append(error), latest)
            for queue, offset in written.items():
                positions[queue].assigned.committed = offset
        return failures

    def uncommitted(self, sources: Iterable[Source]) -> dict[str, int]:
        """The offsets that are to be committed and are not, by queue; without those of queues whose lock we have lost."""
        behind = [each for each in sources if self._is_ours(each) and each.assigned.committable != each.assigned.committed]
        return {str(each.queue): each.assigned.committable for each in behind}

    def _is_ours(self, source: Source) -> bool:
        return source.is_locked or not self._plan.locks


def _only_its_master_knows(queue: MessageQueue) -> NoAnswer:
    return NoAnswer(queue.broker_name, "only its master knows whether the group has an offset")
