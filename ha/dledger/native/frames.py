"""The native dialect: encodes messages of the Raft core as frames and decodes them, without I/O.

An Append is a short head and a slice of the leader's data file. The follower reads the headers in it once, which yields the
indexes and terms for the core and the records for the index; the bytes are appended to the ledger unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter

import attrs

from ....message.checksum import crc32
from ....message.fields import Layout
from ...errors import DamagedEntry, HaProtocolError
from ...raft.batch import Batch, Snapshot, TermRun
from ...raft.messages import (
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
    TermAnswer,
    TermQuery,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from ...raft.quorum import Configuration
from ...raft.units import NO_INDEX, LogIndex, PeerId
from ..ledger.layout import ENTRY, HEADER_SIZE, INDEX_MAX, POSITION_MAX
from ..ledger.ledger import LedgerSlice
from ..ledger.received import BeginAnew, ReceivedEntries
from ..ledger.walk import Walked, walk_entries
from . import layout as wire
from .layout import CONTROL_FRAME_MAX, ENTRIES_FRAME_MAX, FRAME, LANE_ENTRIES
from .mending_messages import EntryCopy, EntryDamaged, EntryRequest, MendingMessage

Parts = Sequence[bytes | memoryview]
ReadConfiguration = Callable[[bytes], Configuration]
"""Decodes the body of a configuration entry; raises HaProtocolError if it is not one."""

NUMBER_MAX = POSITION_MAX
"""The highest number in a message without entries; a higher term, index or round would soon not fit into 8 bytes."""
RECEIVE_BYTES = 64 * 1024
"""The size of a connection's receive buffer; a frame that does not fit gets a buffer of its own."""
LONG_BUFFERS_MAX = 4
"""How many buffers of long frames a connection keeps for later frames. While one frame is received, the entries of the frames
before it are still being written."""
LONG_BUFFER_BYTES = 1024 * 1024 + RECEIVE_BYTES
"""The size of a kept buffer: room for an Append of `append_bytes_max`. The buffer of a longer frame is not kept."""

_PLAIN: tuple[tuple[int, type, Layout], ...] = (
    (1, PreVoteRequest, wire.PRE_VOTE_REQUEST),
    (2, PreVoteResponse, wire.PRE_VOTE_RESPONSE),
    (3, VoteRequest, wire.VOTE_REQUEST),
    (4, VoteResponse, wire.VOTE_RESPONSE),
    (5, Heartbeat, wire.HEARTBEAT),
    (6, HeartbeatResponse, wire.HEARTBEAT_RESPONSE),
    (7, TimeoutNow, wire.TIMEOUT_NOW),
    (8, ReadIndexRequest, wire.READ_INDEX_REQUEST),
    (9, StaleTerm, wire.STALE_TERM),
    (14, TermQuery, wire.TERM_QUERY),
    (15, TermAnswer, wire.TERM_ANSWER),
    (16, Regressed, wire.REGRESSED),
)
"""Messages whose fields are those of their layout, after the sender and receiver, which the connection determines."""
KIND_READ_INDEX_RESPONSE, KIND_APPEND_RESPONSE, KIND_APPEND, KIND_INSTALL_SNAPSHOT = 10, 11, 12, 13
KIND_ENTRY_DAMAGED, KIND_ENTRY_REQUEST, KIND_ENTRY_COPY = 32, 33, 34
"""The kinds from the first of these on are no messages of the Raft core."""
_MENDING: dict[int, tuple[type[EntryDamaged | EntryRequest], Layout]] = {
    KIND_ENTRY_DAMAGED: (EntryDamaged, wire.ENTRY_DAMAGED),
    KIND_ENTRY_REQUEST: (EntryRequest, wire.ENTRY_REQUEST),
}


def _fields_of(layout: Layout) -> Callable[[Message | MendingMessage], tuple[int, ...]]:
    """A function that returns the fields of a message in the order of its layout."""
    first, *others = (field.name for field in layout.fields)
    return attrgetter(first, *others) if others else lambda message: (getattr(message, first),)


_KIND_OF: dict[type, tuple[int, Callable[..., bytes], Callable[[Message | MendingMessage], tuple[int, ...]]]] = {
    message: (kind, layout.codec.pack, _fields_of(layout)) for kind, message, layout in _PLAIN
}
_PLAIN_OF = {kind: (message, layout) for kind, message, layout in _PLAIN}
_HEAD_FIELDS = struct.Struct(">ii")
_unpack_header = ENTRY.codec.unpack_from
_unpack_frame, _FRAME_SIZE = FRAME.codec.unpack_from, FRAME.size


_ENTRIES_MESSAGES = (Append, InstallSnapshot, EntryCopy)
_ASKING = (Heartbeat, PreVoteRequest, InstallSnapshot)
_ANSWERED_LANES: dict[type, int] = {
    AppendResponse: LANE_ENTRIES,
    HeartbeatResponse: wire.LANE_CONTROL,
    PreVoteResponse: wire.LANE_CONTROL,
    StaleTerm: wire.LANE_CONTROL,
}


def lane_of(message: Message | MendingMessage) -> int:
    """The lane of a message: entries, and messages that must stay in order with them, have a separate one."""
    return LANE_ENTRIES if isinstance(message, _ENTRIES_MESSAGES) else wire.LANE_CONTROL


def asks_for_answer(message: Message | MendingMessage) -> bool:
    """Whether the receiver answers this message, so that silence after it shows that the connection carries nothing."""
    if isinstance(message, Append):
        return message.batch is not None
    return isinstance(message, _ASKING)


def answered_lane(message: Message) -> int | None:
    """The lane of the messages that this one answers; None if it answers none of those in `asks_for_answer`."""
    return _ANSWERED_LANES.get(type(message))


# ------------------------------------------------------------------------------------------------------------------ encoding


def encode_message(message: Message | MendingMessage) -> Parts:
    """Return the parts of a frame, to be sent in order; entries are views of the leader's file."""
    plain = _KIND_OF.get(type(message))
    if plain is not None:
        kind, pack, fields_of = plain
        return _frame(kind, pack(*fields_of(message)))
    if isinstance(message, Append):
        position, entries = 0, memoryview(b"")
        if message.batch is not None:
            payload = message.batch.payload
            assert isinstance(payload, LedgerSlice)
            position, entries = payload.position, payload.entries
        fields = wire.APPEND.codec.pack(message.term, message.prev_index, message.prev_term, message.commit_index, position)
        return _frame(KIND_APPEND, fields, entries)
    if isinstance(message, InstallSnapshot):
        snapshot = message.snapshot
        begin = snapshot.payload
        assert isinstance(begin, BeginAnew)
        fields = wire.INSTALL_SNAPSHOT.codec.pack(
            message.term, snapshot.last_index, snapshot.last_term, begin.position, begin.configuration_index
        )
        return _frame(KIND_INSTALL_SNAPSHOT, fields, memoryview(begin.configuration_body))
    if isinstance(message, AppendResponse):
        return _frame(KIND_APPEND_RESPONSE, _append_response(message))
    if isinstance(message, EntryCopy):
        return _frame(KIND_ENTRY_COPY, wire.ENTRY_COPY.codec.pack(message.term, message.index), message.entry)
    if isinstance(message, EntryDamaged | EntryRequest):
        kind = KIND_ENTRY_DAMAGED if isinstance(message, EntryDamaged) else KIND_ENTRY_REQUEST
        return _frame(kind, wire.ENTRY_REQUEST.codec.pack(message.term, message.index))
    assert isinstance(message, ReadIndexResponse), f"no frame is known for a {type(message).__name__}"
    known = message.index is not None
    index = message.index if message.index is not None else NO_INDEX
    return _frame(
        KIND_READ_INDEX_RESPONSE,
        wire.READ_INDEX_RESPONSE.codec.pack(message.term, message.context, known, index),
    )


def _append_response(message: AppendResponse) -> bytes:
    rejection = message.rejection or Rejection(NO_INDEX, NO_INDEX, NO_INDEX)
    return wire.APPEND_RESPONSE.codec.pack(
        message.term,
        message.match_index,
        message.received_index,
        message.rejection is not None,
        rejection.prev_index,
        rejection.hint_index,
        rejection.hint_term,
    )


_NO_BYTES = memoryview(b"")


def _frame(kind: int, fields: bytes, body: memoryview = _NO_BYTES) -> Parts:
    size = len(fields) + len(body)
    crc = crc32(fields)
    if len(body):
        crc = crc32(body, crc)
    head = FRAME.codec.pack(size, kind, crc32(_HEAD_FIELDS.pack(size, kind), crc)) + fields
    return (head, body) if len(body) else (head,)


# ------------------------------------------------------------------------------------------------------------------ decoding


@attrs.define(eq=False)
class FrameReader:
    """Splits the received bytes of one connection into frames.

    The shell receives into `room()` and reports with `received`. A long frame gets a buffer of its own, into which the rest of
    it is received, so that its entries are contiguous and need no further copy.
    """

    frame_max: int
    """The largest `size` of a frame on this lane; a larger one raises HaProtocolError."""
    _small: bytearray = attrs.field(factory=lambda: bytearray(RECEIVE_BYTES))
    _filled: int = 0
    _long: memoryview | None = None
    """The place of the long frame that is being received."""
    _long_filled: int = 0
    _long_head: tuple[int, int] = (0, 0)
    _kept: list[bytearray] = attrs.field(factory=list[bytearray])

    @classmethod
    def for_lane(cls, lane: int) -> FrameReader:
        return cls(ENTRIES_FRAME_MAX if lane == LANE_ENTRIES else CONTROL_FRAME_MAX)

    def room(self) -> memoryview:
        """The buffer into which the next bytes are received; never empty."""
        if self._long is not None:
            return self._long[self._long_filled :]
        return memoryview(self._small)[self._filled :]

    def feed(self, data: bytes) -> list[tuple[int, memoryview]]:
        """Copy bytes that were received elsewhere; return the kind and content of each frame that is now complete."""
        frames: list[tuple[int, memoryview]] = []
        view = memoryview(data)
        while view:
            room = self.room()
            size = min(len(room), len(view))
            room[:size] = view[:size]
            room.release()
            frames += self.received(size)
            view = view[size:]
        return frames

    def received(self, count: int) -> list[tuple[int, memoryview]]:
        """Note that `count` bytes were received into `room()`; return kind and content of each frame that is now complete.

        Raises:
            HaProtocolError: a length is beyond its bound, or a frame is damaged. The connection must be closed.
        """
        frames: list[tuple[int, memoryview]] = []
        if self._long is not None:
            self._long_filled += count
            if self._long_filled == len(self._long):
                kind, crc = self._long_head
                frames.append(_checked(kind, crc, self._long))
                self._long = None
            return frames
        self._filled += count
        at = 0
        while self._filled - at >= _FRAME_SIZE:
            size, kind, crc = _unpack_frame(self._small, at)
            if not 0 <= size <= self.frame_max:
                raise HaProtocolError(f"a frame of {size} bytes on the Raft port, at most {self.frame_max} are allowed")
            begin = at + _FRAME_SIZE
            if begin + size > self._filled:
                if _FRAME_SIZE + size > len(self._small):
                    self._begin_long(begin, size, kind, crc)
                    return frames
                break
            frames.append(_checked(kind, crc, memoryview(bytes(self._small[begin : begin + size]))))
            at = begin + size
        self._filled -= at
        if self._filled:
            self._small[: self._filled] = self._small[at : at + self._filled]
        return frames

    def _begin_long(self, begin: int, size: int, kind: int, crc: int) -> None:
        self._long, self._long_head = memoryview(self._buffer(size))[:size], (kind, crc)
        self._long_filled = self._filled - begin
        self._long[: self._long_filled] = self._small[begin : self._filled]
        self._filled = 0

    def _buffer(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes, if possible one whose frame nobody reads any more.

        The kernel zeroes the pages of a new buffer one by one, which takes longer than to receive into them.
        """
        if size > LONG_BUFFER_BYTES:
            return bytearray(size)
        for buffer in self._kept:
            if _is_unread(buffer):
                return buffer
        buffer = bytearray(LONG_BUFFER_BYTES)
        if len(self._kept) < LONG_BUFFERS_MAX:
            self._kept.append(buffer)
        return buffer


def _is_unread(buffer: bytearray) -> bool:
    """Whether no view of the buffer is left: Python refuses to resize one that has a view."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    del buffer[-1]
    return True


def _checked(kind: int, crc: int, content: memoryview) -> tuple[int, memoryview]:
    found = crc32(_HEAD_FIELDS.pack(len(content), kind), crc32(content))
    if found != crc:
        raise HaProtocolError(f"a damaged frame of kind {kind}: CRC {crc:08x} was sent, {found:08x} was found")
    return kind, content


def decode_message(
    kind: int, content: memoryview, sender: PeerId, to: PeerId, read_configuration: ReadConfiguration
) -> Message:
    """Decode the content of a frame from `sender`.

    Raises:
        HaProtocolError: the content is not a message, or its entries are not well formed.
        DamagedEntry: the body of an entry does not have its CRC, although the frame has: it was damaged where it was stored.
    """
    try:
        if kind in _PLAIN_OF:
            message, layout = _PLAIN_OF[kind]
            return message(sender, to, *_fields(layout, content))  # type: ignore[no-any-return]
        if kind == KIND_READ_INDEX_RESPONSE:
            term, context, known, index = _fields(wire.READ_INDEX_RESPONSE, content)
            return ReadIndexResponse(sender, to, term, context, index if known else None)
        if kind == KIND_APPEND_RESPONSE:
            term, match, received, rejected, prev, hint, hint_term = _fields(wire.APPEND_RESPONSE, content)
            return AppendResponse(sender, to, term, match, received, Rejection(prev, hint, hint_term) if rejected else None)
        if kind == KIND_APPEND:
            return _append(content, sender, to, read_configuration)
        if kind == KIND_INSTALL_SNAPSHOT:
            return _install_snapshot(content, sender, to, read_configuration)
    except struct.error as error:
        raise HaProtocolError(f"a frame of kind {kind} with {len(content)} bytes: {error}") from error
    raise HaProtocolError(f"a frame of kind {kind}, which does not exist")


def decode_mending_message(kind: int, content: memoryview, sender: PeerId, to: PeerId) -> MendingMessage:
    """Decode the content of a frame whose kind is not one of the Raft core's messages.

    Raises:
        HaProtocolError: the content is not such a message.
    """
    try:
        if kind in _MENDING:
            message, layout = _MENDING[kind]
            return message(sender, to, *_fields(layout, content))
        if kind == KIND_ENTRY_COPY:
            term, index = _fields(wire.ENTRY_COPY, content[: wire.ENTRY_COPY.size])
            return EntryCopy(sender, to, term, index, content[wire.ENTRY_COPY.size :])
    except struct.error as error:
        raise HaProtocolError(f"a frame of kind {kind} with {len(content)} bytes: {error}") from error
    raise HaProtocolError(f"a frame of kind {kind}, which does not exist")


def _fields(layout: Layout, content: memoryview) -> tuple[int, ...]:
    fields = layout.codec.unpack(content)
    if fields[0] < 0 or max(fields) > NUMBER_MAX:
        raise HaProtocolError(f"a {layout.name} with the numbers {', '.join(map(str, fields))}, of which one is out of range")
    return fields


def _append(content: memoryview, sender: PeerId, to: PeerId, read_configuration: ReadConfiguration) -> Append:
    term, prev_index, prev_term, commit_index, position = wire.APPEND.codec.unpack_from(content)
    in_order = NO_INDEX <= prev_term <= term
    if not (in_order and term >= 0 and NO_INDEX <= prev_index <= INDEX_MAX and 0 <= position <= POSITION_MAX):
        raise HaProtocolError(f"an append of term {term} behind entry {prev_index} of term {prev_term} at position {position}")
    entries = content[wire.APPEND.size :]
    if not len(entries):
        return Append(sender, to, term, prev_index, prev_term, commit_index, None)
    walked = walk_entries(
        entries,
        0,
        len(entries),
        position=position,
        next_index=prev_index + 1,
        term=prev_term,
        check_bodies=True,
    )
    if walked.damaged:
        raise DamagedEntry(term, walked.next_index)
    if walked.fault is not None or walked.runs[-1][1] > term:
        raise HaProtocolError(f"entries of the leader are refused: {walked.fault or 'their term is a later one'}")
    batch = Batch(
        walked.first_index,
        walked.next_index - 1,
        tuple(TermRun(index, run_term) for index, run_term in walked.runs),
        len(entries),
        ReceivedEntries(walked, entries),
        _configurations(walked, entries, read_configuration),
    )
    return Append(sender, to, term, prev_index, prev_term, commit_index, batch)


def _configurations(
    walked: Walked, entries: memoryview, read_configuration: ReadConfiguration
) -> tuple[tuple[LogIndex, Configuration], ...]:
    found: list[tuple[LogIndex, Configuration]] = []
    for at in walked.configurations:
        _, size, index, *_ = _unpack_header(entries, at)
        found.append((index, read_configuration(bytes(entries[at + HEADER_SIZE : at + size]))))
    return tuple(found)


def _install_snapshot(
    content: memoryview, sender: PeerId, to: PeerId, read_configuration: ReadConfiguration
) -> InstallSnapshot:
    term, last_index, last_term, position, index = wire.INSTALL_SNAPSHOT.codec.unpack_from(content)
    in_order = NO_INDEX <= last_term <= term and NO_INDEX <= index <= last_index
    if not (in_order and term >= 0 and last_index <= INDEX_MAX and 0 <= position <= POSITION_MAX):
        raise HaProtocolError(f"a snapshot up to entry {last_index} of term {last_term} at position {position}")
    body = bytes(content[wire.INSTALL_SNAPSHOT.size :])
    configuration = read_configuration(body)
    snapshot = Snapshot(last_index, last_term, configuration, BeginAnew(position, index, body))
    return InstallSnapshot(sender, to, term, snapshot)
