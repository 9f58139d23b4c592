"""A consumer as member of its group: which queues are ours now, and their locks in orderly consumption.

Every member asks a broker for the member list and computes its own share (`rebalance.py`); it does so at the start, every 20 s,
when a broker says that members have changed, and when a route has changed. Names: RocketMQ rebalance, `LOCK_BATCH_MQ`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

import attrs
import trio

from ..message.message import MessageQueue
from ..world.events import get_logger
from ..world.network import Address
from .delivery import LOCK_LOST_SECONDS, Source
from .errors import ClientError, NoAnswer, NoRoute
from .queue_calls import group_members, lock_queues, master_of
from .rebalance import Strategy, allocate
from .route import TopicRoute
from .session import Session
from .subscription import MessageModel, Subscription

log = get_logger(__name__)

REBALANCE_SECONDS = 20.0
UNRESOLVED_SECONDS = 1.0
"""When a topic has no route yet or a queue could not be taken, the next look comes sooner."""
SETTLE_SECONDS = 0.1
"""Several members that start together are several notifications; one rebalance answers them all."""
LOCK_RENEW_SECONDS = 20.0


@attrs.define(eq=False)
class Membership:
    """Keeps `sources` equal to this member's share."""

    session: Session
    group: str
    subscriptions: dict[str, Subscription]
    model: MessageModel
    strategy: Strategy
    orderly: bool
    take_queue: Callable[[MessageQueue, Subscription], Awaitable[Source]]
    """Starts reading a queue; raises a `ClientError` if that cannot be done now."""
    give_queue: Callable[[Source], Awaitable[None]]
    """Stops reading a queue for good."""
    sources: dict[MessageQueue, Source] = attrs.field(factory=dict[MessageQueue, Source])
    _wanted: trio.Event = attrs.field(factory=trio.Event)
    _without_route: set[str] = attrs.field(factory=set[str])
    """Topics of which it has been said that they have no route."""

    def want_rebalance(self) -> None:
        """Let the next rebalance come at once."""
        self._wanted.set()

    def route_changed(self, route: TopicRoute) -> None:
        """Rebalance when a route of ours is new."""
        if route.topic in self.subscriptions:
            self.want_rebalance()

    async def run(self) -> None:
        """Rebalance until cancelled; once it has been done by `rebalance` already."""
        settled = False
        while True:
            with trio.move_on_after(REBALANCE_SECONDS if settled else UNRESOLVED_SECONDS):
                await self._wanted.wait()
            if self._wanted.is_set():
                await trio.sleep(SETTLE_SECONDS)
            settled = await self.rebalance()

    async def renew_locks(self) -> None:
        """Renew the locks of all our queues until cancelled."""
        while True:
            await trio.sleep(LOCK_RENEW_SECONDS)
            by_broker: dict[str, list[Source]] = {}
            for source in self.sources.values():
                by_broker.setdefault(source.queue.broker_name, []).append(source)
            async with trio.open_nursery() as nursery:
                for sources in by_broker.values():
                    nursery.start_soon(self._renew, sources)

    async def _renew(self, sources: list[Source]) -> None:
        try:
            address = await master_of(self.session, sources[0].queue)
            locked = await lock_queues(self.session, self.group, address, [source.queue for source in sources])
        except ClientError as error:
            log.warning("locks_not_renewed", broker=sources[0].queue.broker_name, reason=str(error))
            return
        now = trio.current_time()
        for source in sources:
            if source.queue in locked:
                source.locked_until = now + LOCK_LOST_SECONDS
                source.line.offer(source)
            elif source.locked_until:
                log.warning("queue_lock_lost", queue=str(source.queue))
                source.locked_until = 0.0

    async def rebalance(self) -> bool:
        """Adapt `sources`; return whether everything could be decided."""
        self._wanted = trio.Event()
        settled = True
        for topic, subscription in self.subscriptions.items():
            try:
                route = self.session.routes.routes.get(topic) or await self.session.refresh_route(topic)
                wanted = await self._share(route)
            except NoRoute as error:
                if topic not in self._without_route:
                    log.info("topic_without_route", topic=topic, reason=error.reason.name)
                    self._without_route.add(topic)
                settled = False
                continue
            except ClientError as error:
                log.warning("rebalance_skipped", topic=topic, reason=str(error))
                settled = False
                continue
            for queue in [queue for queue in self.sources if queue.topic == topic and queue not in wanted]:
                log.info("queue_given", queue=str(queue), group=self.group)
                await self.give_queue(self.sources.pop(queue))
            missing = sorted(queue for queue in wanted if queue not in self.sources)  # a set has another order each time
            async with trio.open_nursery() as nursery:
                for queue in missing:
                    nursery.start_soon(self._take, queue, subscription)
            settled = settled and all(queue in self.sources for queue in wanted)
        return settled

    async def _share(self, route: TopicRoute) -> set[MessageQueue]:
        queues = route.subscribe_queues()
        if self.model is MessageModel.BROADCASTING or not queues:
            return set(queues)
        members = await self._members(route)
        return set(allocate(self.strategy, self.session.client_id, queues, members))

    async def _members(self, route: TopicRoute) -> list[str]:
        """The group's members, as the first broker of the topic that answers knows them."""
        resting = self.session.resting()
        found = [self.session.routes.member(broker.name, 0, resting) for broker in route.brokers]
        addresses: list[Address] = [member[0] for member in found if member is not None]
        start = self.session.world.randomness.randrange(len(addresses))
        failure: ClientError | None = None
        for address in addresses[start:] + addresses[:start]:
            try:
                members = await group_members(self.session, self.group, address)
                if self.session.client_id not in members:
                    # It has restarted, or we have just connected. What it says about others is no more than half the truth.
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

    async def _take(self, queue: MessageQueue, subscription: Subscription) -> None:
        locked_until = inf
        try:
            if self.orderly:
                address = await master_of(self.session, queue)
                if queue not in await lock_queues(self.session, self.group, address, [queue]):
                    log.debug("queue_locked_by_other_member", queue=str(queue))
                    return
                locked_until = trio.current_time() + LOCK_LOST_SECONDS
            source = await self.take_queue(queue, subscription)
        except ClientError as error:
            log.warning("queue_not_taken", queue=str(queue), reason=str(error))
            return
        source.locked_until = locked_until
        self.sources[queue] = source
        log.info("queue_taken", queue=str(queue), group=self.group, offset=source.assigned.next_offset)
