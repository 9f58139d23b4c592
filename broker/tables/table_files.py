"""The files of a broker's tables: how a start reads them and applies the rest of the log, and which changes cause writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from math import inf
from typing import Any

import attrs
import orjson

from ...message.control import TABLES_CARRIED, Control
from ...message.numbers import int_of, long_of
from ...store.message_store import MessageStore
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.slices import ROWS_PER_SLICE, in_slices, rows_of
from ..config import BrokerConfig
from ..json_values import object_of
from ..role import LiveRole
from .commits import Commits
from .numbered_sends import NumberedSends
from .persistence import (
    ACCESS_FILE,
    COMMITTED_HERE_KEY,
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
    encoded_offsets,
)
from .table_log import TableLog
from .tables import Tables

log = get_logger(__name__)

DELAYS_FILE = "delayOffset.json"
ACCESS_SECONDS = 5.0
"""How often the file of users and rights is written if they have changed; the log has every change."""
REFRESH_BYTES = 128 << 20
"""A table's file is written again when the log has grown by this much, even if the table has not changed. A start reads the log
from the oldest log offset of these files on."""


@attrs.frozen(kw_only=True, repr=False)
class TableFiles:
    """The tables of the files; those of topics and groups have already been made from their files."""

    persistence: Persistence
    clock: Clock
    store: MessageStore
    role: LiveRole
    tables: Tables
    table_log: TableLog
    commits: Commits
    numbered: NumberedSends

    def load(self, config: BrokerConfig) -> None:
        """Read the other tables, apply the log's events to all of them, and write every table that changes from now on.

        Raises:
            BadTable: a file is damaged.
        """
        tables, persistence, keep = self.tables, self.persistence, self.persistence.keep
        # Lost topics are adopted from their messages; without offsets all groups would skip what they have not consumed.
        persistence.load(OFFSETS_FILE, self._load_offsets, replaceable=False)
        persistence.load(DELAYS_FILE, tables.delay.load)
        now = self.clock.monotonic()
        persistence.load(LOCKS_FILE, lambda stored: tables.locks.load(stored, now))
        persistence.load(ACCESS_FILE, tables.access.load, replaceable=False)
        self.numbered.load(persistence, config.flush_consumer_offset_interval / 1000)
        self.store.on_queues_cut.append(self.commits.queues_cut)
        unsure_end = self._learn_log()
        topics, groups, offsets, locks, delay = tables.topics, tables.groups, tables.offsets, tables.locks, tables.delay
        offsets_seconds = config.flush_consumer_offset_interval / 1000
        keep(
            OFFSETS_FILE,
            lambda: self._in_turns(OFFSETS_FILE, self._offsets_json),
            self._state(lambda: offsets.changes),
            offsets_seconds,
        )
        keep(DELAYS_FILE, delay.durable_json, delay.durable_changes, config.flush_delay_offset_interval / 1000)
        keep(LOCKS_FILE, lambda: self._in_turns(LOCKS_FILE, self._locks_json), self._state(lambda: locks.changes))
        keep(
            ACCESS_FILE,
            self._with_log_offset(ACCESS_FILE, tables.access.to_json),
            self._state(lambda: tables.access.changes),
            ACCESS_SECONDS,
        )
        topics_file = keep(TOPICS_FILE, self._with_log_offset(TOPICS_FILE, topics.to_json), self._state(lambda: topics.version))
        groups_file = keep(GROUPS_FILE, self._with_log_offset(GROUPS_FILE, groups.to_json), self._state(lambda: groups.version))
        tables.topics.on_change.append(lambda _: topics_file.wake())
        tables.groups.on_change.append(groups_file.wake)
        self._apply_log(unsure_end)

    def _learn_log(self) -> float:
        """Find out what of the tables the log contains.

        Returns:
            The offset before which no statement says all that the tables contain: a file is later, and not in the log.
        """
        persistence, tables, store = self.persistence, self.tables, self.store
        dispatched, offsets = store.dispatcher.dispatched_offset, persistence.log_offsets
        end, older_end = store.log.max_offset, self.table_log.older_end
        ahead = {name for name, offset in offsets.items() if offset > end}  # a power cut has taken the end of the log
        is_older = any(offset <= older_end for offset in offsets.values())
        not_in_log = persistence.not_in_log & {TOPICS_FILE, GROUPS_FILE, OFFSETS_FILE}
        tables.in_log = not (not_in_log or ahead or is_older)
        unsure_end = max([offsets.get(name, inf) for name in not_in_log | ahead] + [older_end] * is_older, default=0)
        offsets.update(dict.fromkeys(ahead, end))  # the files lack what the log will have behind this end
        tables.stated_from = stated if (stated := persistence.stated_from) <= dispatched else 0
        if offsets.keys() - persistence.foreign or not not_in_log:  # RocketMQ writes no events, nor some of these files
            offsets.update(dict.fromkeys(persistence.missing & LOG_DERIVED, store.log.min_offset))
        return unsure_end

    def _apply_log(self, unsure_end: float) -> None:
        """Apply the events that the files do not contain, and follow the log from now on."""
        tables, store = self.tables, self.store
        for physical_offset, control in self._missed(store.dispatcher.dispatched_offset):
            if control.kind != TABLES_CARRIED or physical_offset >= unsure_end:
                tables.apply(control, self.clock.monotonic(), partial(self._lacks, physical_offset))
        store.events.recovered.clear()
        self.table_log.observe()

    def _missed(self, dispatched: int) -> list[tuple[int, Control]]:
        """The events that the files do not contain, in the order of the log."""
        offsets, foreign = self.persistence.log_offsets, self.persistence.foreign
        # An older version has written its files seldom, and recovery finds the deletions that they may lack.
        own = [offset for name, offset in offsets.items() if name not in foreign]
        if not own:
            return self.store.events.recovered
        start = min(own)
        if (missing := self.persistence.missing & LOG_DERIVED) and start < dispatched:
            log.warning("table_files_missing", files=sorted(missing), log_bytes_to_read=dispatched - start)
        return list(self.table_log.events_between(start, dispatched))

    def _lacks(self, physical_offset: int, name: str) -> bool:
        # A file without an offset was written by RocketMQ, whose tables are newer than the log.
        return self.persistence.log_offsets.get(name, inf) <= physical_offset

    def _load_offsets(self, stored: Any) -> None:
        offsets = self.tables.offsets
        offsets.load(stored)
        content = object_of(stored)
        for topic, group, queue_id in content.get(UNSURE_KEY, ()):
            offsets.append_again(topic, group, int_of(queue_id))
        for topic, group, queue_id, offset in content.get(COMMITTED_HERE_KEY, ()):
            offsets.commit(group, topic, int_of(queue_id), long_of(offset))

    async def _offsets_json(self) -> dict[str, Any]:
        offsets = self.tables.offsets
        content = offsets.content(orjson.Fragment(await encoded_offsets(offsets, logged=True)))
        here = offsets.unlogged() if self.role.is_replica else []
        return {**content, COMMITTED_HERE_KEY: here} if here else content

    async def _locks_json(self) -> dict[str, Any]:
        entries, locks = list[bytes](), self.tables.locks
        followed = locks.followed
        async for groups in in_slices(locks.groups(), ROWS_PER_SLICE, rows_of):
            entries += [orjson.dumps(group) + b":" + orjson.dumps(locks.rows_of(group)) for group, _ in groups]
        return {"followed": followed, "locks": orjson.Fragment(b"{%b}" % b",".join(entries))}

    def _with_log_offset(self, name: str, to_json: Callable[[], Mapping[str, Any]]) -> Callable[[], dict[str, Any]]:
        """The content of a table's file: the table, and what it says about the log."""
        return lambda: {**self._about_log(name), **to_json()}

    async def _in_turns(self, name: str, to_json: Callable[[], Awaitable[Mapping[str, Any]]]) -> dict[str, Any]:
        """The same of a table that is taken in several turns of the event loop.

        It says no more about the log than what was true before the first turn and is true behind the last one: it contains all
        events before the smaller log offset. Later ones are applied again, whether it contains them or not.
        """
        before, table = self._about_log(name), await to_json()
        after = self._about_log(name)
        return {**{key: min(value, after[key]) for key, value in before.items()}, **table}

    def _about_log(self, name: str) -> dict[str, int]:
        """The log offset up to which a table contains all events, and what of the tables the log contains."""
        # A slave that has just started has derived less than its files contain.
        derived = max(self.store.dispatcher.dispatched_offset, self.persistence.log_offsets.get(name, 0))
        return {
            LOG_OFFSET_KEY: min(derived, self.persistence.kept_end),
            IN_LOG_KEY: self.tables.in_log,
            STATED_FROM_KEY: self.tables.stated_from,
        }

    def _state(self, changes: Callable[[], Hashable]) -> Callable[[], Hashable]:
        """What a table's file depends on; each `REFRESH_BYTES` of the log count as a change, too."""
        tables, dispatcher = self.tables, self.store.dispatcher
        return lambda: (
            changes(),
            tables.in_log,
            tables.stated_from,
            self.persistence.kept_end,
            dispatcher.dispatched_offset // REFRESH_BYTES,
        )
