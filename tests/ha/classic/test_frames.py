"""Our dialect: data frames and reports, once a slave has joined."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.classic.authenticated import BATCH_MAX, AuthenticatedMaster, AuthenticatedSlave
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.layout import encode_data_header, encode_report
from ledgermq.ha.classic.protocol import EpochBegun, LogReceived, TransferLimits
from ledgermq.ha.errors import HaProtocolError, HaRefused

from .pairs import MASTER, SECRET, SEGMENT, Log, Pair, ours_master, ours_slave, pair_of


def joined_pair(master_size: int = 100, slave_size: int = 100) -> Pair:
    pair = pair_of("authenticated", Log.of(master_size), Log.of(slave_size))
    pair.settle()
    pair.slave_facts.clear()
    return pair


@pytest.mark.parametrize("at", range(43))
def test_any_damaged_byte_of_a_data_frame_is_noticed(at: int) -> None:
    """Nothing of a damaged frame is appended."""
    pair = joined_pair()
    pair.master_log.content += b"abc"
    assert pair.send()
    pair.to_slave[at] ^= 0x10

    try:
        pair.settle()
    except HaProtocolError:
        pass
    else:
        assert 4 <= at < 8, "only a larger size may wait for more bytes"
    assert pair.slave_facts == []


@pytest.mark.parametrize("at", range(24))
def test_any_damaged_byte_of_a_report_is_noticed(at: int) -> None:
    """It acknowledges nothing and ends the connection."""
    pair = joined_pair()
    before = list(pair.master_facts)
    pair.to_master += pair.slave.report(1.0)
    pair.to_master[at] ^= 0x10

    with pytest.raises(HaProtocolError):
        pair.settle()
    assert pair.master_facts == before


def test_a_frame_that_does_not_join_is_refused() -> None:
    """A gap or a repetition, however well checksummed, is not appended."""
    pair = joined_pair()

    with pytest.raises(HaProtocolError, match="for offset 90, this log ends at 100"):
        pair.slave.receive(
            encode_data_header(zlib.crc32(b"x"), size=1, offset=90, epoch=1, confirmed=0, master_end=200, readable=0) + b"x",
            0.0,
        )


def test_a_frame_of_an_epoch_that_was_not_announced_is_refused() -> None:
    """The slave's list of epochs must stay the master's."""
    pair = joined_pair()

    with pytest.raises(HaProtocolError, match="of epoch 8"):
        pair.slave.receive(
            encode_data_header(zlib.crc32(b"x"), size=1, offset=100, epoch=8, confirmed=0, master_end=200, readable=0) + b"x",
            0.0,
        )


@pytest.mark.parametrize(("epoch", "offset", "why"), [(4, 120, "before it begins"), (1, 200, "after another has begun")])
def test_a_frame_of_an_epoch_that_is_not_there_is_refused(epoch: int, offset: int, why: str) -> None:
    """What the list says of each offset, every frame must say too."""
    epochs = EpochList((Epoch(1, 0, b"M" * 16, 1), Epoch(4, 150, b"M" * 16, 2)))
    master_log, slave_log = Log.of(offset), Log.of(100)
    pair = Pair(ours_master(master_log, epochs), master_log, ours_slave(slave_log), slave_log)
    pair.settle()
    assert slave_log.max_offset == offset, why
    header = encode_data_header(zlib.crc32(b"x"), size=1, offset=offset, epoch=epoch, confirmed=0, master_end=300, readable=0)

    with pytest.raises(HaProtocolError, match=f"at {offset} of epoch {epoch}"):
        pair.slave.receive(header + b"x", 0.0)


def test_a_frame_over_a_segment_border_is_refused() -> None:
    """Both sides cut their logs alike, so no master of ours sends one."""
    pair = joined_pair()
    body = bytes(SEGMENT)
    header = encode_data_header(zlib.crc32(body), size=SEGMENT, offset=100, epoch=1, confirmed=0, master_end=9000, readable=0)

    with pytest.raises(HaProtocolError, match="cross a segment border"):
        pair.slave.receive(header + body, 0.0)


def test_more_flushed_than_appended_is_no_report() -> None:
    """It acknowledges nothing, though its offsets were all sent."""
    pair = joined_pair()
    before = list(pair.master_facts)

    pair.to_master += encode_report(50, 60)
    with pytest.raises(HaProtocolError, match="a report of 50 appended and 60 flushed"):
        pair.settle()
    assert pair.master_facts == before


def test_a_slave_that_needs_what_has_expired_is_let_go_to_be_filled_anew() -> None:
    """The master has deleted the segment in the middle of the transfer; the next handshake finds that out."""
    log = Log.of(3000)
    pair = Pair(ours_master(log), log, ours_slave(Log.of(100)), Log.of(100))
    while not pair.master.ready:
        pair.give_master(1 << 20)
        pair.give_slave(1 << 20)

    log.start, log.content = 1000, log.content[1000:]

    with pytest.raises(HaRefused, match="needs offset 100, the log now begins at 1000; the slave is filled from the beginning"):
        pair.master.next_size()


def test_frames_are_cut_where_an_epoch_ends_and_the_slave_adopts_the_next() -> None:
    """Each frame belongs to one epoch; the new list is kept before the first byte of the new epoch is appended."""
    epochs = EpochList((Epoch(1, 0, b"M" * 16, 1), Epoch(4, 150, b"M" * 16, 2)))
    master_log, slave_log = Log.of(300), Log.of(100)
    pair = Pair(ours_master(master_log, epochs), master_log, ours_slave(slave_log), slave_log)

    pair.settle()

    steps = [fact for fact in pair.slave_facts if isinstance(fact, LogReceived | EpochBegun)]
    assert isinstance(steps[0], LogReceived)
    assert steps[1] == EpochBegun(epochs)
    assert isinstance(steps[2], LogReceived)
    assert (steps[0].offset, steps[2].offset) == (100, 150)


def test_the_slave_learns_what_is_confirmed_and_how_far_the_master_is() -> None:
    """Every frame says both; the slave never counts more as confirmed than it holds."""
    pair = joined_pair()
    assert isinstance(pair.slave, AuthenticatedSlave)

    pair.master_log.content += bytes(200)
    pair.settle()

    assert (pair.slave.confirmed, pair.slave.master_end) == (77, 300)


def test_no_more_is_known_to_be_confirmed_than_has_come() -> None:
    """What a slave has lost of what was confirmed it counts by its own log."""
    log, slave_log = Log.of(3000), Log.of(100)
    slave = ours_slave(slave_log)
    pair = Pair(ours_master(log, confirmed=3000), log, slave, slave_log)
    while slave_log.max_offset < 3000:
        pair.send()
        pair.give_master(1 << 20)
        pair.give_slave(1 << 20)
        assert slave.confirmed <= slave_log.max_offset
    assert slave.confirmed == 3000


def test_a_master_says_at_once_when_consumers_may_see_more() -> None:
    """The bytes go before they are flushed; a frame without bytes reports the flush alone, and once."""
    pair = joined_pair()
    assert isinstance(pair.slave, AuthenticatedSlave)
    pair.master_log.readable_limit = 100
    pair.master_log.content += bytes(200)
    pair.settle()
    assert pair.slave.readable == 100

    pair.master_log.readable_limit = 300
    pair.to_slave += pair.master.heartbeat(pair.now)
    pair.settle()

    assert pair.slave.readable == 300
    assert pair.master.heartbeat(pair.now) == b""


def test_frames_grow_while_they_leave_fast_and_shrink_when_they_do_not() -> None:
    """Bulk goes in large frames, a slow link gets small ones again."""
    log = Log.of(100)
    limits = TransferLimits(batch_size=64 * 1024, segment_size=1 << 30)
    master = AuthenticatedMaster(
        log, limits, lambda _: 0, 0.0, MASTER, SECRET, b"1" * 32, EpochList((Epoch(1, 0, b"M" * 16, 1),)), lambda: 0
    )
    master.next_offset = 0
    sizes: list[int] = []
    now = 0.0
    for pause in (0.001,) * 8 + (0.2,) * 8:
        sizes.append(master.next_size())
        master.frame(sizes[-1], 0, now)
        now += pause

    assert sizes[0] == 64 * 1024
    assert max(sizes) == BATCH_MAX
    assert sizes[-1] == 64 * 1024


@given(st.integers(0, 5000), st.integers(0, 5000))
def test_frames_end_at_multiples_of_their_size_while_there_is_more(start: int, length: int) -> None:
    """A slave then writes whole pages; what has just been put goes at once, wherever it ends."""
    log = Log.of(start + length)
    limits = TransferLimits(batch_size=1024, segment_size=1 << 30)
    epochs = EpochList((Epoch(1, 0, b"M" * 16, 1),))
    master = AuthenticatedMaster(log, limits, lambda _: 0, 0.0, MASTER, SECRET, b"1" * 32, epochs, lambda: 0)
    master.next_offset = start

    size = master.next_size()

    assert 0 < size <= 1024
    assert size >= length if length <= 1024 else (start + size) % 1024 == 0
