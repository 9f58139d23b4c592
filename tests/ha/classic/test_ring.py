"""The buffer that a slave receives into, round and round."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.classic.layout import DATA, FRAME_BODY_MAX
from ledgermq.ha.classic.ring import RECEIVE_BYTES_MAX, RING_BYTES, Ring


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 40)), max_size=200), st.randoms())
def test_what_is_held_or_being_taken_is_never_overwritten(rounds: list[tuple[int, int]], lots: random.Random) -> None:
    """Each piece reads as it was received until it is let go of, one round later, whatever was received since."""
    ring = Ring(size=40 + 3 * 16, receive_max=16)
    sent = bytearray()
    taking = 0  # a piece that a worker thread may look at ends here
    views: list[tuple[int, memoryview]] = []
    for wanted, held in rounds:
        room = ring.room()
        assert 0 < len(room) <= 16
        count = min(wanted, len(room))
        content = lots.randbytes(count)
        room[:count] = content
        if taking:  # the piece before is through; it leaves the beginning of a frame of up to 40 bytes
            ring.release(taking, min(held, taking - ring.released))
        received = ring.fill(count)
        assert bytes(received) == content
        views.append((len(sent), received))
        sent += content
        taking = ring.filled
        for start, view in views:
            if start >= ring.released:
                assert view == sent[start : start + len(view)]


def test_the_longest_frame_fits_beside_what_is_under_way() -> None:
    """There is always room to receive, so a frame as long as may be is never waited for in vain."""
    ring = Ring()
    assert len(ring.room()) == RECEIVE_BYTES_MAX
    longest = FRAME_BODY_MAX + DATA.size
    while ring.filled < longest + RECEIVE_BYTES_MAX:
        ring.fill(len(ring.room()))
        ring.release(ring.filled - RECEIVE_BYTES_MAX, min(longest - 1, ring.filled - RECEIVE_BYTES_MAX))
        assert ring.room()
    assert ring.size == RING_BYTES


def test_a_buffer_that_nobody_looks_at_is_used_from_its_start() -> None:
    """Small answers do not walk through all of the memory."""
    ring = Ring()
    first = ring.room()
    ring.fill(100)
    ring.release(100, 0)
    assert ring.room()[:1].obj is first.obj
    ring.room()[0] = 7
    assert first[0] == 7
