"""Cutting a byte stream into frames."""

from __future__ import annotations

import itertools
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.remoting.command import FRAME_SIZE_MAX, frame_of
from ledgermq.remoting.errors import RemoteProtocolError
from ledgermq.remoting.frame import Frame, FrameReader

frames = st.tuples(st.integers(0, 255), st.binary(max_size=40), st.binary(max_size=40))


def pieces_of(stream: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    return [stream[start:end] for start, end in itertools.pairwise(ends)]


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 10**6), max_size=12))
def test_frames_come_out_whole_however_the_stream_is_cut(sent: list[Frame], cuts: list[int]) -> None:
    """Merged and split receives give the same frames, and nothing is held at the end."""
    reader = FrameReader()
    stream = b"".join(frame_of(*frame) for frame in sent)

    received = [frame for piece in pieces_of(stream, cuts) for frame in reader.feed(piece)]

    assert received == sent
    assert reader.held == 0


def test_a_frame_byte_by_byte_is_one_frame() -> None:
    """The slowest trickle is read as the fastest burst."""
    reader = FrameReader()
    stream = frame_of(0, b"{}", b"body") * 2

    received = [frame for at in range(len(stream)) for frame in reader.feed(stream[at : at + 1])]

    assert received == [(0, b"{}", b"body")] * 2


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 3, FRAME_SIZE_MAX - 3, 2**31 - 1, struct.unpack(">i", b"GET ")[0]])
def test_an_absurd_length_ends_the_stream_at_once(length: int) -> None:
    """Nothing is allocated for a length that no frame has; an HTTP request is one such."""
    with pytest.raises(RemoteProtocolError, match=str(length)):
        FrameReader().feed(struct.pack(">iI", length, 0))


def test_the_largest_frame_is_allowed() -> None:
    """The limit counts the length field itself, as Java's does."""
    body = bytes(FRAME_SIZE_MAX - 8)

    assert FrameReader().feed(frame_of(0, b"", body)) == [(0, b"", body)]


@pytest.mark.parametrize("header", [1, 5, 0xFFFFFF])
def test_a_header_longer_than_its_frame_ends_the_stream(header: int) -> None:
    """It is known before the frame is complete."""
    with pytest.raises(RemoteProtocolError, match=f"header of {header}"):
        FrameReader().feed(struct.pack(">iI", 4, header))


def test_a_trickled_frame_costs_its_size_once() -> None:
    """Many small pieces of a large frame are held as they are and joined once, not at every piece."""
    frame = frame_of(0, b"{}", bytes(4 * 1024 * 1024))
    reader = FrameReader()
    pieces = [frame[at : at + 1024] for at in range(0, len(frame), 1024)]

    tracemalloc.start()
    try:
        for piece in pieces[:-1]:
            assert reader.feed(piece) == []
        assert tracemalloc.get_traced_memory()[1] < len(frame) // 4  # the pieces are ours; only their list is new
        assert len(reader.feed(pieces[-1])) == 1
    finally:
        tracemalloc.stop()


def test_a_trickle_costs_little_more_than_its_bytes() -> None:
    """A peer that sends two bytes at a time makes us hold them, not an object for each pair."""
    frame = frame_of(0, b"{}", bytes(256 * 1024))
    reader = FrameReader()

    tracemalloc.start()
    try:
        for at in range(0, len(frame) - 2, 2):
            reader.feed(frame[at : at + 2])
        assert tracemalloc.get_traced_memory()[0] < 2 * len(frame)
    finally:
        tracemalloc.stop()

    assert reader.feed(frame[-2:]) == [(0, b"{}", bytes(256 * 1024))]


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_cut_or_refused_and_never_more_than_received_is_held(noise: list[bytes]) -> None:
    """No stream makes the reader fail in another way or hold what it was not given."""
    reader = FrameReader()
    received = 0
    try:
        for piece in noise:
            received += len(piece)
            reader.feed(piece)
            assert reader.held <= received
    except RemoteProtocolError:
        pass
