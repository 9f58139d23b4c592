"""Requests to whole servers on a simulated machine; an exception of a handler that is no refusal is a finding.

An input is a JSON header, a line end and a body. No other task runs while the server handles it, and the changes of a request
are undone before the next one, so that an input always has the same effect.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio.testing

from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.persistence import Persistence
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.json import dumps, loads
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.handlers import Handlers
from ledgermq.namesrv.kv_config import KvConfig
from ledgermq.remoting.changed_settings import KeptFile
from ledgermq.remoting.command import RemotingCommand, Wire, decode_command
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.server import ServerConnection, ServerLimits
from ledgermq.testing.embedded import open_virtual
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.clock import Clock
from ledgermq.world.network import Address, PlainStream

BROKER_CODES = frozenset(
    (
        *(11, 12, 14, 15, 17, 18, 21, 26, 28, 29, 30, 31, 32, 33, 34, 35, 38, 41, 42, 43, 45, 46),
        *(200, 201, 202, 203, 204, 207, 208, 222, 225, 300, 303, 314, 315, 317, 321, 328, 343, 345, 351, 352, 353),
    )
)
"""Codes of requests that a broker answers at once and without the disk."""
NAMESRV_CODES = frozenset((101, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 319, 322, 327, 904, 901))


def _request(data: bytes) -> RemotingCommand:
    header, _, body = data.partition(b"\n")
    return decode_command(Wire.JSON, header, body)


def _ask(dispatcher: Dispatcher, clock: Clock, request: RemotingCommand) -> None:
    ours, _ = trio.testing.memory_stream_pair()
    remote = Address("10.0.0.9", 40_000)
    connection = ServerConnection(PlainStream(ours, remote, remote), remote, clock, ServerLimits())
    dispatcher.handle(connection, [request])
    connection.mark_closed()
    dispatcher.connection_closed(connection)


@asynccontextmanager
async def broker_requests() -> AsyncGenerator[Callable[[bytes], object]]:
    """A broker with a topic and a group."""
    async with open_virtual() as embedded:
        broker = embedded.brokers[0]
        broker.topics.put(TopicConfig("T", 4, 4))
        broker.groups.put(GroupConfig("g"))
        topics, groups = loads(broker.topics.wrapper()), loads(dumps(broker.groups.to_json()))

        def decode(data: bytes) -> None:
            request = _request(data)
            if request.code in BROKER_CODES:
                _ask(broker.dispatcher, broker.world.clock, request)
                _put_back()

        def _put_back() -> None:
            broker.topics.load(topics)
            broker.groups.load(groups)
            for topic in {topic for topic, _ in broker.offsets.table}:
                broker.offsets.forget_topic(topic)

        yield decode


@asynccontextmanager
async def namesrv_requests() -> AsyncGenerator[Callable[[bytes], object]]:
    """A name server without registered brokers; each request gets new tables."""
    world = sim_world(0)

    def decode(data: bytes) -> None:
        request = _request(data)
        if request.code in NAMESRV_CODES:
            dispatcher = Dispatcher()
            files = KeptFile("configStorePath"), KeptFile("kvConfigPath")
            Handlers(NamesrvConfig(), world, *files, KvConfig({"n": {"k": "v"}})).register(dispatcher)
            _ask(dispatcher, world.clock, request)

    yield decode


@asynccontextmanager
async def delay_file() -> AsyncGenerator[Callable[[bytes], object]]:
    """The file of a broker's positions in its delay queues, loaded into a running broker."""
    async with open_virtual() as embedded:
        broker = embedded.brokers[0]
        disk = broker.world.disk
        disk.make_directories("fuzzed")

        def decode(data: bytes) -> None:
            if disk.exists("fuzzed/delayOffset.json"):
                disk.remove("fuzzed/delayOffset.json")
            disk.open("fuzzed/delayOffset.json", create_size=len(data)).write(data, 0)
            Persistence(disk, broker.world.workers, "fuzzed").load("delayOffset.json", broker.delay.load)

        yield decode


def _input(code: int, fields: dict[str, str], body: Any = None) -> bytes:
    header = dumps({"code": code, "extFields": fields})
    return header + b"\n" + (body if isinstance(body, bytes) else b"" if body is None else dumps(body))


_SUBSCRIPTION = {
    "topic": "T",
    "subString": "TagA || TagB",
    "expressionType": "TAG",
    "subVersion": 5,
    "codeSet": [5, 7],
    "tagsSet": ["TagA"],
}
_HEARTBEAT = {
    "clientID": "c1",
    "consumerDataSet": [
        {
            "groupName": "g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "unitMode": False,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [_SUBSCRIPTION],
        }
    ],
    "producerDataSet": [{"groupName": "pg"}],
}
_QUEUES = {"clientId": "c1", "consumerGroup": "g", "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]}
_GROUP = {"groupName": "g", "retryQueueNums": 1, "retryMaxTimes": 16, "consumeEnable": True, "brokerId": 0}
_TOPIC = {
    "topicName": "T",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "order": False,
    "attributes": {"+message.type": "NORMAL"},
}
_PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "1",
    "subscription": "*",
    "subVersion": "0",
}
_OF_QUEUE = {"topic": "T", "queueId": "0", "consumerGroup": "g", "commitOffset": "5", "timestamp": "0", "group": "g"}

BROKER_SEEDS = [
    _input(34, {}, _HEARTBEAT),
    _input(41, {}, _QUEUES),
    _input(42, {}, _QUEUES),
    _input(46, {}, {"clientId": "c1", "group": "g", "subscriptionData": _SUBSCRIPTION}),
    _input(200, {}, _GROUP),
    _input(225, {}, {"groupConfigList": [_GROUP]}),
    _input(17, {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "attributes": "+a=b"}),
    _input(18, {}, {"topicConfigList": [_TOPIC]}),
    _input(11, _PULL),
    _input(12, {"topic": "T", "key": "k1", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9999999999999"}),
    _input(33, {"offset": "0"}),
    _input(222, {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}),
    _input(314, {"srcGroup": "g", "destGroup": "h", "topic": "T"}),
    _input(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}),
    _input(321, {"topic": "T", "queueId": "0", "index": "0", "count": "10", "consumerGroup": "g"}),
    _input(353, {"group": "g", "topic": "T", "readable": "false"}),
    *(_input(code, _OF_QUEUE) for code in (14, 15, 29, 30, 31, 32, 35, 38, 202, 203, 204, 208, 300, 303, 317, 343, 345)),
]
_BROKER = {
    "clusterName": "c",
    "brokerName": "b",
    "brokerId": "0",
    "brokerAddr": "10.0.0.1:10911",
    "haServerAddr": "10.0.0.1:10912",
}
_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 5}
NAMESRV_SEEDS = [
    _input(103, _BROKER, {"topicConfigSerializeWrapper": {"dataVersion": _VERSION, "topicConfigTable": {"T": _TOPIC}}}),
    _input(217, {"topic": "T"}, {"queueDatas": [{"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}]}),
    _input(322, _BROKER, _VERSION),
    _input(904, _BROKER, _VERSION),
    *(_input(code, {**_BROKER, "topic": "T", "cluster": "c", "namespace": "n", "key": "k"}) for code in sorted(NAMESRV_CODES)),
]
