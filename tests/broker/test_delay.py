"""Delayed messages, by a clock that the tests turn."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import attrs
import pytest
import trio

from ledgermq.broker.delay import DelayDelivery
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.ha.classic.commitlog import ClassicCommitLog
from ledgermq.message.control import CONTROL_TOPIC
from ledgermq.message.layout import encode_host, encode_records, topic_field
from ledgermq.message.message import IncomingMessage
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.config import SCHEDULE_TOPIC, StoreConfig
from ledgermq.world.real import World, real_world

from ..store.log.test_queue_files import DiskWithoutInodes
from .desk import Desk, open_desk

NOW = 1_800_000_000_000


@attrs.define
class HandClock:
    """A wall clock set by hand; the monotonic one runs."""

    now_ms: int = NOW

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return real_world().clock.monotonic()


def turned_by_hand() -> tuple[World, HandClock]:
    clock = HandClock()
    return attrs.evolve(real_world(), clock=clock), clock


async def delivered(desk: Desk, topic: str = "T1") -> list[bytes]:
    """Deliver what is due; all bodies in the topic's queue 0 by now."""
    while desk.broker.delay.round() == 0:
        pass
    await desk.settled()
    if desk.broker.store.max_offset(topic, 0) == 0:
        return []
    return [message.body for message in desk.peer().pulled(topic)]


def test_the_levels_are_read_once_however_often_they_are_asked_for() -> None:
    """A start asks for them once for each level."""
    config = StoreConfig(store_path_root_dir="store", message_delay_level=" ".join(["1s"] * 4000))

    assert config.delay_levels_ms is config.delay_levels_ms


async def test_a_delayed_message_waits_in_the_delay_topic(tmp_path: Path) -> None:
    """It goes into its level's queue and remembers where it belongs; the answer tells of the stay."""
    async with open_desk(tmp_path) as desk:
        answer = desk.peer().send("T1", queue_id=3, DELAY="5", TAGS="TagA")
        await desk.settled()

        assert answer.ext["queueId"] == "3"
        (stored,) = desk.peer().pulled(SCHEDULE_TOPIC, queueId=4)
        assert stored.properties["REAL_TOPIC"] == "T1"
        assert stored.properties["REAL_QID"] == "3"
        assert stored.properties["CLUSTER"] == "c1"
        assert desk.broker.store.max_offset("T1", 3) == 0


async def test_it_is_delivered_when_due_and_not_before(tmp_path: Path) -> None:
    """To the millisecond; the copy is the message again, without its delay."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"later", DELAY="2", TAGS="TagA", KEYS="k")
        await desk.settled()

        clock.now_ms += 4999
        assert await delivered(desk) == []
        clock.now_ms += 1
        assert await delivered(desk) == [b"later"]

        (copy,) = desk.peer().pulled("T1", subscription="TagA")
        assert "DELAY" not in copy.properties
        assert (copy.tag, copy.keys, copy.properties["REAL_TOPIC"]) == ("TagA", ["k"], "T1")
        assert copy.born_timestamp == 1_700_000_000_000
        assert await delivered(desk) == [b"later"]


async def test_a_delivery_is_counted_with_its_whole_record(tmp_path: Path) -> None:
    """The topic's statistics grow by what the log does, but for events."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"later", DELAY="1")
        await desk.settled()
        before = desk.broker.store.log.max_offset
        clock.now_ms += 1000

        await delivered(desk)

        (counter,) = desk.broker.stats.puts_of("T1")
        records = desk.broker.store.log.records(before, desk.broker.store.log.max_offset)
        sizes = [parts[0] for _, parts in records if parts is not None and parts[6] != CONTROL_TOPIC]
        assert (counter.count, counter.size) == (1, sum(sizes))


async def test_levels_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """A long delay in front holds up its own level only; beyond the highest level is the highest."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        for body, level in ((b"hours", "99"), (b"one", "1"), (b"minute", "5")):
            desk.peer().send("T1", body, DELAY=level)
        await desk.settled()

        clock.now_ms += 1000
        assert await delivered(desk) == [b"one"]
        clock.now_ms += 59_000
        assert await delivered(desk) == [b"one", b"minute"]
        clock.now_ms += 2 * 3_600_000 - 60_001
        assert await delivered(desk) == [b"one", b"minute"]
        clock.now_ms += 1

        assert await delivered(desk) == [b"one", b"minute", b"hours"]


async def test_a_backlog_is_delivered_in_order(tmp_path: Path) -> None:
    """Several batches of one level come out as they went in, each message once."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world, max_transfer_count_on_message_in_memory=1000) as desk:
        bodies = [b"%03d" % number for number in range(200)]
        peer = desk.peer()
        for body in bodies:
            peer.send("T1", body, DELAY="1")
        await desk.settled()
        clock.now_ms += 1000

        assert await delivered(desk) == bodies[:32]
        assert [message.body for message in peer.pulled("T1", maxMsgNums=500)] == bodies


async def test_large_messages_are_delivered_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To copy sixty-four of four megabytes in one turn would hold the event loop; the one that is not due yet waits."""

    async def never(_: DelayDelivery) -> None:
        """The broker runs no rounds of its own."""
        await trio.sleep_forever()

    monkeypatch.setattr(DelayDelivery, "run", never)
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world, mapped_file_size_commit_log=1 << 24) as desk:
        for _ in range(3):
            desk.peer().send("T1", bytes(700_000), DELAY="1")
        clock.now_ms += 600
        desk.peer().send("T1", b"later", DELAY="1")
        await desk.settled()
        clock.now_ms += 500

        delay = desk.broker.delay
        assert delay.round() == 0
        await desk.settled()
        assert desk.broker.store.max_offset("T1", 0) == 2
        assert delay.round() == 0
        assert delay.round() > 0
        await desk.settled()
        assert desk.broker.store.max_offset("T1", 0) == 3


async def test_a_clock_that_goes_back_delays_by_the_level_at_most(tmp_path: Path) -> None:
    """After the clock lost an hour, messages still come one level's delay later, in their old distance."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"a", DELAY="3")
        clock.now_ms += 2000
        desk.peer().send("T1", b"b", DELAY="3")
        await desk.settled()

        clock.now_ms -= 3_600_000
        assert await delivered(desk) == []
        clock.now_ms += 10_000
        assert await delivered(desk) == [b"a"]
        clock.now_ms += 2000

        assert await delivered(desk) == [b"a", b"b"]


async def test_what_is_sent_after_the_clock_went_back_waits_its_whole_delay(tmp_path: Path) -> None:
    """Store timestamps stand still meanwhile, and what was sent before is taken back: neither shortens its wait."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world=world) as desk:
        desk.peer().send("T1", b"before", DELAY="2")
        await desk.settled()
        clock.now_ms -= 5000
        assert await delivered(desk) == []
        clock.now_ms += 3000
        desk.peer().send("T1", b"after", DELAY="2")
        await desk.settled()

        clock.now_ms += 4999
        assert await delivered(desk) == [b"before"]
        clock.now_ms += 1
        assert await delivered(desk) == [b"before", b"after"]


async def test_a_clock_that_jumps_forward_delivers_at_once(tmp_path: Path) -> None:
    """What is overdue by the clock is delivered."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"a", DELAY="18")
        await desk.settled()
        assert await delivered(desk) == []

        clock.now_ms += 3 * 3_600_000

        assert await delivered(desk) == [b"a"]


async def test_what_was_delivered_stays_delivered_over_a_restart(tmp_path: Path) -> None:
    """Positions are on the medium after a clean stop; what was not due waits on."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"soon", DELAY="1")
        desk.peer().send("T1", b"later", DELAY="4")
        await desk.settled()
        clock.now_ms += 1000
        assert await delivered(desk) == [b"soon"]

    async with open_desk(tmp_path, world) as desk:
        assert await delivered(desk) == [b"soon"]
        clock.now_ms += 30_000
        assert await delivered(desk) == [b"soon", b"later"]


async def test_positions_are_written_only_behind_flushed_deliveries(tmp_path: Path) -> None:
    """A position on the medium must not tell of a delivery that a power cut could take back."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world, flush_interval_commit_log=3_600_000) as desk:
        desk.peer().send("T1", b"a", DELAY="1")
        await desk.settled()
        clock.now_ms += 1000
        assert await delivered(desk) == [b"a"]
        delay, log = desk.broker.delay, desk.broker.store.log
        assert log.flushed_offset < log.max_offset

        before = delay.durable_changes()
        assert delay.durable_json()["offsetTable"][1] == 0
        assert isinstance(log, ClassicCommitLog)
        log.inner.flushed_offset = log.max_offset  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

        assert delay.durable_changes() > before
        assert delay.durable_json()["offsetTable"][1] == 1


async def test_a_refused_delivery_is_tried_again(tmp_path: Path) -> None:
    """While the store takes nothing, nothing is lost or skipped."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"a", DELAY="1")
        await desk.settled()
        clock.now_ms += 1000
        desk.broker.store.writability.disk_full = True
        assert await delivered(desk) == []

        desk.broker.store.writability.disk_full = False

        assert await delivered(desk) == [b"a"]


async def test_a_message_without_a_way_back_is_passed_over(tmp_path: Path) -> None:
    """A record in the delay topic that names no real topic does not stop those behind it."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.put(SCHEDULE_TOPIC, b"stray", DELAY="1")
        desk.peer().send("T1", b"a", DELAY="1")
        await desk.settled()
        clock.now_ms += 1000

        assert await delivered(desk) == [b"a"]


async def test_a_slave_leaves_delivery_to_its_master(tmp_path: Path) -> None:
    """It would be delivered twice otherwise."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"a", DELAY="1")
        await desk.settled()
        clock.now_ms -= 1

    async with open_desk(tmp_path, world, broker_role="SLAVE", broker_id=1) as desk:
        clock.now_ms += 5000
        assert desk.broker.delay.round() > 0
        assert desk.broker.store.max_offset("T1", 0) == 0


@pytest.mark.parametrize("level", ["0", "-3"])
async def test_no_delay_is_no_delay(tmp_path: Path, level: str) -> None:
    """Levels below 1 are delivered at once."""
    async with open_desk(tmp_path) as desk:
        desk.peer().send("T1", b"a", DELAY=level)
        await desk.settled()

        assert [message.body for message in desk.peer().pulled("T1")] == [b"a"]


async def test_odd_properties_of_a_stored_message_hold_nothing_up(tmp_path: Path) -> None:
    """A value with a separator inside, as another broker may have stored it, comes out as it went in."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        odd = "a\x01b\x01c\x02DELAY\x011\x02REAL_TOPIC\x01T1\x02REAL_QID\x010\x02"
        host = encode_host("127.0.0.1", 1)
        desk.broker.store.put([IncomingMessage(SCHEDULE_TOPIC, 0, b"odd", odd, 0, 0, NOW, host)])
        await desk.settled()
        clock.now_ms += 1000

        assert await delivered(desk) == [b"odd"]
        assert desk.peer().pulled("T1")[0].properties["a"] == "b\x01c"


async def test_levels_that_are_removed_and_added_again_neither_lose_nor_repeat(tmp_path: Path) -> None:
    """What waits at a level that the configuration no longer has is delivered when it is due, and once."""
    world, clock = turned_by_hand()

    def send(desk: Desk, part: bytes) -> None:
        for level in ("1", "2", "3"):
            desk.peer().send("T1", part + level.encode(), DELAY=level)

    async with open_desk(tmp_path, world, message_delay_level="1s 5s 10s") as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        send(desk, b"a")
        await desk.settled()
        clock.now_ms += 10_000
        assert await delivered(desk) == [b"a1", b"a2", b"a3"]
        send(desk, b"b")
        await desk.settled()
    async with open_desk(tmp_path, world, message_delay_level="1s") as desk:
        clock.now_ms += 9999
        assert await delivered(desk) == [b"a1", b"a2", b"a3", b"b1", b"b2"]
        clock.now_ms += 1
        assert (await delivered(desk))[5:] == [b"b3"]
    async with open_desk(tmp_path, world, message_delay_level="1s 5s 10s 20s") as desk:
        clock.now_ms += 100_000
        assert (await delivered(desk))[5:] == [b"b3"]


async def test_a_replica_keeps_the_positions_of_levels_that_only_its_master_has(tmp_path: Path) -> None:
    """Promoted with fewer levels, it delivers nothing again that its master has delivered."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world, message_delay_level="1s") as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        for body in (b"a", b"b"):
            host = encode_host("127.0.0.1", 1)
            properties = "DELAY\x013\x02REAL_TOPIC\x01T1\x02REAL_QID\x010\x02"
            desk.broker.store.put([IncomingMessage(SCHEDULE_TOPIC, 2, body, properties, 0, 0, NOW, host)])
        await desk.settled()

        desk.broker.delay.load({"offsetTable": {"1": 0, "3": 1}})
        clock.now_ms += 10_000

        assert await delivered(desk) == [b"b"]
        assert desk.broker.delay.offsets() == {1: 0, 3: 2}


async def test_a_message_whose_queue_was_taken_away_comes_to_one_that_is_read(tmp_path: Path) -> None:
    """The topic had eight queues when the message was delayed and has two when it is due."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.broker.topics.put(TopicConfig("T1", 8, 8))
        for queue_id in range(8):
            desk.peer().send("T1", b"%d" % queue_id, queue_id, DELAY="1")
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        await desk.settled()
        clock.now_ms += 1000

        assert await delivered(desk) == [b"0", b"2", b"4", b"6"]
        assert [message.body for message in desk.peer().pulled("T1", queueId=1)] == [b"1", b"3", b"5", b"7"]


@pytest.mark.parametrize(
    ("properties", "comes"),
    [
        ("DELAY\x011\x02REAL_TOPIC\x01T1\x02REAL_QID\x010\x02", True),
        (f"DELAY\x01{'9' * 5000}\x02REAL_TOPIC\x01T1\x02REAL_QID\x010\x02", True),
        (f"DELAY\x011\x02REAL_TOPIC\x01T1\x02REAL_QID\x01{'9' * 5000}\x02", False),
        ("DELAY\x01\u00b2\x02REAL_TOPIC\x01T1\x02REAL_QID\x01\uff10\x02", False),
    ],
    ids=["in order", "long level", "long queue", "other digits"],
)
@pytest.mark.parametrize("timestamp", [NOW, (1 << 63) - 1, -(1 << 63)])
async def test_a_replicated_record_with_extreme_numbers_ends_no_task(
    tmp_path: Path, properties: str, comes: bool, timestamp: int
) -> None:
    """A record may come from a master that checks less. Those behind it are delivered and new ones are stored."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        store = desk.broker.store
        message = IncomingMessage(SCHEDULE_TOPIC, 0, b"odd", properties, 0, 0, NOW, encode_host("127.0.0.1", 1))
        fields = [topic_field(SCHEDULE_TOPIC.encode())]
        store.log.append(encode_records([message], fields, [0], timestamp, store.store_host))
        store.dispatcher.wake()
        await desk.settled()
        store.take_up_next_offsets()
        desk.peer().send("T1", b"a", DELAY="1")
        await desk.settled()

        for _ in range(3):  # the odd one may be due later than it says, and first hold up the other
            clock.now_ms += 2 * 3_600_000
            await delivered(desk)

        assert await delivered(desk) == ([b"odd", b"a"] if comes else [b"a"])


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("again", [False, True])
async def test_a_deleted_topic_does_not_come_back_through_a_delayed_message(
    tmp_path: Path, *, restarted: bool, again: bool
) -> None:
    """What waits for it when it is deleted is deleted with it, also if the topic is created again and the broker restarted."""
    world, clock = turned_by_hand()
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(open_desk(tmp_path, world))
        desk.peer().send("T1", b"deleted", DELAY="2")
        desk.peer().send("T2", b"other", DELAY="2")
        answer = await desk.peer().ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T1"})
        assert answer.code == ResponseCode.SUCCESS
        if again:
            desk.peer().send("T1", b"new", DELAY="2")
        await desk.settled()
        if restarted:
            await stack.aclose()
            desk = await stack.enter_async_context(open_desk(tmp_path, world))
        clock.now_ms += 5000

        assert await delivered(desk, "T2") == [b"other"]
        assert await delivered(desk) == ([b"new"] if again else [])
        assert (desk.broker.topics.get("T1") is not None) is again


async def test_a_delayed_message_of_a_topic_that_is_unknown_brings_it_back(tmp_path: Path) -> None:
    """Nobody has deleted it: the broker was killed before it wrote down that a send had created it."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"later", queue_id=0, DELAY="2")
        desk.broker.topics.delete("T1")
        await desk.settled()
        clock.now_ms += 5000

        assert await delivered(desk) == [b"later"]


async def test_a_copy_whose_queue_cannot_be_created_holds_up_no_other(tmp_path: Path) -> None:
    """It waits again and is delivered when there is room; the others of its level are delivered once."""
    clock = HandClock()
    disk = DiskWithoutInodes()
    world = attrs.evolve(real_world(), clock=clock, disk=disk)
    async with open_desk(tmp_path, world) as desk:
        for topic, body in (("New", b"first"), ("T1", b"second"), ("New", b"third"), ("T1", b"fourth")):
            desk.peer().send(topic, body, DELAY="2")
        await desk.settled()
        disk.no_room.below = "consumequeue/New/"
        clock.now_ms += 5000

        assert await delivered(desk) == [b"second", b"fourth"]
        clock.now_ms += 10_000
        assert await delivered(desk, "New") == []
        disk.no_room.below = ""
        clock.now_ms += 10_000
        assert await delivered(desk, "New") == [b"first", b"third"]
        assert await delivered(desk) == [b"second", b"fourth"]
