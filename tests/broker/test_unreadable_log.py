"""Bytes of the log that the disk does not give: a truncated file stands for a bad sector, as a map of both ends the process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.ha.classic import master
from ledgermq.message.layout import decode_records
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.errors import UnreadableLog

from .desk import Desk, open_desk, until
from .modes.test_replication import SLAVE, open_group

BODY = bytes(3000)
FILE_BYTES = 1 << 16


async def filled(desk: Desk) -> list[int]:
    """Fill some files of the log with 100 messages; return their physical offsets."""
    desk.broker.topics.put(TopicConfig("T", 1, 1))
    offsets = [desk.put("T", b"%d" % number + BODY) for number in range(100)]
    await desk.settled()
    await desk.broker.store.log.flush()
    return offsets


def truncate(desk: Desk, offset: int, size: int) -> tuple[Path, bytes]:
    """Let the file that has this physical offset, and is mapped, end `size` bytes behind it; return what it held."""
    assert desk.broker.store.log.slice_from(offset, 1)
    file = next(file for file in desk.broker.store.log.files() if file.start <= offset < file.start + file.size)
    path = Path(file.path)
    content = path.read_bytes()
    os.truncate(path, offset - file.start + size)
    return path, content


async def test_a_pull_ends_before_what_the_disk_does_not_give_and_the_broker_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_desk(tmp_path, mapped_file_size_commit_log=FILE_BYTES) as desk:
        offsets = await filled(desk)
        peer = desk.peer()
        path, content = truncate(desk, offsets[5], 100)

        assert [message.queue_offset for message in peer.pulled("T", 0)] == [0, 1, 2, 3, 4]
        refused = peer.answer(peer.pull("T", 5))
        assert refused is not None
        assert (refused.code, refused.body) == (ResponseCode.SYSTEM_ERROR, b"")
        assert (refused.remark or "").startswith("MESSAGE_DAMAGED: the next message is damaged on the disk of this broker")
        assert len(peer.pulled("T", 60)) == 32
        assert desk.broker.store.damaged == {offsets[5]}
        found = [record.getMessage() for record in caplog.records if record.getMessage().startswith("log_not_readable")]
        assert len(found) == 1
        assert str(path) in found[0]

        path.write_bytes(content)
        await until(lambda: not desk.broker.store.damaged)
        assert peer.pulled("T", 5)[0].queue_offset == 5


async def test_a_message_that_the_disk_does_not_give_is_refused_by_its_position_and_by_time(tmp_path: Path) -> None:
    async with open_desk(tmp_path, mapped_file_size_commit_log=FILE_BYTES) as desk:
        offsets = await filled(desk)
        peer = desk.peer()
        truncate(desk, offsets[5], -100)

        by_position = peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offsets[7]})
        by_time = peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": 0, "timestamp": 1})

        for answer in (by_position, by_time):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "cannot be read" in (answer.remark or "")
        assert peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offsets[2]}).code == ResponseCode.SUCCESS


async def test_older_files_are_read_as_the_newest_one_is(tmp_path: Path) -> None:
    """Each message once, whole and in order, also where one file ends and the next begins."""
    async with open_desk(tmp_path, mapped_file_size_commit_log=FILE_BYTES) as desk:
        offsets = await filled(desk)
        store, peer = desk.broker.store, desk.peer()

        found = [message for at in range(0, 100, 25) for message in peer.pulled("T", at, maxMsgNums=25)]

        assert [message.physical_offset for message in found] == offsets
        assert [message.body for message in found] == [b"%d" % number + BODY for number in range(100)]
        assert [next(decode_records(store.message_at(offset) or b"")).queue_offset for offset in offsets] == list(range(100))


async def test_a_read_of_the_log_names_the_file_and_the_place(tmp_path: Path) -> None:
    async with open_desk(tmp_path, mapped_file_size_commit_log=FILE_BYTES) as desk:
        offsets = await filled(desk)
        path, _ = truncate(desk, offsets[5], 100)

        with pytest.raises(UnreadableLog) as caught:
            desk.broker.store.log.read(offsets[5], 1000)

        assert (caught.value.filename, caught.value.offset) == (str(path), offsets[5] + 100)


async def test_a_master_goes_on_when_it_cannot_read_what_a_new_slave_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each connection of an empty slave would end the process of its master; the reason names the file."""
    monkeypatch.setattr(master, "COLD_BYTES", FILE_BYTES)
    settings = {"mapped_file_size_commit_log": FILE_BYTES}
    async with open_group(tmp_path) as group, group.desk("m", **settings) as desk:
        offsets = await filled(desk)
        path, _ = truncate(desk, offsets[5], 100)

        async with group.desk("s", **SLAVE, **settings) as slave:
            await until(lambda: any(str(path) in entry.getMessage() for entry in caplog.records))

            assert slave.broker.store.log.max_offset <= offsets[5] + 100
        assert desk.peer().send("T").code == ResponseCode.SUCCESS
