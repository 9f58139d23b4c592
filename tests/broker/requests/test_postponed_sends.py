"""Sends that wait for a change of their topic."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ledgermq.broker.requests.send import SendHandler
from ledgermq.broker.tables.table_log import TableLog
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.control import deletion_of
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.log.queue_files import NEW_FILES_PER_TURN_MAX

from ...turns import counted
from ..desk import BORN, open_desk, until

FIELDS = {
    "a": "pg",
    "b": "T",
    "c": "TBW102",
    "d": 4,
    "e": 0,
    "f": 0,
    "g": BORN,
    "h": 0,
    "i": "",
    "j": 0,
    "k": "false",
    "m": "false",
}


async def test_sends_that_a_new_topic_makes_wait_are_stored_in_their_order(tmp_path: Path) -> None:
    """Under SYNC_FLUSH a topic exists when its event is synced; what comes meanwhile on one connection keeps its order."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        peer, other = desk.peer(), desk.peer()
        opaques = [peer.post(RequestCode.SEND_MESSAGE_V2, FIELDS, b"%d" % number) for number in range(20)]
        strange = other.post(RequestCode.SEND_MESSAGE_V2, FIELDS, b"of another client")
        assert desk.broker.topics.get("T") is None

        await until(lambda: all(peer.answer(opaque) for opaque in opaques) and other.answer(strange))

        assert {peer._answers[opaque].code for opaque in opaques} == {ResponseCode.SUCCESS}  # pyright: ignore[reportPrivateUsage]
        await desk.settled()
        bodies = [message.body for message in peer.pulled("T")]
        assert [body for body in bodies if body.isdigit()] == [b"%d" % number for number in range(20)]
        assert len(bodies) == 21


async def test_a_message_behind_a_deletion_that_is_not_applied_is_in_the_new_topic(tmp_path: Path) -> None:
    """Stored at once, it would be in a topic that the table is about to lose."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        peer, tables = desk.peer(), desk.broker.table_log
        assert (await peer.send_waiting("T", b"old")).code == ResponseCode.SUCCESS
        tables.delete_topic(deletion_of("T", desk.broker.store.next_offsets_of("T")), "T")
        opaque = peer.post(RequestCode.SEND_MESSAGE_V2, FIELDS, b"new")
        assert peer.answer(opaque) is None

        await until(lambda: peer.answer(opaque) is not None)

        assert desk.broker.topics.get("T") == TopicConfig("T", 4, 4, 6)
        await desk.settled()
        assert [message.body for message in peer.pulled("T", offset=1)] == [b"new"]


async def test_too_many_sends_that_wait_are_refused(tmp_path: Path) -> None:
    """SYSTEM_BUSY says that the message was not stored; those that wait already are stored."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        desk.broker.dispatcher.waiting_max = 3
        peer = desk.peer()
        opaques = [peer.post(RequestCode.SEND_MESSAGE_V2, FIELDS, b"%d" % number) for number in range(5)]
        refused = [answer for opaque in opaques if (answer := peer.answer(opaque)) is not None]

        assert [answer.code for answer in refused] == [ResponseCode.SYSTEM_BUSY] * 2
        assert all("this message was not stored" in (answer.remark or "") for answer in refused)
        await until(lambda: all(peer.answer(opaque) for opaque in opaques))
        await desk.settled()
        assert [message.body for message in peer.pulled("T")] == [b"0", b"1", b"2"]


async def test_sends_that_waited_are_taken_in_several_turns_and_in_their_order(tmp_path: Path) -> None:
    """Each of the queues needs a file. A message that comes while they are taken is behind them."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        peer, count, store = desk.peer(), 3 * NEW_FILES_PER_TURN_MAX, desk.broker.store
        desk.broker.table_log.put_topics(TopicConfig("T", count, count))
        opaques = [peer.post(RequestCode.SEND_MESSAGE_V2, {**FIELDS, "e": queue}, b"early") for queue in range(count)]
        assert desk.broker.topics.get("T") is None

        with counted(lambda: len(store.next_offsets)) as turns:
            while not store.next_offsets:
                await trio.lowlevel.checkpoint()
            opaques.append(peer.post(RequestCode.SEND_MESSAGE_V2, {**FIELDS, "e": count - 1}, b"late"))
            await until(lambda: all(peer.answer(opaque) for opaque in opaques))

        assert turns.most <= NEW_FILES_PER_TURN_MAX
        assert {getattr(peer.answer(opaque), "code", None) for opaque in opaques} == {ResponseCode.SUCCESS}
        await desk.settled()
        assert [message.body for message in peer.pulled("T", queueId=count - 1)] == [b"early", b"late"]


@pytest.mark.parametrize(("owner", "name"), [(TableLog, "applied"), (SendHandler, "_put")], ids=["the wait", "the handler"])
async def test_a_failure_of_sends_that_waited_is_answered_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type[object], name: str
) -> None:
    """Each of them is answered, and the broker goes on."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        peers = [desk.peer(), desk.peer()]
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            posted = [(peer, peer.post(RequestCode.SEND_MESSAGE_V2, FIELDS, b"x")) for peer in peers for _ in range(2)]
            await until(lambda: all(peer.answer(opaque) for peer, opaque in posted))

        answers = [answer for peer, opaque in posted if (answer := peer.answer(opaque))]
        assert [(answer.code, answer.remark) for answer in answers] == [
            (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug")
        ] * 4
        assert (await peers[0].send_waiting("T", b"later")).code == ResponseCode.SUCCESS
