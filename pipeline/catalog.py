"""Topics, queues, their bounds and offsets by time, with one interface for brokers and for files.

`resolve` turns options into ranges. Both transports use it, so both have the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from ..message.message import DLQ_PREFIX, RETRY_PREFIX, MessageQueue
from .errors import BadOption, DataLoss, UnknownTopic, warn
from .offsets import EARLIEST, LATEST, Offsets
from .options import Position, ReadOptions, Stores, Subscription
from .ranges import Extent, QueueRange, Task, plan_bytes, plan_queues, ranges_between
from .store_files import QueueFiles, Store, open_stores

SYSTEM_PREFIXES = ("RMQ_SYS_", "rmq_sys_", RETRY_PREFIX, DLQ_PREFIX)
SYSTEM_TOPICS = frozenset(
    (
        "TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC",
        "DefaultCluster", "DefaultHeartBeatSyncerTopic",
    )
)  # fmt: skip
"""Topics that no pattern matches. They are read if they are named."""


@attrs.frozen
class Bounds:
    """The offset of the oldest message of a queue, and the one that the next message will get."""

    min: int
    max: int


class Catalog(Protocol):
    """A place that messages are read from."""

    def topics(self) -> list[str]:
        """Return the topics that may be read."""
        ...

    def queues(self, topics: Iterable[str]) -> dict[str, list[MessageQueue]]:
        """Return the readable queues of topics; none for a topic that does not exist."""
        ...

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """Return the bounds of queues; queues that do not exist are left out."""
        ...

    def offset_at(self, queue: MessageQueue, timestamp_ms: int, bounds: Bounds) -> int:
        """Return the offset of the first message that was stored at or after a time; the end if there is none."""
        ...

    def plan(self, ranges: Sequence[QueueRange], options: ReadOptions) -> list[Task]:
        """Divide ranges into tasks."""
        ...

    def range_bytes(self, ranges: Sequence[QueueRange]) -> int:
        """Return about how many bytes the messages of ranges have."""
        ...

    def close(self) -> None:
        """Release the resources of the catalog."""
        ...


@attrs.define(eq=False)
class StoreCatalog:
    """Reads the files of stores; satisfies `Catalog`."""

    place: Stores
    stores: dict[str, Store] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.stores = open_stores(self.place.paths, self.place.broker_names)

    def topics(self) -> list[str]:
        return sorted({topic for store in self.stores.values() for topic in store.topics()})

    def queues(self, topics: Iterable[str]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {topic: [] for topic in topics}
        for name, store in sorted(self.stores.items()):
            for topic, count in store.topics(found).items():
                found[topic] += [MessageQueue(topic, name, queue_id) for queue_id in range(count)]
        return found

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        wanted: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            wanted.setdefault(queue.broker_name, []).append(queue)
        found: dict[MessageQueue, Bounds] = {}
        for name, store in self.stores.items():
            own = wanted.get(name, [])
            known = store.topics({queue.topic for queue in own}) if own else {}
            own = [queue for queue in own if queue.queue_id < known.get(queue.topic, 0)]
            bounds = store.bounds([(queue.topic, queue.queue_id) for queue in own])
            found |= {queue: Bounds(*bounds[queue.topic, queue.queue_id]) for queue in own}
        return found

    def _files(self, queue: MessageQueue) -> QueueFiles:
        return self.stores[queue.broker_name].queue(queue.topic, queue.queue_id)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int, bounds: Bounds) -> int:
        log = self.stores[queue.broker_name].log
        return self._files(queue).first_since(log, timestamp_ms, bounds.min, bounds.max)

    def plan(self, ranges: Sequence[QueueRange], options: ReadOptions) -> list[Task]:
        tasks: list[Task] = []
        for name in sorted({each.queue.broker_name for each in ranges}):
            extents = [Extent(each, self._files(each.queue).samples(each)) for each in ranges if each.queue.broker_name == name]
            tasks += plan_bytes(extents, options.split, self._locate)
        return tasks

    def _locate(self, each: QueueRange, physical_offset: int) -> int:
        return self._files(each.queue).first_at(physical_offset, each.start, each.end)

    def range_bytes(self, ranges: Sequence[QueueRange]) -> int:
        return sum(Extent(each, self._files(each.queue).samples(each)).bytes for each in ranges)

    def close(self) -> None:
        """Do nothing: a store has no resources to release."""


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is internal to the broker, or holds retries or dead letters of a group."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)


def subscribed(catalog: Catalog, subscription: Subscription, where: str, *, must_exist: bool = True) -> list[MessageQueue]:
    """Return the queues of a subscription.

    Args:
        catalog: where they are looked up.
        subscription: names them.
        where: the place that the catalog reads, for errors.
        must_exist: every topic and queue that is named must exist; otherwise those that do not exist are left out.

    Raises:
        UnknownTopic, BadOption: a topic or a queue does not exist.
    """
    if subscription.pattern:
        pattern = re.compile(subscription.pattern)
        topics = [topic for topic in catalog.topics() if not is_system_topic(topic) and pattern.fullmatch(topic)]
        return sorted(queue for queues in catalog.queues(topics).values() for queue in queues)
    found = catalog.queues(subscription.topics or sorted({queue.topic for queue in subscription.queues}))
    if must_exist:
        for topic, queues in found.items():
            if not queues:
                raise UnknownTopic(topic, subscription.option, where, catalog.topics())
    known = {queue for queues in found.values() for queue in queues}
    if not subscription.queues:
        return sorted(known)
    for queue in subscription.queues if must_exist else ():
        if queue not in known:
            there = ", ".join(f"{each.broker_name}:{each.queue_id}" for each in sorted(known) if each.topic == queue.topic)
            raise BadOption("assign", str(queue), f"there is no such queue; the topic {queue.topic!r} has {there}")
    return [queue for queue in subscription.queues if queue in known]


def resolve(
    catalog: Catalog, position: Position, bounds: Mapping[MessageQueue, Bounds], *, strict_timestamps: bool, is_end: bool
) -> Offsets:
    """Return the offset of every queue for a position in the options.

    Raises:
        BadOption: an offset is outside its queue, a queue is not read, or no message is new enough.
    """
    for given in (position.offsets, position.timestamps):
        unknown = [queue for queue in given or () if queue not in bounds]
        if unknown:
            raise BadOption(position.option, str(unknown[0]), "this queue is not among those that are read")
    return {
        queue: _resolved(catalog, position, queue, each, strict_timestamps=strict_timestamps, is_end=is_end)
        for queue, each in bounds.items()
    }


def _resolved(
    catalog: Catalog, position: Position, queue: MessageQueue, bounds: Bounds, *, strict_timestamps: bool, is_end: bool
) -> int:
    timestamp = position.timestamp_ms
    if timestamp is None and position.timestamps is not None:
        timestamp = position.timestamps.get(queue)
    if timestamp is not None:
        found = catalog.offset_at(queue, timestamp, bounds)
        if found >= bounds.max and strict_timestamps and not is_end and bounds.max > bounds.min:
            raise BadOption(
                position.option,
                timestamp,
                f"{queue} has no message that was stored then or later; "
                "with 'startingOffsetsByTimestampStrategy' set to 'latest' it begins behind its newest one",
            )
        return found
    offset = position.everywhere if position.offsets is None else position.offsets.get(queue, position.everywhere)
    if offset == EARLIEST:
        return bounds.min
    if offset == LATEST:
        return bounds.max
    if offset > bounds.max:
        raise BadOption(position.option, offset, f"{queue} ends at {bounds.max}")
    return offset


def batch_ranges(catalog: Catalog, options: ReadOptions) -> list[QueueRange]:
    """Return the ranges of a batch read; none of them is empty.

    Raises:
        UnknownTopic, BadOption: see `subscribed` and `resolve`.
        DataLoss: a range begins before the oldest message that exists, or a queue was deleted meanwhile.
    """
    queues = subscribed(catalog, options.subscription, str(options.place))
    bounds = catalog.bounds(queues)
    start = resolve(catalog, options.starting, bounds, strict_timestamps=options.strict_timestamps, is_end=False)
    end = resolve(catalog, options.ending, bounds, strict_timestamps=options.strict_timestamps, is_end=True)
    losses = {queue: "the queue was deleted while the read was planned" for queue in queues if queue not in bounds}
    for queue, offset in start.items():
        if offset > end[queue] and (options.starting.offsets or options.ending.offsets):
            raise BadOption(options.starting.option, offset, f"{queue}: the range would end at {end[queue]}, before it begins")
        if offset < bounds[queue].min:
            oldest = bounds[queue].min
            losses[queue] = f"option {options.starting.option!r} asks for offset {offset}, the oldest message has {oldest}"
            start[queue] = oldest
    report_losses(losses, options)
    return ranges_between(start, end)


def report_losses(losses: Mapping[MessageQueue, str], options: ReadOptions) -> None:
    """Report messages that no longer exist; with `failOnDataLoss` they are an error, without it warnings.

    Raises:
        DataLoss: for the first loss.
    """
    for queue, reason in losses.items():
        if options.fail_on_data_loss:
            raise DataLoss(queue, reason)
        warn(f"{queue}: {reason}; going on without them")


def plan_through_broker(ranges: Sequence[QueueRange], options: ReadOptions) -> list[Task]:
    """Plan the tasks of a read through brokers."""
    return plan_queues(ranges, options.split)
