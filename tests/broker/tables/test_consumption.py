"""A full disk, and groups that have not read everything: nothing goes that they lack, unless RocketMQ's rule is set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.real import World, real_world

from ..desk import Desk, Peer, open_desk, until

SEGMENT = 1 << 19
SETTINGS: dict[str, Any] = {"mapped_file_size_commit_log": SEGMENT, "file_reserved_time": 1_000_000}
"""The files of a simulated disk are as old as its clock, and nothing expires here."""
BODY = bytes(80_000)
MESSAGES = 60
GROUP_OF_ONE = {
    "enable_dleger_commit_log": True,
    "dleger_group": "b1",
    "dleger_self_id": "n0",
    "dleger_peers": "n0-127.0.0.1:0",
}


def world_of(disk: SimDisk) -> World:
    return attrs.evolve(real_world(), disk=disk)


async def fill(desk: Desk, disk: SimDisk, used: float = 0.91, topic: str = "T", **properties: str) -> Peer:
    """Store messages in several segments, and let another program fill the disk."""
    await until(lambda: desk.broker.role.takes_puts)  # in DLedger mode the group elects first
    desk.broker.topics.put(TopicConfig(topic, 1, 1))
    peer = desk.peer()
    for _ in range(MESSAGES):
        assert (await peer.send_waiting(topic, BODY, 0, **properties)).code == ResponseCode.SUCCESS
    await desk.settled()
    await desk.broker.store.log.flush()
    press(disk, used)
    return peer


def press(disk: SimDisk, used: float) -> None:
    disk.faults.capacity = int(disk.allocated_bytes() / used)


async def commit(peer: Peer, group: str, offset: int, topic: str = "T") -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    assert (await peer.ask_waiting(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == ResponseCode.SUCCESS


async def clean(desk: Desk) -> int:
    """Clean as often as it deletes something; return the offset of the oldest message."""
    store = desk.broker.store
    assert store.cleaner is not None
    files = 0
    while files != len(store.log.files()):
        files = len(store.log.files())
        await store.cleaner.clean()
    return store.min_offset("T", 0)


@pytest.mark.parametrize("mode", [{}, GROUP_OF_ONE], ids=["classic", "dledger"])
async def test_a_full_disk_deletes_up_to_the_slowest_group_and_refuses_the_rest(tmp_path: Path, mode: dict[str, Any]) -> None:
    """The producer learns how full which disk is, and who holds what up; when the group has read on, sends are taken again."""
    disk = SimDisk()
    async with open_desk(tmp_path, world_of(disk), **SETTINGS, **mode) as desk:
        peer = await fill(desk, disk)
        await commit(peer, "fast", MESSAGES)
        await commit(peer, "slow", 25)

        with capture_logs() as events:
            assert 15 < await clean(desk) <= 25
        press(disk, 0.91)
        await clean(desk)
        refused = peer.send("T", b"x")

        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        remark = refused.remark or ""
        assert f"{desk.broker.store.config.commit_log_directory}: 91.0% used, 90% allowed" in remark
        assert "the group slow has not read T queue 0 from offset 25 on" in remark
        assert not [event for event in events if "unread" in event["event"] or "unexpired" in event["event"]]
        assert [message.queue_offset for message in peer.pulled("T", 25, "slow")][:1] == [25]

        await commit(peer, "slow", MESSAGES)
        assert await clean(desk) > 50
        assert (await peer.send_waiting("T", b"x")).code == ResponseCode.SUCCESS


async def test_what_no_group_has_ever_read_stays(tmp_path: Path) -> None:
    """The consumers of a new topic may not have been started yet."""
    disk = SimDisk()
    async with open_desk(tmp_path, world_of(disk), **SETTINGS) as desk:
        peer = await fill(desk, disk)

        assert await clean(desk) == 0
        assert "no group has read T queue 0 from offset 0 on" in (peer.send("T", b"x").remark or "")


async def test_a_group_that_has_begun_but_committed_nothing_keeps_what_it_reads(tmp_path: Path) -> None:
    """Its first message may take long; the heartbeat says that it reads the topic. Members that broadcast keep nothing."""
    disk = SimDisk()
    async with open_desk(tmp_path, world_of(disk), **SETTINGS) as desk:
        peer = await fill(desk, disk)
        await commit(peer, "done", MESSAGES)
        peer.heartbeat("new", "T")
        assert await clean(desk) == 0

        peer.heartbeat("new", "T", messageModel="BROADCASTING")
        assert await clean(desk) > 0


async def test_delayed_messages_stay_until_they_are_delivered(tmp_path: Path) -> None:
    """No group reads them yet, and their topic may be read by a group that is never behind."""
    disk = SimDisk()
    async with open_desk(tmp_path, world_of(disk), **SETTINGS) as desk:
        peer = await fill(desk, disk, DELAY="18")
        await commit(peer, "done", 0)

        await clean(desk)

        assert desk.broker.store.log.min_offset == 0
        assert "the delivery of delayed messages" in (peer.send("T", b"x").remark or "")


async def test_rocketmqs_rule_deletes_what_nobody_has_read_and_says_so(tmp_path: Path) -> None:
    """With `cleanFileForciblyEnable=true`; the error counts the messages, and the group's statistics keep the count."""
    disk = SimDisk()
    async with open_desk(tmp_path, world_of(disk), **SETTINGS, clean_file_forcibly_enable="true") as desk:
        peer = await fill(desk, disk)
        await commit(peer, "slow", 5)

        with capture_logs() as events:
            low = await clean(desk)

        (event, *_) = [event for event in events if event["event"] == "unread_messages_deleted"]
        assert event["log_level"] == "error"
        assert low > 40
        assert sum(each["messages"] for each in events if each["event"] == "unread_messages_deleted") == low - 5
        assert event["most"].keys() == {"T@slow"}
        assert desk.broker.offsets.lost == {("T", "slow"): low - 5}
        await commit(peer, "slow", MESSAGES)
    async with open_desk(tmp_path, world_of(disk), **SETTINGS) as desk:
        answer = await desk.peer().ask_waiting(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "slow"})
        assert loads(answer.body)["lostMessages"] == {"T": low - 5}


async def test_an_explicit_false_deletes_nothing_early_at_all(tmp_path: Path) -> None:
    """As in RocketMQ: what has been read may be wanted again until it expires."""
    disk = SimDisk()
    async with open_desk(tmp_path, world_of(disk), **SETTINGS, clean_file_forcibly_enable="false") as desk:
        peer = await fill(desk, disk)
        await commit(peer, "done", MESSAGES)

        assert await clean(desk) == 0
