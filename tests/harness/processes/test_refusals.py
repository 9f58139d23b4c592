"""Requests that are well-formed and wrong, over a socket to a live broker: RocketMQ's code, and a remark that says why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.opening import open_broker
from ledgermq.message.batch import encode_batch
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, Wire, wire_fields
from ledgermq.world.network import Address
from ledgermq.world.real import real_world

SEND: dict[str, Any] = {"a": "pg", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "j": 0, "m": False}
PULL: dict[str, Any] = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": 0,
    "queueOffset": 0,
    "maxMsgNums": 32,
    "sysFlag": 4,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subscription": "*",
    "subVersion": 0,
}
TOPIC: dict[str, Any] = {"topic": "T2", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
MESSAGE_BYTES_MAX = 4096
LONG_PROPERTY = "K\x01" + "v" * 40_000 + "\x02"
HALF_A_BATCH = encode_batch([(0, b"one", b""), (0, b"two", b"")])[:-4]

Case = tuple[RequestCode, Mapping[str, Any], bytes, ResponseCode, str]

CASES: list[Case] = [
    # topics
    (RequestCode.SEND_MESSAGE_V2, SEND | {"b": "no/such"}, b"x", ResponseCode.INVALID_PARAMETER, "no/such"),
    (RequestCode.SEND_MESSAGE_V2, SEND | {"b": "t" * 128}, b"x", ResponseCode.INVALID_PARAMETER, "at most 127"),
    (RequestCode.SEND_MESSAGE_V2, SEND | {"b": "New", "c": "NoTemplate"}, b"x", ResponseCode.TOPIC_NOT_EXIST, "New"),
    (RequestCode.SEND_MESSAGE_V2, SEND | {"b": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.NO_PERMISSION, "broker's own"),
    (RequestCode.SEND_MESSAGE_V2, SEND | {"e": 99}, b"x", ResponseCode.NO_PERMISSION, "queue 99"),
    (RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": "a b"}, b"", ResponseCode.INVALID_PARAMETER, "a b"),
    # sizes
    (RequestCode.SEND_MESSAGE_V2, SEND, bytes(MESSAGE_BYTES_MAX + 1), ResponseCode.MESSAGE_ILLEGAL, "maxMessageSize"),
    (RequestCode.SEND_MESSAGE_V2, SEND | {"i": LONG_PROPERTY}, b"x", ResponseCode.MESSAGE_ILLEGAL, "properties"),
    (RequestCode.SEND_BATCH_MESSAGE, SEND | {"m": True}, HALF_A_BATCH, ResponseCode.MESSAGE_ILLEGAL, "batch"),
    (RequestCode.SEND_BATCH_MESSAGE, SEND | {"m": True}, b"", ResponseCode.MESSAGE_ILLEGAL, "empty"),
    (RequestCode.SEND_BATCH_MESSAGE, SEND | {"m": True}, bytes(9000), ResponseCode.MESSAGE_ILLEGAL, "maxMessageSize"),
    # fields
    (RequestCode.SEND_MESSAGE_V2, SEND | {"e": "first"}, b"x", ResponseCode.SYSTEM_ERROR, "first"),
    (RequestCode.SEND_MESSAGE_V2, {"a": "pg"}, b"x", ResponseCode.SYSTEM_ERROR, "'b'"),
    (RequestCode.SEND_MESSAGE_V2, SEND | {"i": "DELAY\x01soon\x02"}, b"x", ResponseCode.SYSTEM_ERROR, "soon"),
    (RequestCode.SEND_MESSAGE_V2, SEND | {"i": "TRAN_MSG\x01true\x02"}, b"x", ResponseCode.NO_PERMISSION, "transaction"),
    (RequestCode.PULL_MESSAGE, PULL | {"queueId": "x"}, b"", ResponseCode.SYSTEM_ERROR, "queueId"),
    (RequestCode.PULL_MESSAGE, PULL | {"queueId": 77}, b"", ResponseCode.INVALID_PARAMETER, "queueId 77"),
    (RequestCode.PULL_MESSAGE, PULL | {"topic": "Unknown"}, b"", ResponseCode.TOPIC_NOT_EXIST, "Unknown"),
    (RequestCode.PULL_MESSAGE, PULL | {"subscription": "||"}, b"", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "||"),
    (RequestCode.PULL_MESSAGE, PULL | {"sysFlag": 0}, b"", ResponseCode.SUBSCRIPTION_NOT_EXIST, "heartbeat"),
    # groups
    (RequestCode.PULL_MESSAGE, PULL | {"consumerGroup": "nobody"}, b"", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "nobody"),
    (RequestCode.SEND_MESSAGE_V2, SEND | {"b": "%RETRY%nobody"}, b"x", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "nobody"),
    # bodies and codes
    (RequestCode.HEART_BEAT, {}, b"{", ResponseCode.SYSTEM_ERROR, "not JSON"),
    (RequestCode.HEART_BEAT, {}, b"[" * 9000, ResponseCode.SYSTEM_ERROR, "not JSON"),
    (RequestCode.UPDATE_BROKER_CONFIG, {}, b"listenPort=x", ResponseCode.NO_PERMISSION, "listenPort"),
    (RequestCode.POP_MESSAGE, {}, b"", ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "200050"),
]


@pytest.mark.parametrize(("code", "fields", "body", "expected", "words"), CASES, ids=lambda value: repr(value)[:30])
async def test_a_wrong_request_gets_rocketmq_s_code_and_a_remark_that_names_the_cause(
    tmp_path: Path, code: RequestCode, fields: Mapping[str, Any], body: bytes, expected: ResponseCode, words: str
) -> None:
    """In either header encoding, and the connection goes on."""
    config = BrokerConfig(
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        store_path_root_dir=str(tmp_path / "store"),
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=100,
        max_index_num=400,
        max_message_size=MESSAGE_BYTES_MAX,
        auto_create_subscription_group=False,
    )
    network = real_world().network
    async with open_broker(config) as broker, connected(Address.parse(broker.address), network=network) as channel:
        group = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')
        assert (await channel.call(group, 10)).code == ResponseCode.SUCCESS
        right = RemotingCommand(RequestCode.SEND_MESSAGE_V2, wire_fields(SEND), b"right")
        assert (await channel.call(right, 10)).code == ResponseCode.SUCCESS
        stored = broker.store.log.max_offset

        for wire in (Wire.JSON, Wire.BINARY) if code < 1 << 15 else (Wire.JSON,):
            answer = await channel.call(RemotingCommand(code, wire_fields(fields), body, wire=wire), 10)
            assert (answer.code, ResponseCode(answer.code).name) == (expected, expected.name), answer.remark
            assert words in (answer.remark or "")

        assert broker.store.log.max_offset == stored
