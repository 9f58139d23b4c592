"""The metrics of a broker, under the names of RocketMQ 5 where it has them and under `ledgermq_` where it has not.

They are read from the broker's tables when somebody asks, in slices; nothing is counted for them beside what the broker counts
anyway, but for the turns of the event loop. The series of one metric are bounded: a broker with more topics or groups names the
first ones, and `ledgermq_series_left_out` says how many are missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from ..store.message_store import MessageStore
from ..world.clock import Clock
from ..world.garbage import private_bytes
from ..world.slices import in_slices
from .clients import Consumers, Producers
from .groups import GroupTable
from .offsets import ConsumerOffsets
from .role import LiveRole
from .stats import Counter, Stats
from .topics import TopicTable

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

SERIES_MAX = 20_000
"""How many series one metric has at most; further ones are counted in `ledgermq_series_left_out`."""
SLICE_SERIES = 250
"""How many series are formatted in one turn of the event loop, which takes some 3 ms."""
TURN_BUCKETS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.5, 2.0)
"""The upper bounds in seconds of the histogram of turns; a turn above 0.1 is a fault."""

Labels = tuple[str, ...]
Row = tuple[Labels, Callable[[], float]]
"""The labels of a series, and what reads its value: a row is made quickly, and many values are read in slices."""


@attrs.define(eq=False)
class LoopTurns(trio.abc.Instrument):
    """Measures each turn of the event loop: from the end of its wait for events to the beginning of the next one."""

    clock: Clock
    counts: list[int] = attrs.field(factory=lambda: [0] * (len(TURN_BUCKETS) + 1))
    """How many turns lasted up to each bound of `TURN_BUCKETS` but longer than the one before, and how many longer than all."""
    seconds: float = 0.0
    _began: float | None = None

    def after_io_wait(self, timeout: float) -> None:
        del timeout
        self._began = self.clock.monotonic()

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        if self._began is not None:
            lasted = self.clock.monotonic() - self._began
            self.counts[bisect_left(TURN_BUCKETS, lasted)] += 1
            self.seconds += lasted


@attrs.frozen
class _Family:
    name: str
    """Without `_total`, which Prometheus adds to counters."""
    help: str
    labels: Labels
    rows: Callable[[], list[Row]]
    counter: bool = False


@attrs.frozen(kw_only=True)
class Metrics:
    """Reads the metrics of one broker."""

    cluster: str
    broker: str
    store: MessageStore
    role: LiveRole
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    consumers: Consumers
    producers: Producers
    stats: Stats
    turns: LoopTurns

    async def text(self) -> AsyncIterator[bytes]:
        """The metrics in the text format of Prometheus, in parts between which other tasks run."""
        left_out = 0
        for family in self._families():
            rows = family.rows()  # a copy, because the tables change between two parts
            left_out += max(0, len(rows) - SERIES_MAX)
            first = True
            async for part in in_slices(rows[:SERIES_MAX], SLICE_SERIES):
                yield _formatted(self._metric(family, part), headed=first)
                first = False
            await trio.lowlevel.checkpoint()
        yield _formatted(self._turns_metric(), headed=True)
        beyond = _Family("ledgermq_series_left_out", "Series beyond the bound of their metric.", (), list[Row])
        yield _formatted(self._metric(beyond, [((), lambda: left_out)]), headed=True)

    def _metric(self, family: _Family, part: Iterable[Row]) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - only where metrics are asked for

        kind = CounterMetricFamily if family.counter else GaugeMetricFamily
        metric = kind(family.name, family.help, labels=("cluster", "node_type", "node_id", *family.labels))
        for labels, read in part:
            metric.add_metric((self.cluster, "broker", self.broker, *labels), read())
        return metric

    def _turns_metric(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415 - as above

        metric = HistogramMetricFamily(
            "ledgermq_event_loop_turn_seconds",
            "How long turns of the event loop lasted.",
            labels=("cluster", "node_type", "node_id"),
        )
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(str, TURN_BUCKETS), "+Inf"), self.turns.counts, strict=True):
            total += count
            buckets.append((bound, total))
        metric.add_metric((self.cluster, "broker", self.broker), buckets, self.turns.seconds)
        return metric

    def _families(self) -> Iterator[_Family]:
        log, stats = self.store.log, self.stats

        def one(name: str, text: str, value: Callable[[], float], *, counter: bool = False) -> _Family:
            return _Family(name, text, (), lambda: [((), value)], counter)

        yield one(
            "ledgermq_broker_takes_messages", "1 if sends are taken, else 0.", lambda: self.store.writability.refusal is None
        )
        yield one("ledgermq_private_memory_bytes", "Memory of this process alone, without mapped files.", private_bytes)
        yield one("ledgermq_broker_id", "The broker id: 0 for a master or leader.", lambda: self.role.broker_id)
        yield one("rocketmq_storage_size", "Bytes of the commit log.", lambda: log.max_offset - log.min_offset)
        yield one(
            "rocketmq_storage_flush_behind_bytes", "Bytes that are not synced yet.", lambda: log.max_offset - log.flushed_offset
        )
        yield one(
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes from which queues are not derived yet.",
            lambda: self.store.dispatch_behind_bytes,
        )
        yield one(
            "ledgermq_replication_behind_bytes",
            "Bytes that are written here and not committed: held by too few nodes, or not known to be.",
            lambda: log.max_offset - log.committed_offset,
        )
        yield one("ledgermq_messages_refused", "Sends that were refused.", lambda: stats.totals().put_failed, counter=True)
        topic, pair = ("topic",), ("topic", "consumer_group")
        yield _Family("rocketmq_messages_in", "Messages that were stored.", topic, partial(self._puts, _count), counter=True)
        yield _Family("rocketmq_throughput_in", "Bytes of stored messages.", topic, partial(self._puts, _size), counter=True)
        yield _Family("rocketmq_messages_out", "Messages handed out.", pair, partial(self._gets, _count), counter=True)
        yield _Family(
            "rocketmq_throughput_out", "Bytes of messages handed out.", pair, partial(self._gets, _size), counter=True
        )
        yield _Family("rocketmq_send_to_dlq_messages", "Messages that became dead letters.", pair, self._dead, counter=True)
        yield _Family("rocketmq_consumer_lag_messages", "Messages behind the group's position.", pair, self._lags)
        yield _Family("rocketmq_consumer_connections", "Online members of the group.", ("consumer_group",), self._members)
        yield one("rocketmq_producer_connections", "Online producers.", lambda: sum(map(len, self.producers.groups.values())))
        yield one("ledgermq_topics", "Topics.", lambda: len(self.topics.topics))
        yield one("ledgermq_consumer_groups", "Consumer groups.", lambda: len(self.groups.groups))

    def _puts(self, what: Callable[[Counter], int]) -> list[Row]:
        return [((topic,), partial(what, counter)) for topic, counter in self.stats.puts.items()]

    def _gets(self, what: Callable[[Counter], int]) -> list[Row]:
        return [
            ((topic, group), partial(_sum, what, queues))
            for topic, groups in self.stats.gets.items()
            for group, queues in groups.items()
        ]

    def _dead(self) -> list[Row]:
        return [(key, partial(_count, counter)) for key, counter in self.stats.dead_letters.items()]

    def _lags(self) -> list[Row]:
        return [(key, partial(self._lag, key[0], queues)) for key, queues in self.offsets.table.items()]

    def _lag(self, topic: str, queues: Mapping[int, int]) -> float:
        return sum(max(0, self.store.max_offset(topic, queue_id) - offset) for queue_id, offset in queues.items())

    def _members(self) -> list[Row]:
        return [((name,), partial(len, group.members)) for name, group in self.consumers.groups.items()]


def _count(counter: Counter) -> int:
    return counter.count


def _size(counter: Counter) -> int:
    return counter.size


def _sum(what: Callable[[Counter], int], queues: Mapping[int, Counter]) -> int:
    return sum(map(what, queues.values()))


def _formatted(metric: Metric, *, headed: bool) -> bytes:
    """The text of a metric; `headed` is False for further parts of the same one, whose head would be a second one."""
    from prometheus_client import generate_latest  # noqa: PLC0415 - as above

    text = generate_latest(_Registry(metric))
    return text if headed else b"".join(line for line in text.splitlines(keepends=True) if not line.startswith(b"#"))


@attrs.frozen
class _Registry:
    """What `generate_latest` reads: here a single metric."""

    metric: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.metric,)
