"""Sending many messages with a result for each of them, in order within each queue despite retries.

The messages of one queue form a lane, and a lane has one request pending at a time: later messages are sent when the earlier
ones are acknowledged or have failed. To keep this fast, a request carries as many messages of its lane as fit a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Protocol

import attrs
import trio

from ..message.message import DLQ_PREFIX, RETRY_PREFIX, Message, MessageQueue
from .arguments import check_message
from .errors import ClientError, Closed, InvalidArgument, SendTimeout
from .sending import (
    Outgoing,
    Publication,
    SendResult,
    Target,
    batch_properties,
    encode_messages,
    encoded,
    result_of,
    results_of,
)
from .transmit import Choose, QueueSelector, Transmitter

BATCH_MESSAGES_MAX = 256
BATCH_BYTES_MAX = 256 * 1024
"""The bodies of a request of `send_many` have at most this size together, unless one message alone has more."""

Outcome = SendResult | ClientError
"""The outcome for one message: where it is stored, or the error."""


class Encoder(Protocol):
    """Encodes a message for sending; raises an `InvalidArgument` for one that cannot be sent."""

    def __call__(self, message: Message, unique_id: str, key: str | None) -> Outgoing: ...


@attrs.define(eq=False)
class Item:
    """One message, its place in the list, and the key that chooses its queue."""

    index: int
    message: Message[Any]
    key: str | None
    unique_id: str = ""
    """Set when the route is known, because it contains our address on the connection to the name server."""


@attrs.define(eq=False)
class _Lane:
    """The waiting messages of one queue, in order."""

    target: Target
    items: deque[Item] = attrs.field(factory=deque[Item])


@attrs.define(eq=False)
class ManySends:
    """Many sends that are made together."""

    transmitter: Transmitter
    encode: Encoder
    new_id: Callable[[Message], str]
    queue: MessageQueue | None
    seconds: float
    """The time limit of each request."""
    done: Callable[[int, Outcome], object]
    """Called with the index of a message and its outcome, once for each message, as soon as that is known."""
    deadline: float = inf
    """When no further request is begun, on trio's clock."""
    selector: QueueSelector | None = None
    body_of: Callable[[Any], bytes] | None = None
    """Makes the bytes of a body that is none yet."""

    async def send(self, items: Sequence[Item]) -> None:
        """Send all messages; `done` is called for each."""
        by_topic: dict[str, list[Item]] = {}
        for item in items:
            try:
                if self.body_of is not None:
                    item.message = encoded(item.message, self.body_of)
                check_message(item.message)
            except ClientError as error:
                self.done(item.index, error)
            else:
                by_topic.setdefault(item.message.topic, []).append(item)
        async with trio.open_nursery() as nursery:
            for topic, own in by_topic.items():
                nursery.start_soon(self._send_topic, topic, own)

    async def _send_topic(self, topic: str, items: list[Item]) -> None:
        try:
            publication = await self.transmitter.publications.find(topic, self.seconds)
        except ClientError as error:
            self._all_done(items, error)
            return
        lanes: dict[MessageQueue, _Lane] = {}
        for item in items:
            try:
                target = self._target(publication, item)
                item.unique_id = self.new_id(item.message)
            except ClientError as error:
                self.done(item.index, error)
                continue
            lanes.setdefault(target.queue, _Lane(target)).items.append(item)
        async with trio.open_nursery() as nursery:
            for lane in lanes.values():
                nursery.start_soon(self._run, publication, lane)

    def _target(self, publication: Publication, item: Item) -> Target:
        if self._is_free(item):
            return self.transmitter.next_target(publication)
        return self._chosen(publication, item.message, item.key)

    def _chosen(self, publication: Publication, message: Message, key: str | None) -> Target:
        try:
            return self.transmitter.chosen(publication, message, key, self.queue, self.selector)
        except ClientError:
            raise
        except Exception as error:
            raise InvalidArgument(f"the selector failed: {error!r}") from error

    def _is_free(self, item: Item) -> bool:
        return item.key is None and self.queue is None and self.selector is None

    async def _run(self, publication: Publication, lane: _Lane) -> None:
        while lane.items:
            publication = self.transmitter.publications.known.get(publication.topic, publication)
            chunk = [lane.items.popleft()]
            try:
                target = self._target_now(publication, lane, chunk[0])
            except ClientError as error:
                self.done(chunk[0].index, error)
                continue
            self._fill(chunk, publication, lane, target)
            await self._send_chunk(publication, target, chunk)

    def _target_now(self, publication: Publication, lane: _Lane, item: Item) -> Target:
        """The target of an item of a lane: the one of the lane, unless the queues of the topic have changed since."""
        if self._is_free(item):
            return self.transmitter.same_target(publication, lane.target.queue)
        return self._target(publication, item)

    def _fill(self, chunk: list[Item], publication: Publication, lane: _Lane, target: Target) -> None:
        """Add as many messages to a request as fit, all with or all without a fixed queue."""
        size, free, items = len(chunk[0].message.body), self._is_free(chunk[0]), lane.items
        if not self._fits_batch(chunk[0]):
            return
        while items and len(chunk) < BATCH_MESSAGES_MAX and self._fits_batch(items[0]) and self._is_free(items[0]) is free:
            size += len(items[0].message.body)
            if size > BATCH_BYTES_MAX or (not free and self._target(publication, items[0]).queue != target.queue):
                break
            chunk.append(items.popleft())

    def _fits_batch(self, item: Item) -> bool:
        message, options = item.message, self.transmitter.options
        return (
            not message.delay_level
            and len(message.body) <= options.plain_bytes_max
            and not message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )

    async def _send_chunk(self, publication: Publication, target: Target, chunk: list[Item]) -> None:
        first = chunk[0]
        seconds = min(self.seconds, self.deadline - trio.current_time())
        if seconds <= 0:
            error = SendTimeout(publication.topic, round(self.seconds * 1000), 0, may_have_been_stored=False)
            self._all_done(chunk, error)
            return
        choose: Choose | None = None
        if not (self._is_free(first) and publication.broker_count > 1):
            # A free message could use any queue, but while there is only one broker it stays behind its predecessors.
            choose = partial(self.transmitter.same_target, queue=target.queue)
            if not self._is_free(first):
                choose = partial(self._chosen, message=first.message, key=first.key)
        try:
            if len(chunk) == 1:
                outgoing = self.encode(first.message, first.unique_id, first.key)
                answer, target = await self.transmitter.send(publication, outgoing, target, seconds, choose)
                self.done(first.index, result_of(answer, first.unique_id, target.queue, target.address))
                return
            batch = encode_messages(
                [_with_bytes(item.message) for item in chunk],
                [item.unique_id for item in chunk],
                self.transmitter.options.message_bytes_max,
                [item.key for item in chunk],
            )
            properties = batch_properties(wait_stored=batch.wait_stored)
            outgoing = Outgoing(0, self.transmitter.session.world.clock.wall_ms(), 0, properties, batch.body, batch=True)
            answer, target = await self.transmitter.send(publication, outgoing, target, seconds, choose, len(chunk))
            results = results_of(answer, batch, target.queue, target.address)
        except ClientError as error:
            if len(chunk) == 1 or error.retriable or error.may_have_been_stored or isinstance(error, Closed):
                self._all_done(chunk, error)
                return
            for item in chunk:  # one message that cannot be stored must not fail the others
                await self._send_chunk(publication, target, [item])
        else:
            for item, result in zip(chunk, results, strict=True):
                self.done(item.index, result)

    def _all_done(self, items: Sequence[Item], error: ClientError) -> None:
        for item in items:
            self.done(item.index, error)


def _with_bytes(message: Message) -> Message:
    return message if type(message.body) is bytes else attrs.evolve(message, body=bytes(message.body))
