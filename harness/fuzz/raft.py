"""Targets and seeds of DLedger mode: both protocols on the Raft port, and the files of a node."""

from __future__ import annotations

import zlib

from ledgermq.ha.dledger.java import bodies as java
from ledgermq.ha.dledger.java.messages import APPEND, Push, VoteRequest
from ledgermq.ha.dledger.ledger.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from ledgermq.ha.dledger.ledger.hard_state import TermAndVote, decode_term_and_vote, encode_term_and_vote
from ledgermq.ha.dledger.ledger.layout import ENTRY, HEADER_SIZE
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles, open_ledger
from ledgermq.ha.dledger.ledger.walk import walk_entries
from ledgermq.ha.dledger.native.frames import KIND_APPEND, FrameReader, decode_message, encode_message
from ledgermq.ha.dledger.native.group_records import GroupConfiguration, configuration_record, read_configuration
from ledgermq.ha.dledger.native.handshake import Dialler, Hello, Listener, NodeCard, decode_hello, encode_hello
from ledgermq.ha.dledger.native.layout import APPEND as APPEND_LAYOUT
from ledgermq.ha.dledger.native.layout import ENTRIES_FRAME_MAX, FRAME, LANE_ENTRIES, TAG
from ledgermq.ha.errors import HaError
from ledgermq.ha.raft.messages import Heartbeat, PreVoteRequest
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.units import PeerId
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.network import Address

from .judge import Target, always

_A, _B = PeerId("n0"), PeerId("n1")
_GROUP = GroupConfiguration(Configuration((_A, _B)), {_A: Address("h", 1), _B: Address("h", 2)})
_CARD = NodeCard("g", "n1", b"1" * 16, 4096)
_DIALLER = Hello(NodeCard("g", "n0", b"0" * 16, 4096), LANE_ENTRIES, "n1", b"d" * 32)
_FILE_SIZE = 1024


def _entry(index: int, body: bytes, *, term: int = 1, position: int = 0, channel: int = 0) -> bytes:
    size, crc = HEADER_SIZE + len(body), zlib.crc32(body)
    return ENTRY.codec.pack(1, size, index, term, position, channel, 0, crc, len(body)) + body


def _message(kind: int, content: bytes) -> None:
    decode_message(kind, memoryview(content), _A, _B, lambda body: read_configuration(body).configuration)


def _frames(data: bytes) -> None:
    """Feed the input in two pieces; the first byte is the place of the cut."""
    reader, cut = FrameReader.for_lane(LANE_ENTRIES), data[0] if data else 0
    for piece in (data[1:cut], data[max(cut, 1) :]):
        for kind, content in reader.feed(piece):
            _message(kind, bytes(content))


def _any_message(data: bytes) -> None:
    """Decode a message with a valid checksum; the first byte is its kind."""
    if data:
        _message(data[0] % 16, data[1:])


def _entries(data: bytes) -> None:
    walked = walk_entries(data, 0, len(data), position=0, next_index=0, term=0, check_bodies=True)
    assert 0 <= walked.at <= len(data)
    assert len(walked.index_records) == 32 * (walked.next_index - walked.first_index)


def _append(data: bytes) -> None:
    _message(KIND_APPEND, APPEND_LAYOUT.codec.pack(9, -1, -1, -1, 0) + data)


def _handshake(data: bytes) -> None:
    for side in (Listener(_CARD, b"s", b"l" * 32, lambda _: None), Dialler(_DIALLER, b"s")):
        side.receive(data)


def _hello(data: bytes) -> None:
    """Decode a hello; that of an earlier version ends before the identity, which is encoded as unknown."""
    assert encode_hello(decode_hello(data)).startswith(data)


def _java_request(data: bytes) -> None:
    """Decode a Java request; the first byte chooses which."""
    codes = (java.VOTE, java.HEART_BEAT, java.PUSH, java.LEADERSHIP_TRANSFER)
    java.read_request(codes[data[0] % 4 if data else 0], java.read_object(data[1:]), _B, None)


def _ledger_files(data: bytes) -> None:
    """Start a node on a checkpoint and data files of any content; a second start must find what the first one left."""
    cut = data[0] if data else 0
    disk, root = SimDisk(), "store/dledger-n0"
    disk.make_directories(f"{root}/data")
    disk.open(f"{root}/checkpoint", create_size=0).write(data[1 : cut + 1], 0)
    content = data[cut + 1 :]
    for start in range(0, min(len(content), 3 * _FILE_SIZE), _FILE_SIZE):
        disk.open(f"{root}/data/{start:020d}", create_size=_FILE_SIZE).write(content[start : start + _FILE_SIZE], 0)
    files = LedgerFiles(root, _FILE_SIZE, 32 * 8)
    ledger = open_ledger(disk, files)
    found = [bytes(ledger.body(index)) for index in range(ledger.begin_index, ledger.end_index + 1)]
    ledger.close()
    again = open_ledger(disk, files)
    assert found == [bytes(again.body(index)) for index in range(again.begin_index, again.end_index + 1)]


RAFT_TARGETS = (
    Target("raft_frames", always(_frames), (HaError,), bytes_base=ENTRIES_FRAME_MAX + (1 << 20)),
    Target("raft_messages", always(_any_message), (HaError,)),
    Target("raft_entries", always(_entries)),
    Target("raft_append", always(_append), (HaError,)),
    Target("raft_handshake", always(_handshake), (HaError,)),
    Target("raft_hello", always(_hello), (HaError,)),
    Target("raft_configuration", always(read_configuration), (HaError,)),
    Target("dledger_requests", always(_java_request), (HaError,), bytes_factor=256),
    Target("dledger_answers", always(java.read_answer), (HaError,), bytes_factor=256),
    Target("term_and_vote", always(decode_term_and_vote)),
    Target("ledger_checkpoint", always(decode_checkpoint)),
    Target("ledger_files", always(_ledger_files), (HaError,), bytes_base=1 << 20),
)

_ENTRIES = _entry(0, b"first") + _entry(1, b"second", term=2, position=HEADER_SIZE + 5)
_MESSAGES = [b"".join(encode_message(each)) for each in (Heartbeat(_A, _B, 1, 2, 3), PreVoteRequest(_A, _B, 1, 2, 1))]
_FRAMES = b"".join(_MESSAGES)
_VOTE = java.encode_request("g", VoteRequest(sender=_A, to=_B, term=3, end_index=5, end_term=2))
_PUSH = java.encode_request(
    "g",
    Push(
        sender=_A,
        to=_B,
        term=3,
        kind=APPEND,
        commit_index=0,
        first_index=0,
        last_index=1,
        entries=(memoryview(_ENTRIES)[: HEADER_SIZE + 5], memoryview(_ENTRIES)[HEADER_SIZE + 5 :]),
    ),
)
_SYNCED = Checkpoint(begin_index=0, synced_index=0, synced_term=1, synced_position=HEADER_SIZE + 5)


def _unframed(frame: bytes) -> bytes:
    """A message in the form that the target `raft_messages` reads: one byte for the kind, then the content."""
    _, kind, _ = FRAME.codec.unpack_from(frame)
    return bytes([kind]) + frame[FRAME.size :]


RAFT_SEEDS: dict[str, list[bytes]] = {
    "raft_frames": [b"\x05" + _FRAMES, b"\0" + FRAME.codec.pack(100_000, 1, 0)],
    "raft_messages": [*map(_unframed, _MESSAGES), *(bytes([kind]) + bytes(40) for kind in range(14))],
    "raft_entries": [_ENTRIES],
    "raft_append": [_ENTRIES, _entry(0, configuration_record(_GROUP, 0), channel=1)],
    "raft_handshake": [TAG, TAG + TAG + b"\0\0\0\x20\0\0\0\x01" + bytes(32)],
    "raft_hello": [encode_hello(_DIALLER)],
    "raft_configuration": [configuration_record(_GROUP, 0)],
    "dledger_requests": [b"\0" + _VOTE, b"\x02" + _PUSH],
    "dledger_answers": [b'{"beginIndex":0,"code":200,"count":1,"endIndex":5,"group":"g","index":5,"term":3}'],
    "term_and_vote": [encode_term_and_vote(TermAndVote(7, "n1"))],
    "ledger_checkpoint": [encode_checkpoint(_SYNCED), b"committedIndex=11\nendIndex=11\n"],
    "ledger_files": [b"\0" + _ENTRIES, bytes([len(encode_checkpoint(_SYNCED))]) + encode_checkpoint(_SYNCED) + _ENTRIES],
}
