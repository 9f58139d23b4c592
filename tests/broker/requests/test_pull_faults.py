"""Held pulls that cannot be answered: the others are, and deriving does not suffer."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from ledgermq.broker.requests.pull import WOKEN_PER_TURN_MAX, PullService
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.store.derived.consumequeue import ConsumeQueue
from ledgermq.world import supervision

from ..desk import open_desk, until
from .test_pull import HOLD, Code, answer_of, filled


@pytest.mark.parametrize("readers", [1, 2 * WOKEN_PER_TURN_MAX], ids=["at once", "in several turns"])
async def test_a_queue_that_cannot_be_read_fails_the_pulls_on_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: int
) -> None:
    """They are answered so; other pulls get their messages, and the broker takes further ones."""
    units = ConsumeQueue.units

    def failing(self: ConsumeQueue, offset: int, count: int) -> bytes:
        if self.topic == "T1":
            raise OSError(errno.EIO, "Input/output error")
        return units(self, offset, count)

    async with open_desk(tmp_path) as desk:
        await filled(desk, 1)
        desk.broker.topics.put(TopicConfig("T2", 1, 1))
        peer = desk.peer()
        held = [peer.pull("T1", 1, **HOLD, suspendTimeoutMillis=600_000) for _ in range(readers)]
        other = peer.pull("T2", 0, **HOLD, suspendTimeoutMillis=600_000)
        monkeypatch.setattr(ConsumeQueue, "units", failing)

        desk.put("T1")
        desk.put("T2")
        await until(lambda: all(peer.answer(opaque) for opaque in (*held, other)))

        answers = [peer.answer(opaque) for opaque in held]
        assert all(answer is not None and answer.code == Code.SYSTEM_ERROR for answer in answers)
        assert answers[0] is not None
        assert answers[0].remark == "OSError: [Errno 5] Input/output error"
        assert answer_of(peer, other) == (Code.SUCCESS, 1)
        assert desk.broker.store.writability.refusal is None


async def test_pulls_that_wait_for_their_answer_get_it_after_a_fault_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task begins again and goes on with them, without anything else that wakes it."""
    answer_some, failures = PullService.__dict__["_answer_some"], [ValueError("a fault of ours")]

    def failing_once(self: PullService, pulls: Any) -> bool:
        if failures:
            raise failures.pop()
        return bool(answer_some(self, pulls))

    def do_nothing(*_: object) -> None:
        pass

    async with open_desk(tmp_path) as desk:
        await filled(desk)
        peer = desk.peer()
        opaque = peer.pull("T1", 3, **HOLD, suspendTimeoutMillis=600_000)
        monkeypatch.setattr(supervision, "RESTART_SECONDS", 0.01)
        monkeypatch.setattr(PullService, "_answer_some", failing_once)
        monkeypatch.setattr(PullService, "sweep", do_nothing)

        desk.broker.pulls.look_again()

        await until(lambda: peer.answer(opaque))
        assert not failures
