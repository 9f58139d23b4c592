"""Sends: what is refused costs nobody else anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgermq.message.properties import encode_properties
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, encode_frame

from .desk import BORN, open_desk

FIELDS = {"a": "pg", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": BORN, "h": 0, "i": "", "j": 0, "k": "false"}


@pytest.mark.parametrize(
    "field",
    [{"h": 1 << 40}, {"h": -(1 << 31) - 1}, {"f": 1 << 33}, {"g": 1 << 63}, {"j": 1 << 31}],
    ids=["flag", "negative flag", "sysFlag", "bornTimestamp", "reconsumeTimes"],
)
async def test_a_number_that_no_record_can_hold_is_refused_alone(tmp_path: Path, field: dict[str, Any]) -> None:
    """Its neighbours in the same receive are stored, and the queue has no gap where it would have been."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        opaques = [peer.post(RequestCode.SEND_MESSAGE_V2, {**FIELDS, **extra}, b"x") for extra in ({}, field, {})]
        answers = [peer.answer(opaque) for opaque in opaques]
        await desk.settled()

        assert [answer and answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
        assert answers[1] is not None
        assert "was not stored" in (answers[1].remark or "")
        assert [message.queue_offset for message in peer.pulled("T")] == [0, 1]


async def test_one_receive_with_a_bad_number_among_good_ones_stores_the_good_ones(tmp_path: Path) -> None:
    """As above, but the three come in one piece and are put together."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        requests = [
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, {name: str(value) for name, value in {**FIELDS, **extra}.items()}, b"x", opaque
            )
            for opaque, extra in enumerate([{}, {"h": 1 << 40}, {}])
        ]
        frames = b"".join(map(encode_frame, requests))

        desk.broker.dispatcher.handle(peer.connection, peer.connection.receive(frames))
        answers = [peer.answer(opaque) for opaque in range(3)]
        await desk.settled()

        assert [answer and answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
        assert [message.queue_offset for message in peer.pulled("T")] == [0, 1]


async def test_words_of_delays_inside_other_properties_delay_nothing(tmp_path: Path) -> None:
    """A property may be called like one of RocketMQ's in part, or hold its name."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        properties = {"note": "DELAY and TRAN_MSG", "NO_DELAY": "3", "MY_TIMER_DELIVER_MS": "1"}
        answer = peer.ask(RequestCode.SEND_MESSAGE_V2, {**FIELDS, "i": encode_properties(properties)}, b"x")
        await desk.settled()

        assert answer.code == 0
        assert peer.pulled("T")[0].properties.items() >= properties.items()
