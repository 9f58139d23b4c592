"""Frames between brokers, a controller and mqadmin of RocketMQ 5.5.0, as they were seen on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgermq.ha.controller.protocol import (
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    ApplyBrokerIdRequest,
    ApplyBrokerIdResponse,
    Body,
    BrokerHeartbeat,
    BrokerReplicasInfo,
    CleanBrokerDataRequest,
    ElectMasterBody,
    ElectMasterRequest,
    EpochEntryCache,
    GetMetadataResponse,
    GetReplicaInfoRequest,
    Header,
    Mastership,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    SyncStateSet,
    read_broker_names,
)
from ledgermq.message.json import loads
from ledgermq.remoting.command import RemotingCommand, decode_command

FRAMES = Path(__file__).parents[2] / "golden" / "controller" / "frames.txt"

HEADERS: dict[tuple[int, str], type[Header]] = {
    (904, "request"): BrokerHeartbeat,
    (1001, "request"): AlterSyncStateSetRequest,
    (1001, "response"): AlterSyncStateSetResponse,
    (1002, "request"): ElectMasterRequest,
    (1002, "response"): Mastership,
    (1003, "request"): RegisterBrokerRequest,
    (1003, "response"): RegisterBrokerResponse,
    (1004, "request"): GetReplicaInfoRequest,
    (1004, "response"): Mastership,
    (1005, "response"): GetMetadataResponse,
    (1008, "request"): Mastership,
    (1011, "request"): CleanBrokerDataRequest,
    (1012, "request"): NextBrokerIdRequest,
    (1012, "response"): NextBrokerIdResponse,
    (1013, "request"): ApplyBrokerIdRequest,
    (1013, "response"): ApplyBrokerIdResponse,
}
BODIES: dict[tuple[int, str], type[Body]] = {
    (1001, "request"): SyncStateSet,
    (1001, "response"): SyncStateSet,
    (1002, "response"): ElectMasterBody,
    (1003, "response"): SyncStateSet,
    (1004, "response"): SyncStateSet,
    (1006, "response"): BrokerReplicasInfo,
    (1007, "response"): EpochEntryCache,
    (1008, "request"): SyncStateSet,
}
OURS_ONLY = {"cleanStop"}
JAVAS_ONLY = {"invokeTime"}


def captured() -> list[Any]:
    """One parameter for each frame; the length before it is left out."""
    found: list[Any] = []
    for line in FRAMES.read_text().splitlines():
        code, direction, frame = line.split()
        found.append(pytest.param(int(code), direction, bytes.fromhex(frame), id=f"{code}-{direction}-{len(found)}"))
    return found


def command_of(frame: bytes) -> RemotingCommand:
    head = int.from_bytes(frame[:4], "big")
    end = 4 + (head & 0xFFFFFF)
    return decode_command(head >> 24, frame[4:end], frame[end:])


@pytest.mark.parametrize(("code", "direction", "frame"), captured())
def test_a_captured_frame_is_read_and_written_with_the_same_fields(code: int, direction: str, frame: bytes) -> None:
    """All fields of a header and of a body, apart from the time at which Java sent it."""
    command = command_of(frame)

    if (code, direction) in HEADERS and (direction == "request" or command.code == 0 or code == 1001):
        header = HEADERS[code, direction].of(command)
        ours, javas = header.ext(), dict(command.ext or {})
        assert {key: ours[key] for key in ours.keys() - OURS_ONLY} == {key: javas[key] for key in javas.keys() - JAVAS_ONLY}
    if command.body and (code, direction) in BODIES:
        body = BODIES[code, direction].of(bytes(command.body))
        assert loads(body.body()) == loads(bytes(command.body))
    elif command.body:
        assert (code, direction) == (1006, "request")
        assert read_broker_names(bytes(command.body)) == ["b"]


def test_a_broker_without_a_log_sends_an_epoch_of_minus_one() -> None:
    """In its first heartbeat, before it knows a master."""
    frames = [frame for code, _direction, frame in (each.values for each in captured()) if code == 904]

    assert [BrokerHeartbeat.of(command_of(frame)).epoch for frame in frames] == [-1, 1]
