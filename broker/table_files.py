"""The files of a broker's tables: how a start reads them, and which changes cause them to be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ..store.message_store import MessageStore
from ..world.clock import Clock
from .commits import Commits
from .config import BrokerConfig
from .delay import DelayDelivery
from .deletions import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE, Deletions
from .groups import GroupTable
from .locks import LOCKS_FILE, QueueLocks
from .offsets import ConsumerOffsets
from .persistence import LOG_OFFSET_KEY, Persistence, encoded
from .topics import TopicTable

DELAYS_FILE = "delayOffset.json"
REFRESH_BYTES = 128 << 20
"""In a DLedger group a table's file is written again when the log has grown by this much, even if the table has not changed.
A start reads the log from the oldest log offset of these files on."""


@attrs.frozen(kw_only=True, repr=False)
class TableFiles:
    """The tables of the files; those of topics and groups have already been made from their files."""

    persistence: Persistence
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    commits: Commits
    delay: DelayDelivery
    locks: QueueLocks
    deletions: Deletions

    def load(self, config: BrokerConfig) -> None:
        """Read the other tables, apply the log's events to all of them, and write every table that changes from now on.

        Raises:
            BadTable: a file is damaged.
        """
        keep = self.persistence.keep
        # Lost topics are adopted from their messages; without offsets all groups would skip what they have not consumed.
        self.persistence.load(OFFSETS_FILE, self.offsets.load, replaceable=False)
        self.persistence.load(DELAYS_FILE, self.delay.load)
        topics_file = keep(
            TOPICS_FILE, self._with_log_offset(self.topics.to_json), self._refreshed(lambda: self.topics.version.counter)
        )
        groups_file = keep(
            GROUPS_FILE, self._with_log_offset(self.groups.to_json), self._refreshed(lambda: self.groups.version.counter)
        )
        keep(
            OFFSETS_FILE,
            lambda: encoded(self._with_log_offset(self.offsets.to_json)()),
            self._refreshed(lambda: self.offsets.changes),
            config.flush_consumer_offset_interval / 1000,
        )
        keep(DELAYS_FILE, self.delay.durable_json, self.delay.durable_changes, config.flush_delay_offset_interval / 1000)
        now = self.clock.monotonic()
        self.persistence.load(LOCKS_FILE, lambda stored: self.locks.load(stored, now))
        keep(LOCKS_FILE, self._with_log_offset(self.locks.to_json), self._refreshed(lambda: self.locks.changes))
        self.store.on_queues_cut.append(self.commits.queues_cut)
        self.topics.on_change.append(lambda _: topics_file.wake())
        self.groups.on_change.append(groups_file.wake)
        self.deletions.follow_log()

    def _with_log_offset(self, to_json: Callable[[], Mapping[str, Any]]) -> Callable[[], dict[str, Any]]:
        """The content of a table's file: the table, and the log offset up to which it contains all events."""
        return lambda: {LOG_OFFSET_KEY: self.deletions.log_offset, **to_json()}

    def _refreshed(self, changes: Callable[[], int]) -> Callable[[], int]:
        """The number of changes of a table; in a DLedger group each `REFRESH_BYTES` of the log count as one too."""
        if self.deletions.replicated is None:
            return changes
        return lambda: changes() + self.deletions.log_offset // REFRESH_BYTES
