"""Delivery of delayed messages when they are due (RocketMQ ScheduleMessageService); `divert` puts them into the delay topic.

A delayed message waits in queue level - 1 of `SCHEDULE_TOPIC_XXXX`; its tags code there is its due time by the wall clock. A
copy is put into the real topic at that time; earlier only, as in RocketMQ, if since then its level was shortened or the clock
set back. Only the first waiting message of each level is checked, so empty levels cost nothing. Levels that the configuration
no longer has are delivered as long as messages wait there. While any message waits, the clock is read once a second, because
wall clocks jump.
Delivery is at least once: after a crash, the deliveries of the last `flushDelayOffsetInterval` may be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import accumulate
from math import inf
from typing import Any

import attrs
import trio

from ..message.control import DELAYS_DELIVERED, Control
from ..message.data_version import DataVersion
from ..message.layout import decode_record, encode_host
from ..message.message import IncomingMessage
from ..message.numbers import LONG_MAX, int_of, is_digits, long_of
from ..message.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC, SEND_NUMBER, WAIT, decode_properties
from ..remoting.errors import RequestRefused
from ..store.config import SCHEDULE_TOPIC
from ..store.derived.dispatch import Derivable
from ..store.errors import UnreadableLog
from ..store.message_store import MessageStore
from ..store.statuses import PutStatus
from ..world.clock import Clock
from ..world.events import get_logger
from .divert import divert_delayed, encode_as_found
from .json_values import table_of
from .role import LiveRole
from .stats import Stats
from .tables.topics import HALF_TOPIC, OP_HALF_TOPIC

log = get_logger(__name__)

BATCH_MAX = 64
"""The most messages delivered in one turn of the event loop."""
BATCH_BYTES_MAX = 1 << 20
"""A turn that has delivered this many bytes delivers no further message."""
CLOCK_CHECK_SECONDS = 1.0
"""How often the wall clock is read while a message waits: a jump forward is noticed after at most this time."""
RETRY_SECONDS = 1.0
"""The pause after a failed put or read."""
COPY_SECONDS_MAX = 30.0
"""How long the messages of a level wait for another node's copy of a damaged record, which is then passed over."""
POSTPONED_MS = 10_000
"""A copy whose queue takes none waits again at the first level with at least this delay."""
_NEVER_DELIVERABLE = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


def delivery_of(record: memoryview) -> IncomingMessage | None:
    """The message to deliver for a delayed record; None if the record must not be delivered."""
    stored = decode_record(record)
    properties = dict(stored.properties)
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "0")
    if topic is None or topic in (HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC) or not is_digits(queue_id):
        return None
    properties.pop(DELAY, None)
    properties.pop(SEND_NUMBER, None)  # the delayed message has it: the delivery is no repetition of the send
    properties[WAIT] = "false"
    return IncomingMessage(
        topic=topic,
        queue_id=int(queue_id),
        body=stored.body,
        properties=encode_as_found(properties),
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_timestamp=stored.born_timestamp,
        born_host=encode_host(*stored.born_host),
        reconsume_times=stored.reconsume_times,
        prepared_transaction_offset=stored.prepared_transaction_offset,
    )


@attrs.define(eq=False)
class _Level:
    """The state of delivery from one level's queue."""

    level: int
    delay_ms: int
    """The delay that the configuration gives the level; `LONG_MAX` if it has no such level any more."""
    offset: int = 0
    """The queue offset of the next message to deliver."""
    due_ms: int | None = None
    """When the message at `offset` is due; None if it has not been read yet or there is none."""
    stated_ms: int = 0
    """The due time in that message's tags code, which is too late if the clock was set back since."""
    ahead_ms: int = 0
    """By how much the due times of waiting messages are reduced, because the clock was set back after they were stored."""
    damaged: tuple[int, float] = (-1, 0.0)
    """The physical offset of the last record that was found damaged, and when that was by the monotonic clock."""

    def due_of(self, due_ms: int, now_ms: int) -> int:
        """When a message with this tags code is due: at most the level's whole delay from now."""
        latest = now_ms + self.delay_ms
        if due_ms <= latest:
            return due_ms
        # The clock was set back after the message was stored. All messages stored before that become due earlier by as much.
        self.ahead_ms = max(self.ahead_ms, due_ms - latest)
        return due_ms - self.ahead_ms


@attrs.define(eq=False, repr=False)
class DelayDelivery:
    """Delivers the delayed messages of one broker."""

    store: MessageStore
    clock: Clock
    role: LiveRole
    stats: Stats
    version: DataVersion = attrs.field(factory=DataVersion)
    changes: int = 0
    """Counts changes of the positions."""
    on_delivered: Callable[[], None] = lambda: None
    """Called after a delivery has changed the positions."""
    queue_nums: Callable[[str], int] = lambda _: 0
    """How many queues of a topic may be read; 0 if that is unknown."""
    adopt: Callable[[str, int], object] = lambda _topic, _queues: None
    """Creates a topic with so many queues, because a message was put into it and it is not in the table."""
    mend: Callable[[int], bool] = lambda _: False
    """Asks for another node's copy of the record at a physical offset; returns False where nothing replaces it."""
    logged: Mapping[str, int] = attrs.field(factory=dict[str, int])
    """The positions in the log; the deliveries behind them may be truncated, and are repeated then."""
    _levels: dict[int, _Level] = attrs.field(factory=dict[int, _Level])
    """The configured levels, and others that have messages or a position."""
    _next: int = 0
    """How many levels come before the one to check first in the next round."""
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _durable: dict[str, Any] = attrs.field(init=False)
    _durable_changes: int = 0
    _candidate: tuple[dict[str, Any], int, int] | None = None
    """Positions, with `changes` and the log's end at the same moment; durable when the log is flushed up to that end."""

    def __attrs_post_init__(self) -> None:
        configured = range(1, len(self.store.config.delay_levels_ms) + 1)
        for level in (*configured, *(queue_id + 1 for queue_id in self.store.queue_ids(SCHEDULE_TOPIC))):
            self._level(level)
        self._durable = self.to_json()
        self.logged = self._levels_json()
        self.store.dispatcher.on_arrival.append(self.arrived)

    def _level(self, number: int) -> _Level:
        level = self._levels.get(number)
        if level is None:
            delays = self.store.config.delay_levels_ms
            level = self._levels[number] = _Level(number, delays[number - 1] if number <= len(delays) else LONG_MAX)
        return level

    def offsets(self) -> dict[int, int]:
        """The next queue offset to deliver, by level."""
        return {level.level: level.offset for level in self._levels.values()}

    def _levels_json(self) -> dict[str, int]:
        return {str(level): offset for level, offset in self.offsets().items()}

    def event(self) -> Control:
        """The event that says how far the levels are delivered."""
        return Control(DELAYS_DELIVERED, {"levels": self._levels_json()})

    def apply(self, levels: Mapping[str, int], *, own: bool) -> None:
        """Take the positions of the log; a node that delivers is `own`, and further by itself."""
        self.logged = levels
        if not own:
            self.load({"offsetTable": levels})

    def drop_unlogged(self) -> None:
        """Go back to the positions of the log, because another node may deliver now."""
        self.load({"offsetTable": self.logged})

    def offset_of(self, number: int) -> int:
        """The next queue offset to deliver at a level."""
        return self._level(number).offset

    def load(self, stored: Any) -> None:
        """Replace the positions with those of a file or of the master, limited to the offsets that the queues have."""
        table = table_of(table_of(stored, "the content").get("offsetTable"), "offsetTable")
        store = self.store
        for key in table:
            if (number := int_of(key)) > 0:
                self._level(number)
        for level in self._levels.values():
            low = store.min_offset(SCHEDULE_TOPIC, level.level - 1)
            high = store.max_offset(SCHEDULE_TOPIC, level.level - 1)
            level.offset = min(max(long_of(table.get(str(level.level), 0)), low), high)
            level.due_ms = None
        self.logged = self._levels_json()
        before, self._durable, self._candidate = self._durable, self.to_json(), None
        if self._durable["offsetTable"] != before["offsetTable"]:
            # A slave saves the positions of its master, because it may be the next master.
            self.changes += 1
            self._durable_changes = self.changes
        self._wake.set()

    def role_changed(self) -> None:
        """Check every level again, because the broker may have been a replica, which delivers nothing."""
        for level in self._levels.values():
            level.due_ms = None
        self._wake.set()

    def to_json(self) -> dict[str, Any]:
        """The positions, as slaves copy them."""
        return {"dataVersion": self.version.to_json(), "offsetTable": self.offsets()}

    def durable_json(self) -> dict[str, Any]:
        """The positions that may be saved, because the deliveries before them are on the medium."""
        return self._durable

    def durable_changes(self) -> int:
        """Advance `durable_json` to the deliveries that are on the medium; return how often it has changed."""
        log_ = self.store.log
        if self._candidate is None and self._durable_changes != self.changes:
            self._candidate = self.to_json(), self.changes, log_.max_offset
        if self._candidate is not None and log_.committed_offset >= self._candidate[2]:
            self._durable, self._durable_changes, _ = self._candidate
            self._candidate = None
        return self._durable_changes

    def arrived(self, records: list[Derivable]) -> None:
        """Wake the delivery if a level that was empty has a message now."""
        for record in records:
            if record[0] == SCHEDULE_TOPIC and self._level(record[1] + 1).due_ms is None:
                self._wake.set()
                return

    async def run(self) -> None:
        """Deliver messages when they are due, until cancelled; a replica delivers nothing."""
        while True:
            pause = self.round()
            if pause == 0:
                await trio.lowlevel.checkpoint()
                continue
            with trio.move_on_after(pause):
                await self._wake.wait()
            self._wake = trio.Event()

    def round(self) -> float:
        """Deliver one batch of the next level that has a due message; return the seconds until the next check is needed."""
        now = self.clock.wall_ms()
        if not self.role.takes_puts:
            return inf  # until the role changes
        pause, levels = inf, list(self._levels.values())
        for at in range(len(levels)):
            pause = min(pause, self._round_of(levels[(self._next + at) % len(levels)], now))
            if pause == 0:
                self._next = (self._next + at + 1) % len(levels)
                break
        return pause

    def _round_of(self, level: _Level, now: int) -> float:
        if level.due_ms is not None:
            level.due_ms = min(level.due_ms, level.due_of(level.stated_ms, now))
            if level.due_ms > now:
                return min((level.due_ms - now) / 1000, CLOCK_CHECK_SECONDS)
        try:
            units = self._waiting(level)
        except OSError as error:
            log.warning("delayed_queue_unreadable", level=level.level, reason=error.strerror or str(error))
            return RETRY_SECONDS
        if not units:
            level.due_ms, level.ahead_ms = None, 0
            return inf
        count = 1 if level.due_ms is not None else 0  # the first one was found due above
        level.due_ms = None
        for _, _, tags_code in units[count:]:
            due_ms = level.due_of(tags_code, now)
            if due_ms > now:
                level.due_ms, level.stated_ms = due_ms, tags_code
                break
            count += 1
        if count == 0:
            return min(((level.due_ms or now) - now) / 1000, CLOCK_CHECK_SECONDS)
        fitting = _fitting(units[:count])
        if fitting < count:
            level.due_ms = None  # the next one is due too
        return self._deliver(level, units[:fitting])

    def _waiting(self, level: _Level) -> list[tuple[int, int, int]]:
        store, queue_id = self.store, level.level - 1
        low = store.min_offset(SCHEDULE_TOPIC, queue_id)
        if level.offset < low:
            log.error("delayed_messages_deleted", level=level.level, messages=low - level.offset, first=level.offset, next=low)
            level.offset, level.due_ms = low, None
        return store.units(SCHEDULE_TOPIC, queue_id, level.offset, BATCH_MAX)

    def _deliver(self, level: _Level, units: list[tuple[int, int, int]]) -> float:
        store = self.store
        steps: list[IncomingMessage | None] = []
        for physical_offset, size, _ in units:
            record = self._sound_record(physical_offset, size)
            if record is None and physical_offset >= store.log.min_offset:  # else it has expired
                if self._waits_for_copy(level, physical_offset):
                    break
                log.error("delayed_message_damaged", level=level.level, physical_offset=physical_offset)
            message = None if record is None else self._readable(delivery_of(record))
            if message is not None and store.events.is_deleted(message.topic, physical_offset):
                log.info("delayed_message_of_deleted_topic", topic=message.topic, physical_offset=physical_offset)
                message = None
            steps.append(message)
        messages = [message for message in steps if message is not None]
        batch = store.put(messages) if messages else None
        outcomes = iter(()) if batch is None else zip(batch.statuses, batch.sizes, strict=True)
        delivered: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        done = 0
        for message in steps:
            if message is not None:
                status, size = next(outcomes)
                if status is PutStatus.MESSAGE_ILLEGAL:
                    status, size = self._put_shorter(message)
                if status in _NEVER_DELIVERABLE:
                    log.error("delayed_message_undeliverable", topic=message.topic, status=status.name)
                elif status is PutStatus.CREATE_MAPPED_FILE_FAILED and self._postpone(message):
                    log.warning("delayed_message_postponed", level=level.level, topic=message.topic)
                elif not status.stored:
                    break
                else:
                    delivered[message.topic] += 1
                    sizes[message.topic] += size
                    if not self.queue_nums(message.topic):
                        self._adopt(message)
            done += 1
        for topic, count in delivered.items():
            self.stats.topic_put(topic, count, sizes[topic])
        if done:
            level.offset += done
            self.changes += 1
            self.on_delivered()
        if done == len(units):
            return 0
        if done < len(steps):
            log.warning("delayed_delivery_failed", level=level.level, reason=batch.remark if batch is not None else "")
        level.due_ms = None
        return RETRY_SECONDS

    def _sound_record(self, physical_offset: int, size: int) -> memoryview | None:
        """A record of the log; None if it is damaged or has expired. The copy of a damaged one would have a valid CRC."""
        try:
            record = self.store.log.read(physical_offset, size)
        except UnreadableLog:
            return None
        return record if len(record) == size and self.store.is_sound(physical_offset, record) else None

    def _waits_for_copy(self, level: _Level, physical_offset: int) -> bool:
        """Ask for another node's copy of a damaged record; return whether the level waits for it."""
        now = self.clock.monotonic()
        if level.damaged[0] != physical_offset:
            level.damaged = physical_offset, now
        return now - level.damaged[1] < COPY_SECONDS_MAX and self.mend(physical_offset)

    def _adopt(self, message: IncomingMessage) -> None:
        """Let the topic of a copy exist; one that is refused has its messages once somebody creates it."""
        try:
            self.adopt(message.topic, message.queue_id + 1)
        except RequestRefused as refusal:
            log.error("delayed_topic_not_created", topic=message.topic, reason=refusal.remark)

    def _readable(self, message: IncomingMessage | None) -> IncomingMessage | None:
        """Move a message whose queue was taken away since it was delayed to one that may be read."""
        if message is not None and message.queue_id >= (queue_nums := self.queue_nums(message.topic)) > 0:
            message.queue_id %= queue_nums
        return message

    def _postpone(self, message: IncomingMessage) -> bool:
        """Let a copy wait again whose queue takes none now, so that it does not hold up its level; return whether it does."""
        delays = self.store.config.delay_levels_ms
        level = next((level for level, delay_ms in enumerate(delays, 1) if delay_ms >= POSTPONED_MS), len(delays))
        message.properties = encode_as_found({**decode_properties(message.properties), DELAY: str(level)})
        divert_delayed(message, len(delays))
        return self.store.put([message]).statuses[0].stored

    def _put_shorter(self, message: IncomingMessage) -> tuple[PutStatus, int]:
        """Put a copy that may be too large for the log again, without what only the delay needs; return its status and size.

        So it is no larger than the message that waited. A copy that is never stored would hold up all behind it.
        """
        properties = decode_properties(message.properties)
        properties.pop(REAL_TOPIC, None)
        properties.pop(REAL_QUEUE_ID, None)
        message.properties = encode_as_found(properties)
        batch = self.store.put([message])
        return batch.statuses[0], batch.sizes[0]


def _fitting(units: list[tuple[int, int, int]]) -> int:
    """How many of the messages are delivered in one turn."""
    ends = accumulate(size for _, size, _ in units)
    return next((count for count, end in enumerate(ends, 1) if end >= BATCH_BYTES_MAX), len(units))
