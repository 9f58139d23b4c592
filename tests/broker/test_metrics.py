"""The metrics of a broker."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ledgermq.broker import metrics as metrics_module
from ledgermq.broker.clients import Member
from ledgermq.broker.metrics import SLICE_SERIES, LoopTurns
from ledgermq.broker.topics import TopicConfig
from ledgermq.store.message_store import MessageStore

from ..turns import counted
from .desk import Desk, open_desk


@attrs.define(eq=False)
class Steps:
    """A clock that is one step further at each look."""

    seconds: list[float]

    def monotonic(self) -> float:
        return self.seconds.pop(0)

    def wall_ms(self) -> int:
        return 0


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
OURS = {"cluster": "c1", "node_type": "broker", "node_id": "b1"}


async def text_of(desk: Desk) -> str:
    monitoring = desk.broker.monitoring(LoopTurns(desk.broker.world.clock))
    return "".join([part.decode() async for part in monitoring.metrics.text()])


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

    assert found["rocketmq_messages_in_total", labels(topic="T1")] == 3
    assert found["rocketmq_throughput_in_total", labels(topic="T1")] > 300
    assert found["rocketmq_consumer_lag_messages", labels(topic="T1", consumer_group="g1")] == 2
    assert found["rocketmq_storage_size", labels()] > 300
    assert found["rocketmq_storage_dispatch_behind_bytes", labels()] == 0
    assert found["ledgermq_broker_takes_messages", labels()] == 1


async def test_turns_of_the_event_loop_are_counted(tmp_path: Path) -> None:
    """By how long they lasted, in buckets that contain the shorter ones, as Prometheus wants them."""
    turns = LoopTurns(Steps([0.0, 0.0005, 1.0, 1.03, 2.0, 7.0]))
    for _ in range(3):
        turns.after_io_wait(0)
        turns.before_io_wait(0)
    async with open_desk(str(tmp_path)) as desk:
        monitoring = desk.broker.monitoring(turns)
        found = samples("".join([part.decode() async for part in monitoring.metrics.text()]))

    counts = {dict(key)["le"]: value for (name, key), value in found.items() if name.endswith("turn_seconds_bucket")}
    assert counts == {"0.001": 1, "0.005": 1, "0.02": 1, "0.05": 2, "0.1": 2, "0.5": 2, "2.0": 2, "+Inf": 3}
    assert found["ledgermq_event_loop_turn_seconds_sum", labels()] == pytest.approx(5.0305)


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

    assert asked == 10_000
    assert turns.most <= SLICE_SERIES
    assert text.count("# TYPE rocketmq_messages_in_total counter") == 1
    assert sum(line.startswith("rocketmq_messages_in_total{") for line in text.splitlines()) == 10_000


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
