"""Numbers and rates of puts and gets, per topic and group (RocketMQ BrokerStatsManager and StoreStatsService).

Pure: `tick` sets the time, about once a second. The send and pull paths add once per BATCH, with one or two dictionary look-ups
and a few additions. A counter stores its totals at the start of each slot in which something was added. Totals do not change
between these slots, so the total at the start of any slot is known, and idle counters cost nothing at a tick.
Invariant: the marks of a counter have rising slots and totals that never decrease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

import attrs

from ..message.numbers import int_of
from ..store.config import SCHEDULE_TOPIC

# RocketMQ's three windows: the length of a slot, and the number of whole slots in the window.
MINUTE_SLOT_MS, MINUTE_SLOTS = 10_000, 6
HOUR_SLOT_MS, HOUR_SLOTS = 600_000, 6
DAY_SLOT_MS, DAY_SLOTS = 3_600_000, 24
DAY_MS = 86_400_000
RATE_MS_MIN = 1_000
"""The shortest time over which a rate is computed, so that one message in the first millisecond is not 1000 per second."""

COUNTERS_MAX = 50_000
"""The most counters of topics, and of groups on queues; one that is busy all day takes 8 KB. For more, those that have counted
nothing for a day are removed, and while there are none, further topics and groups count only towards the broker's totals."""
SWEEP_MS = HOUR_SLOT_MS
"""How often idle counters are looked for at most, in milliseconds."""
TOTALS_KEPT = 601
"""How many totals are kept, one per second: enough for the rates over 10, 60 and 600 seconds."""

_Mark = tuple[int, int, int, int]  # slot, then calls, count and size at its start


@attrs.frozen
class StatsRate:
    """The sum and the rates of one window."""

    sum: int
    tps: float
    avgpt: float
    """The mean per call (RocketMQ's name: average per time)."""


NO_RATE = StatsRate(0, 0.0, 0.0)


@attrs.frozen
class StatsView:
    """The rates of one key over the last minute, hour and day."""

    minute: StatsRate
    hour: StatsRate
    day: StatsRate


@attrs.define(eq=False)
class Counter:
    """Running totals of one key: calls (batches), count (messages) and size (bytes)."""

    born_ms: int
    slot: int = -1
    position: int = 0
    """The offset at which the last get ended, in the counter of a queue; unused in other counters."""
    calls: int = 0
    count: int = 0
    size: int = 0
    _minute: deque[_Mark] = attrs.field(factory=lambda: deque[_Mark](maxlen=MINUTE_SLOTS + 1))
    _hour: deque[_Mark] = attrs.field(factory=lambda: deque[_Mark](maxlen=HOUR_SLOTS + 1))
    _day: deque[_Mark] = attrs.field(factory=lambda: deque[_Mark](maxlen=DAY_SLOTS + 1))

    def roll(self, slot: int) -> None:
        """Store the totals at the start of `slot`, which is ten seconds long, before anything is added in it."""
        self.slot = slot
        self._minute.append((slot, self.calls, self.count, self.size))
        for marks, slot_ms in ((self._hour, HOUR_SLOT_MS), (self._day, DAY_SLOT_MS)):
            coarse = slot * MINUTE_SLOT_MS // slot_ms
            if not marks or marks[-1][0] < coarse:
                marks.append((coarse, self.calls, self.count, self.size))

    def minute(self, now_ms: int) -> tuple[int, int, int, int]:
        """Milliseconds, calls, count and size of the last minute."""
        return self._since(self._minute, MINUTE_SLOT_MS, MINUTE_SLOTS, now_ms)

    def hour(self, now_ms: int) -> tuple[int, int, int, int]:
        """Milliseconds, calls, count and size of the last hour."""
        return self._since(self._hour, HOUR_SLOT_MS, HOUR_SLOTS, now_ms)

    def day(self, now_ms: int) -> tuple[int, int, int, int]:
        """Milliseconds, calls, count and size of the last day."""
        return self._since(self._day, DAY_SLOT_MS, DAY_SLOTS, now_ms)

    def _since(self, marks: deque[_Mark], slot_ms: int, slots: int, now_ms: int) -> tuple[int, int, int, int]:
        first_slot = now_ms // slot_ms - slots
        elapsed_ms = max(now_ms - max(first_slot * slot_ms, self.born_ms), RATE_MS_MIN)
        for slot, calls, count, size in marks:
            if slot >= first_slot:  # nothing happened between the start of `first_slot` and this mark
                return elapsed_ms, self.calls - calls, self.count - count, self.size - size
        return elapsed_ms, 0, 0, 0


_QueuesOfGroup = dict[str, dict[int, Counter]]
_OfPair = dict[tuple[str, str], Counter]  # topic, group


@attrs.frozen
class Totals:
    """Running totals of the whole broker since it started."""

    at_ms: int = 0
    put: int = 0
    put_size: int = 0
    put_failed: int = 0
    got: int = 0
    found: int = 0
    missed: int = 0


@attrs.define(eq=False, repr=False)
class Stats:
    """All counters of one broker."""

    cluster: str
    started_ms: int
    _now_ms: int = attrs.field(init=False)
    _slot: int = attrs.field(init=False)
    _puts: dict[str, Counter] = attrs.field(init=False, factory=dict[str, Counter])
    _gets: dict[str, _QueuesOfGroup] = attrs.field(init=False, factory=dict[str, _QueuesOfGroup])  # by topic
    _send_backs: _OfPair = attrs.field(init=False, factory=_OfPair)
    _dead_letters: _OfPair = attrs.field(init=False, factory=_OfPair)
    _others: Counter = attrs.field(init=False)
    """Counts for all topics and groups that have no counter; nobody reads it."""
    _counters: int = attrs.field(init=False, default=0)
    """How many counters of topics and groups there are."""
    _swept_ms: int = attrs.field(init=False, default=0)
    _broker_put: Counter = attrs.field(init=False)
    _broker_get: Counter = attrs.field(init=False)
    _copies: int = attrs.field(init=False, default=0)
    _copies_size: int = attrs.field(init=False, default=0)
    """The bytes of `_copies`, which count as puts of the store and not of the broker; see `copy_put`."""
    _put_failed: int = attrs.field(init=False, default=0)
    _missed: int = attrs.field(init=False, default=0)
    _totals: deque[Totals] = attrs.field(init=False, factory=lambda: deque[Totals](maxlen=TOTALS_KEPT))
    yesterday_morning: Totals = attrs.field(init=False)
    """The totals at the last midnight but one (UTC), or at the start if that was later."""
    today_morning: Totals = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._now_ms = self.started_ms
        self._slot = self.started_ms // MINUTE_SLOT_MS
        self._others = Counter(self.started_ms)
        self._broker_put = Counter(self.started_ms)
        self._broker_get = Counter(self.started_ms)
        self.yesterday_morning = self.today_morning = Totals(self.started_ms)
        self._totals.append(Totals(self.started_ms))

    def topic_put(self, topic: str, count: int, size: int) -> None:
        """Add one batch of `count` stored messages whose records have `size` bytes together; a count of 0 adds nothing."""
        if count == 0:
            return
        self._add(self._put_of(topic), count, size)
        self._add(self._broker_put, count, size)

    def copy_put(self, topic: str, size: int) -> None:
        """Add one stored copy of a message that a consumer sent back, as RocketMQ counts it.

        It counts as a put of the store, and of its topic if that is the delay topic, but not as a put of the broker.
        """
        self._copies += 1
        self._copies_size += size
        if topic == SCHEDULE_TOPIC:
            self._add(self._put_of(topic), 1, size)

    def _put_of(self, topic: str) -> Counter:
        counter = self._puts.get(topic)
        if counter is None:
            if not self._has_room():
                return self._others
            counter = self._puts[topic] = Counter(self._now_ms)
        return counter

    def _has_room(self) -> bool:
        """Count another counter, if there may be one more."""
        if self._counters >= COUNTERS_MAX and self._now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = self._now_ms
            self._forget_idle()
        if self._counters >= COUNTERS_MAX:
            return False
        self._counters += 1
        return True

    def _forget_idle(self) -> None:
        """Remove the counters that have counted nothing for a day."""
        oldest = self._slot - DAY_MS // MINUTE_SLOT_MS
        self._puts = {topic: counter for topic, counter in self._puts.items() if counter.slot >= oldest}
        for topic, groups in list(self._gets.items()):
            for group, queues in list(groups.items()):
                groups[group] = {queue_id: counter for queue_id, counter in queues.items() if counter.slot >= oldest}
                if not groups[group]:
                    del groups[group]
            if not groups:
                del self._gets[topic]
        for table in (self._send_backs, self._dead_letters):
            for key in [key for key, counter in table.items() if counter.slot < oldest]:
                del table[key]
        self._count_counters()

    def _count_counters(self) -> None:
        queues = sum(len(queues) for groups in self._gets.values() for queues in groups.values())
        self._counters = len(self._puts) + queues + len(self._send_backs) + len(self._dead_letters)

    def put_failed(self, count: int) -> None:
        """Add messages that were refused or could not be stored."""
        self._put_failed += count

    def group_get(self, group: str, topic: str, queue_id: int, count: int, size: int, next_offset: int) -> None:
        """Add one pull that returned `count` messages with `size` bytes together and ended before `next_offset`."""
        try:
            counter = self._gets[topic][group][queue_id]
        except KeyError:
            counter = self._others
            if self._has_room():
                counter = self._gets.setdefault(topic, {}).setdefault(group, {})[queue_id] = Counter(self._now_ms)
        counter.position = next_offset
        self._add(counter, count, size)
        self._add(self._broker_get, count, size)

    def get_missed(self) -> None:
        """Add one pull that found no messages."""
        self._missed += 1

    def send_back(self, group: str, topic: str, count: int = 1) -> None:
        """Add messages that a consumer sent back, as retries or as dead letters."""
        self._add(self._of_pair(self._send_backs, topic, group), count, 0)

    def dead_letter_put(self, group: str, topic: str, count: int = 1) -> None:
        """Add messages that went to the group's dead letter topic."""
        self._add(self._of_pair(self._dead_letters, topic, group), count, 0)

    def _of_pair(self, table: _OfPair, topic: str, group: str) -> Counter:
        counter = table.get((topic, group))
        if counter is None:
            if not self._has_room():
                return self._others
            counter = table[topic, group] = Counter(self._now_ms)
        return counter

    def _add(self, counter: Counter, count: int, size: int) -> None:
        if counter.slot != self._slot:
            counter.roll(self._slot)
        counter.calls += 1
        counter.count += count
        counter.size += size

    def tick(self, now_ms: int) -> None:
        """Set the time, about once a second: `started_ms` and the time that has passed since, whatever the wall clock says."""
        before, self._now_ms = self._now_ms, now_ms
        self._slot = now_ms // MINUTE_SLOT_MS
        totals = self.totals()
        self._totals.append(totals)
        if now_ms // DAY_MS > before // DAY_MS:
            self.yesterday_morning, self.today_morning = self.today_morning, totals

    def totals(self) -> Totals:
        """The totals since the start."""
        put, get = self._broker_put, self._broker_get
        puts, put_size = put.count + self._copies, put.size + self._copies_size
        return Totals(self._now_ms, puts, put_size, self._put_failed, get.count, get.calls, self._missed)

    def per_second(self, what: Callable[[Totals], int], seconds: int) -> float:
        """The growth of a total per second over the last `seconds`, or since the start if that was later."""
        last = self._totals[-1]
        first = self._totals[0]
        for earlier in reversed(self._totals):
            if last.at_ms - earlier.at_ms >= seconds * 1000:
                first = earlier
                break
        elapsed_ms = last.at_ms - first.at_ms
        return (what(last) - what(first)) * 1000 / elapsed_ms if elapsed_ms else 0.0

    def topic_put_tps(self, topic: str) -> float:
        """How many messages per second were put into a topic, over the last minute."""
        counter = self._puts.get(topic)
        return self._rate((counter,), _count, Counter.minute).tps if counter is not None else 0.0

    def group_get_tps(self, group: str, topic: str) -> float:
        """How many messages per second a group got from a topic, over the last minute."""
        return self._rate(self._gets.get(topic, {}).get(group, {}).values(), _count, Counter.minute).tps

    def got_to(self, group: str, topic: str, queue_id: int) -> int:
        """The offset at which the group's last pull of a queue ended; 0 if there was none since the start."""
        counter = self._gets.get(topic, {}).get(group, {}).get(queue_id)
        return counter.position if counter is not None else 0

    def view(self, stats_name: str, key: str) -> StatsView | None:
        """The rates of a key in one of RocketMQ's statistics sets; None if the set is not kept or has no counter for the key.

        Keys: a topic; `topic@group`; `topic@queueId@group` for queues; the cluster's name for the broker's own sets.
        """
        kept = _SETS.get(stats_name)
        if kept is None:
            return None
        find, what = kept
        counters = find(self, key)
        if not counters:
            return None
        windows = (Counter.minute, Counter.hour, Counter.day)
        return StatsView(*(self._rate(counters, what, window) for window in windows))

    def _rate(
        self,
        counters: Iterable[Counter],
        what: Callable[[int, int], int],
        window: Callable[[Counter, int], tuple[int, int, int, int]],
    ) -> StatsRate:
        total, total_calls, longest_ms = 0, 0, RATE_MS_MIN
        for counter in counters:
            elapsed_ms, calls, count, size = window(counter, self._now_ms)
            total += what(count, size)
            total_calls += calls
            longest_ms = max(longest_ms, elapsed_ms)
        return StatsRate(total, total * 1000 / longest_ms, total / total_calls) if total_calls else NO_RATE

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic."""
        self._puts.pop(topic, None)
        self._gets.pop(topic, None)
        for table in (self._send_backs, self._dead_letters):
            for key in [key for key in table if key[0] == topic]:
                del table[key]
        self._count_counters()

    def forget_group(self, group: str) -> None:
        """Remove the counters of a deleted group."""
        for groups in self._gets.values():
            groups.pop(group, None)
        for table in (self._send_backs, self._dead_letters):
            for key in [key for key in table if key[1] == group]:
                del table[key]
        self._count_counters()

    def puts_of(self, topic: str) -> list[Counter]:
        counter = self._puts.get(topic)
        return [] if counter is None else [counter]

    def gets_of_group(self, key: str) -> list[Counter]:
        topic, _, group = key.partition("@")
        return list(self._gets.get(topic, {}).get(group, {}).values())

    def gets_of_queue(self, key: str) -> list[Counter]:
        topic, _, rest = key.partition("@")
        queue_id, _, group = rest.partition("@")
        try:
            counter = self._gets.get(topic, {}).get(group, {}).get(int_of(queue_id))
        except ValueError:  # the key of the request names no queue
            counter = None
        return [] if counter is None else [counter]

    def send_backs_of(self, key: str) -> list[Counter]:
        return _pair(self._send_backs, key)

    def dead_letters_of(self, key: str) -> list[Counter]:
        return _pair(self._dead_letters, key)

    @property
    def puts(self) -> Mapping[str, Counter]:
        """What was stored since the start, by topic."""
        return self._puts

    @property
    def gets(self) -> Mapping[str, Mapping[str, Mapping[int, Counter]]]:
        """What was handed out since the start, by topic, group and queue id."""
        return self._gets

    @property
    def dead_letters(self) -> Mapping[tuple[str, str], Counter]:
        """The messages that became dead letters since the start, by topic and group."""
        return self._dead_letters

    def broker_puts(self, key: str) -> list[Counter]:
        return [self._broker_put] if key == self.cluster else []

    def broker_gets(self, key: str) -> list[Counter]:
        return [self._broker_get] if key == self.cluster else []


def _pair(table: _OfPair, key: str) -> list[Counter]:
    topic, _, group = key.partition("@")
    counter = table.get((topic, group))
    return [] if counter is None else [counter]


def _count(count: int, _size: int) -> int:
    return count


def _size(_count: int, size: int) -> int:
    return size


_SETS: dict[str, tuple[Callable[[Stats, str], list[Counter]], Callable[[int, int], int]]] = {
    "TOPIC_PUT_NUMS": (Stats.puts_of, _count),
    "TOPIC_PUT_SIZE": (Stats.puts_of, _size),
    "GROUP_GET_NUMS": (Stats.gets_of_group, _count),
    "GROUP_GET_SIZE": (Stats.gets_of_group, _size),
    "QUEUE_GET_NUMS": (Stats.gets_of_queue, _count),
    "QUEUE_GET_SIZE": (Stats.gets_of_queue, _size),
    "SNDBCK_PUT_NUMS": (Stats.send_backs_of, _count),
    "DLQ_PUT_NUMS": (Stats.dead_letters_of, _count),
    "BROKER_PUT_NUMS": (Stats.broker_puts, _count),
    "BROKER_GET_NUMS": (Stats.broker_gets, _count),
}
