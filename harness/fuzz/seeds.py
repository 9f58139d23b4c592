"""The fuzzer's first inputs: for every target first a valid one, as our encoders or RocketMQ nodes and clients write it."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterable

import orjson

from ledgermq.broker.config import BrokerConfig
from ledgermq.client.compression import Compression, compress
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.layout import (
    AUTO_DATA,
    AUTO_HANDSHAKE,
    AUTO_REPORT,
    BARE_HEADER,
    BARE_REPORT,
    CRC_SIZE,
    DATA,
    DATA_KIND,
    REPORT,
    REPORT_KIND,
    TAG,
    Hello,
    NodeIdentity,
    Welcome,
    encode_auto_welcome,
    encode_hello,
    encode_welcome,
)
from ledgermq.ha.envelopes import KIND_CHALLENGE, KIND_REFUSAL, envelope
from ledgermq.message.batch import encode_batch
from ledgermq.message.control import deletion_of
from ledgermq.message.flags import COMPRESSED
from ledgermq.message.json import dumps_strict
from ledgermq.message.layout import BLANK, MAGIC_BLANK, MAGIC_V2, encode_host, encode_record
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.store.checkpoint import FIELDS, MARK_AT
from ledgermq.store.derived.consumequeue import PRE_BLANK_SIZE, UNIT
from ledgermq.store.derived.index_file import ENTRY, HEADER
from ledgermq.store.derived.index_keys import key_hash
from ledgermq.store.derived.index_slots import SLOT
from ledgermq.store.recovery_mark import MARK, RecoveryMark

from ..processes.malformed import KINDS, binary_header, frame, json_header
from . import sends
from .raft import RAFT_SEEDS
from .servers import BROKER_SEEDS, NAMESRV_SEEDS

PROPERTIES = b"KEYS\x01k1 k2\x02UNIQ_KEY\x01UK0\x02TAGS\x01TagA\x02DELAY\x013\x02"
_V4, _V6 = encode_host("127.0.0.1", 10911), encode_host("::1", 10911)


def _record(body: bytes = b"Hello", *, sys_flag: int = 0, born: bytes = _V4, stored: bytes = _V4) -> bytes:
    return encode_record(b"TopicTest", 1, 0, body, PROPERTIES, 0, sys_flag, 1_700_000_000_000, born, 1_700_000_000_001, stored)


def _second_format(record: bytes) -> bytes:
    """The same record in the second format, whose topic length has two bytes."""
    body_at = 88
    topic_at = body_at + int.from_bytes(record[84:88])
    return struct.pack(">ii", len(record) + 1, MAGIC_V2) + record[8:topic_at] + b"\0" + record[topic_at:]


def _records() -> list[bytes]:
    packed, flags = compress(b"a" * 100, Compression.ZLIB)
    one = _record()
    return [
        one,
        one * 3,
        _record(born=_V6, stored=_V6),
        _record(born=_V6),
        _second_format(one),
        _record(packed, sys_flag=flags),
        one + BLANK.pack(remaining=100, magic=MAGIC_BLANK),
    ]


_SEND_FIELDS = {
    "a": "pg",
    "b": "TopicTest",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": PROPERTIES.decode(),
    "j": "0",
    "k": "false",
    "m": "false",
}


def _frames() -> list[bytes]:
    rng = random.Random(1)  # noqa: S311 - draws frames
    right = frame(json_header(310, _SEND_FIELDS, 1), b"Hello") + frame(binary_header(310, _SEND_FIELDS, 2), b"Hello", wire=1)
    drawn = [kind.draw(rng, number) for number, kind in enumerate(KINDS * 3)]
    return [b"\x09" + content for content in (right, *drawn) if len(content) < 2000]


_JSON = (
    b"{}",
    b'[1,2.5,-3,true,null,"a\\u0041"]',
    b'{"offsetTable":{"T@g":{0:5,1:7}},"dataVersion":{"counter":1,"timestamp":2}}',
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,{"brokerName":"b","queueId":1,"topic":"T"}:6}}',
    b'{"a":[1,2],"b":{"$ref":"$.a"},"c":[{"$ref":"$.a[0]"}]}',
    b'{"x":{{"topic":"T"}:1},"y":{{"$ref":"$.x.null"}:2}}',
    b'\xef\xbb\xbf{"a": "\\"\\\\", "b" : [ ] }',
    b"{-1:[{2:{}}]}",
    b'{{}:1e400,{1:2}:"\xe4\xb8\xbb"}',
)

_TOPICS = {
    "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1700000000000},
    "topicConfigTable": {
        "T": {
            "attributes": {"+message.type": "NORMAL"},
            "order": False,
            "perm": 6,
            "readQueueNums": 4,
            "topicFilterType": "SINGLE_TAG",
            "topicName": "T",
            "topicSysFlag": 0,
            "writeQueueNums": 4,
        }
    },
}
_GROUPS = {
    "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5},
    "forbiddenTable": {"g": {"T": 1}},
    "subscriptionGroupTable": {"g": {"groupName": "g", "retryQueueNums": 1, "retryMaxTimes": 16, "consumeEnable": True}},
}
_ROUTE = {
    "orderTopicConf": "b:4;c:2",
    "brokerDatas": [{"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:10911", "1": "127.0.0.1:10921"}}],
    "queueDatas": [{"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}],
}

_EPOCHS = EpochList((Epoch(1, 0, b"M" * 16, 1), Epoch(2, 1000, b"M" * 16, 2)))


def _hello(max_offset: int, epochs: EpochList, segment_size: int = 4096) -> bytes:
    return encode_hello(Hello(NodeIdentity("c", "b", 1, b"S" * 16), b"2" * 32, segment_size, 0, max_offset, False, epochs))


def _data(offset: int, epoch: int, body: bytes) -> bytes:
    """A data frame without its checksum, which the target appends."""
    head = DATA.pack(
        kind=DATA_KIND, size=len(body), offset=offset, epoch=epoch, confirmed=1500, master_end=6000, readable=1400, crc=0
    )
    return head[:-CRC_SIZE] + body


def _report(appended: int) -> bytes:
    """A report without its checksum, which the target appends."""
    return REPORT.pack(kind=REPORT_KIND, appended=appended, flushed=appended - 5, crc=0)[:-CRC_SIZE]


def _ha() -> dict[str, list[bytes]]:
    reports = b"".join(BARE_REPORT.pack(offset=offset) for offset in (0, 4096, 5000))
    log = BARE_HEADER.pack(offset=2000, size=0) + BARE_HEADER.pack(offset=2000, size=50) + bytes(50)
    shake = AUTO_HANDSHAKE.pack(state=1, from_last=0, learner=1, broker_id=2)
    auto_reports = AUTO_REPORT.pack(state=2, offset=3000) + AUTO_REPORT.pack(state=2, offset=3000)
    fields = {"state": 2, "offset": 2000, "epoch": 2, "epoch_start": 1000, "confirmed": 1500}
    auto_data = AUTO_DATA.pack(size=0, **fields) + AUTO_DATA.pack(size=50, **fields) + bytes(50)
    return {
        "ha_bare_master": [b"\0" + BARE_REPORT.pack(offset=3000) + reports, b"\x09" + reports, b"\0" + TAG],
        "ha_bare_slave": [b"\x14" + log, b"\0" + BARE_HEADER.pack(offset=0, size=9) + bytes(9)],
        "ha_auto_master": [b"\0\0" + shake + auto_reports, b"\xff\0" + auto_reports, b"\0\0" + TAG],
        "ha_auto_slave": [b"\0\0" + encode_auto_welcome(_EPOCHS, 6000) + auto_data, b"\xff\0" + auto_data],
        "ha_master": [b"\0" + TAG, b"\0" + reports, b"\x03" + TAG + envelope(TAG, 2, _hello(2000, _EPOCHS) + bytes(32))],
        "ha_slave": [
            b"\0" + envelope(TAG, KIND_CHALLENGE, b"1" * 32),
            b"\0" + envelope(TAG, KIND_REFUSAL, bytes(40)),
            b"\0" + log,
        ],
        "ha_hello": [_hello(2000, _EPOCHS), _hello(0, EpochList()), _hello(2000, EpochList()), _hello(10, _EPOCHS, 8192)],
        "ha_welcome": [
            encode_welcome(Welcome(b"M" * 16, 0, 6000, 4096, _EPOCHS)),
            encode_welcome(Welcome(b"M" * 16, 5000, 6000, 5000, _EPOCHS)),
            encode_welcome(Welcome(b"M" * 16, 0, 6000, 4096, EpochList())),
        ],
        "ha_reports": [b"".join(map(_report, (2000, 1990, 50)))],
        "ha_data": [
            _data(2000, 2, bytes(90)) + _data(2090, 2, b"") + _data(2090, 2, bytes(7)),
            _data(2000, 3, bytes(9)),
            _data(2000, 2, bytes(2500)),
        ],
    }


def _index_file() -> bytes:
    hashes = [key_hash("TopicTest", key) for key in ("UK0", "k1", "k2")]
    slots = [0] * 5
    entries = bytes(ENTRY.size)
    for number, value in enumerate(hashes, 1):
        entries += ENTRY.pack(key_hash=value, physical_offset=10 * number, seconds=number, previous_entry=slots[value % 5])
        slots[value % 5] = number
    header = HEADER.pack(
        begin_timestamp=1000,
        end_timestamp=4000,
        begin_physical_offset=10,
        end_physical_offset=30,
        slots_in_use=3,
        next_entry=4,
    )
    return header + b"".join(map(SLOT.pack, slots)) + entries


def _queue_files() -> list[bytes]:
    units = b"".join(UNIT.pack(physical_offset=100 * number, size=100, tags_code=number) for number in range(30))
    blank = UNIT.pack(physical_offset=0, size=PRE_BLANK_SIZE, tags_code=0) * 5
    return [b"\x01" + units, b"\0" + units[:500] + bytes(100) + units[600:], b"\0" + blank + units[:200], b"\0"]


def _checkpoints() -> tuple[bytes, bytes]:
    mark = RecoveryMark(2000, 1900, 1800, 100, 1_700_000_000_000, 1500, "f" * 36).encode()
    fields = FIELDS.pack(
        physical_timestamp=9000, logical_timestamp=8000, index_timestamp=7000, master_flushed_offset=6, confirm_offset=5
    )
    return fields.ljust(MARK_AT, b"\0") + mark, mark[: MARK.size - 4]


def _compressed_registration() -> bytes:
    pieces = (orjson.dumps(_TOPICS["dataVersion"]), struct.pack(">i", 2), b"T 4 4 6 SINGLE_TAG", b"U 8 8 6 SINGLE_TAG {}")
    sized = [piece if number == 1 else struct.pack(">i", len(piece)) + piece for number, piece in enumerate(pieces)]
    return zlib.compress(b"".join(sized))


def _files() -> dict[str, list[bytes]]:
    checkpoint, mark = _checkpoints()
    epochs = {"epochs": [{"number": 1, "start": 0, "writer": "4d" * 16, "replicas": 2}]}
    topics, groups, offsets = orjson.dumps(_TOPICS), orjson.dumps(_GROUPS), _JSON[2]
    return {
        "checkpoint": [checkpoint, checkpoint[:40]],
        "recovery_mark": [mark],
        "index_file": [_index_file(), b""],
        "consume_queue": _queue_files(),
        "epoch_file": [orjson.dumps(epochs)],
        "epoch_checkpoint": [b"2\n238979843\n1-0\n2-2170\n", b"1\n0\n1-0\n", b"0\n0\n"],
        "control_record": [dumps_strict(deletion_of("T", {0: 7, 12: 3}).content), dumps_strict({"topic": "..", "queues": {}})],
        "deletions_file": [orjson.dumps({"deletedQueues": {"T": {"0": [[5, 100, 180], [9, 500, 180]]}}})],
        "node_file": [orjson.dumps({"node": "4d" * 16})],
        "json_file": [topics + b"5" * len(topics), b"5" * len(offsets) + offsets],
        "topics_file": [topics, b'{"topicConfigTable":[]}'],
        "groups_file": [groups, b'{"subscriptionGroupTable":[]}'],
        "offsets_file": [offsets, b'{"offsetTable":[]}'],
        "local_offsets": [_JSON[3]],
        "kv_config": [b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"b:4"}}}'],
        "broker_conf": [
            BrokerConfig(store_path_root_dir="/store").to_properties().encode(),
            b"listenPort=10911\ndeleteWhen=04",
        ],
        "namesrv_conf": [NamesrvConfig().to_properties().encode(), b"listenPort = 9876\nsupportActingMaster=true"],
        "java_properties": [b"# c\n! d\na = b\\\n  c\nd\\:\\=: \\u0041\\t\nnamesrvAddr=a:1;b:2\r\n\r"],
    }


def _compressed() -> Iterable[tuple[str, list[bytes]]]:
    for kind in Compression:
        packed, flags = compress(b"abc" * 100, kind)
        assert flags & COMPRESSED
        yield f"{kind.name.lower()}_body", [packed, packed[:-3]]


def seeds() -> dict[str, list[bytes]]:
    """Inputs by the name of their target; the first is valid, others may differ from a valid one in one respect."""
    block = binary_header(310, _SEND_FIELDS, 1)
    return {
        "record": _records(),
        "commit_log": _records(),
        "pull_answer": _records(),
        "batch": [encode_batch([(0, b"Hello", PROPERTIES), (1, b"", b"")])],
        "properties": [PROPERTIES, b"a\x01b\x02\x02\x01c\x02d"],
        "message_id": [b"7F00000100002A9F0000000000000000", b"0" * 56],
        "json": list(_JSON),
        "json_key": [b'{"brokerName":"b","queueId":0,"topic":"T"}'],
        "frames": _frames(),
        "plain_sends": sends.seeds(),
        "json_header": [json_header(310, _SEND_FIELDS, 1), b'{"code":1,"flag":0,"extFields":{"a":1,"b":true},"language":3}'],
        "binary_header": [block, binary_header(0, {}, 5), block[:13] + struct.pack(">i3si", 3, b"why", 0)],
        "fields": [orjson.dumps(_SEND_FIELDS), b'{"a":"7","b":"true","c":" 8 "}'],
        "broker_requests": BROKER_SEEDS,
        "namesrv_requests": NAMESRV_SEEDS,
        "delay_file": [b'{"offsetTable":{1:0,2:0,3:5}}'],
        "registration": [orjson.dumps({"topicConfigSerializeWrapper": _TOPICS}), _compressed_registration()],
        "route": [orjson.dumps(_ROUTE)],
        "subscription": [b"T\nTagA || TagB", b"T\n*"],
        **_ha(),
        **_files(),
        **dict(_compressed()),
        **RAFT_SEEDS,
    }
