"""Malformed remoting frames of every kind, drawn from a random source, each with the required reaction of a server.

Frames are encoded here independently of `ledgermq.remoting`, because a bug in our encoder must not hide one in our decoder.
Names of topics and groups come from a short list, so that the server's memory does not grow by those that are validly created.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from enum import Enum, auto

import attrs
import orjson

from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.dispatcher import BODY_BYTES_MAX

FRAME_SIZE_MAX = 16 * 1024 * 1024
TOPICS = (
    "fuzzed-a",
    "fuzzed-b",
    "no/such topic",
    "",
    "%RETRY%fuzzed",
    "%DLQ%fuzzed",
    "SCHEDULE_TOPIC_XXXX",
    "x" * 300,
    "\u4e3b\u9898",
)
GROUPS = ("fuzzers", "CID_fuzzed", "no group!", "", "g" * 300)
ABSURD = (
    *("", "-1", "0", "1", "99", "2147483648", "-9223372036854775808", "9" * 30, "9" * 5000, "1e9", "NaN", "0x10", " 7 "),
    *("true", "null", "\x00", "\x01\x02", "\u0661", "\ud7ff", "a" * 3000, "TAGS\x01a\x02", "[[[", '{"a":'),
)
NAMES = (
    *("topic", "consumerGroup", "producerGroup", "group", "groupName", "queueId", "queueOffset", "offset", "commitOffset"),
    *("maxMsgNums", "sysFlag", "subscription", "subVersion", "expressionType", "clientID", "key", "maxNum", "timestamp"),
    *("beginTimestamp", "endTimestamp", "delayLevel", "originMsgId", "brokerName", "readQueueNums", "writeQueueNums", "perm"),
    *("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "index", "count", "srcGroup", "destGroup"),
)
_OF_TOPIC = frozenset(("topic", "b", "defaultTopic"))
_OF_GROUP = frozenset(("consumerGroup", "producerGroup", "group", "groupName", "a", "srcGroup", "destGroup"))
_SEND_FIELDS = {
    "a": "fuzzers",
    "b": "fuzzed-a",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1",
    "h": "0",
    "i": "",
    "m": "false",
}
"""The header fields of a message that a broker would accept."""
_BODY_CODES = (34, 41, 42, 46, 200, 25, 18, 225, 222, 314, 307, 309, 320)
_CODES = tuple(int(code) for code in RequestCode)
_BOMB_DEPTH = 50_000
_LONG_PROPERTIES = f"K\x01{'v' * 33_000}\x02"


class Fate(Enum):
    """How a server must react."""

    CLOSED = auto()
    """The server closes the connection, because it cannot find the next frame."""
    ANSWERED = auto()
    """The server sends an answer, with any code."""
    IGNORED = auto()
    """The server sends nothing: the frame is a oneway request, or an answer that no call waits for."""


Draw = Callable[[random.Random, int], bytes]


@attrs.frozen
class Kind:
    """One way in which a frame is malformed; `draw` makes its bytes from a random source and the opaque of the frame."""

    name: str
    fate: Fate
    draw: Draw


def frame(header: bytes, body: bytes = b"", *, wire: int = 0) -> bytes:
    """A frame with correct lengths."""
    return struct.pack(">iI", 4 + len(header) + len(body), wire << 24 | len(header)) + header + body


def json_header(code: int, fields: dict[str, str], opaque: int, flag: int = 0) -> bytes:
    """A valid JSON header."""
    return orjson.dumps({"code": code, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 409})


def binary_header(code: int, fields: dict[str, str], opaque: int) -> bytes:
    """A valid binary header; `code` must fit in 16 bits."""
    block = b"".join(
        struct.pack(">h", len(name.encode())) + name.encode() + struct.pack(">i", len(value.encode())) + value.encode()
        for name, value in fields.items()
    )
    return struct.pack(">hbhiiii", code, 0, 409, opaque, 0, 0, len(block)) + block


def _fields(rng: random.Random) -> dict[str, str]:
    fields = {"suspendTimeoutMillis": "1"}
    for name in rng.sample(NAMES, rng.randint(0, 14)):
        if name in _OF_TOPIC:
            fields[name] = rng.choice(TOPICS)
        elif name in _OF_GROUP:
            fields[name] = rng.choice(GROUPS)
        else:
            fields[name] = rng.choice(ABSURD)
    return fields


def _absurd_fields(rng: random.Random, opaque: int) -> bytes:
    return frame(json_header(rng.choice(_CODES), _fields(rng), opaque), rng.randbytes(rng.randint(0, 50)))


def _absurd_binary_fields(rng: random.Random, opaque: int) -> bytes:
    code = rng.choice([code for code in _CODES if code < 1 << 15])
    return frame(binary_header(code, _fields(rng), opaque), rng.randbytes(rng.randint(0, 50)), wire=1)


def _unknown_code(rng: random.Random, opaque: int) -> bytes:
    code = rng.choice((-1, 0, 7777, (1 << 31) - 1, -(1 << 31), rng.randint(1000, 9999)))
    return frame(json_header(code, {}, opaque))


def _bombs(rng: random.Random) -> bytes:
    depth = _BOMB_DEPTH if rng.random() < 0.02 else rng.choice((101, 1000, 3000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{{}:", b"}"), (b'[{"a":', b"}]")))
    return opening * depth + b"1" + (closing * depth if rng.random() < 0.5 else b"")


def _references(rng: random.Random) -> bytes:
    levels = rng.randint(5, 60)
    doubled = ",".join(f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, levels))
    return f'{{"a0":[1,2],{doubled}}}'.encode()


def _bad_body(rng: random.Random, opaque: int) -> bytes:
    body = rng.choice(
        (
            _bombs(rng),
            _references(rng),
            rng.randbytes(rng.randint(0, 300)),
            b"{}",
            b"null",
            b"[]",
            b'{"clientID":5,"consumerDataSet":{},"producerDataSet":7}',
            b'{"clientID":"c","consumerDataSet":[[]],"producerDataSet":[{"groupName":null}]}',
            b'{"groupName":"fuzzers","retryQueueNums":"many"}',
            b'{"consumerGroup":"fuzzers","clientId":1,"mqSet":[1,{"topic":[]}]}',
            b"\xff" * rng.randint(1, 100),
            b"1" * rng.randint(1, 10_000),
        )
    )
    return frame(json_header(rng.choice(_BODY_CODES), _fields(rng), opaque), body)


def _large_body(rng: random.Random, opaque: int) -> bytes:
    """A frame with a large body, usually at most one byte above the limit of most requests; one in 200 has any allowed size."""
    size = round(2 ** rng.uniform(16, 23.99)) if rng.random() < 0.005 else BODY_BYTES_MAX // rng.choice((1, 8, 64, 256)) + 1
    start, unit = rng.choice(((b"[", b"[[],"), (b"[", b'{"a":1},'), (b"{", b"1:2,"), (b"", b"{{}:"), (b'"', b"x")))
    body = (start + unit * (size // len(unit) + 1))[:size]
    return frame(json_header(rng.choice(_BODY_CODES), {}, opaque), body)


def _bad_batch(rng: random.Random, opaque: int) -> bytes:
    item = struct.pack(">iiiii", rng.choice((22, 30, -1, 0, 1 << 30)), 0, 0, 0, rng.choice((0, 8, -1, 1 << 30)))
    return frame(json_header(320, _SEND_FIELDS | {"m": "true"}, opaque), item + rng.randbytes(rng.randint(0, 40)))


def _too_large(rng: random.Random, opaque: int) -> bytes:
    if rng.random() < 0.002:
        return frame(json_header(310, _SEND_FIELDS, opaque), bytes((4 << 20) + 1))
    return frame(json_header(310, _SEND_FIELDS | {"i": _LONG_PROPERTIES}, opaque), b"x")


def _not_asked(rng: random.Random, opaque: int) -> bytes:
    return frame(json_header(rng.choice(_CODES), _fields(rng), opaque, rng.choice((1, 2, 3))))


def _wrong_length(rng: random.Random, _: int) -> bytes:
    length = rng.choice(
        (-1, -(1 << 31), 0, 1, 2, 3, FRAME_SIZE_MAX - 3, FRAME_SIZE_MAX, (1 << 31) - 1, rng.randint(-(1 << 31), 3))
    )
    return struct.pack(">iI", length, rng.randint(0, 30)) + rng.randbytes(rng.randint(0, 40))


def _header_too_long(rng: random.Random, opaque: int) -> bytes:
    header = json_header(105, {}, opaque)
    return struct.pack(">iI", 4 + len(header), len(header) + rng.choice((1, 100, 0xFFFFFF - len(header)))) + header


def _wrong_encoding(rng: random.Random, opaque: int) -> bytes:
    return frame(json_header(105, {}, opaque), wire=rng.randint(2, 255))


def _not_json(rng: random.Random, opaque: int) -> bytes:
    right = json_header(105, {"topic": "fuzzed-a"}, opaque)
    cut = right[: rng.randint(0, len(right) - 1)]
    return frame(rng.choice((b"", b"{", b"[]", b'"x"', b"5", b"\xff\xfe\x00", cut, right + b"}", right.replace(b":", b"=", 1))))


def _header_of_wrong_types(rng: random.Random, _: int) -> bytes:
    name = rng.choice((b"code", b"opaque", b"flag", b"version"))
    value = rng.choice(
        (b'"x"', b"1.5", b"null", b"[]", b"{}", b"true", b"%d" % (1 << 31), b"-%d" % (1 << 63), b"%d" % (1 << 70))
    )
    return frame(b'{"code":105,"%b":%b}' % (name, value))


def _fields_of_wrong_types(rng: random.Random, opaque: int) -> bytes:
    value = rng.choice((b"[]", b'"x"', b"5", b"true", b'{"a":{}}', b'{"a":[]}', b'{"a":[[[]]]}'))
    return frame(b'{"code":105,"opaque":%d,"extFields":%b}' % (opaque, value))


def _nested_header(rng: random.Random, _: int) -> bytes:
    return frame(rng.choice((b"", b'{"extFields":', b'{"unknown":')) + b"[" * rng.choice((2000, 5000, _BOMB_DEPTH)))


def _bad_binary(rng: random.Random, opaque: int) -> bytes:
    right = binary_header(105, {"topic": "fuzzed-a", "n": "1"}, opaque)
    start = struct.pack(">hbhii", 105, 0, 409, opaque, 0)
    size = rng.choice((-1, -(1 << 31), 1 << 30, 200))
    return frame(
        rng.choice(
            (
                right[: rng.randint(0, len(right) - 1)],
                start + struct.pack(">i", size) + b"remark",
                start + struct.pack(">ii", 0, size) + b"block",
                start + struct.pack(">iih", 0, 5, -1) + b"abc",
                start + struct.pack(">iih", 0, 5, 1000) + b"abc",
                start + struct.pack(">iih1si", 0, 7, 1, b"k", size),
                start + struct.pack(">iih1si1s", 0, 8, 1, b"k", 1, b"\xff"),
            )
        ),
        wire=1,
    )


def _other_protocol(rng: random.Random, _: int) -> bytes:
    return rng.choice(
        (
            b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
            b"POST /metrics HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(506),
            b"*1\r\n$4\r\nPING\r\n",
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"\x80\x00\x00\x00\x00\x00\x00\x00",
            b"USER anonymous\r\n",
        )
    )


KINDS = (
    Kind("absurd fields", Fate.ANSWERED, _absurd_fields),
    Kind("absurd fields, binary header", Fate.ANSWERED, _absurd_binary_fields),
    Kind("unknown code", Fate.ANSWERED, _unknown_code),
    Kind("body that is not what it should be", Fate.ANSWERED, _bad_body),
    Kind("large body", Fate.ANSWERED, _large_body),
    Kind("batch that does not add up", Fate.ANSWERED, _bad_batch),
    Kind("message or properties too large", Fate.ANSWERED, _too_large),
    Kind("answer or oneway that nobody asked for", Fate.IGNORED, _not_asked),
    Kind("wrong length", Fate.CLOSED, _wrong_length),
    Kind("header longer than its frame", Fate.CLOSED, _header_too_long),
    Kind("wrong header encoding", Fate.CLOSED, _wrong_encoding),
    Kind("header that is not JSON", Fate.CLOSED, _not_json),
    Kind("header values of wrong types", Fate.CLOSED, _header_of_wrong_types),
    Kind("header fields of wrong types", Fate.CLOSED, _fields_of_wrong_types),
    Kind("nested header", Fate.CLOSED, _nested_header),
    Kind("binary header that does not add up", Fate.CLOSED, _bad_binary),
    Kind("another protocol", Fate.CLOSED, _other_protocol),
)
"""All kinds; a run consists of frames of other fates and ends with one of `Fate.CLOSED`."""
