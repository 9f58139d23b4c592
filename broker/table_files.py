"""The files of a broker's tables: how a start reads them, and which changes cause them to be written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import orjson

from ..message.numbers import int_of
from ..store.message_store import MessageStore
from ..world.clock import Clock
from ..world.slices import ROWS_PER_SLICE, in_slices, rows_of
from .commits import Commits
from .config import BrokerConfig
from .delay import DelayDelivery
from .deletions import Deletions
from .groups import GroupTable
from .json_values import object_of
from .locks import QueueLocks
from .numbered_sends import NumberedSends
from .offsets import ConsumerOffsets
from .persistence import (
    GROUPS_FILE,
    IN_LOG_KEY,
    LOCKS_FILE,
    LOG_DERIVED,
    LOG_OFFSET_KEY,
    OFFSETS_FILE,
    STATED_FROM_KEY,
    TOPICS_FILE,
    UNSURE_KEY,
    Persistence,
    Table,
    encoded_offsets,
)
from .replicated_tables import ReplicatedTables
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
    numbered: NumberedSends
    replicated: ReplicatedTables | None
    """In DLedger mode, the tables in the log; otherwise None."""

    def load(self, config: BrokerConfig) -> None:
        """Read the other tables, apply the log's events to all of them, and write every table that changes from now on.

        Raises:
            BadTable: a file is damaged.
        """
        keep = self.persistence.keep
        # Lost topics are adopted from their messages; without offsets all groups would skip what they have not consumed.
        self.persistence.load(OFFSETS_FILE, self._load_offsets, replaceable=False)
        self.persistence.load(DELAYS_FILE, self.delay.load)
        keep(
            OFFSETS_FILE,
            lambda: self._in_turns(self._offsets_json),
            self._refreshed(lambda: self.offsets.changes),
            config.flush_consumer_offset_interval / 1000,
        )
        keep(DELAYS_FILE, self.delay.durable_json, self.delay.durable_changes, config.flush_delay_offset_interval / 1000)
        now = self.clock.monotonic()
        self.persistence.load(LOCKS_FILE, lambda stored: self.locks.load(stored, now))
        locks_file = keep(LOCKS_FILE, lambda: self._in_turns(self._locks_json), self._refreshed(lambda: self.locks.changes))
        self.numbered.load(self.persistence, config.flush_consumer_offset_interval / 1000)
        self.store.on_queues_cut.append(self.commits.queues_cut)
        if self.replicated is None:
            topics_file = keep(TOPICS_FILE, self._with_log_offset(self.topics.to_json), lambda: self.topics.version)
            groups_file = keep(GROUPS_FILE, self._with_log_offset(self.groups.to_json), lambda: self.groups.version)
            self.topics.on_change.append(lambda _: topics_file.wake())
            self.groups.on_change.append(groups_file.wake)
            self.deletions.follow_log()
        else:
            self._keep_derived(self.replicated, locks_file)

    def _keep_derived(self, replicated: ReplicatedTables, locks_file: Table) -> None:
        """Apply the log's events, and write topics and groups as they are derived, without a leader's later changes."""
        persistence, derived = self.persistence, replicated.derived
        replicated.in_log = not persistence.not_in_log & {TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE}
        # A power cut may have taken the end of the log, and a statement of the tables with it.
        replicated.stated_from = stated if (stated := persistence.stated_from) <= self.store.dispatcher.dispatched_offset else 0
        derived.adopt()
        topics_file = persistence.keep(
            TOPICS_FILE, self._with_log_offset(derived.topics_json), self._refreshed(lambda: derived.topics_changes)
        )
        groups_file = persistence.keep(
            GROUPS_FILE, self._with_log_offset(derived.groups_json), self._refreshed(lambda: derived.groups_changes)
        )
        derived.on_topics.append(topics_file.wake)
        derived.on_groups.append(groups_file.wake)
        self.deletions.follow_log()
        if persistence.missing & LOG_DERIVED:  # a later start would search the whole log for events of files that do not exist
            derived.changed()
            self.offsets.changes += 1
            self.locks.changes += 1
            locks_file.wake()

    def _load_offsets(self, stored: Any) -> None:
        self.offsets.load(stored)
        if self.replicated is not None:
            unsure = object_of(stored).get(UNSURE_KEY, ())
            self.replicated.unsure_offsets.update({(topic, group, int_of(queue_id)): None for topic, group, queue_id in unsure})

    async def _offsets_json(self) -> dict[str, Any]:
        unsure = self._unsure()
        content = self.offsets.content(orjson.Fragment(await encoded_offsets(self.offsets.table)))
        # Offsets that were committed during the turns may be in the table.
        return content if self.replicated is None else {UNSURE_KEY: list(unsure | self._unsure()), **content}

    def _unsure(self) -> dict[tuple[str, str, int], None]:
        """The topic, group and queue id of offsets that are not certainly in the log of a DLedger group."""
        return self.replicated.unsure_offsets | (self.offsets.dirty or {}) if self.replicated is not None else {}

    async def _locks_json(self) -> dict[str, Any]:
        # A lease that is given during the turns is written again before it is answered.
        entries, followed, locks = list[bytes](), self.locks.followed, self.locks
        async for groups in in_slices(locks.groups(), ROWS_PER_SLICE, rows_of):
            entries += [orjson.dumps(group) + b":" + orjson.dumps(locks.rows_of(group)) for group, _ in groups]
        return {"followed": followed, "locks": orjson.Fragment(b"{%b}" % b",".join(entries))}

    def _with_log_offset(self, to_json: Callable[[], Mapping[str, Any]]) -> Callable[[], dict[str, Any]]:
        """The content of a table's file: the table, and what it says about the log."""
        return lambda: {**self._about_log(), **to_json()}

    async def _in_turns(self, to_json: Callable[[], Awaitable[Mapping[str, Any]]]) -> dict[str, Any]:
        """The same of a table that is taken in several turns of the event loop.

        It says no more about the log than what was true before the first turn and is true behind the last one: it contains all
        events before the smaller log offset. Later ones are applied again, whether it contains them or not.
        """
        before, table = self._about_log(), await to_json()
        after = self._about_log()
        return {**{key: min(value, after[key]) for key, value in before.items()}, **table}

    def _about_log(self) -> dict[str, int]:
        """The log offset up to which a table contains all events; in DLedger mode also what of the tables the log contains."""
        about = {LOG_OFFSET_KEY: self.deletions.log_offset}
        if (replicated := self.replicated) is not None:
            about |= {IN_LOG_KEY: replicated.in_log, STATED_FROM_KEY: replicated.stated_from}
        return about

    def _refreshed(self, changes: Callable[[], int]) -> Callable[[], int]:
        """The number of changes of a table; in a DLedger group each `REFRESH_BYTES` of the log count as one too."""
        if self.replicated is None:
            return changes
        return lambda: changes() + self.deletions.log_offset // REFRESH_BYTES
