"""Locks on queues as clients ask for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ledgermq.broker.deletions import TOPICS_FILE
from ledgermq.broker.topics import TopicConfig
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode

from .desk import Desk, open_desk


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
        for strange in ({**queue, "queueId": 16}, {**queue, "queueId": -1}, {**queue, "topic": "nowhere"}):
            asked = {"clientId": "c1", "consumerGroup": "g", "mqSet": [strange]}
            answer = await peer.ask_waiting(RequestCode.LOCK_BATCH_MQ, None, asked)
            assert loads(answer.body)["lockOKMQSet"] == []  # they would be written down for whoever asks


async def test_a_restart_gives_no_queue_to_another_while_its_owner_may_go_on(tmp_path: Path) -> None:
    """The broker ends without a word as soon as the lock is granted; its owner renews it, another member must wait."""
    queue = {"brokerName": "b", "queueId": 0, "topic": "T1"}

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
