"""A consumer as a member of its group: its share of the queues, and their locks in orderly consumption.

Every member asks a broker for the member list and computes its own share (`rebalance.py`); it does so at the start, every 20 s,
when a broker notifies it of a change of members, and when a route has changed. Names: RocketMQ rebalance, `LOCK_BATCH_MQ`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from math import inf

import attrs
import trio

from ..message.message import MessageQueue
from ..world.events import EventLogger, get_logger
from ..world.network import Address
from .delivery import LOCK_LOST_SECONDS, Source
from .errors import BrokerSystemError, ClientError, NoAnswer, NoRoute, NoRouteReason, Unreachable
from .queue_calls import group_members, lock_queues, master_of
from .queue_keeping import QueueKeeper
from .rebalance import Strategy, allocate
from .route import TopicRoute
from .session import CALL_SECONDS, CLOSE_SECONDS, Session
from .subscription import MessageModel

log = get_logger(__name__)

REBALANCE_SECONDS = 20.0
UNRESOLVED_SECONDS = 1.0
"""The interval of rebalances while a topic has no route or a queue could not be taken."""
SETTLE_SECONDS = 0.1
"""The pause after a notification, so that members that start together cause one rebalance."""
LOCK_RENEW_SECONDS = 20.0


@attrs.define(eq=False)
class Membership:
    """Keeps `sources` equal to this member's share."""

    session: Session
    group: str
    subscriptions: Collection[str]
    """The topics that are read."""
    model: MessageModel
    strategy: Strategy
    orderly: bool
    keeper: QueueKeeper
    sources: dict[MessageQueue, Source] = attrs.field(factory=dict[MessageQueue, Source])
    """The queues that are read."""
    paused: bool = False
    """Whether queues that are taken hand out nothing until they are resumed."""
    problems: dict[str, str] = attrs.field(factory=dict[str, str])
    """By topic, why our share of its queues is not known or not read in full."""
    _known: dict[str, set[MessageQueue]] = attrs.field(factory=dict[str, set[MessageQueue]])
    """By topic, the queues of the first route; all others are new."""
    _taking: dict[MessageQueue, int | None] = attrs.field(factory=dict[MessageQueue, "int | None"])
    """The queues that are being taken, with the offset to which each was reset since then, if it was."""
    _wanted: trio.Event = attrs.field(factory=trio.Event)
    _without_route: set[str] = attrs.field(factory=set[str])
    """The topics for which a missing route was logged."""

    @property
    def _log(self) -> EventLogger:
        return log.bind(group=self.group)

    def _due(self, step: str, place: str, error: Exception) -> int:
        """How often a step has failed since that was logged, if it is to be logged now; otherwise 0."""
        return self.session.repeated.due((step, place, str(error)), trio.current_time())

    def want_rebalance(self) -> None:
        """Request a rebalance at once."""
        self._wanted.set()

    def route_changed(self, route: TopicRoute) -> None:
        """Request a rebalance if the route is one of our topics'."""
        if route.topic in self.subscriptions:
            self.want_rebalance()

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset, at once, if we read the queue or are taking it."""
        source = self.sources.get(queue)
        if source is not None:
            self._log.info("offset_reset", queue=str(queue), offset=offset, before=source.assigned.committable)
            self.keeper.move_to(source, offset)
        elif queue in self._taking:
            self._taking[queue] = offset

    def all_problems(self) -> list[str]:
        """Why our share of the queues is not known or not read, in full or at all; a reason is named once for each topic."""
        fetchers = [source.fetcher for source in self.sources.values()]
        standing = [each for each in fetchers if each is not None and each.refused]
        refused = [f"queues of {each.assigned.queue.topic} are not read: {each.refused}" for each in standing]
        return list(dict.fromkeys([*self.problems.values(), *refused]))

    async def run(self) -> None:
        """Rebalance until cancelled, after a first call of `rebalance`."""
        settled = False
        while True:
            with trio.move_on_after(REBALANCE_SECONDS if settled else UNRESOLVED_SECONDS):
                await self._wanted.wait()
            if self._wanted.is_set():
                await trio.sleep(SETTLE_SECONDS)
            settled = await self.rebalance()

    async def renew_locks(self) -> None:
        """Renew the locks of all our queues until cancelled; those of a broker that failed are renewed each second."""
        due: dict[str, float] = {}
        while True:
            await trio.sleep(UNRESOLVED_SECONDS)
            by_broker: dict[str, list[Source]] = {}
            for source in [*self.sources.values(), *self.keeper.leaving]:
                by_broker.setdefault(source.queue.broker_name, []).append(source)
            async with trio.open_nursery() as nursery:
                for name, sources in by_broker.items():
                    if trio.current_time() >= due.setdefault(name, trio.current_time() + LOCK_RENEW_SECONDS):
                        nursery.start_soon(self._renew, name, sources, due)

    async def _renew(self, broker_name: str, sources: list[Source], due: dict[str, float]) -> None:
        asked_at = trio.current_time()
        try:
            address = await master_of(self.session, sources[0].queue)
            # A queue that has been given away is not locked again.
            ours = [each.queue for each in sources if each.is_locked or self.sources.get(each.queue) is each]
            locked = await lock_queues(self.session, self.group, address, ours)
        except ClientError as error:
            if times := self._due("locks", broker_name, error):
                self._log.warning("locks_not_renewed", broker=broker_name, reason=str(error), times=times)
            with suppress(ClientError):
                await self.session.refresh_route(sources[0].queue.topic)  # it may have another master now
            return
        due[broker_name] = asked_at + LOCK_RENEW_SECONDS
        for source in sources:
            if source.queue in locked and source.is_locked:
                source.locked_until = asked_at + LOCK_LOST_SECONDS
                source.line.offer(source)
                continue
            source.locked_until = 0.0  # so nothing is committed any more, of a queue that is being given up neither
            if self.sources.get(source.queue) is source:
                # Another member may have read the queue since, or be reading it now, so our pulled messages are out of date.
                self._log.warning("queue_lock_lost", queue=str(source.queue))
                del self.sources[source.queue]
                await self.keeper.give([source], locked=False)
                self.want_rebalance()

    async def rebalance(self) -> bool:
        """Adapt `sources` to our share; return whether all topics have a route and all queues of the share are read."""
        self._wanted = trio.Event()
        shares = {topic: await self._share_of(topic) for topic in self.subscriptions}
        settled = None not in shares.values()
        wanted = {topic: share for topic, share in shares.items() if share is not None}
        given = [self.sources.pop(each) for each in list(self.sources) if each not in wanted.get(each.topic, (each,))]
        for source in given:
            self._log.info("queue_given", queue=str(source.queue))
        await self.keeper.give(given, locked=True)
        await self._take_all(queue for share in wanted.values() for queue in share)
        for topic, share in wanted.items():
            self.problems.pop(topic, None)
            if absent := sum(queue not in self.sources for queue in share):
                self.problems[topic] = f"{absent} of its queues of {topic} are not read yet"
                settled = False
        return settled

    async def _take_all(self, wanted: Iterable[MessageQueue]) -> None:
        """Take the queues that we do not read yet, notify the application of all of them in one call, and read them."""
        leaving = {source.queue for source in self.keeper.leaving}
        # Sorted, because the order of a set varies between runs.
        missing = sorted(queue for queue in wanted if queue not in self.sources and queue not in leaving)
        async with trio.open_nursery() as nursery:
            for queue in missing:
                nursery.start_soon(self._take, queue, queue not in self._known[queue.topic])
        # Committed in one call, because a broker may forget first commits that arrive at the same time.
        taken = [self.sources[queue] for queue in missing if queue in self.sources]
        await self.keeper.commit(taken, CALL_SECONDS)
        taken = [source for source in taken if not source.dropped]
        for source in taken:
            source.announced = True
        offsets = await self.keeper.callbacks.assigned([source.queue for source in taken])
        for source in taken:
            if not source.dropped:
                if source.queue in offsets:
                    self.reset(source.queue, offsets[source.queue])
                self.keeper.read(source)

    async def _share_of(self, topic: str) -> set[MessageQueue] | None:
        """Our queues of a topic; None if they are not known now, and we keep those that we have."""
        try:
            route = self.session.routes.routes.get(topic) or await self.session.refresh_route(topic)
            self._known.setdefault(topic, set(route.subscribe_queues()))
            return await self._share(route)
        except NoRoute as error:
            self.problems[topic] = str(error)
            if error.reason is NoRouteReason.TOPIC_UNKNOWN:
                self._known.setdefault(topic, set())
                del self.problems[topic]  # the consumer waits for the topic, and knows that it has no queue
            if topic not in self._without_route:
                self._log.info("topic_without_route", topic=topic, reason=error.reason.name)
                self._without_route.add(topic)
        except ClientError as error:
            self.problems[topic] = str(error)
            if times := self._due("rebalance", topic, error):
                self._log.warning("rebalance_skipped", topic=topic, reason=str(error), times=times)
        return None

    async def _share(self, route: TopicRoute) -> set[MessageQueue] | None:
        queues = route.subscribe_queues()
        if self.model is MessageModel.BROADCASTING or not queues:
            return set(queues)
        members = await self._members(route)
        try:
            return set(queues).intersection(allocate(self.strategy, self.session.client_id, queues, members))
        except Exception as error:  # noqa: BLE001 - the function is the application's
            self.problems[route.topic] = f"the strategy failed: {error!r}"
            if times := self._due("strategy", route.topic, error):
                self._log.error("strategy_failed", exc_info=error, topic=route.topic, times=times)
            return None

    async def _members(self, route: TopicRoute) -> list[str]:
        """The group's members, as the first broker of the topic that answers knows them."""
        avoided = self.session.avoided()
        found = [self.session.routes.member(broker.name, 0, avoided) for broker in route.brokers]
        addresses: list[Address] = [member[0] for member in found if member is not None]
        if not addresses:
            raise Unreachable(route.topic, "the route has no member of its brokers")
        start = self.session.world.randomness.randrange(len(addresses))
        failure: ClientError | None = None
        for address in addresses[start:] + addresses[:start]:
            try:
                try:
                    members = await group_members(self.session, self.group, address)
                except BrokerSystemError:  # the answer for a group of which the broker knows no member
                    members = []
                if self.session.client_id not in members:
                    # The broker has restarted, or we have just connected, so its list may lack other members too.
                    await self.session.send_heartbeat(address)
                    members = await group_members(self.session, self.group, address)
            except ClientError as error:
                failure = error
                continue
            if self.session.client_id in members:
                return members
            failure = NoAnswer(str(address), f"it does not count us among the members of {self.group!r}")
        assert failure is not None
        raise failure

    async def _take(self, queue: MessageQueue, is_new: bool) -> None:
        locked_until, locked = inf, False
        self._taking[queue] = None
        try:
            if self.orderly:
                locked_until = trio.current_time() + LOCK_LOST_SECONDS
                address = await master_of(self.session, queue)
                if queue not in await lock_queues(self.session, self.group, address, [queue]):
                    self._log.debug("queue_locked_by_other_member", queue=str(queue))
                    return
                locked = True
            source = await self.keeper.take(queue, is_new=is_new, locked_until=locked_until)
        except trio.Cancelled:
            if self.orderly:  # the lock may be ours, and nobody else would get it for a minute
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                    await self.keeper.unlock(queue)
            raise
        except ClientError as error:
            if times := self._due("queue", queue.broker_name, error):
                self._log.warning("queue_not_taken", queue=str(queue), reason=str(error), times=times)
            if locked:
                await self.keeper.unlock(queue)
            return
        finally:
            reset_to = self._taking.pop(queue)
        if reset_to is not None:  # the broker had answered our question for the offset before the reset
            source.assigned.reset(reset_to)
        source.assigned.paused = self.paused
        self.sources[queue] = source
        self._log.info("queue_taken", queue=str(queue), offset=source.assigned.next_offset)
