"""The writable queues of each topic of a producer: searched for by the first send and updated with the routes.

The sends that wait for a search are resumed one by one in the order in which they were started, and each writes its frame
to its connection before the next one is resumed; so concurrent sends to one queue keep the order of their starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import outcome
import trio

from ..message.units import MASTER_ID
from ..world.events import get_logger
from .arguments import check_topic
from .errors import ClientError, Closed, NoRoute, NoRouteReason
from .route import AUTO_CREATE_TOPIC, TopicRoute
from .sending import Publication, target_of
from .session import Session

log = get_logger(__name__)

NO_MASTER_PAUSE_SECONDS = 0.1
"""How long a search pauses after it found no broker with a master."""


@attrs.define(eq=False, repr=False)
class Publications:
    """The publications of one producer, by topic."""

    _session: Session
    _group: str
    known: dict[str, Publication] = attrs.field(factory=dict[str, Publication])
    """The publications that sends may use at once; a topic is missing while its first sends wait."""
    on_change: Callable[[], None] = lambda: None
    """Called when targets have changed."""
    _found: dict[str, Publication] = attrs.field(factory=dict[str, Publication])
    _waiting: dict[str, deque[trio.lowlevel.Task]] = attrs.field(factory=dict[str, deque[trio.lowlevel.Task]])
    """By topic, the sends that wait for a search, in the order in which they were started."""
    _without_master: set[str] = attrs.field(factory=set[str])
    """The topics whose search continues because no broker with the topic has a master."""
    _closed: bool = False

    async def find(self, topic: str, seconds: float) -> Publication:
        """The publication of `topic`, searched for if necessary; all waiting sends share one search and its failure.

        Raises:
            NoRoute: there is no queue to send to, or no answer within `seconds`.
            Closed: the producer is closed, or was closed during the search.
        """
        publication = self.known.get(topic)
        if publication is not None:
            return publication
        if self._closed:
            raise Closed("the producer is closed")
        check_topic(topic)
        waiting = self._waiting.get(topic)
        if waiting is None:
            waiting = self._waiting[topic] = deque()
            self._session.nursery.start_soon(self._search, topic, waiting)
        task = trio.lowlevel.current_task()
        waiting.append(task)

        def abort(_: Callable[[], None]) -> trio.lowlevel.Abort:
            waiting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        with trio.move_on_after(seconds):
            found: Publication = await trio.lowlevel.wait_task_rescheduled(abort)
            return found
        if topic in self._without_master:
            raise NoRoute(topic, NoRouteReason.NO_MASTER, f"none came within {seconds:.3g} s")
        raise NoRoute(topic, NoRouteReason.NAME_SERVER_UNREACHABLE, f"the time of this call was over after {seconds:.3g} s")

    async def _search(self, topic: str, waiting: deque[trio.lowlevel.Task]) -> None:
        failure: Callable[[], ClientError] = lambda: Closed("the producer was closed meanwhile")  # noqa: E731
        try:
            try:
                publication = await self._find_publication(topic, waiting)
            except NoRoute as error:
                reason, detail = error.reason, error.detail
                failure = lambda: NoRoute(topic, reason, detail)  # noqa: E731
            except Closed:
                pass
            except ClientError as error:
                cause = str(error)
                failure = lambda: NoRoute(topic, NoRouteReason.NAME_SERVER_UNREACHABLE, cause)  # noqa: E731
            else:
                while waiting:
                    trio.lowlevel.reschedule(waiting.popleft(), outcome.Value(publication))
                    await trio.lowlevel.checkpoint()
                if topic in self._found:
                    self.known[topic] = self._found[topic]
        finally:
            del self._waiting[topic]
            for task in waiting:
                trio.lowlevel.reschedule(task, outcome.Error(failure()))
            waiting.clear()

    async def _find_publication(self, topic: str, waiting: deque[trio.lowlevel.Task]) -> Publication:
        """Search until there is a master, as long as sends wait; during an election a group has none for a moment."""
        try:
            while True:
                try:
                    return self._take(await self._find_route(topic))
                except NoRoute as error:
                    if error.reason is not NoRouteReason.NO_MASTER or not waiting:
                        raise
                self._without_master.add(topic)
                await trio.sleep(NO_MASTER_PAUSE_SECONDS)
        finally:
            self._without_master.discard(topic)

    async def _find_route(self, topic: str) -> TopicRoute:
        try:
            route = await self._session.refresh_route(topic)
        except NoRoute as error:
            if error.reason is not NoRouteReason.TOPIC_UNKNOWN:
                raise
            route = await self._session.route_to_create(topic)
        self._session.topics.add(topic)
        return route

    async def find_again(self, publication: Publication, deadline: float) -> Publication:
        """Refresh the route after a failure that a new route may resolve; without an answer, keep the old one."""
        with trio.move_on_at(deadline):
            try:
                return self._take(await self._find_route_again(publication))
            except NoRoute as error:
                log.debug("route_not_refreshed", topic=publication.topic, reason=error.reason.name)
            except Closed:
                pass  # the next attempt raises it, with what is known of the earlier ones
        return publication

    async def _find_route_again(self, publication: Publication) -> TopicRoute:
        """The newest route of a topic, or the one by which its brokers create it again if they have lost it.

        A DLedger group whose nodes have all lost their stores begins without topics, maybe with another master. Only brokers
        that had the topic create it again, because a name server that has just started may know others before them.
        """
        try:
            return await self._session.refresh_route(publication.topic)
        except NoRoute as error:
            if error.reason is not NoRouteReason.TOPIC_UNKNOWN:
                raise
        template = await self._session.refresh_route(AUTO_CREATE_TOPIC)  # shared by all sends that fail at this time
        route = template.as_template_for(publication.topic)
        before = {queue.broker_name for queue in publication.queues}
        return attrs.evolve(route, queues=tuple(queue for queue in route.queues if queue.broker_name in before))

    def _take(self, route: TopicRoute) -> Publication:
        queues = tuple(route.publish_queues())
        if not queues:
            raise NoRoute(route.topic, route.why_not_publishable())
        before = self._found.get(route.topic)
        masters = {broker.name: broker.addresses[MASTER_ID] for broker in route.brokers if MASTER_ID in broker.addresses}
        if (
            before is not None
            and before.queues == queues
            and all(target.address == masters[target.queue.broker_name] for target in before.targets)
        ):
            return before
        targets = tuple(target_of(self._group, queue, masters[queue.broker_name]) for queue in queues)
        counter = self._session.world.randomness.randrange(len(queues)) if before is None else before.counter
        brokers = {queue.broker_name for queue in queues}
        publication = Publication(route.topic, queues, targets, len(brokers), counter)
        self._found[route.topic] = publication
        if route.topic in self.known:
            self.known[route.topic] = publication
        self.on_change()
        return publication

    def route_changed(self, route: TopicRoute) -> None:
        """Apply a route that the session has refreshed; if a topic has no queue left, the next send searches for it."""
        if route.topic in self.known:
            try:
                self._take(route)
            except NoRoute as error:
                log.warning("topic_not_publishable", topic=route.topic, reason=error.reason.name)
                del self.known[route.topic], self._found[route.topic]

    def close(self) -> None:
        """Refuse further searches."""
        self._closed = True
        self.known.clear()
        self._found.clear()
