"""The dialect of RocketMQ's controller mode: what its brokers have sent, the consistent point, and what is refused."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.ha.classic.autoswitch import AutoSwitchMaster, AutoSwitchSlave
from ledgermq.ha.classic.bare import BareSlave
from ledgermq.ha.classic.epochs import UNKNOWN_WRITER, Epoch, EpochList
from ledgermq.ha.classic.layout import (
    AUTO_DATA,
    AUTO_HANDSHAKE,
    AUTO_REPORT,
    AUTO_WELCOME,
    BARE_REPORT,
    FRAME_BODY_MAX,
    TAG,
    encode_auto_welcome,
)
from ledgermq.ha.classic.protocol import (
    EpochBegun,
    JoinedMaster,
    LogAbandoned,
    LogReceived,
    SlaveFact,
    SlaveJoined,
    SlaveReported,
    TailDropped,
    TransferLimits,
)
from ledgermq.ha.errors import HaError, HaProtocolError, HaRefused, WrongDialect

from .pairs import LIMITS, SEGMENT, Log, Pair, auto_master, auto_slave, bare_master, ours_master, ours_slave

GOLDEN = Path(__file__).parents[2] / "golden" / "autoswitch"


def epochs_of(*pairs: tuple[int, int], writer: bytes = UNKNOWN_WRITER, replicas: int = 1) -> EpochList:
    return EpochList(tuple(Epoch(number, start, writer, replicas) for number, start in pairs))


def captured(side: str) -> list[bytes]:
    """What one side of a captured connection has written, one write an item."""
    lines = (GOLDEN / "fresh_slave.txt").read_text().splitlines()
    return [bytes.fromhex(line.split()[2]) for line in lines if line.split()[1] == side]


def handshake(*, broker_id: int = 2, from_last: int = 0, learner: int = 0) -> bytes:
    return AUTO_HANDSHAKE.pack(state=1, from_last=from_last, learner=learner, broker_id=broker_id)


def report(offset: int) -> bytes:
    return AUTO_REPORT.pack(state=2, offset=offset)


def data(offset: int, body: bytes = b"", *, epoch: tuple[int, int] = (1, 0), confirmed: int = 0) -> bytes:
    number, start = epoch
    head = AUTO_DATA.pack(state=2, size=len(body), offset=offset, epoch=number, epoch_start=start, confirmed=confirmed)
    return head + body


def joined_slave(log: Log, epochs: EpochList | None = None, master_end: int = 5000) -> AutoSwitchSlave:
    """A slave whose handshake is done, at a master with the same epochs."""
    slave = auto_slave(log, epochs)
    slave.receive(encode_auto_welcome(slave.epochs or epochs_of((1, 0)), master_end), 0.0)
    return slave


# --- the captured connection ---


def test_a_slave_of_ours_takes_what_a_master_of_rocketmqs_has_sent() -> None:
    """An empty slave of a broker 5.5.0 with two epochs, which ends a frame where the first one ends and names the second."""
    slave = AutoSwitchSlave(Log(), TransferLimits(segment_size=1 << 20), 0.0, 3, EpochList())
    facts: list[SlaveFact] = []

    opening = slave.opening()
    for written in captured("master"):
        facts += slave.receive(written, 0.0)[0]

    sent = captured("slave")
    known = epochs_of((1, 0), (2, 1521))
    assert opening == sent[0]
    assert facts[0] == JoinedMaster(0, EpochList())
    assert [fact for fact in facts if isinstance(fact, EpochBegun)] == [EpochBegun(known)]
    received = [(fact.offset, sum(map(len, fact.pieces))) for fact in facts if isinstance(fact, LogReceived)]
    assert received == [(0, 1521), (1521, 1085)]
    assert (slave.master_end, slave.confirmed, slave.readable) == (2606, 2606, 2606)
    assert slave.report(0.0) == sent[-1] == report(2606)


def test_a_master_of_ours_sends_a_slave_of_rocketmqs_what_its_own_has_sent() -> None:
    """All frames but one: in the frame that ends the first epoch ours names that one, and RocketMQ the next."""
    frames = b"".join(captured("master"))
    content = frames[44 + 2 * 36 : 44 + 2 * 36 + 1521] + frames[-36 - 1085 : -36]
    log = Log(0, bytearray(content))
    limits = TransferLimits(segment_size=1 << 20)
    master = AutoSwitchMaster(log, limits, lambda first: 0 if first else -1, 0.0, epochs_of((1, 0), (2, 1521)))

    hello, first, *_, last = captured("slave")
    _, answer = master.receive(hello, 0.0)
    facts, _ = master.receive(first, 5.0)
    sent = master.heartbeat(5.0)
    for size in (1521, 1085):
        assert master.next_size() >= size
        sent += master.frame(size, 0, 5.0) + log.slice_from(master.next_offset - size, size)
    sent += master.heartbeat(10.0)

    assert facts == [SlaveJoined(None, 3, 0, fresh=True)]
    assert answer == frames[:44]
    cut = 44 + 36
    assert sent[:36] == frames[44:cut]
    assert AUTO_DATA.unpack(sent, 36) == AUTO_DATA.unpack(frames, cut) | {"epoch": 1, "epoch_start": 0}
    assert sent[72:] == frames[cut + 36 :]
    assert master.receive(last, 10.0)[0] == [SlaveReported(2606, 2606)]


def test_a_deposed_master_of_rocketmqs_goes_on_where_ours_would() -> None:
    """Its log had 1521 bytes of epoch 1, and the slave that was elected outside the SyncStateSet began epoch 5 at 1085."""
    welcome = bytes.fromhex("000000010000001800000000000006c80000000500000001000000000000000000000005000000000000043d")
    slave = auto_slave(Log.of(1521), epochs_of((1, 0)))

    assert slave.receive(welcome, 0.0)[1] == report(1085)
    assert encode_auto_welcome(epochs_of((1, 0), (5, 1085)), 1736) == welcome


# --- the consistent point ---


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "point"),
    [
        (epochs_of((1, 0), (2, 1000), (3, 4000)), 9000, epochs_of((1, 0), (2, 1000), (3, 3500)), 5000, 3500),
        (epochs_of((1, 0), (2, 1000)), 2600, epochs_of((1, 0), (2, 1000)), 2500, 2500),
        (epochs_of((1, 0), (2, 1000)), 2600, epochs_of((1, 10), (2, 990)), 2500, None),
        (epochs_of((1, 0), (2, 1000)), 2600, epochs_of((1, 0), (2, 1000), (3, 2800)), 4000, 2600),
    ],
    ids=["newest-common-epoch", "shorter-log", "no-common-epoch", "master-is-ahead"],
)
@pytest.mark.parametrize("writer", [UNKNOWN_WRITER, b"W" * 16], ids=["unknown-writer", "own-writer"])
def test_a_slave_goes_on_at_the_consistent_point(
    own: EpochList, own_end: int, other: EpochList, other_end: int, point: int | None, writer: bytes
) -> None:
    """Epochs match by number and start, whether or not the slave knows who wrote its own."""
    own = epochs_of(*((entry.number, entry.start) for entry in own), writer=writer)
    slave = auto_slave(Log.of(own_end), own)

    if point is None:
        with pytest.raises(HaRefused, match="share no epoch"):
            slave.receive(encode_auto_welcome(other, other_end), 0.0)
        return
    facts, answer = slave.receive(encode_auto_welcome(other, other_end), 0.0)

    assert answer == report(point)
    assert facts[-1] == JoinedMaster(point, slave.epochs)
    assert [fact for fact in facts if isinstance(fact, TailDropped)] == (
        [TailDropped(point, own_end, point, point)] if point < own_end else []
    )
    assert all(entry.writer == writer for entry in slave.epochs)
    assert [entry.start for entry in slave.epochs] == [entry.start for entry in own if entry.start < point]


def test_epochs_of_two_known_writers_are_two_epochs() -> None:
    """A log that one of our masters wrote is not taken for that of another one."""
    slave = auto_slave(Log.of(900), epochs_of((1, 0), writer=b"W" * 16))
    own, other = (Epoch(1, 0, writer * 16, 1) for writer in (b"W", b"V"))

    assert not own.is_same(other)
    assert own.is_same(Epoch(1, 0, UNKNOWN_WRITER, 1))
    assert not own.is_same(Epoch(1, 1, UNKNOWN_WRITER, 1))
    assert slave.receive(encode_auto_welcome(EpochList((other,)), 900), 0.0)[1] == report(900), "the wire names no writer"


def test_a_removed_tail_says_what_was_confirmed_and_promised() -> None:
    """The shell refuses to remove what was confirmed."""
    own = epochs_of((1, 0), (2, 400), writer=b"W" * 16, replicas=2)
    slave = auto_slave(Log.of(900), own, confirmed=700)

    facts, _ = slave.receive(encode_auto_welcome(epochs_of((1, 0), (3, 600)), 650), 0.0)

    assert facts[0] == TailDropped(400, 900, confirmed_end=700, promised_end=900)
    assert slave.confirmed == 400


def test_a_log_that_parts_before_its_beginning_is_abandoned() -> None:
    """Its first bytes were deleted, so nothing of it is known to be the master's."""
    log = Log.of(3000, start=SEGMENT)
    slave = auto_slave(log, epochs_of((1, 0), (2, 100)))

    facts, answer = slave.receive(encode_auto_welcome(epochs_of((1, 0), (3, 100)), 9000), 0.0)

    assert facts[0] == LogAbandoned(0, SEGMENT, SEGMENT + 3000, diverged=True, confirmed_end=SEGMENT, promised_end=SEGMENT)
    assert answer == report(0)


def test_a_deposed_master_is_not_followed() -> None:
    """The controller has elected another one since."""
    slave = attrs.evolve(auto_slave(Log.of(100)), epoch_min=3)

    with pytest.raises(HaRefused, match="the master has epoch 2, and the master of epoch 3 is to be followed"):
        slave.receive(encode_auto_welcome(epochs_of((1, 0), (2, 50)), 100), 0.0)


def test_a_log_without_epochs_is_not_continued() -> None:
    """RocketMQ's slave would go on at its end without a proof."""
    slave = auto_slave(Log.of(100), EpochList())

    with pytest.raises(HaRefused, match="share no epoch"):
        slave.receive(encode_auto_welcome(epochs_of((1, 0)), 100), 0.0)


# --- epochs in frames ---


@settings(max_examples=60, deadline=None)
@given(
    borders=st.lists(st.integers(0, 3 * SEGMENT), max_size=5),
    have=st.integers(0, 3 * SEGMENT),
    seed=st.integers(0, 1 << 32),
    piece_max=st.sampled_from([1, 13, 100, 5000]),
    names_next=st.booleans(),
)
def test_a_slave_learns_the_epochs_of_its_bytes_however_they_arrive(
    borders: list[int], have: int, seed: int, piece_max: int, names_next: bool
) -> None:
    """Any epochs, empty ones included; also from a master that names the next epoch in the frame that ends one."""
    master_log = Log.of(3 * SEGMENT)
    epochs = epochs_of(*enumerate([0, *sorted(borders)], 1))
    slave_log = Log(0, bytearray(master_log.content[:have]))
    master = auto_master(master_log, epochs)
    pair = Pair(master, master_log, auto_slave(slave_log, epochs.truncated(have)), slave_log)
    rng = random.Random(seed)

    if not names_next:
        pair.settle(lambda: rng.randint(1, piece_max))
    else:
        pair.give_master(1 << 20)
        pair.give_slave(1 << 20)
        pair.give_master(1 << 20)
        while size := min(
            master.next_size(), master_log.max_offset - master.next_offset, SEGMENT - master.next_offset % SEGMENT
        ):
            begin = master.next_offset
            master.frame(size, 0, 0.0)
            named = epochs.at(begin + size)
            assert named is not None
            pair.to_slave += data(begin, bytes(master_log.slice_from(begin, size)), epoch=(named.number, named.start))
        pair.settle(lambda: rng.randint(1, piece_max))

    assert slave_log.content == master_log.content
    assert isinstance(pair.slave, AutoSwitchSlave)
    assert pair.slave.epochs.truncated(3 * SEGMENT) == epochs.truncated(3 * SEGMENT)


def test_no_frame_of_ours_spans_two_epochs() -> None:
    """So RocketMQ's slave may cut its log at the end of any frame."""
    log = Log.of(1000)
    master = auto_master(log, epochs_of((1, 0), (2, 300), (3, 300), (7, 450)))
    master.receive(handshake() + report(10), 0.0)
    heads: list[tuple[int, int, int, int]] = []

    while body := log.slice_from(master.next_offset, master.next_size()):
        head = AUTO_DATA.unpack(master.frame(len(body), zlib.crc32(body), 0.0))
        heads.append((head["offset"], head["size"], head["epoch"], head["epoch_start"]))

    assert heads == [(10, 290, 1, 0), (300, 150, 3, 300), (450, 512, 7, 450), (962, 38, 7, 450)]


@pytest.mark.parametrize("epoch", [(1, 50), (0, 0), (2, -1), (-3, 0), (2, 104)])
def test_an_epoch_that_does_not_continue_the_list_is_refused(epoch: tuple[int, int]) -> None:
    """Another start of the same number, an earlier number, or a start outside the log."""
    slave = joined_slave(Log.of(100))

    with pytest.raises(HaProtocolError, match="a data frame up to 103"):
        slave.receive(data(100, b"abc", epoch=epoch), 0.0)


# --- confirm offset ---


def test_the_confirm_offset_is_what_consumers_of_the_slave_may_read() -> None:
    """At most the end of the slave's log, and never less than before."""
    slave = joined_slave(Log.of(100))
    assert slave.readable is None, "unknown until the first frame"

    slave.receive(data(100, b"abc", confirmed=90), 0.0)
    assert (slave.readable, slave.confirmed) == (90, 90)
    slave.receive(data(103, confirmed=1 << 40), 0.0)
    assert slave.readable == 103
    slave.receive(data(103, confirmed=20), 0.0)
    assert slave.readable == 103


def test_a_master_sends_its_readable_offset_as_soon_as_it_changes() -> None:
    """Consumers of the slave need not wait for the next data or for 5 s."""
    log = Log.of(100)
    log.readable_limit = 60
    master = auto_master(log)
    master.receive(handshake() + report(100), 0.0)

    assert AUTO_DATA.unpack(master.heartbeat(0.0))["confirmed"] == 60
    assert master.heartbeat(0.1) == b""
    log.readable_limit = 80
    assert AUTO_DATA.unpack(master.heartbeat(0.2))["confirmed"] == 80


# --- joining a master ---


@pytest.mark.parametrize(("from_last", "start"), [(0, 0), (1, SEGMENT)])
def test_an_empty_slave_begins_at_the_first_segment_unless_it_asks_for_the_last(from_last: int, start: int) -> None:
    """The opposite of the bare protocol (syncFromLastFile)."""
    master = auto_master(Log.of(SEGMENT + 5))

    facts, _ = master.receive(handshake(from_last=from_last) + report(0), 0.0)

    assert facts == [SlaveJoined(None, 2, start, fresh=True)]


def test_a_slave_says_that_it_only_copies() -> None:
    """The master never counts it (asyncLearner)."""
    slave = auto_slave(Log(), from_first=False, learner=True)
    master = auto_master(Log.of(100))

    assert slave.opening() == handshake(from_last=1, learner=1)
    assert master.receive(slave.opening() + report(100), 0.0)[0] == [SlaveJoined(None, 2, 100, fresh=False, learner=True)]


def test_a_handshake_that_is_repeated_is_answered_again() -> None:
    """RocketMQ's slave sends it every 5 s until it is answered."""
    master = auto_master(Log.of(100))
    once = master.receive(handshake(), 0.0)[1]

    assert master.receive(handshake(), 5.0)[1] == once
    master.receive(report(100), 5.0)
    with pytest.raises(HaProtocolError, match="state 1"):
        master.receive(handshake(), 6.0)


def test_a_handshake_is_not_looked_at_before_it_is_whole() -> None:
    """The network may divide the one write of the slave."""
    master = auto_master(Log.of(100))

    for at in range(15):
        assert master.receive(handshake()[at : at + 1], 0.0) == ([], b"")
    assert master.receive(handshake()[15:], 0.0)[1] != b""


def test_an_empty_master_sends_heartbeats_at_no_offset() -> None:
    """Seen from RocketMQ's; only a slave that is empty too accepts them."""
    empty, full = joined_slave(Log()), joined_slave(Log.of(100))

    assert empty.receive(data(-1), 0.0) == ([], b"")
    with pytest.raises(HaProtocolError, match="offset -1, this log ends at 100"):
        full.receive(data(-1), 0.0)
    with pytest.raises(HaProtocolError, match="offset -1, this log ends at 0"):
        empty.receive(data(-1, b"abc"), 0.0)


def test_a_report_counts_only_after_something_was_sent() -> None:
    """Anybody can name an offset; a slave that was sent something has checked that it continues the log."""
    master = auto_master(Log.of(100))
    master.receive(handshake() + report(100), 0.0)

    assert master.receive(report(100), 0.0)[0] == []
    master.heartbeat(0.0)
    assert master.receive(report(50) + report(100), 0.0)[0] == [SlaveReported(100, 100)]


# --- what is refused ---


@pytest.mark.parametrize("offset", [100, 5000])
def test_a_slave_that_the_log_cannot_continue_is_refused(offset: int) -> None:
    """Behind the beginning or beyond the end of the master's log."""
    master = auto_master(Log.of(3000, start=1000))

    with pytest.raises(HaRefused, match=r"go on at \d+, the master's log reaches from 1000 to 4000: stop the slave"):
        master.receive(handshake() + report(offset), 0.0)


def test_a_slave_left_behind_by_retention_is_refused() -> None:
    """The segment that it needs next has been deleted."""
    log = Log.of(3000)
    master = auto_master(log)
    master.receive(handshake() + report(500), 0.0)

    log.start, log.content = 1000, log.content[1000:]

    with pytest.raises(HaRefused, match="needs offset 500, the master's log now begins at 1000"):
        master.next_size()


@pytest.mark.parametrize(
    "sent",
    [
        report(0),
        AUTO_REPORT.pack(state=0, offset=0),
        AUTO_REPORT.pack(state=3, offset=0),
        handshake(broker_id=0),
        handshake(broker_id=-1),
        handshake(from_last=2),
        handshake(learner=-1),
        handshake() + report(-1),
        handshake() + report(50) + report(51),
    ],
)
def test_a_master_refuses_what_no_slave_sends(sent: bytes) -> None:
    """A report before a handshake, states without frames, impossible fields, a report of what was never sent."""
    with pytest.raises(HaError):
        auto_master(Log.of(100)).receive(sent, 0.0)


@pytest.mark.parametrize(
    "sent",
    [
        data(0),
        AUTO_WELCOME.pack(state=1, size=13, max_offset=0, last_epoch=0) + bytes(13),
        AUTO_WELCOME.pack(state=1, size=12 * 1001, max_offset=0, last_epoch=0),
        AUTO_WELCOME.pack(state=1, size=-12, max_offset=0, last_epoch=0),
        encode_auto_welcome(EpochList(), -1),
        encode_auto_welcome(epochs_of((-1, 0)), 10),
        encode_auto_welcome(epochs_of((1, -5)), 10),
        encode_auto_welcome(epochs_of((1, 50)), 10) + encode_auto_welcome(EpochList(), 10),
    ],
)
def test_a_slave_refuses_a_handshake_that_no_master_sends(sent: bytes) -> None:
    """A data frame in its place, sizes and epochs that cannot be, a second one."""
    with pytest.raises(HaProtocolError):
        auto_slave(Log()).receive(sent, 0.0)


def test_epochs_that_descend_are_refused() -> None:
    """A list that no log can have."""
    two = encode_auto_welcome(epochs_of((1, 50), (2, 60)), 100)

    with pytest.raises(HaProtocolError, match="epoch 1 at 60 cannot follow epoch 1 at 50"):
        auto_slave(Log()).receive(two[:-12] + two[-12:].replace(b"\0\0\0\2", b"\0\0\0\1"), 0.0)


def test_a_slave_refuses_frames_that_it_cannot_append() -> None:
    """Another offset, too many bytes, the border of a segment, a beginning inside of one."""
    slave = joined_slave(Log.of(100))

    with pytest.raises(HaProtocolError, match="for offset 90, this log ends at 100"):
        slave.receive(data(90), 0.0)
    with pytest.raises(HaProtocolError, match="a frame of 4194305 bytes"):
        joined_slave(Log.of(100)).receive(
            AUTO_DATA.pack(state=2, size=FRAME_BODY_MAX + 1, offset=100, epoch=1, epoch_start=0, confirmed=0), 0.0
        )
    with pytest.raises(HaRefused, match="mappedFileSizeCommitLog"):
        joined_slave(Log.of(100)).receive(data(100, bytes(SEGMENT)), 0.0)
    with pytest.raises(HaRefused, match="segment begins at offset 6144"):
        joined_slave(Log()).receive(data(SEGMENT * 3 // 2, b"abc"), 0.0)


# --- the other dialects ---


def test_nodes_of_this_dialect_and_of_ours_tell_each_other_which_key_to_set() -> None:
    """Each names haProtocol, whichever is the master."""
    master, slave = auto_master(Log.of(100)), ours_slave(Log())
    with pytest.raises(WrongDialect, match="haProtocol = ledgermq"):
        master.receive(slave.opening(), 0.0)
    with pytest.raises(WrongDialect, match="haProtocol = rocketmq"):
        slave.receive(master.farewell(), 0.0)

    other_master, other_slave = ours_master(Log.of(100)), auto_slave(Log())
    with pytest.raises(WrongDialect, match="haProtocol = rocketmq"):
        other_master.receive(other_slave.opening(), 0.0)
    with pytest.raises(WrongDialect, match="haProtocol = ledgermq"):
        other_slave.receive(other_master.farewell(), 0.0)


@pytest.mark.parametrize("offset", [0, 12345, 5 << 32])
def test_a_bare_slave_is_told_from_one_of_controller_mode(offset: int) -> None:
    """By its reports, which are half as long; even one whose offset begins like a handshake."""
    with pytest.raises(HaProtocolError):
        auto_master(Log.of(100)).receive(BARE_REPORT.pack(offset=offset) * 2, 0.0)


def test_a_master_that_is_not_in_controller_mode_is_recognized() -> None:
    """A bare master takes the handshake for reports and answers with a frame; a bare slave accepts no handshake."""
    slave = auto_slave(Log())
    bare = bare_master(Log.of(100))
    bare.receive(slave.opening(), 0.0)

    with pytest.raises(HaProtocolError, match="state 0 instead of a handshake: the master must be a broker in controller mode"):
        slave.receive(bare.heartbeat(0.0), 0.0)
    with pytest.raises(HaError):
        BareSlave(Log.of(5), LIMITS, 0.0).receive(encode_auto_welcome(EpochList(), 100), 0.0)


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=300), stage=st.integers(0, 2), piece_max=st.integers(1, 50))
def test_random_bytes_never_leave_the_core_as_another_error(noise: bytes, stage: int, piece_max: int) -> None:
    """In every stage, at both ends; nothing is acknowledged that was not sent, and nothing is appended elsewhere."""
    master, slave = auto_master(Log.of(5000)), auto_slave(Log.of(100))
    to_master = b"".join((handshake(), report(100))[:stage]) + noise
    to_slave = (encode_auto_welcome(epochs_of((1, 0)), 5000) if stage else b"") + noise
    for core, received in ((master, to_master), (slave, to_slave)):
        try:
            for at in range(0, len(received), piece_max):
                for fact in core.receive(received[at : at + piece_max], 0.0)[0]:
                    if isinstance(fact, SlaveReported):
                        assert fact.appended <= master.next_offset
                    if isinstance(fact, LogReceived):
                        assert fact.offset >= 100
        except HaError:
            pass


def test_the_first_bytes_of_our_dialect_are_no_state() -> None:
    """So no frame of this dialect can begin with them."""
    with pytest.raises(WrongDialect):
        auto_slave(Log()).receive(TAG[:4], 0.0)
