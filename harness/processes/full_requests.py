"""The requests with which the tables of a broker are filled, and the answers of its clients."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
import trio

from ledgermq.remoting.channel import Channel
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.world.network import Address

from .requests import SEND_FIELDS


def command(code: int, fields: Mapping[str, object] | None = None, body: Any = None) -> RemotingCommand:
    """A request; a body that is not bytes is written as JSON."""
    content = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
    return RemotingCommand(code, {name: str(value) for name, value in (fields or {}).items()}, content)


def heartbeat(client_id: str, groups: Iterable[str], topics: Iterable[str]) -> RemotingCommand:
    """The heartbeat of a client with one member of each group."""
    subscriptions = [{"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 1} for topic in topics]
    consumers = [
        {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }
        for group in groups
    ]
    return command(RequestCode.HEART_BEAT, {}, {"clientID": client_id, "consumerDataSet": consumers})


def answer_as_client(_channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
    """What a client answers to a request for the offsets of its queues; others are not answered."""
    if request.code != RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
        return None
    queue = '{{"brokerName":"faulty","queueId":{},"topic":"full-0"}}:5'
    return request.response(body=f'{{"messageQueueTable":{{{",".join(map(queue.format, range(8)))}}}}}'.encode())


def batch_item(properties: bytes = b"") -> bytes:
    """One message of a batch."""
    head = struct.pack(">iiiii", 22 + len(properties) + 1, 0, 0, 0, 1)
    return head + b"x" + struct.pack(">h", len(properties)) + properties


def numbered_batch(topic: str, producer: str, count: int) -> tuple[dict[str, str], bytes]:
    """The fields and the body of the first batch of a producer whose sends are numbered; none of them counts as answered."""
    return {**SEND_FIELDS, "b": topic, "e": "0", "m": "true", "sendNumber": f"{producer}.1.0.0"}, batch_item() * count


def user_with_right(name: str, topic: str) -> Iterator[RemotingCommand]:
    """Create a user who may send to one topic."""
    yield command(RequestCode.AUTH_CREATE_USER, {"username": name}, {"password": "password", "userType": "Normal"})
    entry = {"resource": f"Topic:{topic}", "actions": ["Pub"], "decision": "Allow"}
    policies = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
    yield command(RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, policies)


async def scraped(address: Address) -> bytes:
    """What an address answers to a request for metrics over HTTP."""
    received = bytearray()
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: metrics\r\nConnection: close\r\n\r\n")
        async for piece in stream:
            received += piece
    return bytes(received)
