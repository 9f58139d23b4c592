"""Records that rot in files that nobody reads: they are found, not served, and replaced where another node has a copy."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.client.producer import open_producer
from ledgermq.message.layout import decode_record, span_of
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.config import SCHEDULE_TOPIC
from ledgermq.store.keeping import scrub
from ledgermq.world.disk import Disk

from .desk import open_desk, until
from .modes.test_dledger import Group, scenario
from .tables.test_tables import up
from .test_older_logs import leave_classic_stores, start_all

BODY = bytes(2000)


def rot(broker: Broker, disk: Disk, offset: int) -> None:
    """Flip a bit of the body of a record, as if its sector had been read back damaged."""
    file = next(file for file in broker.store.log.files() if file.start <= offset < file.start + file.size)
    view = broker.store.log.slice_from(offset, 1 << 20)
    span = span_of(view, 0, len(view))
    assert span is not None
    handle, at = disk.open(file.path), offset - file.start + span.body_at
    handle.write(bytes([handle.read(at, 1)[0] ^ 4]), at)
    handle.close()


async def test_a_damaged_record_is_found_and_neither_served_nor_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Consumers get what is before it, then an error that says why, and go on once it is sound again."""
    async with open_desk(tmp_path, mapped_file_size_commit_log=16384) as desk:
        desk.broker.topics.put(TopicConfig("T", 1, 1))
        offsets = [desk.put("T", b"%d" % number + BODY) for number in range(20)]
        await desk.settled()
        await desk.broker.store.log.flush()
        broker, disk, peer = desk.broker, desk.broker.world.disk, desk.peer()
        rot(broker, disk, offsets[3])
        with caplog.at_level("INFO"):
            peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"scrubBytesPerSecond=1m\n")
            await until(lambda: broker.store.damaged)

        assert [message.queue_offset for message in peer.pulled("T", 0)] == [0, 1, 2]
        refused = peer.answer(peer.pull("T", 3))
        assert refused is not None
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert (refused.remark or "").startswith("MESSAGE_DAMAGED: the next message is damaged on the disk of this broker")
        assert not refused.body
        assert peer.pulled("T", 4)[0].queue_offset == 4
        (found,) = (record for record in caplog.records if record.getMessage().startswith("damaged_record_found"))
        assert f"physical_offset={offsets[3]}" in found.getMessage()
        assert "replaced_by_copy=False" in found.getMessage()
        assert (broker.scrubber.found, broker.store.damaged) == (1, {offsets[3]})

        rot(broker, disk, offsets[3])
        await until(lambda: not broker.store.damaged)
        assert peer.pulled("T", 3)[0].queue_offset == 3


@pytest.mark.parametrize("seed", range(3))
def test_a_record_that_rotted_on_one_node_of_a_group_is_replaced(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the leader as on a follower, although every node has its entry already and no consumer reads it."""

    monkeypatch.setattr(scrub, "PASS_SECONDS_MIN", 1.0)

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 700)
        await trio.sleep(2)
        for node in group.nodes:
            broker = up(node)
            record = group.rng.randrange(100)
            offset = broker.store.units("T", 0, record, 1)[0][0]
            before = bytes(broker.store.log.slice_from(offset, 200))
            rot(broker, node.machine.disk, offset)
            assert bytes(broker.store.log.slice_from(offset, 200)) != before

            await trio.sleep(5)

            assert broker.scrubber.found == 1
            assert bytes(broker.store.log.slice_from(offset, 200)) == before
            assert not broker.store.damaged

    scenario(story, seed, {"scrubBytesPerSecond": "1m"})


@pytest.mark.parametrize("seed", range(3))
def test_a_delayed_message_that_rots_on_the_leader_is_delivered_as_another_node_has_it(seed: int) -> None:
    """The delivery asks for the copy itself, because nothing else has read the message."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await producer.send(Message("T", b"later", delay_level=2))
        await trio.sleep(1)
        leader = await group.master()
        store = up(leader).store
        rot(up(leader), leader.machine.disk, store.units(SCHEDULE_TOPIC, 1, 0, 1)[0][0])

        await trio.sleep(10)

        delivered = [record for queue_id in store.queue_ids("T") for record in store.get("T", queue_id, 0, 9).slices]
        assert [decode_record(record).body for record in delivered] == [b"later"]

    scenario(story, seed)


def test_the_classic_log_of_a_group_is_scrubbed_with_its_own_framing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sound records are none the worse, and a damaged one there is reported, because no node sends copies of it."""

    monkeypatch.setattr(scrub, "PASS_SECONDS_MIN", 1.0)

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        node = await start_all(group)
        broker = up(node)
        await trio.sleep(5)
        assert broker.scrubber.checked_bytes > 0
        assert broker.scrubber.found == 0

        rot(broker, node.machine.disk, broker.store.units("T", 0, 5, 1)[0][0])
        await trio.sleep(5)

        assert broker.scrubber.found == 1

    with caplog.at_level("ERROR"):
        scenario(story, 1, {"scrubBytesPerSecond": "1m"})
    assert any("replaced_by_copy=False" in record.getMessage() for record in caplog.records)
