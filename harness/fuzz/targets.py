"""Every decoder of untrusted bytes, and the errors that each may raise: the table of the fuzzer.

Where a checksum or a signature is verified first, the target computes the right one, since otherwise no input would pass.
Seeds are in `seeds.py`.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import orjson

from ledgermq.broker.config import BrokerConfig, read_broker_conf
from ledgermq.broker.errors import BadConfig, BadTable
from ledgermq.broker.subscription import BadExpression, Subscription
from ledgermq.broker.tables.groups import GroupTable
from ledgermq.broker.tables.offsets import ConsumerOffsets
from ledgermq.broker.tables.persistence import Persistence
from ledgermq.broker.tables.topics import TopicTable
from ledgermq.client.compression import BODY_BYTES_MAX, BadBody, decompress
from ledgermq.client.errors import OffsetsUnreadable
from ledgermq.client.offsets import LocalOffsets
from ledgermq.client.received import split_records
from ledgermq.client.route import ROUTE_QUEUES_MAX, parse_route
from ledgermq.ha.classic.authenticated import AuthenticatedMaster, AuthenticatedSlave
from ledgermq.ha.classic.autoswitch import AutoSwitchMaster, AutoSwitchSlave
from ledgermq.ha.classic.bare import BareMaster, BareSlave
from ledgermq.ha.classic.epoch_checkpoint import decode_checkpoint
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.files import EpochFile, load_node
from ledgermq.ha.classic.layout import (
    AUTO_HANDSHAKE,
    AUTO_REPORT,
    CRC_SIZE,
    DATA,
    REPORT,
    TAG,
    NodeIdentity,
    encode_auto_welcome,
)
from ledgermq.ha.classic.protocol import MasterCore, SlaveCore, TransferLimits
from ledgermq.ha.envelopes import KIND_CHALLENGE, KIND_HELLO, KIND_WELCOME, envelope, mac
from ledgermq.ha.errors import HaError
from ledgermq.message.batch import decode_batch
from ledgermq.message.control import CONTROL_TOPIC, decode_control, deleted_topic_of
from ledgermq.message.errors import BadMessageId, CorruptBatch, CorruptRecord, JsonError
from ledgermq.message.flags import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD, TRANSACTION_ROLLBACK
from ledgermq.message.json import dumps, dumps_strict, loads, message_queue_of
from ledgermq.message.layout import Check, check_record, decode_records, encode_records, topic_field
from ledgermq.message.message import IncomingMessage, MessageId, MessageQueue
from ledgermq.message.properties import decode_properties
from ledgermq.message.units import QueueId
from ledgermq.namesrv.config import read_namesrv_conf
from ledgermq.namesrv.errors import BadNamesrvConfig
from ledgermq.namesrv.kv_config import KvConfig
from ledgermq.namesrv.registration import EXPANDED_BYTES_MAX, read_registration
from ledgermq.remoting.command import Wire, decode_command, encode_frame
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import BadProperties, RemoteProtocolError, RequestRefused
from ledgermq.remoting.java_properties import read_properties, write_properties
from ledgermq.store.checkpoint import FILE_SIZE, MARK_SIZE_MAX, Checkpoint
from ledgermq.store.derived.consumequeue import UNIT_SIZE, ConsumeQueues
from ledgermq.store.derived.deletions import deletions_file, deletions_of, ends_of
from ledgermq.store.derived.index import IndexFiles
from ledgermq.store.json_file import JsonFile
from ledgermq.store.names import queue_fault
from ledgermq.store.recovery_mark import MARK, RecoveryMark
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers

from . import sends
from .judge import Target, always
from .raft import RAFT_TARGETS
from .servers import broker_requests, delay_file, namesrv_requests


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# ---------------------------------------------------------------------------------------------- messages and bodies


def _records(data: bytes) -> None:
    for message in decode_records(data):
        _ = message.tag, message.keys, message.unique_key, message.delay_level


def _log(data: bytes) -> None:
    """Check record after record, as recovery reads a commit log."""
    at = 0
    while True:
        check, span = check_record(data, at, len(data))
        if check is not Check.RECORD or span is None:
            return
        assert at < span.end <= len(data)
        at = span.end


def _properties(data: bytes) -> None:
    assert all(decode_properties(_text(data)).values())


def _json(data: bytes) -> None:
    value = loads(data)
    dumps(value)
    dumps_strict(value)


class _Nobody:
    queue = MessageQueue("T", "b", QueueId(0))
    withheld = False

    def check_open(self) -> None: ...

    def ack(self, message: object) -> None: ...

    async def retry(self, message: object, delay_level: int) -> None: ...

    def put_back(self, message: object) -> None: ...

    def give_back(self, message: object) -> None: ...


def _pull_answer(data: bytes) -> None:
    for message in split_records(_Nobody(), data):
        _ = message.body, message.properties, message.topic, message.tag, message.keys, message.message_id
        _ = message.offset_message_id, message.physical_offset, message.reconsume_times
        _ = message.born_timestamp, message.store_timestamp


def _body(compression: int) -> Callable[[bytes], object]:
    return lambda data: decompress(data, COMPRESSED | compression)


# --------------------------------------------------------------------------------------------------------- remoting


def _frames(data: bytes) -> None:
    """Feed the input in two pieces; the first byte is the place of the cut."""
    connection: Connection[None] = Connection()
    cut = data[0] if data else 0
    for piece in (data[1:cut], data[max(cut, 1) :]):
        requests, _ = connection.receive(piece)
        for request in requests:
            encode_frame(request.response(0, {"a": 1}))


def _header(wire: Wire) -> Callable[[bytes], None]:
    def decode(data: bytes) -> None:
        command = decode_command(wire, data, b"")
        encode_frame(command.response(0, command.ext))

    return decode


def _fields(data: bytes) -> None:
    command = decode_command(Wire.JSON, b'{"code":1,"extFields":%b}' % data, b"")
    for name in (*command.ext, "absent"):
        for read in (command.boolean, command.integer, command.text):
            with suppress(RequestRefused):
                read(name)


def _properties_text(data: bytes) -> None:
    entries = read_properties(_text(data))
    assert read_properties(write_properties(entries)) == entries


# --------------------------------------------------------------------------------------------------------------- HA

_SEGMENT = 4096
_LIMITS = TransferLimits(batch_size=512, segment_size=_SEGMENT)
_SECRET, _MASTER_NONCE, _SLAVE_NONCE = b"secret", b"1" * 32, b"2" * 32
_EPOCHS = EpochList((Epoch(1, 0, b"M" * 16, 1), Epoch(2, 1000, b"M" * 16, 2)))


@attrs.frozen
class _Log:
    min_offset: int = 0
    max_offset: int = 0

    @property
    def flushed_offset(self) -> int:
        return self.max_offset

    @property
    def readable_offset(self) -> int:
        return self.max_offset


_MASTERS_LOG, _SLAVES_LOG = _Log(0, 6000), _Log(0, 2000)


def _master() -> AuthenticatedMaster:
    who = NodeIdentity("c", "b", 0, b"M" * 16)
    return AuthenticatedMaster(_MASTERS_LOG, _LIMITS, lambda _: _SEGMENT, 0.0, who, _SECRET, _MASTER_NONCE, _EPOCHS, lambda: 77)


def _slave() -> AuthenticatedSlave:
    who = NodeIdentity("c", "b", 1, b"S" * 16)
    return AuthenticatedSlave(_SLAVES_LOG, _LIMITS, 0.0, who, _SECRET, _SLAVE_NONCE, _EPOCHS)


def _pair() -> tuple[AuthenticatedMaster, AuthenticatedSlave]:
    """A master and a slave that have finished their handshake."""
    master, slave = _master(), _slave()
    _, challenge = master.receive(slave.opening(), 0.0)
    _, hello = slave.receive(challenge, 0.0)
    _, welcome = master.receive(hello, 0.0)
    _, report = slave.receive(welcome, 0.0)
    master.receive(report, 0.0)
    assert master.ready
    assert slave.joined
    return master, slave


def _feed(core: MasterCore | SlaveCore, data: bytes) -> None:
    """Feed the input in two pieces; the first byte is the place of the cut."""
    cut = data[0] if data else 0
    core.receive(data[1:cut], 0.0)
    core.receive(data[max(cut, 1) :], 0.0)


def _bare_master(data: bytes) -> None:
    master = BareMaster(_MASTERS_LOG, _LIMITS, lambda _: _SEGMENT, lambda: 6000, 0.0)
    _feed(master, data)
    assert master.next_offset <= 6000


def _bare_slave(data: bytes) -> None:
    _feed(BareSlave(_SLAVES_LOG, _LIMITS, 0.0), data)


def _auto_master(data: bytes) -> None:
    """Feed a master of RocketMQ's controller mode; with a first byte above 127 the slave has joined."""
    master = AutoSwitchMaster(_MASTERS_LOG, _LIMITS, lambda _: _SEGMENT, 0.0, _EPOCHS)
    if data[:1] > b"\x7f":
        master.receive(AUTO_HANDSHAKE.pack(state=1, from_last=0, learner=0, broker_id=2), 0.0)
        master.receive(AUTO_REPORT.pack(state=2, offset=_MASTERS_LOG.max_offset), 0.0)
        master.heartbeat(0.0)
    _feed(master, data[1:])
    assert master.next_offset <= _MASTERS_LOG.max_offset


def _auto_slave(data: bytes) -> None:
    """Feed a slave of RocketMQ's controller mode; with a first byte above 127 the handshake is done."""
    slave = AutoSwitchSlave(_SLAVES_LOG, _LIMITS, 0.0, 2, _EPOCHS)
    if data[:1] > b"\x7f":
        slave.receive(encode_auto_welcome(_EPOCHS, _MASTERS_LOG.max_offset), 0.0)
    _feed(slave, data[1:])
    assert slave.report(0.0) == b"" or slave.joined


def _hello(data: bytes) -> None:
    master = _master()
    master.receive(TAG, 0.0)
    master.receive(envelope(TAG, KIND_HELLO, data + mac(_SECRET, b"ledgermq ha slave", _MASTER_NONCE, data)), 0.0)


def _welcome(data: bytes) -> None:
    slave = _slave()
    slave.receive(envelope(TAG, KIND_CHALLENGE, _MASTER_NONCE), 0.0)
    proof = mac(_SECRET, b"ledgermq ha master", _SLAVE_NONCE, _MASTER_NONCE, data)
    slave.receive(envelope(TAG, KIND_WELCOME, data + proof), 0.0)


def _reports(data: bytes) -> None:
    master, _ = _pair()
    size = REPORT.size - CRC_SIZE
    for at in range(0, len(data) - size + 1, size):
        fields = data[at : at + size]
        master.receive(fields + zlib.crc32(fields).to_bytes(CRC_SIZE, "big"), 0.0)


def _data_frames(data: bytes) -> None:
    _, slave = _pair()
    head_size, at = DATA.size - CRC_SIZE, 0
    while at + head_size <= len(data):
        fields = data[at : at + head_size]
        at += head_size
        body = data[at : at + max(DATA.unpack(fields + bytes(CRC_SIZE))["size"], 0)]
        at += len(body)
        slave.receive(fields + zlib.crc32(fields, zlib.crc32(body)).to_bytes(CRC_SIZE, "big") + body, 0.0)


# ----------------------------------------------------------------------------------------------------------- files


def _disk_with(path: str, content: bytes) -> SimDisk:
    disk = SimDisk()
    disk.make_directories(path.rpartition("/")[0])
    disk.open(path, create_size=len(content)).write(content, 0)
    return disk


def _checkpoint(data: bytes) -> None:
    checkpoint = Checkpoint(_disk_with("/checkpoint", data[:FILE_SIZE]), "/checkpoint")
    checkpoint.load()
    RecoveryMark.decode(checkpoint.mark)


def _mark(data: bytes) -> None:
    fields = data[: MARK.size - 4].ljust(MARK.size - 4, b"\0")
    mark = RecoveryMark.decode((fields + zlib.crc32(fields).to_bytes(4, "big")).ljust(MARK_SIZE_MAX, b"\0"))
    assert mark is None or mark.start <= mark.flushed_offset


def _index_file(data: bytes) -> None:
    files = IndexFiles(SimDisk(), "/index", SimClock(lambda: 0.0), slot_count=5, entry_count=8)
    content = data[: files.file_size].ljust(files.file_size, b"\0")
    files.disk = _disk_with(f"/index/{20250101000000000:017d}", content)
    files.load(page_cache_intact=True, forced_offset=-1)
    for key in ("a", "b", "k1", "k2", "UK0"):
        assert len(files.query("TopicTest", key, 32, 0, 1 << 62)) <= 32
    files.put_batch([("TopicTest", "UK0", "k1 k2", files.end_physical_offset, 5)])


_QUEUE_FILE = 400


def _queue_files(data: bytes) -> None:
    """Open queue files: the first byte is whether written bytes may be lost, the rest fills up to three files."""
    content = data[1 : 1 + 3 * _QUEUE_FILE]
    disk = SimDisk()
    disk.make_directories("/queues/T/0")
    for start in range(0, max(len(content), 1), _QUEUE_FILE):
        part = content[start : start + _QUEUE_FILE].ljust(_QUEUE_FILE, b"\0")
        disk.open(f"/queues/T/0/{start:020d}", create_size=_QUEUE_FILE).write(part, 0)
    queues = ConsumeQueues(disk, "/queues", _QUEUE_FILE)
    queues.load(page_cache_intact=bool(data[:1].strip(b"\0")))
    queue = queues.of("T", 0)
    assert 0 <= queue.min_offset <= queue.max_offset <= 3 * _QUEUE_FILE // UNIT_SIZE
    for offset in range(queue.min_offset, queue.max_offset):
        assert queue.unit(offset) is not None
    queue.last_unit_before(1000)
    queue.correct_min_offset(500)
    queue.truncate(1000)


def _epochs(data: bytes) -> None:
    EpochFile(_disk_with("/ha/haEpochs.json", data), "/ha").load()


def _control(data: bytes) -> None:
    """Decode a control record whose body is the input."""
    message = IncomingMessage(CONTROL_TOPIC, 0, data, "CONTROL\x01topic_deleted\x02", 0, TRANSACTION_ROLLBACK, 0, bytes(8))
    (record,) = encode_records([message], [topic_field(CONTROL_TOPIC.encode())], [0], 0, bytes(8))
    topic, next_offsets = deleted_topic_of(decode_control(record))
    for queue_id in next_offsets:
        if queue_fault(topic, queue_id) is None:
            path = posixpath.normpath(f"/store/consumequeue/{topic}/{queue_id}")
            assert posixpath.dirname(posixpath.dirname(path)) == "/store/consumequeue"


def _deletions(data: bytes) -> None:
    kept = deletions_file(_disk_with("/store/deletedQueues.json", data), "/store").load()
    for found in (deletions_of(kept), ends_of(kept)):
        assert all(queue_id >= 0 and end.queue_offset >= 0 for _, queue_id, end in found)


def _identity(data: bytes) -> None:
    disk = _disk_with("/ha/haIdentity.json", data)
    assert len(load_node(disk, "/ha", disk.rng)) == 16


def _json_file(data: bytes) -> None:
    """Load a JSON file that holds the first half of the input; its `.bak` holds the second half."""
    disk = _disk_with("/config/topics.json", data[: len(data) // 2])
    disk.open("/config/topics.json.bak", create_size=len(data) - len(data) // 2).write(data[len(data) // 2 :], 0)
    file = JsonFile(disk, "/config/topics.json")
    file.save(file.load())


_CONFIG = BrokerConfig(store_path_root_dir="/store")


def _table(read: Callable[[Any], object]) -> Callable[[bytes], None]:
    def decode(data: bytes) -> None:
        persistence = Persistence(_disk_with("/config/table.json", data), SimWorkers(), "/config")
        persistence.load("table.json", read)

    return decode


def _topics(stored: Any) -> bytes:
    return TopicTable.of(_CONFIG, int, stored).wrapper()


def _groups(stored: Any) -> bytes:
    return dumps(GroupTable.of(_CONFIG, int, stored).to_json())


def _offsets(stored: Any) -> bytes:
    offsets = ConsumerOffsets()
    offsets.load(stored)
    return dumps(offsets.to_json())


def _broker_conf(data: bytes) -> None:
    config = read_broker_conf("storePathRootDir=/store\n" + _text(data))
    config.store_config()
    _ = config.name_servers
    assert read_broker_conf(config.to_properties()).entries() == config.entries()


def _namesrv_conf(data: bytes) -> None:
    config = read_namesrv_conf(_text(data))
    assert read_namesrv_conf(config.to_properties()) == config


def _kv_config(data: bytes) -> None:
    KvConfig.from_bytes(data).to_bytes()


def _local_offsets(data: bytes) -> None:
    LocalOffsets(_disk_with("/offsets.json", data), "/offsets.json").load()


# --------------------------------------------------------------------------------- JSON bodies with their own structure


def _registration(data: bytes) -> None:
    read_registration(data, 0)


def _route(data: bytes) -> None:
    route = parse_route("T", orjson.loads(data))
    route.publish_queues()
    route.subscribe_queues()


def _subscription(data: bytes) -> None:
    topic, _, expression = _text(data).partition("\n")
    assert Subscription.parse(topic, expression).tags or expression in ("", "*")


_JSON_BYTES_FACTOR = 160
"""Bytes of memory per byte of JSON: a number of two bytes of text is in memory as parsed, as converted and as written."""
_UNPACKING = 3
"""How many copies of an unpacked body may be in memory: its pieces, the joined body, and what is decoded from it."""

TARGETS = (
    Target("record", always(_records), (CorruptRecord,)),
    Target("commit_log", always(_log)),
    Target("batch", always(decode_batch), (CorruptBatch,)),
    Target("properties", always(_properties)),
    Target("message_id", always(lambda data: MessageId.parse(_text(data))), (BadMessageId,)),
    Target("json", always(_json), (JsonError,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("json_key", always(lambda data: message_queue_of(_text(data))), (JsonError,)),
    Target("pull_answer", always(_pull_answer), (CorruptRecord, BadBody), bytes_base=_UNPACKING * BODY_BYTES_MAX),
    Target("zlib_body", always(_body(COMPRESSION_ZLIB)), (BadBody,), bytes_base=_UNPACKING * BODY_BYTES_MAX),
    Target("lz4_body", always(_body(COMPRESSION_LZ4)), (BadBody,), bytes_base=_UNPACKING * BODY_BYTES_MAX),
    Target("zstd_body", always(_body(COMPRESSION_ZSTD)), (BadBody,), bytes_base=_UNPACKING * BODY_BYTES_MAX),
    Target("frames", always(_frames), (RemoteProtocolError,)),
    Target("json_header", always(_header(Wire.JSON)), (RemoteProtocolError,)),
    Target("binary_header", always(_header(Wire.BINARY)), (RemoteProtocolError,)),
    Target("fields", always(_fields), (RemoteProtocolError,)),
    Target("plain_sends", always(sends.compare)),
    Target("java_properties", always(_properties_text), (BadProperties,)),
    Target("broker_requests", broker_requests, (RemoteProtocolError,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("namesrv_requests", namesrv_requests, (RemoteProtocolError,), bytes_base=_UNPACKING * EXPANDED_BYTES_MAX),
    Target("ha_bare_master", always(_bare_master), (HaError,)),
    Target("ha_bare_slave", always(_bare_slave), (HaError,)),
    Target("ha_auto_master", always(_auto_master), (HaError,)),
    Target("ha_auto_slave", always(_auto_slave), (HaError,)),
    Target("ha_master", always(lambda data: _feed(_master(), data)), (HaError,)),
    Target("ha_slave", always(lambda data: _feed(_slave(), data)), (HaError,)),
    Target("ha_hello", always(_hello), (HaError,)),
    Target("ha_welcome", always(_welcome), (HaError,)),
    Target("ha_reports", always(_reports), (HaError,)),
    Target("ha_data", always(_data_frames), (HaError,)),
    Target("checkpoint", always(_checkpoint)),
    Target("recovery_mark", always(_mark)),
    Target("index_file", always(_index_file)),
    Target("consume_queue", always(_queue_files)),
    Target("epoch_file", always(_epochs), (HaError,)),
    Target("epoch_checkpoint", always(decode_checkpoint), (HaError,)),
    Target("node_file", always(_identity)),
    Target("control_record", always(_control), (CorruptRecord,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("deletions_file", always(_deletions), bytes_factor=_JSON_BYTES_FACTOR),
    Target("json_file", always(_json_file), bytes_factor=_JSON_BYTES_FACTOR),
    Target("topics_file", always(_table(_topics)), (BadTable,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("groups_file", always(_table(_groups)), (BadTable,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("offsets_file", always(_table(_offsets)), (BadTable,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("delay_file", delay_file, (BadTable,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("broker_conf", always(_broker_conf), (BadConfig,)),
    Target("namesrv_conf", always(_namesrv_conf), (BadNamesrvConfig,)),
    Target("kv_config", always(_kv_config), (JsonError,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("local_offsets", always(_local_offsets), (OffsetsUnreadable,), bytes_factor=_JSON_BYTES_FACTOR),
    Target("registration", always(_registration), (RequestRefused,), bytes_base=_UNPACKING * EXPANDED_BYTES_MAX),
    Target(
        "route",
        always(_route),
        (KeyError, TypeError, ValueError),
        seconds_base=ROUTE_QUEUES_MAX * 20e-6,
        bytes_base=ROUTE_QUEUES_MAX * 500,
    ),
    Target("subscription", always(_subscription), (BadExpression,)),
    *RAFT_TARGETS,
)
BY_NAME = {target.name: target for target in TARGETS}
