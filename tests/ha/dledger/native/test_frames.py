"""Frames of the native dialect: what is sent is received, and nothing else is."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.dledger.ledger.layout import CHANNEL_CONFIGURATION, INDEX_MAX, POSITION_MAX
from ledgermq.ha.dledger.ledger.ledger import Ledger
from ledgermq.ha.dledger.log_reader import LedgerReader
from ledgermq.ha.dledger.native.frames import (
    KIND_APPEND,
    LONG_BUFFER_BYTES,
    LONG_BUFFERS_MAX,
    RECEIVE_BYTES,
    BeginAnew,
    FrameReader,
    ReceivedEntries,
    decode_message,
    encode_message,
    lane_of,
)
from ledgermq.ha.dledger.native.group_records import GroupConfiguration, configuration_record, read_configuration
from ledgermq.ha.dledger.native.layout import CONTROL_FRAME_MAX, FRAME, LANE_CONTROL, LANE_ENTRIES
from ledgermq.ha.errors import HaProtocolError
from ledgermq.ha.raft.batch import Snapshot
from ledgermq.ha.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    Regressed,
    Rejection,
    StaleTerm,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.units import PeerId
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.network import Address

from ..ledgers import content, messages, open_small

A, B = PeerId("n0"), PeerId("n1")
GROUP = GroupConfiguration(
    Configuration((A, B), (), (PeerId("n2"),)), {PeerId(f"n{n}"): Address("10.0.0.1", 40911 + n) for n in range(3)}
)
NUMBERS = st.integers(-1, INDEX_MAX)
TERMS = st.integers(0, INDEX_MAX)
PLAIN: st.SearchStrategy[Message] = st.one_of(
    st.builds(PreVoteRequest, st.just(A), st.just(B), TERMS, NUMBERS, NUMBERS),
    st.builds(PreVoteResponse, st.just(A), st.just(B), TERMS, st.booleans()),
    st.builds(VoteRequest, st.just(A), st.just(B), TERMS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(VoteResponse, st.just(A), st.just(B), TERMS, st.booleans()),
    st.builds(Heartbeat, st.just(A), st.just(B), TERMS, NUMBERS, NUMBERS),
    st.builds(HeartbeatResponse, st.just(A), st.just(B), TERMS, NUMBERS, NUMBERS),
    st.builds(StaleTerm, st.just(A), st.just(B), TERMS),
    st.builds(Regressed, st.just(A), st.just(B), TERMS),
    st.builds(TimeoutNow, st.just(A), st.just(B), TERMS),
    st.builds(ReadIndexRequest, st.just(A), st.just(B), TERMS, NUMBERS),
    st.builds(ReadIndexResponse, st.just(A), st.just(B), TERMS, NUMBERS, st.one_of(st.none(), NUMBERS)),
    st.builds(
        AppendResponse,
        st.just(A),
        st.just(B),
        TERMS,
        NUMBERS,
        NUMBERS,
        st.one_of(st.none(), st.builds(Rejection, NUMBERS, NUMBERS, NUMBERS)),
    ),
    st.builds(Append, st.just(A), st.just(B), st.just(POSITION_MAX), NUMBERS, NUMBERS, NUMBERS, st.none()),
)


def received(data: bytes, lane: int = LANE_ENTRIES) -> list[Message]:
    return [
        decode_message(kind, body, A, B, lambda record: read_configuration(record).configuration)
        for kind, body in FrameReader.for_lane(lane).feed(data)
    ]


def sent(message: Message) -> bytes:
    return b"".join(encode_message(message))


@given(st.lists(PLAIN, max_size=5), st.integers(1, 100))
def test_what_is_sent_is_received(several: list[Message], piece: int) -> None:
    """However the network cuts it."""
    data = b"".join(map(sent, several))
    reader = FrameReader.for_lane(LANE_ENTRIES)
    frames = [frame for at in range(0, len(data), piece) for frame in reader.feed(data[at : at + piece])]
    assert [
        decode_message(kind, body, A, B, lambda record: read_configuration(record).configuration) for kind, body in frames
    ] == several


def test_entries_go_as_they_lie_in_the_file() -> None:
    """With the terms and the configurations among them; long frames come in one piece."""
    ledger = open_small(SimDisk(), file_size=1 << 20)
    ledger.append(1, messages(0, 300))
    ledger.append(3, [configuration_record(GROUP, 1)], channel=CHANNEL_CONFIGURATION)
    ledger.append(3, messages(301, 300))
    batch = LedgerReader(ledger, GROUP, lambda: 0).batch(1, 599, 1 << 20)
    (message,) = received(sent(Append(A, B, 5, 0, 1, 17, batch)))

    assert isinstance(message, Append)
    assert message.batch is not None
    assert (message.batch.first_index, message.batch.last_index, message.batch.runs) == (1, 599, batch.runs)
    assert message.batch.configurations == batch.configurations == ((300, GROUP.configuration),)
    payload = message.batch.payload
    assert isinstance(payload, ReceivedEntries)
    assert payload.entries == batch.payload.entries
    follower = open_small(SimDisk(), file_size=1 << 20)
    follower.append(1, [content(ledger)[0][2]])
    follower.append_walked(payload.walked, payload.entries)
    assert content(follower) == content(ledger)[:600]
    assert follower.configurations == ledger.configurations


def long_frame(ledger: Ledger, first: int, bytes_max: int = 1 << 20) -> bytes:
    """An Append of entries from `first` on, which does not fit the small buffer of a connection."""
    frame = sent(Append(A, B, 5, first - 1, 1, 17, LedgerReader(ledger, GROUP, lambda: 0).batch(first, 2000, bytes_max)))
    assert len(frame) > RECEIVE_BYTES
    return frame


def test_entries_that_are_still_read_are_not_overwritten_by_later_frames() -> None:
    """However many frames are received before their entries are written."""
    ledger = open_small(SimDisk(), file_size=1 << 21)
    ledger.append(1, messages(0, 2000, 500))
    reader = FrameReader.for_lane(LANE_ENTRIES)
    frames = [long_frame(ledger, first, 100_000) for first in range(1, 2 * LONG_BUFFERS_MAX)]

    unread = [reader.feed(frame)[0][1] for frame in frames]

    assert [bytes(content) for content in unread] == [frame[FRAME.size :] for frame in frames]


def test_the_buffer_of_a_frame_that_nobody_reads_any_more_takes_a_later_one() -> None:
    """A longer frame comes through too."""
    ledger = open_small(SimDisk(), file_size=1 << 22)
    ledger.append(1, messages(0, 2000, 1000))
    reader = FrameReader.for_lane(LANE_ENTRIES)
    buffers = set[int]()
    for first in range(1, 10):
        ((_, content),) = reader.feed(long_frame(ledger, first, 100_000))
        buffers.add(id(content.obj))
        del content
    longer = long_frame(ledger, 1, LONG_BUFFER_BYTES + 1000)
    ((_, content),) = reader.feed(longer)

    assert len(buffers) == 1
    assert bytes(content) == longer[FRAME.size :]


def test_a_snapshot_says_where_to_begin() -> None:
    """And who belonged to the group there."""
    begin = BeginAnew(1 << 20, 7, configuration_record(GROUP, 1))
    message = InstallSnapshot(A, B, 4, Snapshot(99, 3, GROUP.configuration, begin))
    assert received(sent(message)) == [message]


def test_votes_and_heartbeats_have_a_lane_of_their_own() -> None:
    """They never wait behind entries."""
    assert lane_of(Heartbeat(A, B, 1, 0, 0)) == lane_of(VoteRequest(A, B, 1, 0, 0)) == LANE_CONTROL
    assert lane_of(Append(A, B, 1, 0, 0, 0)) == lane_of(InstallSnapshot(A, B, 1, Snapshot(0, 0, GROUP.configuration)))
    assert lane_of(Append(A, B, 1, 0, 0, 0)) == LANE_ENTRIES


@given(PLAIN, st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_frame_is_refused(message: Message, place: int, change: int) -> None:
    """Nothing of it is believed."""
    data = bytearray(sent(message))
    data[place % len(data)] ^= change
    with contextlib.suppress(HaProtocolError):
        assert received(bytes(data)) == []  # the size has become larger than what came


@pytest.mark.parametrize("size", [-1, CONTROL_FRAME_MAX + 1, 0x7FFFFFFF])
def test_an_absurd_length_is_refused_before_memory_is_taken(size: int) -> None:
    """The head is enough to refuse it."""
    with pytest.raises(HaProtocolError, match="at most 4096 are allowed"):
        received(FRAME.codec.pack(size, 1, 0), LANE_CONTROL)


@given(st.integers(-5, 20), st.binary(max_size=300))
def test_any_content_is_a_message_or_refused(kind: int, body: bytes) -> None:
    """Whoever knows the secret may still be broken."""
    with contextlib.suppress(HaProtocolError):
        decode_message(kind, memoryview(body), A, B, lambda record: read_configuration(record).configuration)


def test_entries_that_do_not_follow_are_refused() -> None:
    """Another index, another position, a later term than the leader's, or a body size that lies."""
    ledger = open_small(SimDisk())
    ledger.append(2, messages(0, 4))
    batch = LedgerReader(ledger, GROUP, lambda: 0).batch(1, 3, 1 << 20)
    good = Append(A, B, 2, 0, 2, -1, batch)
    assert received(sent(good))
    for term, prev_index, prev_term in ((1, 0, 1), (2, 1, 2), (2, 0, 3), (-1, 0, -1)):
        with pytest.raises(HaProtocolError):
            received(sent(Append(A, B, term, prev_index, prev_term, -1, batch)))
    fields = struct.pack(">qqqqq", 2, 0, 2, -1, 7)
    with pytest.raises(HaProtocolError, match="position"):
        decode_message(KIND_APPEND, memoryview(fields + bytes(batch.payload.entries)), A, B, lambda _: GROUP.configuration)


@pytest.mark.parametrize("content", [b"", b"x" * 200, messages(1, 1)[0]])
def test_what_is_no_configuration_is_refused(content: bytes) -> None:
    """A control record of another kind, a message, or nothing."""
    with pytest.raises(HaProtocolError):
        read_configuration(content)


def test_a_configuration_is_written_and_read() -> None:
    """With the addresses of all its members."""
    assert read_configuration(configuration_record(GROUP, 5)) == GROUP


LAST = (1 << 63) - 1


@pytest.mark.parametrize(
    "message",
    [
        Append(A, B, 5, LAST, 1, 0),
        Heartbeat(A, B, 5, LAST, 1),
        HeartbeatResponse(A, B, 5, LAST, 1),
        AppendResponse(A, B, 5, LAST, LAST),
        VoteRequest(A, B, 5, LAST, 1),
        InstallSnapshot(A, B, 5, Snapshot(LAST, 1, GROUP.configuration, BeginAnew(0, -1, configuration_record(GROUP, 1)))),
        InstallSnapshot(A, B, 5, Snapshot(9, 1, GROUP.configuration, BeginAnew(LAST, -1, configuration_record(GROUP, 1)))),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_number_that_no_next_one_could_follow_is_refused(message: Message) -> None:
    """The next index, or the place of its record, would not fit into 8 bytes."""
    with pytest.raises(HaProtocolError):
        received(sent(message))
