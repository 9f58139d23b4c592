"""The metrics of a broker, under the names of RocketMQ 5 where it has them and under `ledgermq_` where it has not.

They are read from the broker's tables when somebody asks, in slices; nothing is counted for them beside what the broker counts
anyway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import attrs

from ..remoting.metrics import (
    SLICE_SERIES,
    Family,
    Histograms,
    Labels,
    Latencies,
    LoopTurns,
    Row,
    exposition,
    latencies_of,
    one,
    turns_of,
)
from ..store.derived.consumequeue import Unit
from ..store.keeping.scrub import Scrubber
from ..store.message_store import MessageStore
from ..store.statuses import PutStatus
from ..world.garbage import private_bytes
from ..world.slices import in_slices
from .role import LiveRole
from .stats import Counter, Stats
from .tables.clients import Consumers, Producers
from .tables.groups import GroupTable
from .tables.offsets import ConsumerOffsets
from .tables.topics import TopicTable

T = TypeVar("T")
_Read = Callable[[str, Iterable[tuple[int, int]]], T]
"""Reads the queues of a topic on which a group has these positions, as pairs of queue id and offset."""
_Unread = tuple[Unit, tuple[str, int, int]]
"""The unit of a message, and its topic, queue id and offset."""


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
    scrubber: Scrubber
    replication: Callable[[], Mapping[str, Any]]
    """The state of replication, under the keys that administrators are told."""
    lag_bytes: Callable[[], int]
    """How many bytes a slave is behind its master."""
    turns: LoopTurns
    latencies: Latencies

    def text(self) -> AsyncIterator[bytes]:
        """The metrics in the text format of Prometheus, in parts between which other tasks run."""
        constant = {"cluster": self.cluster, "node_type": "broker", "node_id": self.broker}
        return exposition(constant, self._families())

    def _families(self) -> Iterator[Family | Histograms]:
        yield from self._of_the_store()
        yield from self._of_topics_and_groups()
        state = self.replication()
        yield from _of_a_group(state["dledger"]) if "dledger" in state else _of_a_pair(state, self.lag_bytes)
        yield latencies_of(self.latencies)
        yield turns_of(self.turns)

    def _disk_full(self) -> bool:
        return self.store.writability.status is PutStatus.DISK_FULL

    def _of_the_store(self) -> Iterator[Family]:
        store, log, scrubber = self.store, self.store.log, self.scrubber
        yield one("ledgermq_broker_takes_messages", "1 if sends are taken, else 0.", lambda: store.writability.refusal is None)
        yield one("ledgermq_disk_full", "1 if sends are refused because the disk is full, else 0.", self._disk_full)
        yield one("ledgermq_private_memory_bytes", "Memory of this process alone, without mapped files.", private_bytes)
        yield one("ledgermq_broker_id", "The broker id: 0 for a master or leader.", lambda: self.role.broker_id)
        yield one("ledgermq_disk_used_ratio", "Used share of the disk of the commit log, 0 to 1.", store.disk_ratio)
        yield one("rocketmq_storage_size", "Bytes of the commit log.", lambda: log.max_offset - log.min_offset)
        yield one("rocketmq_storage_flush_behind_bytes", "Bytes not synced yet.", lambda: log.max_offset - log.flushed_offset)
        yield one(
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes from which queues are not derived yet.",
            lambda: store.dispatch_behind_bytes,
        )
        yield one(
            "ledgermq_replication_behind_bytes",
            "Bytes that are written here and not committed: held by too few nodes, or not known to be.",
            lambda: log.max_offset - log.committed_offset,
        )
        yield one("ledgermq_scrub_bytes", "Bytes that were read back.", lambda: scrubber.checked_bytes, counter=True)
        yield one("ledgermq_scrub_damaged_records", "Damaged records that were found.", lambda: scrubber.found, counter=True)
        yield one("ledgermq_damaged_records", "Damaged records that are not handed out.", lambda: len(store.damaged))

    def _of_topics_and_groups(self) -> Iterator[Family]:
        stats, topic, pair = self.stats, ("topic",), ("topic", "consumer_group")
        yield one("ledgermq_messages_refused", "Sends that were refused.", lambda: stats.totals().put_failed, counter=True)
        yield Family("rocketmq_messages_in", "Messages that were stored.", topic, partial(self._puts, _count), counter=True)
        yield Family("rocketmq_throughput_in", "Bytes of stored messages.", topic, partial(self._puts, _size), counter=True)
        yield Family("rocketmq_messages_out", "Messages handed out.", pair, partial(self._gets, _count), counter=True)
        yield Family("rocketmq_throughput_out", "Bytes handed out.", pair, partial(self._gets, _size), counter=True)
        yield Family("rocketmq_send_to_dlq_messages", "Messages that became dead letters.", pair, self._dead, counter=True)
        behind, age = "Messages behind the group's position.", "Age in ms of the oldest message behind the position."
        yield Family("rocketmq_consumer_lag_messages", behind, pair, self._lags, weight=self._queues_of)
        yield Family("rocketmq_consumer_lag_latency", age, pair, self._ages, weight=self._queues_of)
        yield Family(
            "ledgermq_messages_deleted_unread", "Deleted before the group had read them.", pair, self._deleted, counter=True
        )
        yield Family("rocketmq_consumer_connections", "Online members of the group.", ("consumer_group",), self._members)
        yield one("rocketmq_producer_connections", "Online producers.", lambda: sum(map(len, self.producers.groups.values())))
        yield one("ledgermq_topics", "Topics.", lambda: len(self.topics.topics))
        yield one("ledgermq_consumer_groups", "Consumer groups.", lambda: len(self.groups.groups))

    def _puts(self, what: Callable[[Counter], int]) -> Iterator[Row]:
        return (((topic,), partial(what, counter)) for topic, counter in list(self.stats.puts.items()))

    def _gets(self, what: Callable[[Counter], int]) -> Iterator[Row]:
        return (
            ((topic, group), partial(_sum, what, queues))
            for topic, groups in list(self.stats.gets.items())
            for group, queues in list(groups.items())
        )

    def _dead(self) -> list[Row]:
        return [(key, partial(_count, counter)) for key, counter in self.stats.dead_letters.items()]

    def _lags(self) -> Iterator[Row]:
        return self._positions(self._lag, sum)  # type: ignore[misc]  # mypy infers nothing from overloads

    def _ages(self) -> Iterator[Row]:
        return self._positions(self._oldest_unread, self._age)

    def _positions(self, read: _Read[T], total: Callable[[list[T]], float]) -> Iterator[Row]:
        """Series of all groups on all topics: what is read of some queues together, and the total of that."""

        def value(topic: str, queues: Mapping[int, int]) -> float | Awaitable[float]:
            return total([read(topic, queues.items())]) if len(queues) <= SLICE_SERIES else in_turns(topic, queues)

        async def in_turns(topic: str, queues: Mapping[int, int]) -> float:
            return total([read(topic, piece) async for piece in in_slices(list(queues.items()), SLICE_SERIES)])

        return ((key, partial(value, key[0], queues)) for key, queues in self.offsets.table.walk())

    def _queues_of(self, key: Labels) -> int:
        topic, group = key
        return 1 + len(self.offsets.table.topics.get(topic, {}).get(group, ()))

    def _lag(self, topic: str, positions: Iterable[tuple[int, int]]) -> int:
        return sum(max(0, self.store.max_offset(topic, queue_id) - offset) for queue_id, offset in positions)

    def _oldest_unread(self, topic: str, positions: Iterable[tuple[int, int]]) -> _Unread | None:
        store = self.store
        behind = ((queue_id, offset) for queue_id, offset in positions if offset < store.max_offset(topic, queue_id))
        firsts = ((topic, queue_id, max(offset, store.min_offset(topic, queue_id))) for queue_id, offset in behind)
        # The log is in the order of time, so the message that comes first in it is the oldest one.
        return min(((unit, first) for first in firsts if (unit := store.unit(*first)) is not None), default=None)

    def _age(self, oldest: list[_Unread | None]) -> float:
        """The age of the oldest message that the group has not read; 0 without one."""
        first = min(filter(None, oldest), default=None)
        time = self.store.store_time(*first[1]) if first is not None else -1
        return max(0, self.store.world.clock.wall_ms() - time) if time > 0 else 0

    def _deleted(self) -> list[Row]:
        return [(key, lambda count=count: count) for key, count in self.offsets.lost.items()]  # type: ignore[misc]

    def _members(self) -> list[Row]:
        return [((name,), partial(len, group.members)) for name, group in self.consumers.groups.items()]


def _of_a_group(state: Mapping[str, Any]) -> Iterator[Family]:
    """The metrics of a node of a DLedger group, from what it tells administrators."""
    role, peers, learners = state["role"], state["peers"], len(state["learners"])
    yield one("ledgermq_raft_term", "The term.", lambda: state["term"])
    yield one("ledgermq_raft_leads", "1 if this node leads, else 0.", lambda: role == "leader")
    yield one("ledgermq_raft_knows_leader", "1 if this node knows who leads, else 0.", lambda: state["leaderId"] is not None)
    yield one("ledgermq_raft_committed_index", "The last committed entry.", lambda: state["committedIndex"])
    yield one("ledgermq_raft_end_index", "The last entry.", lambda: state["endIndex"])
    yield one("ledgermq_raft_voters", "Voters of the group.", lambda: len(state["voters"]))
    yield one("ledgermq_raft_learners", "Learners of the group.", lambda: learners)
    lags: list[Row] = [((peer["id"],), partial(float, lag)) for peer in peers if (lag := peer["lagEntries"]) is not None]
    yield Family("ledgermq_raft_peer_lag_entries", "Entries that the leader has and the peer lacks.", ("peer",), lambda: lags)
    connected: list[Row] = [((peer["id"],), partial(float, peer["connected"])) for peer in peers]
    yield Family("ledgermq_raft_peer_connected", "1 if the peer is connected, else 0.", ("peer",), lambda: connected)


def _of_a_pair(state: Mapping[str, Any], lag_bytes: Callable[[], int]) -> Iterator[Family]:
    """The metrics of a classic master or slave, from what it tells administrators."""
    slaves: list[Row] = [((slave["addr"],), partial(float, slave["diff"])) for slave in state["haConnectionInfo"]]
    yield one("ledgermq_replication_in_sync_slaves", "Slaves that are in sync.", lambda: state["inSyncSlaveNums"])
    yield Family("ledgermq_replication_slave_behind_bytes", "Bytes that a slave lacks.", ("slave",), lambda: slaves)
    yield one("ledgermq_replication_lag_bytes", "How far this slave is behind its master.", lag_bytes)


def _count(counter: Counter) -> int:
    return counter.count


def _size(counter: Counter) -> int:
    return counter.size


def _sum(what: Callable[[Counter], int], queues: Mapping[int, Counter]) -> int:
    return sum(map(what, queues.values()))
