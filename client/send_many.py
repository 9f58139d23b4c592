"""Sends that keep the order of each queue, also when some of them have to be repeated.

The messages of one queue form a lane, and a lane has one request pending at a time: later messages are sent when the earlier
ones are acknowledged or have failed. To keep this fast, a request carries as many messages of its lane as fit a batch. A
producer has one lane for a queue, which lasts as long as something in it is pending, so messages keep the order in which they
were added, whether by one `send_many`, by several at once, or by many tasks of asyncio.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any

import attrs
import outcome
import trio

from ..message.message import DLQ_PREFIX, RETRY_PREFIX, Message, MessageQueue
from .arguments import check_message
from .cancelled import Outcome, note_outcomes
from .errors import ClientError, Closed, SendCancelled, SendTimeout
from .sending import (
    Outgoing,
    Publication,
    SendResult,
    Target,
    batch_properties,
    encode_messages,
    encoded,
    results_of,
)
from .transmit import Choose, QueueSelector, Transmitter

BATCH_MESSAGES_MAX = 256
BATCH_BYTES_MAX = 256 * 1024
"""The bodies of a request of `send_many` have at most this size together, unless one message alone has more."""


SendOne = Callable[[Message[Any], str, str | None, Publication, Target, Choose | None, float, float], Awaitable[SendResult]]
"""Sends one message to a queue that was chosen: `Producer._send_one`, with its arguments."""


@attrs.define(eq=False)
class Item:
    """One message, and what is to be done with it."""

    message: Message[Any]
    key: str | None
    queue: MessageQueue | None
    selector: QueueSelector | None
    seconds: float
    """The time limit of each request with it."""
    done: Callable[[SendResult | BaseException], object] = lambda _: None
    """Called with the outcome, once, as soon as that is known: where the message is stored, or the error."""
    deadline: float = inf
    """When no further request with it is begun, and none that is pending is waited for, on trio's clock."""
    unique_id: str = ""
    """Set when the route is known, because it contains our address on the connection to the name server."""
    target: Target | None = None
    """Where it goes as long as the queues of its topic are those of `publication`."""
    publication: Publication | None = None
    request: _Request | None = None
    """The newest request that carries it; set before the lanes look at `withdrawn`."""
    withdrawn: bool = False
    """Set by another thread that no longer waits, before it looks at `request`: without one the message is not sent."""
    is_done: bool = False
    """Whether it has an outcome, or nobody waits for one."""
    outcome: SendResult | BaseException | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing chooses the queue."""
        return self.key is None and self.queue is None and self.selector is None

    def left(self, now: float) -> float:
        return min(self.seconds, self.deadline - now)

    def finish(self, outcome: SendResult | Exception) -> None:
        """Hand the outcome over, unless nobody waits for it."""
        if not self.is_done:
            self.is_done = True
            self.outcome = outcome.error if isinstance(outcome, _Exit) else outcome
            self.done(self.outcome)

    @property
    def known(self) -> Outcome:
        """What is known of the message when nobody waits for its outcome any more."""
        if isinstance(self.outcome, SendResult | ClientError):
            return self.outcome
        return SendCancelled(may_have_been_stored=self.outcome is None and self.request is not None)


class _Exit(Exception):
    """Carries a `SystemExit` or its like from a function of the application to whoever waits for the message.

    Raised as it is, it would end the tasks of the client instead.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@attrs.define(eq=False)
class _Request:
    """One pending request."""

    waiting: int
    """For how many messages in it somebody waits."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.define(eq=False)
class _Lane:
    """The waiting messages of one queue, in order, or those of one topic whose queues are not known yet."""

    items: deque[Item] = attrs.field(factory=deque[Item])
    latest: float = -inf
    """The latest deadline of all messages that were added."""
    timer: trio.CancelScope | None = None
    """Ends at the nearest deadline, if there is a message that waits behind one with a later deadline."""


@attrs.define(eq=False)
class Lanes:
    """The lanes of one producer."""

    _transmitter: Transmitter
    _send_one: SendOne
    _new_id: Callable[[Message], str]
    _body_of: Callable[[Any], bytes] | None = None
    """Makes the bytes of a body that is none yet."""
    _lanes: dict[MessageQueue, _Lane] = attrs.field(factory=dict[MessageQueue, _Lane])
    _unordered: dict[MessageQueue, _Lane] = attrs.field(factory=dict[MessageQueue, _Lane])
    """The lanes of messages that might go to any of several queues, so that they have no order. Each lasts until its first
request begins: later messages wait for no answer."""
    _without_route: dict[str, _Lane] = attrs.field(factory=dict[str, _Lane])
    """By topic, the messages that wait until its queues are found."""
    _idle: trio.lowlevel.Task | None = None
    """A task that has emptied its lane and waits for another: starting one is a tenth of the work of a lone send of asyncio."""

    async def send(self, items: Sequence[Item]) -> list[SendResult | ClientError]:
        """Send messages, and return the outcome of each when all have one.

        Cancellation: the messages are withdrawn, and what is known of each is noted.
        """
        left = len(items)
        ended = trio.Event()

        def done(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                ended.set()

        for item in items:
            item.done = done
            self.add(item)
        try:
            if items:
                await ended.wait()
        except trio.Cancelled as error:
            note_outcomes(error, [item.known for item in items])
            for item in items:
                self.withdraw(item)
            raise
        for item in items:
            if isinstance(item.outcome, BaseException) and not isinstance(item.outcome, ClientError):
                raise item.outcome
        return [item.known for item in items]

    def add(self, item: Item) -> None:
        """Send a message behind all of its queue that were added before."""
        try:
            if self._transmitter.closed:
                raise Closed("the producer is closed")
            if self._body_of is not None:
                with _exits_carried():
                    item.message = encoded(item.message, self._body_of)
            topic = check_message(item.message).topic
        except (ClientError, _Exit) as error:
            item.finish(error)
            return
        publication, lane = self._transmitter.publications.known.get(topic), self._without_route.get(topic)
        if lane is not None:  # even if the queues are known by now, because those that wait go first
            self._wait(lane, item)
        elif publication is not None:
            self._enter(publication, item)
        else:
            lane = self._without_route[topic] = _Lane()
            self._wait(lane, item)
            self._transmitter.session.nursery.start_soon(self._find_route, topic, lane)

    def withdraw(self, item: Item) -> None:
        """Do not send a message if that has not begun; a pending request is cancelled if nobody waits for any message in it."""
        if item.is_done:
            return
        item.is_done = True
        if item.request is not None:
            item.request.waiting -= 1
            if not item.request.waiting:
                item.request.scope.cancel()

    async def _find_route(self, topic: str, lane: _Lane) -> None:
        try:
            while waiting := [item for item in lane.items if not item.is_done]:
                seconds = min(item.left(trio.current_time()) for item in waiting)
                try:
                    publication = await self._transmitter.publications.find(topic, round(max(seconds, 0), 3))
                except ClientError as error:
                    now = trio.current_time() + 0.001  # the time limit was rounded
                    late = [item for item in waiting if item.deadline <= now]
                    _fail(late or lane.items, error)
                else:
                    while lane.items:
                        self._enter(publication, lane.items.popleft())
        finally:
            del self._without_route[topic]
            _end(lane)

    def _enter(self, publication: Publication, item: Item) -> None:
        """Let a message wait in the lane of its queue."""
        if item.is_done:
            return  # it was withdrawn
        try:
            queue = self._target(publication, item).queue
            item.unique_id = self._new_id(item.message)
        except Exception as error:  # noqa: BLE001 - a selector may raise anything
            item.finish(error)
            return
        lanes = self._unordered if item.is_free and len(publication.queues) > 1 else self._lanes
        lane = lanes.get(queue)
        if lane is None:
            lane = lanes[queue] = _Lane()
            if self._idle is None:
                self._transmitter.session.nursery.start_soon(self._empty_lanes, queue, lane, publication)
            else:
                idle, self._idle = self._idle, None
                trio.lowlevel.reschedule(idle, outcome.Value((queue, lane, publication)))
        self._wait(lane, item)

    def _wait(self, lane: _Lane, item: Item) -> None:
        lane.items.append(item)
        if item.deadline >= lane.latest:
            lane.latest = item.deadline
        elif lane.timer is None:
            lane.timer = trio.CancelScope(deadline=item.deadline)
            self._transmitter.session.nursery.start_soon(self._expire, lane, lane.timer)
        else:
            lane.timer.deadline = min(lane.timer.deadline, item.deadline)

    def _target(self, publication: Publication, item: Item) -> Target:
        """The target of a message, which is chosen again when the queues of its topic have changed."""
        if item.target is None or item.publication is not publication:
            if not item.is_free:
                item.target = self._chosen(item, publication)
            elif item.target is None:
                item.target = self._transmitter.next_target(publication)
            else:
                item.target = self._transmitter.same_target(publication, item.target.queue)
            item.publication = publication
        return item.target

    def _chosen(self, item: Item, publication: Publication) -> Target:
        with _exits_carried():
            return self._transmitter.chosen(publication, item.message, item.key, item.queue, item.selector)

    async def _expire(self, lane: _Lane, timer: trio.CancelScope) -> None:
        """Let messages that wait behind others with more time fail in time."""
        while True:
            with timer:
                await trio.sleep_forever()
            now = trio.current_time()
            for item in lane.items:
                if item.deadline <= now:
                    _time_out(item)
            nearest = min((item.deadline for item in lane.items if not item.is_done), default=inf)
            if nearest == inf:
                lane.timer = None
                return
            timer = lane.timer = trio.CancelScope(deadline=nearest)

    async def _empty_lanes(self, queue: MessageQueue, lane: _Lane, publication: Publication) -> None:
        """Empty a lane, and then those that are handed over while this is the idle task."""

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            await self._run(queue, lane, publication)
            if self._idle is not None:
                return
            self._idle = trio.lowlevel.current_task()
            queue, lane, publication = await trio.lowlevel.wait_task_rescheduled(abort)

    async def _run(self, queue: MessageQueue, lane: _Lane, publication: Publication) -> None:
        chunk: list[Item] = []
        if self._unordered.get(queue) is lane:
            del self._unordered[queue]
        try:
            while lane.items:
                publication = self._transmitter.publications.known.get(queue.topic, publication)
                chunk = self._next_chunk(publication, lane.items)
                if chunk:
                    await self._send_chunk(publication, chunk)
        finally:
            if self._lanes.get(queue) is lane:
                del self._lanes[queue]
            _fail(chunk, Closed("the producer was closed during the send", may_have_been_stored=True))
            _end(lane)

    def _next_chunk(self, publication: Publication, items: deque[Item]) -> list[Item]:
        """Take the messages of the next request out of those that wait."""
        now = trio.current_time()
        while items:
            first = items.popleft()
            if first.is_done:
                continue
            if first.left(now) <= 0:
                _time_out(first)
                continue
            try:
                self._target(publication, first)
            except Exception as error:  # noqa: BLE001 - a selector may raise anything
                first.finish(error)
                continue
            chunk = [first]
            if self._fits_batch(first):
                self._fill(chunk, publication, items, now)
            return chunk
        return []

    def _fill(self, chunk: list[Item], publication: Publication, items: deque[Item], now: float) -> None:
        """Add as many messages to a request as fit."""
        first = chunk[0]
        size = len(first.message.body)
        while items and len(chunk) < BATCH_MESSAGES_MAX:
            item = items[0]
            if not item.is_done:
                size += len(item.message.body)
                if size > BATCH_BYTES_MAX or not self._goes_with(first, item, publication, now):
                    break
                chunk.append(item)
            items.popleft()

    def _goes_with(self, first: Item, item: Item, publication: Publication, now: float) -> bool:
        """Whether a message can be in one request with another that has to go first.

        The request has the time limit of the first one, so one that has much more time is sent later.
        """
        if item.is_free is not first.is_free or not self._fits_batch(item):
            return False
        if not first.left(now) <= item.left(now) <= 2 * first.left(now):
            return False
        try:
            return self._target(publication, item).queue == self._target(publication, first).queue
        except Exception:  # noqa: BLE001 - of a selector; it is raised again when the message goes first
            return False

    def _fits_batch(self, item: Item) -> bool:
        message, options = item.message, self._transmitter.options
        return (
            not message.delay_level
            and len(message.body) <= options.plain_bytes_max
            and not message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )

    async def _send_chunk(self, publication: Publication, chunk: list[Item]) -> None:
        request = _Request(len(chunk))
        for item in chunk:
            item.request = request
            if item.withdrawn:
                self.withdraw(item)
        if request.waiting < len(chunk):
            chunk = [item for item in chunk if not item.is_done]
            if not chunk:
                return
        try:
            with request.scope:
                await self._send_request(publication, chunk)
        except Exception as error:  # noqa: BLE001 - raised where the outcomes are waited for
            if (
                len(chunk) == 1
                or not isinstance(error, ClientError)
                or isinstance(error, Closed)
                or error.retriable
                or error.may_have_been_stored
            ):
                _fail(chunk, error)
                return
            for item in chunk:  # one message that cannot be stored must not fail the others
                if not item.is_done:
                    await self._send_chunk(publication, [item])

    async def _send_request(self, publication: Publication, chunk: list[Item]) -> None:
        first, transmitter = chunk[0], self._transmitter
        now = trio.current_time()
        seconds = first.left(now)
        if seconds <= 0:  # the time has ended since the messages were taken; the others have hardly more
            for item in chunk:
                _time_out(item)
            return
        target = self._target(publication, first)
        choose: Choose | None = None
        if not first.is_free:
            choose = partial(self._chosen, first)
        elif publication.broker_count == 1:
            # A free message could use any queue, but while there is only one broker it stays behind its predecessors.
            choose = partial(transmitter.same_target, queue=target.queue)
        if len(chunk) == 1:
            sending = self._send_one(first.message, first.unique_id, first.key, publication, target, choose, seconds, now)
            first.finish(await sending)
            return
        batch = encode_messages(
            [_with_bytes(item.message) for item in chunk],
            [item.unique_id for item in chunk],
            transmitter.options.message_bytes_max,
            [item.key for item in chunk],
        )
        properties = batch_properties(wait_stored=batch.wait_stored)
        outgoing = Outgoing(0, transmitter.session.world.clock.wall_ms(), 0, properties, batch.body, batch=True)
        answer, target = await transmitter.send(publication, outgoing, target, seconds, choose, len(chunk))
        for item, result in zip(chunk, results_of(answer, batch, target.queue, target.address), strict=True):
            item.finish(result)


@contextmanager
def _exits_carried() -> Generator[None]:
    """Raise as an `_Exit` what a function of the application raises and what is no `Exception`."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise _Exit(error) from error


def _fail(items: Iterable[Item], error: Exception) -> None:
    for item in items:
        item.finish(error)


def _end(lane: _Lane) -> None:
    """Let no message wait in a lane any more."""
    if lane.timer is not None:
        lane.timer.cancel()
    _fail(lane.items, Closed("the producer was closed meanwhile"))
    lane.items.clear()


def _time_out(item: Item) -> None:
    item.finish(SendTimeout(item.message.topic, round(item.seconds * 1000), 0, may_have_been_stored=False))


def _with_bytes(message: Message) -> Message:
    return message if type(message.body) is bytes else attrs.evolve(message, body=bytes(message.body))
