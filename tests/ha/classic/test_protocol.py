"""All dialects, master against slave, over a wire that cuts and merges bytes as it likes; no socket, no clock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.ha.classic.layout import AUTO_REPORT, BARE_REPORT, TAG, encode_report
from ledgermq.ha.classic.protocol import LogReceived, MasterFact, SlaveJoined, SlaveReported
from ledgermq.ha.errors import HaError, HaProtocolError

from .pairs import DIALECTS, SEGMENT, Log, bare_master, ours_master, pair_of


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(
    master_size=st.integers(0, 3 * SEGMENT),
    missing=st.integers(0, 3 * SEGMENT),
    later=st.lists(st.integers(1, 700), max_size=5),
    seed=st.integers(0, 1 << 32),
    piece_max=st.sampled_from([1, 7, 13, 100, 5000]),
)
def test_a_slave_becomes_its_master_however_the_bytes_arrive(
    dialect: str, master_size: int, missing: int, later: list[int], seed: int, piece_max: int
) -> None:
    """Any cutting and merging of reports and frames ends with equal logs and a last report of the master's end."""
    master_log = Log.of(master_size)
    slave_log = Log(0, bytearray(master_log.content[: max(master_size - missing, 0)]))
    pair = pair_of(dialect, master_log, slave_log)
    rng = random.Random(seed)

    pair.settle(lambda: rng.randint(1, piece_max))
    for size in later:
        master_log.content += rng.randbytes(size)
        pair.settle(lambda: rng.randint(1, piece_max))

    assert slave_log.max_offset == master_log.max_offset or not slave_log.content
    pair.check_prefix()
    if later:
        assert pair.acked == master_log.max_offset


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_empty_slave_begins_at_the_last_segment(dialect: str) -> None:
    """RocketMQ's default: a fresh slave gets the newest segment only."""
    pair = pair_of(dialect, Log.of(2 * SEGMENT + 100), Log())

    pair.settle()

    assert pair.slave_log.start == 2 * SEGMENT
    assert isinstance(pair.master_facts[0], SlaveJoined)
    assert (pair.master_facts[0].offset, pair.master_facts[0].fresh) == (2 * SEGMENT, True)
    assert pair.acked == 2 * SEGMENT + 100


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_frame_crosses_a_segment(dialect: str) -> None:
    """Master and slave cut their logs at the same offsets, so every frame lies in one segment."""
    pair = pair_of(dialect, Log.of(3 * SEGMENT), Log.of(100))
    pair.settle()

    for fact in pair.slave_facts:
        if isinstance(fact, LogReceived):
            assert fact.offset // SEGMENT == (fact.offset + sum(map(len, fact.pieces)) - 1) // SEGMENT


@pytest.mark.parametrize("dialect", DIALECTS)
def test_both_sides_speak_every_five_seconds_and_give_up_after_twenty(dialect: str) -> None:
    """Heartbeats and reports go out after 5 s without a word; more than 20 s of silence end the connection."""
    pair = pair_of(dialect, Log.of(100), Log.of(100))
    pair.settle()
    assert pair.master.heartbeat(0.0), (
        "ours says at once up to where consumers may see, a bare one lets the slave check its end"
    )

    assert pair.master.heartbeat(4.9) == b""
    assert not pair.slave.report_due(4.9)
    assert pair.master.heartbeat(5.0) != b""
    assert pair.slave.report_due(5.0)
    assert pair.master.heartbeat(9.9) == b""
    assert pair.master.silent_for(20.0) is None
    assert pair.master.silent_for(20.5) == 20.5
    assert pair.slave.silent_for(20.0) is None
    assert pair.slave.silent_for(20.5) == 20.5


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_heartbeat_is_data_of_no_bytes(dialect: str) -> None:
    """It appends nothing and keeps the connection alive."""
    pair = pair_of(dialect, Log.of(100), Log.of(100))
    pair.settle()
    pair.now = 6.0
    pair.slave_facts.clear()

    pair.to_slave += pair.master.heartbeat(6.0)
    pair.settle()

    assert not any(isinstance(fact, LogReceived) for fact in pair.slave_facts)
    assert pair.slave.silent_for(25.0) is None


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_beginning_of_a_frame_breaks_the_silence(dialect: str) -> None:
    """Bytes that nobody looks at before the rest has come show that the master lives."""
    pair = pair_of(dialect, Log.of(100), Log.of(100))
    pair.settle()

    pair.slave.heard(15.0)

    assert pair.slave.silent_for(34.0) is None
    assert pair.slave.silent_for(36.0) == 21.0


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("absurd", [1 << 60, -5, 101])
def test_an_absurd_report_never_counts(dialect: str, absurd: int) -> None:
    """A report of what was never sent ends the connection and acknowledges nothing."""
    pair = pair_of(dialect, Log.of(100), Log.of(100))
    pair.settle()
    before = list(pair.master_facts)

    reports = {"bare": BARE_REPORT.pack(offset=absurd), "autoswitch": AUTO_REPORT.pack(state=2, offset=absurd)}
    pair.to_master += reports.get(dialect) or encode_report(absurd, 0)
    with pytest.raises(HaProtocolError):
        pair.settle()

    assert pair.master_facts == before


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=300), greeted=st.booleans(), piece_max=st.integers(1, 50))
def test_random_bytes_at_the_master_acknowledge_nothing(dialect: str, noise: bytes, greeted: bool, piece_max: int) -> None:
    """Whatever a stranger writes either waits for more or ends his connection; in our dialect nobody joins by it."""
    log = Log.of(5000)
    master = bare_master(log) if dialect == "bare" else ours_master(log)
    received = TAG + noise if greeted else noise
    facts: list[MasterFact] = []
    try:
        for at in range(0, len(received), piece_max):
            facts += master.receive(received[at : at + piece_max], 0.0)[0]
    except HaError:
        pass

    if dialect == "authenticated":
        assert facts == []
    for fact in facts:
        assert (fact.appended if isinstance(fact, SlaveReported) else fact.offset) <= log.max_offset


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=300), piece_max=st.integers(1, 50))
def test_random_bytes_from_a_master_never_break_the_prefix(dialect: str, noise: bytes, piece_max: int) -> None:
    """A slave of ours in mid-transfer appends nothing of noise; only the bare dialect could not tell log bytes from others."""
    pair = pair_of(dialect, Log.of(100), Log.of(100))
    pair.settle()
    pair.slave_facts.clear()
    try:
        for at in range(0, len(noise), piece_max):
            pair.slave_facts += pair.slave.receive(noise[at : at + piece_max], 0.0)[0]
    except HaError:
        pass

    appended = [fact for fact in pair.slave_facts if isinstance(fact, LogReceived)]
    assert all(fact.offset >= 100 for fact in appended)
    if dialect == "authenticated":
        assert appended == []
