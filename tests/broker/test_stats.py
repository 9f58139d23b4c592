"""Counters and their windows, with time handed in."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.broker import stats as module
from ledgermq.broker.stats import DAY_MS, Counter, Stats, StatsRate
from ledgermq.testing.embedded import open_virtual
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.scheduler import seeded_run

START_MS = 1_700_000_000_000  # the start of a ten-second slot, 22:13:20 UTC


def test_one_batch_counts_in_every_window() -> None:
    """A batch put a few seconds ago is in the minute, the hour and the day."""
    stats = Stats("c1", START_MS)

    stats.topic_put("T1", 10, 2000)
    stats.tick(START_MS + 5_000)

    nums, size = stats.view("TOPIC_PUT_NUMS", "T1"), stats.view("TOPIC_PUT_SIZE", "T1")
    assert nums is not None
    assert size is not None
    assert nums.minute == nums.hour == nums.day == StatsRate(10, 2.0, 10.0)
    assert size.minute == StatsRate(2000, 400.0, 2000.0)


def test_what_is_older_than_the_window_no_longer_counts() -> None:
    """After 70 seconds a put has left the minute but not the hour; after 25 hours it has left the day."""
    stats = Stats("c1", START_MS)
    stats.topic_put("T1", 10, 0)

    stats.tick(START_MS + 70_000)
    later = stats.view("TOPIC_PUT_NUMS", "T1")
    stats.tick(START_MS + 25 * 3_600_000)
    much_later = stats.view("TOPIC_PUT_NUMS", "T1")

    assert later is not None
    assert much_later is not None
    assert (later.minute.sum, later.hour.sum, later.day.sum) == (0, 10, 10)
    assert (much_later.minute.sum, much_later.hour.sum, much_later.day.sum) == (0, 0, 0)


def test_steady_flow_shows_its_rate() -> None:
    """A hundred messages a second show as a hundred a second in each window and in the broker's own rates."""
    stats = Stats("c1", START_MS)

    for second in range(1, 701):
        stats.topic_put("T1", 100, 100)
        stats.tick(START_MS + second * 1000)

    assert abs(stats.topic_put_tps("T1") - 100.0) < 2.0
    assert stats.per_second(lambda totals: totals.put, 10) == 100.0
    assert stats.per_second(lambda totals: totals.put, 600) == 100.0


@given(st.lists(st.tuples(st.integers(0, 45_000), st.integers(1, 9)), max_size=60))
def test_minute_window_is_exact(steps: list[tuple[int, int]]) -> None:
    """The minute holds exactly the puts since the start of the slot six slots ago, however they fell."""
    stats = Stats("c1", START_MS)
    now, puts = START_MS, list[tuple[int, int]]()
    for wait_ms, count in steps:
        now += wait_ms
        stats.tick(now)
        stats.topic_put("T1", count, 0)
        puts.append((now, count))

    view = stats.view("TOPIC_PUT_NUMS", "T1")

    expected = sum(count for at, count in puts if at >= (now // 10_000 - 6) * 10_000)
    assert (view.minute.sum if view is not None else 0) == expected


def test_group_rate_adds_its_queues() -> None:
    """GROUP_GET_NUMS is the sum over queues; QUEUE_GET_NUMS is one of them."""
    stats = Stats("c1", START_MS)
    stats.group_get("g1", "T1", 0, 6, 600, 9)
    stats.group_get("g1", "T1", 1, 4, 400, 9)
    stats.tick(START_MS + 10_000)

    group, queue = stats.view("GROUP_GET_NUMS", "T1@g1"), stats.view("QUEUE_GET_SIZE", "T1@1@g1")

    assert group is not None
    assert queue is not None
    assert group.minute == StatsRate(10, 1.0, 5.0)
    assert queue.minute.sum == 400
    assert stats.group_get_tps("g1", "T1") == 1.0


def test_unknown_sets_and_keys_have_no_view() -> None:
    """A set that is not kept and a key that never counted are distinguished from zero."""
    stats = Stats("c1", START_MS)

    assert stats.view("NO_SUCH_SET", "T1") is None
    assert stats.view("TOPIC_PUT_NUMS", "T1") is None
    assert stats.view("QUEUE_GET_NUMS", "T1@x@g1") is None
    assert stats.view("BROKER_PUT_NUMS", "other") is None
    assert stats.view("BROKER_PUT_NUMS", "c1") is not None


def test_batch_of_which_nothing_was_stored_is_nothing() -> None:
    """An empty batch leaves no counter behind."""
    stats = Stats("c1", START_MS)

    stats.topic_put("T1", 0, 0)

    assert stats.view("TOPIC_PUT_NUMS", "T1") is None


def test_midnight_moves_the_mornings() -> None:
    """At each UTC midnight today's morning becomes yesterday's."""
    stats = Stats("c1", START_MS)
    stats.topic_put("T1", 5, 0)

    stats.tick(START_MS + DAY_MS // 2)
    stats.topic_put("T1", 7, 0)
    stats.tick(START_MS + DAY_MS + DAY_MS // 2)

    assert stats.yesterday_morning.put == 5
    assert stats.today_morning.put == 12


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_time_of_statistics_passes_though_the_wall_clock_is_set(jump_ms: int) -> None:
    """Rates are of the time that has passed."""

    async def main() -> int:
        async with open_virtual() as cluster:
            (broker,) = cluster.brokers
            assert isinstance(broker.world.clock, SimClock)
            before_ms = broker.stats.totals().at_ms
            broker.world.clock.jump(jump_ms)
            await trio.sleep(60)
            return broker.stats.totals().at_ms - before_ms

    assert seeded_run(main, seed=1) == pytest.approx(60_000, abs=2_000)


def test_deleted_names_lose_their_counters() -> None:
    """Forgetting a topic or a group drops what was counted for it, and nothing else."""
    stats = Stats("c1", START_MS)
    for topic in ("T1", "T2"):
        stats.topic_put(topic, 1, 1)
        for group in ("g1", "g2"):
            stats.group_get(group, topic, 0, 1, 1, 9)
            stats.send_back(group, topic)
            stats.dead_letter_put(group, topic)

    stats.forget_topic("T1")
    stats.forget_group("g1")

    assert stats.view("TOPIC_PUT_NUMS", "T1") is None
    assert stats.view("TOPIC_PUT_NUMS", "T2") is not None
    for name in ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS", "DLQ_PUT_NUMS"):
        assert [key for key in ("T1@g1", "T1@g2", "T2@g1", "T2@g2") if stats.view(name, key)] == ["T2@g2"]


def test_totals_tell_found_from_missed() -> None:
    """Pulls that bring messages count as found, empty ones as missed, refused puts as failed."""
    stats = Stats("c1", START_MS)
    stats.group_get("g1", "T1", 0, 32, 3200, 9)
    stats.get_missed()
    stats.put_failed(3)

    totals = stats.totals()

    assert (totals.got, totals.found, totals.missed, totals.put_failed) == (32, 1, 1, 3)


def test_counter_keeps_a_bounded_number_of_marks() -> None:
    """A counter that is busy for days holds no more marks than its windows need."""
    counter = Counter(0)

    for slot in range(100_000):
        counter.roll(slot)
        counter.count += 1

    assert counter.minute(1_000_000_000)[2] == 6 + 0  # slots 99,994 to 99,999; slot 100,000 has just begun
    assert counter.day(1_000_000_000)[2] <= 25 * 360


def test_counters_are_bounded_and_idle_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound only the totals of the broker grow; what has counted nothing for a day is forgotten."""
    monkeypatch.setattr(module, "COUNTERS_MAX", 4)
    stats = Stats("c", 0)
    stats.topic_put("T", 1, 10)
    stats.group_get("g", "T", 0, 1, 10, 1)
    stats.send_back("g", "T")
    stats.dead_letter_put("g", "T")

    for number in range(5):
        stats.topic_put(f"T{number}", 1, 10)
        stats.group_get(f"g{number}", "T", 0, 1, 10, 1)
        stats.send_back(f"g{number}", "T")

    assert stats.view("TOPIC_PUT_NUMS", "T0") is None
    assert stats.view("GROUP_GET_NUMS", "T@g0") is None
    assert (stats.totals().put, stats.totals().got) == (6, 6)
    stats.forget_topic("T")
    stats.topic_put("T0", 1, 10)
    assert stats.view("TOPIC_PUT_NUMS", "T0") is not None
    for number in range(1, 4):
        stats.topic_put(f"T{number}", 1, 10)
    stats.tick(25 * 3600 * 1000)
    stats.topic_put("T0", 1, 10)
    stats.group_get("g", "T", 0, 1, 10, 1)
    assert stats.view("GROUP_GET_NUMS", "T@g") is not None
    assert stats.view("TOPIC_PUT_NUMS", "T1") is None
