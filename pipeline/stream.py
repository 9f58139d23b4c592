"""The streaming half of the source: offsets, admission control, and what happens when messages no longer exist.

Spark stores the end of each batch in its checkpoint, but not the start of the first batch. So the first batch of a new query is
empty: its end is the start of the query, which the checkpoint then has. A crash before that batch loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from ..message.message import MessageQueue
from ..remoting.codes import RequestCode
from .broker_client import BrokerCatalog, request
from .catalog import Bounds, Catalog, check_known, look_up, report_losses, resolve, subscribed
from .columns import Column
from .errors import DataLoss, warn
from .link import LinkLost
from .offsets import JsonOffsets, Offsets, from_json, to_json
from .options import TOOLS_GROUP, ReadOptions, Stores
from .ranges import QueueRange, admit, existing, plan_queues, ranges_between
from .reading import TaskPartition, TaskReader, open_catalog

POLL_SECONDS = 0.02
"""The shortest pause between two requests for the ends of queues. Spark itself asks for them about ninety times a second."""
SUBSCRIPTION_SECONDS = 2.0
"""The interval after which topics and queues are looked up again."""


@attrs.define(eq=False)
class Progress:
    """What a stream knows about its queues. One object is on the driver for as long as the query runs."""

    options: ReadOptions
    catalog: Catalog
    latest: Offsets = attrs.field(factory=dict[MessageQueue, int])
    """The end of every queue at the last poll."""
    _queues: list[MessageQueue] = attrs.field(factory=list[MessageQueue])
    _looked_up: float = -SUBSCRIPTION_SECONDS
    _is_checked: bool = False
    """Whether all topics and queues that are named exist or were read before."""
    _polled: float = 0.0
    """The time at which the ends were looked up last."""
    _pause: float = POLL_SECONDS
    """The pause before the next poll, at least as long as the last poll took, which for a thousand queues is noticeable."""
    _shorter_since: dict[MessageQueue, float] = attrs.field(factory=dict[MessageQueue, float])
    """Queues that end before the offset up to which they were read, and the time at which that was noticed."""
    _reported: set[MessageQueue] = attrs.field(factory=set[MessageQueue])
    """Queues whose loss was reported and still lasts. It is reported once, not at every poll."""
    _batch_at: float = attrs.field(factory=time.monotonic)

    def queues(self) -> list[MessageQueue]:
        """Return the queues that are read. They are looked up again every `SUBSCRIPTION_SECONDS`."""
        now = time.monotonic()
        if now - self._looked_up >= SUBSCRIPTION_SECONDS:
            self._queues, self._looked_up = subscribed(self.catalog, self.options.subscription), now
        return self._queues

    def start(self) -> Offsets:
        """Return the offsets at which a new query begins.

        Raises:
            UnknownTopic, BadOption: see `look_up`.
            DataLoss: messages that the options ask for are not there, and `failOnDataLoss` is on.
        """
        found = look_up(self.catalog, self.options)
        self._is_checked = True
        report_losses(found.losses, self.options)
        start = resolve(
            self.catalog, self.options.starting, found, strict_timestamps=self.options.strict_timestamps, is_end=False
        )
        for queue, offset in start.items():
            oldest = found.bounds[queue].min
            if offset < oldest:
                self._lose(queue, f"option 'startingOffsets' asks for {offset}, the oldest message has {oldest}")
                start[queue] = oldest
        return start

    def poll(self, start: Mapping[MessageQueue, int]) -> Offsets:
        """Return the end of every queue, but at least `start`.

        Raises:
            DataLoss: a queue has been shorter than what was read of it for longer than a failover takes, or is gone.
            UnknownTopic, BadOption: a query that goes on names a topic or queue that neither exists nor was read before.
        """
        if start and not self._is_checked:
            check_known(self.catalog, self.options, self.queues(), start)
            self._is_checked = True
        time.sleep(max(0.0, self._polled + self._pause - time.monotonic()))
        began = time.monotonic()
        if isinstance(self.catalog, BrokerCatalog):
            # Queues that were read before are included: those of a broker that is down are not in the route.
            ends = self.catalog.ends({*self.queues(), *start})
        else:
            ends = {queue: bounds.max for queue, bounds in self.catalog.bounds(self.queues()).items()}
        self._polled = now = time.monotonic()
        self._pause = max(POLL_SECONDS, now - began)
        for queue, offset in start.items():
            if queue not in ends:
                self._lose_for_long(queue, f"the queue no longer exists; it was read up to offset {offset}")
            elif ends[queue] < offset:
                since = self._shorter_since.setdefault(queue, now)
                if now - since > self._failover_seconds:
                    self._lose_for_long(queue, f"it was read up to offset {offset} and ends at {ends[queue]} now")
            else:
                self._shorter_since.pop(queue, None)
                self._reported.discard(queue)
        self.latest = {**start, **{queue: max(end, start.get(queue, 0)) for queue, end in ends.items()}}
        return self.latest

    @property
    def is_waiting(self) -> bool:
        """Whether a queue is shorter than what was read of it, and this has not been reported yet."""
        return not self._shorter_since.keys() <= self._reported

    @property
    def _failover_seconds(self) -> float:
        place = self.options.place
        return 0.0 if isinstance(place, Stores) else place.failover_seconds

    def admitted(self, start: Mapping[MessageQueue, int], latest: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next batch, within the limits."""
        limits = self.options.limits
        if isinstance(limit, ReadAllAvailable):
            return latest
        offsets_max = limits.offsets_max
        if limits.bytes_max is not None:
            ranges = ranges_between(start, latest)
            size, count = self.catalog.range_bytes(ranges), sum(each.count for each in ranges)
            fitting = max(count * limits.bytes_max // size, 1) if size > limits.bytes_max else count
            offsets_max = fitting if offsets_max is None else min(offsets_max, fitting)
        return latest if offsets_max is None else admit(start, latest, offsets_max)

    def must_wait(self, start: Mapping[MessageQueue, int], latest: Offsets) -> bool:
        """Return whether there are too few messages for a batch, and the longest delay has not passed."""
        limits = self.options.limits
        count = sum(each.count for each in ranges_between(start, latest))
        now = time.monotonic()
        if limits.offsets_min is None or count >= limits.offsets_min or now - self._batch_at >= limits.delay_seconds:
            if count:
                self._batch_at = now
            return False
        return True

    def readable(self, start: Offsets, end: Offsets) -> list[QueueRange]:
        """Return the ranges of a batch as far as their messages exist. A new queue begins at its oldest message.

        Raises:
            DataLoss: messages no longer exist, and `failOnDataLoss` is on.
        """
        wanted = [queue for queue in end if end[queue] > start.get(queue, 0)]
        bounds = self.catalog.bounds(wanted)
        found: list[QueueRange] = []
        for each in ranges_between(start, end):
            known = bounds.get(each.queue)
            if known is None:
                self._lose(each.queue, f"offsets {each.start} to {each.end - 1} are gone: the queue no longer exists")
                continue
            first = self._first(each, each.queue in start, known)
            if first < each.end:
                found.append(QueueRange(each.queue, first, each.end))
        return found

    def _first(self, each: QueueRange, was_read: bool, bounds: Bounds) -> int:
        if each.start >= bounds.min or not was_read:
            return max(each.start, bounds.min)
        gone = min(bounds.min, each.end)
        self._lose(
            each.queue,
            f"{gone - each.start} messages, offsets {each.start} to {gone - 1}, were deleted before they were read "
            f"(the oldest message has offset {bounds.min})",
        )
        return bounds.min

    def _lose(self, queue: MessageQueue, reason: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLoss(queue, reason)
        warn(f"{queue}: {reason}; going on without them")

    def _lose_for_long(self, queue: MessageQueue, reason: str) -> None:
        if queue not in self._reported:
            self._lose(queue, reason)
            self._reported.add(queue)

    def publish(self, offsets: Offsets) -> None:
        """Commit the offsets of the query for its consumer group, so that tools can show its lag. They are never read back."""
        catalog, group = self.catalog, self.options.pulling.group
        if not isinstance(catalog, BrokerCatalog) or group == TOOLS_GROUP:
            return
        for queue, offset in offsets.items():
            address = catalog.client.member(queue)
            if address is None:
                continue
            fields = {"consumerGroup": group, "topic": queue.topic, "queueId": queue.queue_id, "commitOffset": offset}
            try:
                catalog.client.link(address).call(
                    request(RequestCode.UPDATE_CONSUMER_OFFSET, fields), catalog.client.servers.call_seconds
                )
            except LinkLost as error:
                warn(f"the progress of group {group} was not stored: {error}")
                return


class LedgermqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. One object is on the driver for as long as the query runs; copies of it read tasks in workers."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.task_reader = TaskReader(options, columns)
        self._progress: Progress | None = None
        self._initial: JsonOffsets | None = None
        self._start_pending = False
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None}

    @property
    def progress(self) -> Progress:
        if self._progress is None:
            self._progress = Progress(self.options, open_catalog(self.options))
        return self._progress

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - the name is Spark's
        limits = self.options.limits
        if limits.offsets_max is not None:
            return ReadMaxRows(limits.offsets_max)
        return ReadMaxBytes(limits.bytes_max) if limits.bytes_max is not None else ReadAllAvailable()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            self._initial = to_json(self.progress.start())
            self._start_pending = True
        return dict(self._initial)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        if self._start_pending:
            self._start_pending = False
            if start == self._initial:  # else Spark repeats the first batch, whose end it has stored
                return start
        begin = from_json(start)
        latest = self.progress.poll(begin)
        if self._target is not None:
            while self.progress.is_waiting:  # the query ends after this batch, so a later poll would not notice the loss
                latest = self.progress.poll(begin)
            latest = {
                queue: max(min(end, self._target[queue]), begin.get(queue, 0))
                for queue, end in latest.items()
                if queue in self._target
            }
            latest = {**begin, **latest}
        elif self.progress.must_wait(begin, latest):
            return start
        return dict(to_json(self.progress.admitted(begin, latest, limit)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return dict(to_json(self.progress.latest)) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = dict(self.progress.poll({}))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin = from_json(start)
        ranges = self.progress.readable(begin, from_json(end))
        if isinstance(self.options.place, Stores) and not self.options.split.keeps_order:
            # Tasks are sections of the log, and depend on what exists.
            return [TaskPartition(task) for task in self.progress.catalog.plan(ranges, self.options)]
        # Retention may have moved since the batch was planned first, and its tasks must have the same messages again.
        new = [each for each in ranges if each.queue not in begin]
        whole = [each for each in ranges_between(begin, from_json(end)) if each.queue in begin]
        tasks = plan_queues(sorted([*whole, *new], key=lambda each: each.queue), self.options.split)
        return [TaskPartition(task) for task in existing(tasks, ranges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:
            return iter(())
        return self.task_reader.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        self.progress.publish(from_json(end))

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.catalog.close()
