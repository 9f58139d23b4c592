"""Locks on queues as clients ask for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from ledgermq.broker.tables.locks import LEASE_SECONDS, lease_rows
from ledgermq.broker.tables.persistence import TOPICS_FILE
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.json import loads
from ledgermq.message.message import MessageQueue
from ledgermq.message.units import QueueId
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.world.slices import SLICE_ITEMS

from ...turns import counted
from ..desk import Desk, open_desk, until


async def test_queues_are_locked_for_one_client(tmp_path: Path) -> None:
    """The answer lists what the client holds; unlocking makes room for the next."""
    queue = {"brokerName": "b1", "queueId": 0, "topic": "T1"}
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1"))
        peer = desk.peer()

        async def lock(client_id: str) -> list[Any]:
            body = {"clientId": client_id, "consumerGroup": "g", "mqSet": [queue]}
            held: list[Any] = loads((await peer.ask_waiting(RequestCode.LOCK_BATCH_MQ, None, body)).body)["lockOKMQSet"]
            return held

        assert await lock("c1") == [queue]
        assert await lock("c2") == []
        unlock = {"clientId": "c1", "consumerGroup": "g", "mqSet": [queue]}
        assert peer.ask(RequestCode.UNLOCK_BATCH_MQ, None, unlock).code == ResponseCode.SUCCESS
        assert await lock("c2") == [queue]
        assert peer.ask(RequestCode.LOCK_BATCH_MQ, None, {"mqSet": [{}]}).code == ResponseCode.SYSTEM_ERROR
        changes: tuple[dict[str, Any], ...] = ({"queueId": 16}, {"queueId": -1}, {"topic": "nowhere"}, {"brokerName": "b2"})
        for strange in ({**queue, **change} for change in changes):
            asked = {"clientId": "c1", "consumerGroup": "g", "mqSet": [strange]}
            answer = await peer.ask_waiting(RequestCode.LOCK_BATCH_MQ, None, asked)
            assert loads(answer.body)["lockOKMQSet"] == []  # they would be written down for whoever asks


async def test_a_restart_gives_no_queue_to_another_while_its_owner_may_go_on(tmp_path: Path) -> None:
    """The broker ends without a word as soon as the lock is granted; its owner renews it, another member must wait."""
    queue = {"brokerName": "b1", "queueId": 0, "topic": "T1"}

    async def lock(desk: Desk, client_id: str) -> bool:
        body = {"clientId": client_id, "consumerGroup": "g", "mqSet": [queue]}
        return bool(loads((await desk.peer().ask_waiting(RequestCode.LOCK_BATCH_MQ, None, body)).body)["lockOKMQSet"])

    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1"))
        assert await desk.broker.persistence.write(TOPICS_FILE)
        assert await lock(desk, "owner")
        shutil.copytree(tmp_path, tmp_path / "copy")
    for client_id, granted in (("other", False), ("owner", True)):
        async with open_desk(tmp_path / "copy") as desk:
            assert await lock(desk, client_id) is granted


@pytest.mark.parametrize(
    "change", [{"clientId": "c" * 513}, {"clientId": ""}, {"consumerGroup": "g" * 256}, {"consumerGroup": ""}]
)
async def test_a_lock_for_a_name_of_any_length_is_refused(tmp_path: Path, change: dict[str, str]) -> None:
    """It would be in every write of the file of locks; in a DLedger group, in the log and at all nodes."""
    queue = {"brokerName": "b1", "queueId": 0, "topic": "T1"}
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1"))
        asked = {"clientId": "c1", "consumerGroup": "g", "mqSet": [queue], **change}
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            answer = desk.peer().ask(code, None, asked)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "characters (got" in (answer.remark or "")
        assert not list(desk.broker.locks.keys())


async def test_locks_that_wait_to_be_written_are_bounded(tmp_path: Path) -> None:
    """Each keeps its request and its answer until then; a further one is answered SYSTEM_BUSY and locks nothing."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        desk.broker.topics.put(TopicConfig("T1"))
        desk.broker.dispatcher.waiting_max = 1
        peer = desk.peer()
        bodies = [
            {"clientId": "c1", "consumerGroup": "g", "mqSet": [{"brokerName": "b1", "queueId": queue_id, "topic": "T1"}]}
            for queue_id in (0, 1)
        ]

        await desk.settled()
        waits = peer.post(RequestCode.LOCK_BATCH_MQ, None, bodies[0])
        refused = peer.ask(RequestCode.LOCK_BATCH_MQ, None, bodies[1])

        assert refused.code == ResponseCode.SYSTEM_BUSY
        await until(lambda: peer.answer(waits) is not None)
        assert len(desk.broker.locks.rows_of("g")) == 1
        assert (await peer.ask_waiting(RequestCode.LOCK_BATCH_MQ, None, bodies[1])).code == ResponseCode.SUCCESS


async def test_leases_that_expire_together_end_in_several_turns(tmp_path: Path) -> None:
    """A client that is gone may have had all leases that there may be; to end them in one turn took 900 ms."""
    many = 6 * SLICE_ITEMS
    async with open_desk(tmp_path) as desk:
        locks, now = desk.broker.locks, desk.broker.world.clock.monotonic()
        leases = {("g", MessageQueue("T1", "b1", QueueId(queue_id))): "gone" for queue_id in range(many)}
        locks.apply(lease_rows(leases), now - LEASE_SECONDS - 1)

        with counted(lambda: -sum(len(queues) for _, queues in locks.groups())) as turns:
            await trio.lowlevel.checkpoint()  # the turn in which the block begins does not count
            await desk.broker.housekeeping.end_leases(now)
            await desk.settled()

        assert not list(locks.keys())
        assert turns.most <= 2 * SLICE_ITEMS
