"""Random whole requests: every request code that a server serves, with header and body fields at and beyond their limits.

A request starts as a valid one; then some of its fields are replaced, removed or added, and parts of its body are replaced by
values of other types. Names come from short lists without the names that the harness needs at the end, because a valid request
may delete the topic or group that it names.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs
import orjson

from .malformed import binary_header, frame, json_header

HEADER_BYTES_MAX = 256 * 1024
NINE_MEGABYTES = 9 << 20

TOPICS = (
    "fuzz-a",
    "fuzz-b",
    "fuzz-c",
    "%RETRY%fuzz-g",
    "%DLQ%fuzz-g",
    "SCHEDULE_TOPIC_XXXX",
    "TBW102",
    "RMQ_SYS_TRANS_HALF_TOPIC",
)
GROUPS = ("fuzz-g", "fuzz-h", "CID_fuzz", "TOOLS_CONSUMER")
NUMBERS = (
    *("0", "1", "-1", "7", "65535", "65536", "2147483647", "2147483648", "-2147483648", "-2147483649", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "9" * 40, "-" + "9" * 40, "9" * 5000),
    *("", " ", "x", "1e400", "NaN", "-Infinity", "0x10", "1_000", "\u0661", "true", "null", "1.5"),
)
TEXTS = (
    *(
        "",
        " ",
        "x",
        "x" * 127,
        "x" * 128,
        "x" * 256,
        "x" * 70_000,
        "\x00",
        "\x1b[2J\x07",
        "a\nb\r\n",
        "\u202eabc",
        "\u4e3b\u9898",
    ),
    *("../../../victim", "/etc/passwd", "a@b", "a%", "%RETRY%", "%RETRY%%RETRY%fuzz-g", "%DLQ%", "||", "*", "\U0001f4a5" * 100),
    *("a..b:1", "garbage", "127.0.0.1:1", "[::1]:1", "h:99999", "-a=b", "+a=b", "+a", "\x01\x02", "TAGS\x01a\x02"),
)
JSON_NODES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e308, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)),
    *(
        "",
        "x",
        "9" * 40,
        "9" * 5000,
        "\x1b[2J",
        "x" * 70_000,
        [],
        {},
        [[]],
        {"": {}},
        [None],
        ["x"] * 1000,
        {"a": {"b": {"c": []}}},
    ),
    *([0] * 20_000, {str(n): n for n in range(5000)}, [{"topic": "fuzz-a"}] * 500),
)
RAW_BODIES = (
    *(b"", b"{", b"[]", b"null", b"{}", b'{"$ref":"$"}', b"\xff\xfe", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000),
    *(b'{"a":%s}' % (b"9" * 40), b'{"a":1e400}', b"\x00" * 100, b"x" * (256 * 1024), b"x" * (256 * 1024 + 1)),
)


@attrs.frozen
class Whole:
    """One request code with the fields and the body of a valid request."""

    code: int
    fields: Mapping[str, str] = attrs.field(factory=dict[str, str])
    body: Any = None
    """A JSON value, bytes, or None for no body."""


_SUBSCRIPTION = {
    "topic": "fuzz-a",
    "subString": "TagA || TagB",
    "expressionType": "TAG",
    "subVersion": 5,
    "codeSet": [5],
    "tagsSet": ["a"],
}
_HEARTBEAT = {
    "clientID": "fuzz-client",
    "consumerDataSet": [
        {
            "groupName": "fuzz-g",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "unitMode": False,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [_SUBSCRIPTION],
        }
    ],
    "producerDataSet": [{"groupName": "fuzz-p"}],
}
_LOCKED = {
    "clientId": "fuzz-client",
    "consumerGroup": "fuzz-g",
    "mqSet": [{"brokerName": "faulty", "queueId": 0, "topic": "fuzz-a"}],
}
_GROUP = {
    "groupName": "fuzz-g",
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "consumeEnable": True,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "attributes": {"+a": "b"},
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
}
_TOPIC = {
    "topicName": "fuzz-a",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
    "attributes": {"+message.type": "NORMAL"},
}
SEND_FIELDS = {
    "a": "fuzz-p",
    "b": "fuzz-a",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1",
    "h": "0",
    "i": "",
    "j": "0",
    "k": "false",
}
_SEND_LONG = {
    "producerGroup": "fuzz-p",
    "topic": "fuzz-a",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "properties": "KEYS\x01k\x02",
    "reconsumeTimes": "0",
}
_PULL = {
    "consumerGroup": "fuzz-g",
    "topic": "fuzz-a",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "1000",
    "subscription": "*",
    "subVersion": "0",
    "maxMsgBytes": "1000",
}
_QUEUE = {
    "topic": "fuzz-a",
    "queueId": "0",
    "consumerGroup": "fuzz-g",
    "commitOffset": "0",
    "timestamp": "0",
    "group": "fuzz-g",
}
_VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 5}
ACL = (
    b'{"policies":[{"entries":[{"actions":["Pub","Sub"],"decision":"Allow","resource":["Topic:fuzz-a"],"sourceIps":["10.0.0.0/8"]}],'
    b'"policyType":"Custom"}],"subject":"User:fuzz-u"}'
)
"""The body that gives a user a right."""

_BROKER = {
    "clusterName": "fuzz-cluster",
    "brokerName": "fuzz-broker",
    "brokerId": "0",
    "brokerAddr": "10.0.0.1:10911",
    "haServerAddr": "10.0.0.1:10912",
    "heartbeatTimeoutMillis": "100000",
    "bodyCrc32": "0",
}
_NOTICE = {"minBrokerId": "0", "brokerName": "faulty", "minBrokerAddr": "10.0.0.1:1", "haBrokerAddr": "10.0.0.1:2"}
_BATCH = struct.pack(">iiiii", 21, 0, 0, 0, 1) + b"x" + struct.pack(">h", 0)

BROKER: tuple[Whole, ...] = (
    Whole(10, _SEND_LONG, b"message"),
    Whole(310, SEND_FIELDS, b"message"),
    Whole(320, {**SEND_FIELDS, "m": "true"}, _BATCH),
    Whole(
        36,
        {
            "group": "fuzz-g",
            "offset": "0",
            "delayLevel": "0",
            "originMsgId": "x",
            "originTopic": "fuzz-a",
            "maxReconsumeTimes": "16",
        },
    ),
    Whole(11, _PULL),
    Whole(361, _PULL),
    Whole(
        12,
        {
            "topic": "fuzz-a",
            "key": "k",
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": "9999999999999",
            "_UNIQUE_KEY_QUERY": "false",
        },
    ),
    Whole(33, {"offset": "0"}),
    *(Whole(code, _QUEUE) for code in (14, 15, 29, 30, 31, 32)),
    Whole(34, {}, _HEARTBEAT),
    Whole(35, {"clientID": "fuzz-client", "producerGroup": "fuzz-p", "consumerGroup": "fuzz-g"}),
    Whole(38, _QUEUE),
    Whole(41, {}, _LOCKED),
    Whole(42, {}, _LOCKED),
    Whole(46, {}, {"clientId": "fuzz-client", "group": "fuzz-g", "subscriptionData": _SUBSCRIPTION}),
    Whole(
        17,
        {
            "topic": "fuzz-a",
            "readQueueNums": "4",
            "writeQueueNums": "4",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": "+message.type=NORMAL",
        },
    ),
    Whole(18, {}, {"topicConfigList": [_TOPIC, {**_TOPIC, "topicName": "fuzz-b"}]}),
    Whole(215, {"topic": "fuzz-c"}),
    Whole(351, {"topic": "fuzz-a"}),
    Whole(200, {}, _GROUP),
    Whole(225, {}, {"groupConfigList": [_GROUP, {**_GROUP, "groupName": "fuzz-h"}]}),
    Whole(207, {"groupName": "fuzz-h", "cleanOffset": "true", "removeOffset": "true"}),
    Whole(352, {"group": "fuzz-g"}),
    Whole(353, {"group": "fuzz-g", "topic": "fuzz-a", "readable": "true"}),
    Whole(314, {"srcGroup": "fuzz-g", "destGroup": "fuzz-h", "topic": "fuzz-a", "offline": "true"}),
    Whole(60002, {"producer": "fuzz-p"}),
    Whole(3001, {"username": "fuzz-u"}, b'{"password":"p","userStatus":"enable","userType":"Normal","username":"fuzz-u"}'),
    Whole(3002, {"username": "fuzz-u"}, b'{"password":"q","userStatus":"disable"}'),
    *(Whole(code, {"username": "fuzz-u"}) for code in (3003, 3004)),
    Whole(3005, {"filter": "fuzz"}),
    *(Whole(code, {"subject": "User:fuzz-u"}, ACL) for code in (3006, 3007)),
    Whole(3008, {"subject": "User:fuzz-u", "policyType": "Custom", "resource": "Topic:fuzz-a"}),
    Whole(3009, {"subject": "User:fuzz-u"}),
    Whole(3010, {"subjectFilter": "User", "resourceFilter": "fuzz"}),
    Whole(60003, {"haNonce": "0a" * 32}),
    *(Whole(code) for code in (21, 26, 28, 43, 45, 201, 305, 306, 316, 328, 329, 402, 907)),
    Whole(43, {"acceptStandardJsonOnly": "true", "haNonce": "0a" * 32}),
    Whole(25, {}, b"maxFilterMessageSize=16000\nshortPollingTimeMills=1000\n"),
    Whole(202, {"topic": "fuzz-a"}),
    Whole(203, {"consumerGroup": "fuzz-g"}),
    Whole(204, {"producerGroup": "fuzz-p"}),
    Whole(208, {"consumerGroup": "fuzz-g", "topic": "fuzz-a", "topicList": "fuzz-a;fuzz-b"}),
    Whole(317, {"isOrder": "false"}),
    Whole(303, _QUEUE),
    Whole(308, {"topic": "fuzz-a", "compareGroup": "fuzz-g", "filterGroups": "fuzz-h"}),
    Whole(300, _QUEUE),
    Whole(343, _QUEUE),
    Whole(345, _QUEUE),
    Whole(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "fuzz-a"}),
    Whole(321, {"topic": "fuzz-a", "queueId": "0", "index": "0", "count": "10", "consumerGroup": "fuzz-g"}),
    Whole(222, {"topic": "fuzz-a", "group": "fuzz-g", "timestamp": "-1", "isForce": "true", "queueId": "-1", "offset": "-1"}),
    Whole(223, {"topic": "fuzz-a", "group": "fuzz-g", "clientAddr": ""}),
    Whole(307, {"consumerGroup": "fuzz-g", "clientId": "fuzz-client", "jstackEnable": "false"}),
    Whole(
        309,
        {"consumerGroup": "fuzz-g", "clientId": "fuzz-client", "topic": "fuzz-a", "msgId": "7F00000100002A9F0000000000000000"},
    ),
    Whole(905, _NOTICE),
)
NAMESRV: tuple[Whole, ...] = (
    Whole(100, {"namespace": "fuzz", "key": "k", "value": "v"}),
    Whole(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "fuzz-a", "value": "fuzz-broker:4"}),
    Whole(101, {"namespace": "fuzz", "key": "k"}),
    Whole(102, {"namespace": "fuzz", "key": "k"}),
    Whole(219, {"namespace": "fuzz"}),
    Whole(
        103,
        _BROKER,
        {
            "topicConfigSerializeWrapper": {"dataVersion": _VERSION, "topicConfigTable": {"fuzz-a": _TOPIC, "fuzz-b": _TOPIC}},
            "filterServerList": [],
        },
    ),
    Whole(104, _BROKER),
    Whole(105, {"topic": "fuzz-a", "acceptStandardJsonOnly": "true"}),
    *(Whole(code) for code in (106, 206, 304, 311, 312, 313, 319)),
    Whole(205, {"brokerName": "fuzz-broker"}),
    Whole(327, {"brokerName": "fuzz-broker"}),
    Whole(216, {"topic": "fuzz-a", "clusterName": "fuzz-cluster"}),
    Whole(
        217,
        {"topic": "fuzz-a"},
        {
            "queueDatas": [
                {"brokerName": "fuzz-broker", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}
            ],
            "brokerDatas": [],
        },
    ),
    Whole(224, {"cluster": "fuzz-cluster"}),
    Whole(318, {}, b"orderMessageEnable=true\nscanNotActiveBrokerInterval=5000\n"),
    Whole(322, _BROKER, _VERSION),
    Whole(901, _BROKER),
    Whole(904, _BROKER, _VERSION),
)

_REPLICA = {"clusterName": "fuzz-cluster", "brokerName": "fuzz-broker", "brokerId": "1", "brokerAddress": "127.0.0.1:1"}
CONTROLLER: tuple[Whole, ...] = (
    Whole(
        904,
        {
            "clusterName": "fuzz-cluster",
            "brokerName": "fuzz-broker",
            "brokerAddr": "127.0.0.1:1",
            "brokerId": "1",
            "epoch": "1",
            "maxOffset": "100",
            "confirmOffset": "50",
            "heartbeatTimeoutMills": "1000",
            "electionPriority": "1",
        },
    ),
    Whole(
        1001,
        {"brokerName": "fuzz-broker", "masterBrokerId": "1", "masterEpoch": "1"},
        {"syncStateSet": [1, 2], "syncStateSetEpoch": 1},
    ),
    Whole(1002, {"brokerName": "fuzz-broker", "clusterName": "fuzz-cluster", "brokerId": "1", "designateElect": "true"}),
    *(Whole(1003, {**_REPLICA, "brokerId": broker_id, "maxOffset": "100", "epoch": "1"}) for broker_id in "12"),
    Whole(1004, {"brokerName": "fuzz-broker"}),
    *(Whole(code) for code in (1005, 1010)),
    Whole(1006, {}, ["fuzz-broker", "fuzz-other"]),
    Whole(1009, {}, b"notifyBrokerRoleChanged=true\nscanNotActiveBrokerInterval=5000\n"),
    Whole(
        1011,
        {
            "brokerName": "fuzz-broker",
            "clusterName": "fuzz-cluster",
            "brokerControllerIdsToClean": "1;2",
            "isCleanLivingBroker": "true",
        },
    ),
    Whole(1012, {"clusterName": "fuzz-cluster", "brokerName": "fuzz-broker"}),
    *(
        Whole(
            1013,
            {
                "clusterName": "fuzz-cluster",
                "brokerName": "fuzz-broker",
                "appliedBrokerId": broker_id,
                "registerCheckCode": f"127.0.0.1:1;{broker_id}",
            },
        )
        for broker_id in "12"
    ),
)

_TINY_ITEM = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + struct.pack(">h", 0)
_MANY_TOPICS = {f"fuzz-{n:05d}": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for n in range(20_000)}
_MANY_GROUPS: list[dict[str, Any]] = [{"groupName": f"fuzz-many-{n}", "subscriptionDataSet": []} for n in range(1000)]

HEAVY_BROKER: tuple[Whole, ...] = (
    Whole(320, {**SEND_FIELDS, "m": "true"}, _TINY_ITEM * 16_000),
    Whole(320, {**SEND_FIELDS, "m": "true"}, _TINY_ITEM * 180_000),
    *(Whole(310, {**SEND_FIELDS, "i": f"KEYS\x01{' '.join(map(str, range(keys)))}\x02"}, b"message") for keys in (300, 6000)),
    Whole(11, {**_PULL, "sysFlag": "6", "subscription": "||".join(f"{n:x}" for n in range(35_000))}),
    Whole(25, {}, b"\\" * 32_000),
    Whole(25, {}, b"a=b\\\n" * 8_000),
    Whole(17, {"topic": "fuzz-wide", "readQueueNums": "16384", "writeQueueNums": "16384", "perm": "6"}),
    *(Whole(code, {"topic": "fuzz-wide", "group": "fuzz-g", "consumerGroup": "fuzz-g"}) for code in (202, 208, 303)),
    Whole(222, {"topic": "fuzz-wide", "group": "fuzz-g", "timestamp": "0", "isForce": "true"}),
    Whole(34, {}, {"clientID": "fuzz-many", "consumerDataSet": _MANY_GROUPS}),
    Whole(41, {}, {**_LOCKED, "mqSet": [{"brokerName": "faulty", "queueId": n, "topic": "fuzz-wide"} for n in range(4000)]}),
    Whole(28, {f"{n:x}": "1" for n in range(15_000)}),
)
HEAVY_NAMESRV: tuple[Whole, ...] = (
    Whole(103, _BROKER, {"topicConfigSerializeWrapper": {"dataVersion": _VERSION, "topicConfigTable": _MANY_TOPICS}}),
    Whole(103, {**_BROKER, "brokerName": "fuzz-other"}, b'{"x":[' + b"[]," * 1_000_000 + b"0]}"),
    Whole(318, {}, b"\\" * 32_000),
    Whole(318, {}, b"a=b\\\n" * 8_000),
    Whole(105, {f"{n:x}": "1" for n in range(15_000)}),
)
HEAVY_CONTROLLER: tuple[Whole, ...] = (
    Whole(1006, {}, [f"fuzz-{n}" for n in range(1024)]),
    Whole(1009, {}, b"\\" * 32_000),
    Whole(1011, {"brokerName": "fuzz-broker", "brokerControllerIdsToClean": ";".join(map(str, range(300)))}),
    Whole(1004, {f"{n:x}": "1" for n in range(15_000)}),
)
"""Valid or almost valid requests that take long for their size."""

_TOPIC_FIELDS = frozenset(("topic", "b", "topicName", "originTopic", "defaultTopic", "c"))
_GROUP_FIELDS = frozenset(
    ("group", "consumerGroup", "producerGroup", "groupName", "a", "srcGroup", "destGroup", "compareGroup")
)


BINARY_CODE_MAX = (1 << 15) - 1
"""A binary header has two bytes for the code; requests with a higher one have JSON headers only."""


def draw_heavy(rng: random.Random, wholes: tuple[Whole, ...], opaque: int) -> bytes:
    """Draw one frame of the requests that take long."""
    whole = rng.choice(wholes)
    body = whole.body if isinstance(whole.body, bytes) else b"" if whole.body is None else orjson.dumps(whole.body)
    if rng.random() < 0.3 and whole.code <= BINARY_CODE_MAX:
        return frame(binary_header(whole.code, dict(whole.fields), opaque), body, wire=1)
    return frame(json_header(whole.code, dict(whole.fields), opaque), body)


def draw_request(rng: random.Random, wholes: tuple[Whole, ...], opaque: int) -> bytes:
    """Draw one frame: a valid request of which some parts are replaced."""
    whole = rng.choice(wholes)
    fields = dict(whole.fields)
    for name in rng.sample(sorted(fields), min(len(fields), rng.choice((0, 0, 1, 1, 1, 2, 4)))):
        if rng.random() < 0.1:
            del fields[name]
        else:
            fields[name] = _value(rng, name)
    if rng.random() < 0.03:
        fields |= {f"extra{n}": rng.choice(TEXTS) for n in range(rng.choice((1, 10, 2000)))}
    if rng.random() < 0.002:
        fields["huge"] = "x" * rng.choice((HEADER_BYTES_MAX - 5000, HEADER_BYTES_MAX + 1, NINE_MEGABYTES))
    body = _body(rng, whole.body)
    flag = 2 if rng.random() < 0.02 else 0
    if rng.random() < 0.2 and flag == 0 and all(fields.values()) and whole.code <= BINARY_CODE_MAX:
        return frame(binary_header(whole.code, fields, opaque), body, wire=1)
    return frame(json_header(whole.code, fields, opaque, flag), body)


def _value(rng: random.Random, name: str) -> str:
    if name in _TOPIC_FIELDS and rng.random() < 0.6:
        return rng.choice(TOPICS)
    if name in _GROUP_FIELDS and rng.random() < 0.6:
        return rng.choice(GROUPS)
    return rng.choice(rng.choice((NUMBERS, NUMBERS, TEXTS)))


def _body(rng: random.Random, right: Any) -> bytes:
    chance = rng.random()
    if chance < 0.03:
        return rng.choice(RAW_BODIES)
    if chance < 0.032:
        return bytes(NINE_MEGABYTES)
    if right is None:
        return b""
    if isinstance(right, bytes):
        return right if rng.random() < 0.5 else _edited(rng, right)
    return orjson.dumps(_mutated(rng, right, rng.choice((0.0, 0.05, 0.2))))


def _edited(rng: random.Random, right: bytes) -> bytes:
    name, _, rest = right.partition(b"=")
    if rest and rng.random() < 0.7:  # properties text
        return name + b"=" + rng.choice(rng.choice((NUMBERS, TEXTS))).encode() + b"\n"
    at = rng.randrange(len(right))
    return right[:at] + rng.randbytes(rng.choice((0, 1, 4))) + right[at + rng.choice((0, 1, 4)) :]


def _mutated(rng: random.Random, node: Any, rate: float) -> Any:
    if rng.random() < rate:
        return rng.choice(JSON_NODES)
    if isinstance(node, dict):
        table = cast("dict[str, Any]", node)
        return {key: _mutated(rng, item, rate) for key, item in table.items() if rng.random() >= rate / 4}
    if isinstance(node, list):
        items = [_mutated(rng, item, rate) for item in cast("Iterable[Any]", node)]
        return items * rng.choice((1, 1, 1, 0, 50)) if rng.random() < rate else items
    return node


def draw_answer(rng: random.Random, opaque: int) -> bytes:
    """Draw a client's answer to a request of the broker: an extreme code, and sometimes a body of nine megabytes."""
    answered = rng.choice((0, 1, -1, (1 << 31) - 1, -(1 << 31), 40_000))
    body = rng.choice((b"", b"{}", b"null", b'{"messageQueueTable":{}}', b'{"messageQueueTable":[1]}', b"\xff", b"[" * 1000))
    if rng.random() < 0.05:
        body = bytes(NINE_MEGABYTES)
    return frame(json_header(answered, {"x": rng.choice(TEXTS)}, opaque, flag=1), body)
