"""The bare dialect, and what either dialect makes of the other."""

from __future__ import annotations

import zlib

import pytest

from ledgermq.ha.classic.bare import BareMaster, BareSlave
from ledgermq.ha.classic.layout import BARE_HEADER, BARE_REPORT, FRAME_BODY_MAX, TAG
from ledgermq.ha.classic.protocol import JoinedMaster, LogReceived, SlaveJoined, SlaveReported, TransferLimits
from ledgermq.ha.errors import HaProtocolError, HaRefused, WrongDialect

from .pairs import LIMITS, SEGMENT, Log, bare_master, ours_master, ours_slave


def test_a_bare_exchange_is_the_one_seen_on_rocketmqs_wire() -> None:
    """Report 0, last segment, then data as it comes, then a heartbeat at the next offset."""
    log = Log.of(399)
    master = bare_master(log)

    assert master.heartbeat(6.0) == b"", "no heartbeat before the first report"
    facts, answer = master.receive(bytes(8), 6.0)
    body = log.slice_from(master.next_offset, master.next_size())
    header = master.frame(len(body), zlib.crc32(body), 6.0)

    assert answer == b""
    assert facts == [SlaveJoined(None, None, 0, fresh=True)]
    assert header == bytes(8) + (399).to_bytes(4, "big")
    assert master.heartbeat(11.0) == (399).to_bytes(8, "big") + bytes(4)


def test_of_many_bare_reports_in_one_read_the_last_whole_one_counts() -> None:
    """RocketMQ skips earlier ones and keeps the bytes of a cut one."""
    master = bare_master(Log.of(1000))
    first = b"".join(BARE_REPORT.pack(offset=offset) for offset in (100, 200, 300))

    assert master.receive(first + b"\0\0\0", 0.0)[0] == [SlaveJoined(None, None, 300, fresh=False)]
    assert master.heartbeat(0.0)
    assert master.receive(b"\0\0\0\x01\x2c", 0.0)[0] == [SlaveReported(300, 300)]


def test_a_bare_report_says_nothing_before_something_was_sent() -> None:
    """Anybody can name an offset; only who was sent something has checked that it joins."""
    master = bare_master(Log.of(1000))
    master.receive(BARE_REPORT.pack(offset=1000), 0.0)

    assert master.receive(BARE_REPORT.pack(offset=1000), 0.0)[0] == []
    assert master.heartbeat(0.0), "the first one is due at once"
    assert master.receive(BARE_REPORT.pack(offset=1000), 0.0)[0] == [SlaveReported(1000, 1000)]


def test_a_bare_slave_may_be_silent_for_more_than_five_seconds() -> None:
    """RocketMQ's slave says nothing for 5 s after connecting; the master waits for up to 20."""
    master = bare_master(Log.of(1000))

    assert master.silent_for(19.9) is None
    assert master.receive(BARE_REPORT.pack(offset=1000), 19.9)[0] != []
    assert master.silent_for(30.0) is None


@pytest.mark.parametrize("offset", [100, 5000])
def test_a_bare_slave_that_the_log_cannot_continue_is_refused_with_what_to_do(offset: int) -> None:
    """Behind the beginning or beyond the end of the master's log: only a person can repair that."""
    master = bare_master(Log.of(3000, start=1000))

    with pytest.raises(HaRefused, match=r"ends at \d+, the master's reaches from 1000 to 4000.*move its store away"):
        master.receive(BARE_REPORT.pack(offset=offset), 0.0)


def test_a_bare_slave_whose_tail_the_master_has_written_over_is_refused() -> None:
    """The master lost bytes, and has as many others since: equal offsets do not make equal logs."""
    log = Log.of(3000)
    recovered_end = 2500
    master = BareMaster(log, LIMITS, lambda _: 0, lambda: recovered_end, 0.0)

    with pytest.raises(HaRefused, match="this master has sent only bytes before 2500"):
        master.receive(BARE_REPORT.pack(offset=2800), 0.0)


def test_a_bare_slave_left_behind_by_retention_is_refused_with_what_to_do() -> None:
    """The segment that it needs next has been deleted."""
    log = Log.of(3000)
    master = bare_master(log)
    master.receive(BARE_REPORT.pack(offset=500), 0.0)

    log.start, log.content = 1000, log.content[1000:]

    with pytest.raises(HaRefused, match="needs offset 500, the master's log now begins at 1000"):
        master.next_size()


def test_a_bare_slave_refuses_a_frame_that_does_not_join() -> None:
    """An offset that is not the end of a log that is not empty; heartbeats too."""
    slave = BareSlave(Log.of(100), LIMITS, 0.0)

    with pytest.raises(HaRefused, match="sends from offset 90, this log ends at 100"):
        slave.receive(BARE_HEADER.pack(offset=90, size=0), 0.0)


def test_a_bare_slave_refuses_frames_over_a_segment_border() -> None:
    """By such a one a slave sees that the master's segments are larger than its own."""
    slave = BareSlave(Log.of(100), LIMITS, 0.0)

    with pytest.raises(HaRefused, match="mappedFileSizeCommitLog"):
        slave.receive(BARE_HEADER.pack(offset=100, size=SEGMENT), 0.0)


@pytest.mark.parametrize("size", [0, 5])
def test_an_empty_bare_slave_refuses_to_begin_inside_a_segment(size: int) -> None:
    """By that it sees, unless it begins at 0, that the master's segments are smaller than its own."""
    slave = BareSlave(Log(), LIMITS, 0.0)

    with pytest.raises(HaRefused, match=r"begins at offset 6144.*mappedFileSizeCommitLog \(here 4096\)"):
        slave.receive(BARE_HEADER.pack(offset=SEGMENT * 3 // 2, size=size), 0.0)


def test_a_bare_slave_refuses_a_frame_larger_than_any_master_sends() -> None:
    """A header that announces gigabytes is not waited for."""
    slave = BareSlave(Log(), TransferLimits(), 0.0)

    with pytest.raises(HaProtocolError, match="offset 0 and size 4194305"):
        slave.receive(BARE_HEADER.pack(offset=0, size=FRAME_BODY_MAX + 1), 0.0)


def test_a_bare_slave_without_a_byte_begins_wherever_its_master_does() -> None:
    """Also if its log once reached further: it says 0, which is RocketMQ's word for empty."""
    slave = BareSlave(Log(start=SEGMENT), LIMITS, 0.0)

    assert slave.opening() == BARE_REPORT.pack(offset=0)
    assert slave.receive(BARE_HEADER.pack(offset=3 * SEGMENT, size=0), 0.0)[0] == [JoinedMaster(3 * SEGMENT, None)]


def test_a_bare_slave_takes_data_before_it_has_reported() -> None:
    """A header, split anywhere, then its body."""
    slave = BareSlave(Log(), LIMITS, 0.0)
    frame = BARE_HEADER.pack(offset=SEGMENT, size=3) + b"abc"

    for at in range(len(frame) - 1):
        assert not any(isinstance(fact, LogReceived) for fact in slave.receive(frame[at : at + 1], 0.0)[0])
    facts, _ = slave.receive(frame[-1:], 0.0)

    assert [(fact.offset, b"".join(fact.pieces)) for fact in facts if isinstance(fact, LogReceived)] == [(SEGMENT, b"abc")]
    assert slave.report(0.0) == BARE_REPORT.pack(offset=SEGMENT + 3)


def test_our_master_recognizes_a_bare_slave_by_its_first_report() -> None:
    """The master names the key to set, and what it sends on parting tells our bare slave the same."""
    master = ours_master(Log.of(100))

    with pytest.raises(WrongDialect, match="haProtocol = rocketmq"):
        master.receive(BARE_REPORT.pack(offset=50), 0.0)
    with pytest.raises(WrongDialect, match="haProtocol = ledgermq"):
        BareSlave(Log(), LIMITS, 0.0).receive(master.farewell(), 0.0)


def test_a_bare_master_meets_our_slave_with_its_tag() -> None:
    """And learns from the echo of its tag, which RocketMQ's own master sends as a heartbeat, whom it talks to."""
    master = bare_master(Log.of(100))
    slave = ours_slave(Log())

    with pytest.raises(WrongDialect, match="haProtocol = ledgermq"):
        master.receive(slave.opening(), 0.0)
    with pytest.raises(WrongDialect, match="haProtocol = rocketmq"):
        slave.receive(master.farewell(), 0.0)


def test_another_version_is_named() -> None:
    """A tag that differs in its last byte is our dialect, of another time."""
    with pytest.raises(HaProtocolError, match="version 9"):
        ours_master(Log.of(1)).receive(TAG[:-1] + b"\x09", 0.0)
