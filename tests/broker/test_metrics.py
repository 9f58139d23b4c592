"""The metrics of a broker."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ledgermq.broker.monitoring import monitoring_of
from ledgermq.broker.tables.clients import Member
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.remoting import metrics as metrics_module
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.metrics import SLICE_SERIES, Latencies, LoopTurns
from ledgermq.store.message_store import MessageStore

from ..turns import counted
from .desk import Desk, open_desk, until

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
OURS = {"cluster": "c1", "node_type": "broker", "node_id": "b1"}


async def text_of(desk: Desk) -> str:
    clock = desk.broker.world.clock
    latencies = desk.broker.dispatcher.latencies or Latencies(clock)
    monitoring = monitoring_of(desk.broker, LoopTurns(clock), latencies)
    return "".join([part.decode() async for part in monitoring.text()])


def samples(text: str) -> Samples:
    """What Prometheus's own parser reads: values by name and by the labels beside those of the broker."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert OURS.items() <= sample.labels.items()
            found[sample.name, frozenset(sample.labels.items() - OURS.items())] = sample.value
    return found


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


async def test_messages_lags_and_members_have_the_names_of_rocketmq(tmp_path: Path) -> None:
    """A board that was made for RocketMQ 5 finds its series."""
    async with open_desk(str(tmp_path)) as desk:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        peer = desk.peer()
        for _ in range(3):
            peer.send("T1")
        await desk.settled()
        desk.broker.offsets.commit("g1", "T1", 0, 1)
        found = samples(await text_of(desk))
        desk.broker.store.writability.disk_full = True
        full = samples(await text_of(desk))

    assert found["rocketmq_messages_in_total", labels(topic="T1")] == 3
    assert found["rocketmq_throughput_in_total", labels(topic="T1")] > 300
    assert found["rocketmq_consumer_lag_messages", labels(topic="T1", consumer_group="g1")] == 2
    assert found["rocketmq_storage_size", labels()] > 300
    assert found["rocketmq_storage_dispatch_behind_bytes", labels()] == 0
    assert [(of["ledgermq_broker_takes_messages", labels()], of["ledgermq_disk_full", labels()]) for of in (found, full)] == [
        (1, 0),
        (0, 1),
    ]


async def test_the_age_of_what_a_group_lags_behind_is_that_of_its_oldest_message(tmp_path: Path) -> None:
    """Whatever the queue; a group that has read everything lags behind nothing."""
    async with open_desk(str(tmp_path)) as desk:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        for queue_id in (0, 1):
            desk.put("T1", queue_id=queue_id)
        await desk.settled()
        stored = desk.broker.store.store_time("T1", 1, 0)
        desk.broker.offsets.commit("behind", "T1", 0, 1)
        desk.broker.offsets.commit("behind", "T1", 1, 0)
        desk.broker.offsets.commit("done", "T1", 0, 1)
        before = desk.broker.world.clock.wall_ms()
        found = samples(await text_of(desk))
        after = desk.broker.world.clock.wall_ms()

    age = found["rocketmq_consumer_lag_latency", labels(topic="T1", consumer_group="behind")]
    assert before - stored <= age <= after - stored
    assert found["rocketmq_consumer_lag_latency", labels(topic="T1", consumer_group="done")] == 0


async def test_what_a_group_lags_behind_on_a_wide_topic_is_read_in_several_turns(tmp_path: Path) -> None:
    """Its series are the sum over all of its queues, and the age of the oldest message in any of them."""
    wide = 2 * SLICE_SERIES + 1
    async with open_desk(str(tmp_path)) as desk:
        desk.broker.topics.put(TopicConfig("T1", wide, wide))
        for queue_id in (wide - 1, 0):
            desk.put("T1", queue_id=queue_id)
        await desk.settled()
        stored = desk.broker.store.store_time("T1", wide - 1, 0)
        for queue_id in range(wide):
            desk.broker.offsets.commit("behind", "T1", queue_id, 0)
        before = desk.broker.world.clock.wall_ms()
        found = samples(await text_of(desk))
        after = desk.broker.world.clock.wall_ms()

    key = labels(topic="T1", consumer_group="behind")
    assert found["rocketmq_consumer_lag_messages", key] == 2
    assert before - stored <= found["rocketmq_consumer_lag_latency", key] <= after - stored


async def test_what_was_deleted_before_a_group_had_read_it_is_counted(tmp_path: Path) -> None:
    async with open_desk(str(tmp_path)) as desk:
        desk.broker.offsets.note_lost("g1", "T1", 7)
        found = samples(await text_of(desk))

    assert found["ledgermq_messages_deleted_unread_total", labels(topic="T1", consumer_group="g1")] == 7


async def test_requests_are_measured_by_their_code(tmp_path: Path) -> None:
    """Those that a handler takes together, those that it takes one by one, and those of a task; unknown codes are not kept."""
    async with open_desk(str(tmp_path)) as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        desk.broker.dispatcher.latencies = Latencies(desk.broker.world.clock)
        peer = desk.peer()
        for _ in range(3):
            peer.send("T1")
        await desk.settled()
        peer.pulled("T1")
        await peer.ask_waiting(
            RequestCode.QUERY_MESSAGE, {"topic": "T1", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}
        )
        peer.ask(30_000)
        found = samples(await text_of(desk))

    counts = {dict(key)["request_code"]: value for (name, key), value in found.items() if name == "rocketmq_rpc_latency_count"}
    assert counts == {
        str(code.value): count
        for code, count in ((RequestCode.SEND_MESSAGE_V2, 3), (RequestCode.PULL_MESSAGE, 1), (RequestCode.QUERY_MESSAGE, 1))
    }


async def test_a_scrape_of_ten_thousand_topics_holds_no_turn_for_long(tmp_path: Path) -> None:
    """20 ms of processor time; four series for each topic, and their ages from the files."""
    async with open_desk(str(tmp_path)) as desk:
        for number in range(10_000):
            desk.broker.stats.topic_put(f"topic{number}", 1, 100)
            desk.broker.offsets.commit("g1", f"topic{number}", 0, 0)
        await until(lambda: not desk.broker.offsets.logged)  # the turns in which commits are appended and applied are others
        gc.collect()
        gc.freeze()
        try:
            with counted(time.thread_time_ns) as turns:
                text = await text_of(desk)
        finally:
            gc.unfreeze()

    assert text.count("\n") > 40_000
    assert turns.most < 20_000_000


async def test_a_scrape_of_many_topics_takes_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn formats more than a slice, and the text of a metric in several parts has one head."""
    async with open_desk(str(tmp_path)) as desk:
        stats, offsets = desk.broker.stats, desk.broker.offsets
        for number in range(10_000):
            stats.topic_put(f"topic{number}", 1, 100)
            offsets.commit("g1", f"topic{number}", 0, 0)
        asked = 0

        def max_offset(store: MessageStore, topic: str, queue_id: int) -> int:
            nonlocal asked
            asked += 1
            return 0

        monkeypatch.setattr(MessageStore, "max_offset", max_offset)
        with counted(lambda: asked) as turns:
            text = await text_of(desk)

    assert asked == 20_000, "for the lag, and for its age"
    assert turns.most <= SLICE_SERIES
    assert text.count("# TYPE rocketmq_messages_in_total counter") == 1
    assert sum(line.startswith("rocketmq_messages_in_total{") for line in text.splitlines()) == 10_000


async def test_a_scrape_takes_turns_by_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic has up to 16,384 queues, and each group has a position on each of them."""
    async with open_desk(str(tmp_path)) as desk:
        for group in range(20):
            for queue_id in range(SLICE_SERIES // 2):
                desk.broker.offsets.commit(f"g{group}", "topic", queue_id, 0)
        for queue_id in range(4 * SLICE_SERIES):
            desk.broker.offsets.commit("reads-all", "wide", queue_id, 0)
        asked = 0

        def max_offset(store: MessageStore, topic: str, queue_id: int) -> int:
            nonlocal asked
            asked += 1
            return 0

        monkeypatch.setattr(MessageStore, "max_offset", max_offset)
        with counted(lambda: asked) as turns:
            await text_of(desk)

    assert asked == 2 * (20 * (SLICE_SERIES // 2) + 4 * SLICE_SERIES), "for the lag, and for its age"
    assert turns.most <= SLICE_SERIES


async def test_series_beyond_their_bound_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a broker with a million groups cannot fill the collector."""
    monkeypatch.setattr(metrics_module, "SERIES_MAX", 5)
    async with open_desk(str(tmp_path)) as desk:
        for number in range(8):
            desk.broker.stats.topic_put(f"topic{number}", 1, 100)
        found = samples(await text_of(desk))

    assert sum(name == "rocketmq_messages_in_total" for name, _ in found) == 5
    assert found["ledgermq_series_left_out", labels()] == 2 * 3, "of messages and of bytes"


async def test_label_values_of_strangers_stay_values(tmp_path: Path) -> None:
    """A client chooses the names of its groups."""
    name = 'a"} 1\nrocketmq_forged{x="\\'
    async with open_desk(str(tmp_path)) as desk:
        broker = desk.broker
        broker.consumers.register(name, Member(desk.peer().connection, "c", "JAVA", 0, 0.0, 0), [], {})
        found = samples(await text_of(desk))

    assert found["rocketmq_consumer_connections", labels(consumer_group=name)] == 1
    assert not [key for key in found if "forged" in key[0]]
