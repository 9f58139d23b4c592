"""Topics, queues, their bounds and offsets by time, with one interface for brokers and for files.

`resolve` turns options into ranges. Both transports use it, so both have the same result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
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

    def absent(self, brokers: Iterable[str]) -> set[str]:
        """Return the brokers that should be there and are not: of those given, and of those that routes name."""
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
            if options.split.keeps_order:
                count = sum(extent.range.count for extent in extents)
                mean = max(sum(extent.bytes for extent in extents) // max(count, 1), 1)
                tasks += plan_queues([extent.range for extent in extents], options.split, mean)
            else:
                tasks += plan_bytes(extents, options.split)
        return tasks

    def range_bytes(self, ranges: Sequence[QueueRange]) -> int:
        return sum(Extent(each, self._files(each.queue).samples(each)).bytes for each in ranges)

    def absent(self, brokers: Iterable[str]) -> set[str]:  # noqa: ARG002 - see below
        """Return none: the stores that were opened are those that the user has named."""
        return set()

    def close(self) -> None:
        """Do nothing: a store has no resources to release."""


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is internal to the broker, or holds retries or dead letters of a group."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES)


def subscribed(catalog: Catalog, subscription: Subscription) -> list[MessageQueue]:
    """Return those queues of a subscription that exist."""
    if subscription.pattern:
        pattern = re.compile(subscription.pattern)
        topics = [topic for topic in catalog.topics() if not is_system_topic(topic) and pattern.fullmatch(topic)]
        return sorted(queue for queues in catalog.queues(topics).values() for queue in queues)
    found = catalog.queues(subscription.topics or sorted({queue.topic for queue in subscription.queues}))
    return sorted(queue for queues in found.values() for queue in queues if subscription.includes(queue))


def check_known(
    catalog: Catalog, options: ReadOptions, queues: Collection[MessageQueue], read_before: Collection[MessageQueue]
) -> None:
    """Check that every topic and queue that a subscription names exists, or existed once.

    Args:
        catalog: where others are looked up, for errors.
        options: those of the read.
        queues: those that exist.
        read_before: those that were read before; if they do not exist now, they are a loss and no mistake of the user.

    Raises:
        UnknownTopic, BadOption: a topic or a queue never existed.
    """
    subscription = options.subscription
    topics = {queue.topic for queue in (*queues, *read_before)}
    for topic in (*subscription.topics, *(queue.topic for queue in subscription.queues)):
        if topic not in topics and not any(catalog.queues([topic]).values()):
            raise UnknownTopic(topic, subscription.option, str(options.place), catalog.topics())
    for queue in subscription.queues:
        if queue not in queues and queue not in read_before:
            own = sorted(catalog.queues([queue.topic])[queue.topic])
            there = ", ".join(f"{each.broker_name}:{each.queue_id}" for each in own)
            raise BadOption("assign", str(queue), f"there is no such queue; the topic {queue.topic!r} has {there}")


Losses = dict[MessageQueue | str, str]
"""Queues and brokers whose messages are expected and not there, each with the reason."""


@attrs.frozen
class Found:
    """The queues of a read."""

    bounds: dict[MessageQueue, Bounds]
    """Those that exist."""
    losses: Losses


def look_up(catalog: Catalog, options: ReadOptions, read_before: Mapping[MessageQueue, int] | None = None) -> Found:
    """Find the queues of a read, and which of those that it expects are missing.

    A read expects the queues of routes, those that its options name, the brokers that the options and routes name, and the
    queues that were read before. Name servers forget a broker that is down, and its queues with it; so what they list is never
    taken for all there is if anything says that there is more.

    Args:
        catalog: where they are looked up.
        options: those of the read.
        read_before: queues that were read before, and up to which offset.

    Raises:
        UnknownTopic, BadOption: a topic or a queue does not exist and did not exist before.
    """
    before = {queue: offset for queue, offset in (read_before or {}).items() if options.subscription.includes(queue)}
    queues = subscribed(catalog, options.subscription)
    positions = (options.starting, options.ending)
    named = {
        *options.subscription.queues,
        *(queue for each in positions for queue in (*(each.offsets or ()), *(each.timestamps or ()))),
    }
    absent = catalog.absent({*options.brokers, *(queue.broker_name for queue in (*named, *before))})
    losses: Losses = {f"broker {name}": "no name server knows it, so its messages cannot be read" for name in sorted(absent)}
    if options.fail_on_data_loss:
        report_losses(losses, options)  # before a queue of that broker is taken for a mistake
    hidden = {queue for queue in named if queue.broker_name in absent}
    if not absent or options.subscription.queues:
        check_known(catalog, options, queues, {*before, *hidden})
    bounds = catalog.bounds(queues)
    for queue in queues:
        if queue not in bounds:
            losses[queue] = "the queue was deleted while the read was planned"
    for queue, offset in sorted(before.items()):
        if queue not in bounds:
            losses[queue] = f"it was read up to offset {offset}, and the queue no longer exists"
    losses |= dict.fromkeys(sorted(hidden - bounds.keys()), "no name server knows its broker")
    return Found(bounds, losses)


def resolve(catalog: Catalog, position: Position, found: Found, *, strict_timestamps: bool, is_end: bool) -> Offsets:
    """Return the offset of every queue that exists, for a position in the options.

    Raises:
        BadOption: an offset is outside its queue, a queue is not read, or no message is new enough.
    """
    for given in (position.offsets, position.timestamps):
        unknown = [queue for queue in given or () if queue not in found.bounds and queue not in found.losses]
        if unknown:
            raise BadOption(position.option, str(unknown[0]), "this queue is not among those that are read")
    return {
        queue: _resolved(catalog, position, queue, each, strict_timestamps=strict_timestamps, is_end=is_end)
        for queue, each in found.bounds.items()
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


def batch_ranges(
    catalog: Catalog, options: ReadOptions, read_before: Mapping[MessageQueue, int] | None = None
) -> list[QueueRange]:
    """Return the ranges of a batch read; none of them is empty. Arguments and errors are those of `batch_offsets`."""
    return ranges_between(*batch_offsets(catalog, options, read_before))


def batch_offsets(
    catalog: Catalog, options: ReadOptions, read_before: Mapping[MessageQueue, int] | None = None
) -> tuple[Offsets, Offsets]:
    """Return where a batch read begins and ends in each queue.

    Args:
        catalog: where queues are looked up.
        options: those of the read.
        read_before: queues that an earlier read found, and where they ended then.

    Raises:
        UnknownTopic, BadOption: see `look_up` and `resolve`.
        DataLoss: a range begins before the oldest message that exists, or a queue or a broker is missing.
    """
    found = look_up(catalog, options, read_before)
    bounds, losses = found.bounds, found.losses
    start = resolve(catalog, options.starting, found, strict_timestamps=options.strict_timestamps, is_end=False)
    end = resolve(catalog, options.ending, found, strict_timestamps=options.strict_timestamps, is_end=True)
    for queue, offset in (read_before or {}).items():
        if queue in bounds and bounds[queue].max < offset:
            losses[queue] = f"it was read up to offset {offset}, and ends at offset {bounds[queue].max} now"
    for queue, offset in start.items():
        if offset > end[queue] and (options.starting.offsets or options.ending.offsets):
            raise BadOption(options.starting.option, offset, f"{queue}: the range would end at {end[queue]}, before it begins")
        if offset < bounds[queue].min:
            oldest = bounds[queue].min
            losses[queue] = f"option {options.starting.option!r} asks for offset {offset}, the oldest message has {oldest}"
            start[queue] = oldest
    report_losses(losses, options)
    return start, end


def report_losses(losses: Mapping[MessageQueue | str, str], options: ReadOptions) -> None:
    """Report messages that no longer exist; with `failOnDataLoss` they are an error, without it warnings.

    Raises:
        DataLoss: for the first loss.
    """
    for queue, reason in losses.items():
        if options.fail_on_data_loss:
            raise DataLoss(queue, reason)
        warn(f"{queue}: {reason}; going on without them")
