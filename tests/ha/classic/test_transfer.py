"""Both dialects, master against slave, over a wire that cuts and merges bytes as it likes; no socket, no clock."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.ha.classic.authenticated import BATCH_MAX, AuthenticatedMaster, AuthenticatedSlave
from ledgermq.ha.classic.bare import BareMaster, BareSlave
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.layout import (
    BARE_HEADER,
    BARE_REPORT,
    KIND_HELLO,
    TAG,
    NodeIdentity,
    encode_data_header,
    encode_report,
    envelope,
)
from ledgermq.ha.classic.protocol import (
    EpochBegun,
    JoinedMaster,
    LogAbandoned,
    LogReceived,
    MasterCore,
    MasterFact,
    SlaveCore,
    SlaveFact,
    SlaveJoined,
    SlaveReported,
    TailDropped,
    TransferLimits,
)
from ledgermq.ha.errors import HaError, HaProtocolError, HaRefused, WrongDialect

SEGMENT = 4096
LIMITS = TransferLimits(batch_size=512, segment_size=SEGMENT)
MASTER = NodeIdentity("c", "b", 0, b"M" * 16)
SLAVE = NodeIdentity("c", "b", 1, b"S" * 16)
SECRET = b"secret"
DIALECTS = ["bare", "authenticated"]


@attrs.define
class Log:
    """A log in memory; what is not there any more is cut off in front."""

    start: int = 0
    content: bytearray = attrs.field(factory=bytearray)
    readable_max: int | None = None

    @classmethod
    def of(cls, size: int, *, seed: int = 1, start: int = 0) -> Log:
        return cls(start, bytearray(random.Random(seed).randbytes(size)))

    @property
    def min_offset(self) -> int:
        return self.start

    @property
    def max_offset(self) -> int:
        return self.start + len(self.content)

    @property
    def flushed_offset(self) -> int:
        return self.max_offset

    @property
    def readable_offset(self) -> int:
        return self.max_offset if self.readable_max is None else min(self.max_offset, self.readable_max)

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        end = min(self.max_offset, offset + size_max, offset - offset % SEGMENT + SEGMENT)
        return memoryview(bytes(self.content[offset - self.start : end - self.start]))


def bare_master(log: Log, **_: object) -> MasterCore:
    return BareMaster(log, LIMITS, lambda _: log.max_offset - log.max_offset % SEGMENT, lambda: log.max_offset, 0.0)


def ours_master(log: Log, epochs: EpochList | None = None, secret: bytes = SECRET) -> MasterCore:
    return AuthenticatedMaster(
        log,
        LIMITS,
        lambda first: log.min_offset if first else log.max_offset - log.max_offset % SEGMENT,
        0.0,
        MASTER,
        secret,
        b"1" * 32,
        EpochList((Epoch(1, 0, b"M" * 16, 1),)) if epochs is None else epochs,
        lambda: 77,
    )


def ours_slave(
    log: Log,
    epochs: EpochList | None = None,
    *,
    secret: bytes = SECRET,
    identity: NodeIdentity = SLAVE,
    limits: TransferLimits = LIMITS,
    from_first: bool = False,
    confirmed: int = 0,
) -> AuthenticatedSlave:
    return AuthenticatedSlave(
        log,
        limits,
        0.0,
        identity,
        secret,
        b"2" * 32,
        (EpochList((Epoch(1, 0, b"M" * 16, 1),)) if log.content else EpochList()) if epochs is None else epochs,
        from_first,
        confirmed,
    )


@attrs.define
class Pair:
    """A master and a slave joined by two pipes."""

    master: MasterCore
    master_log: Log
    slave: SlaveCore
    slave_log: Log
    to_master: bytearray = attrs.field(factory=bytearray)
    to_slave: bytearray = attrs.field(factory=bytearray)
    now: float = 0.0
    master_facts: list[MasterFact] = attrs.field(factory=list[MasterFact])
    slave_facts: list[SlaveFact] = attrs.field(factory=list[SlaveFact])

    def __attrs_post_init__(self) -> None:
        self.to_master += self.slave.opening()

    def give_master(self, size: int) -> None:
        received, self.to_master = bytes(self.to_master[:size]), self.to_master[size:]
        facts, answer = self.master.receive(received, self.now)
        self.master_facts += facts
        self.to_slave += answer

    def give_slave(self, size: int) -> None:
        received, self.to_slave = self.to_slave[:size], self.to_slave[size:]
        wanted = self.slave.wanted
        facts, answer = self.slave.receive(memoryview(received), self.now)
        assert not (len(received) < wanted and facts)
        self.slave_facts += facts
        for fact in facts:
            self.carry_out(fact)
        received[:] = bytes(len(received))  # as what comes next overwrites it
        self.to_master += answer
        if any(isinstance(fact, LogReceived) for fact in facts):
            self.to_master += self.slave.report(self.now)

    def carry_out(self, fact: SlaveFact) -> None:
        log = self.slave_log
        match fact:
            case LogReceived(offset, pieces):
                if not log.content:
                    log.start = offset
                assert offset == log.max_offset
                for piece in pieces:
                    log.content += piece
                self.check_prefix()
            case TailDropped(start):
                del log.content[start - log.start :]
                self.check_prefix()
            case LogAbandoned(start):
                log.start = start
                log.content.clear()
            case JoinedMaster() | EpochBegun():
                pass

    def check_prefix(self) -> None:
        master, slave = self.master_log, self.slave_log
        low, high = max(master.min_offset, slave.min_offset), slave.max_offset
        assert high <= master.max_offset
        assert slave.content[low - slave.start :] == master.content[low - master.start : high - master.start]

    def send(self) -> bool:
        if not self.master.ready:
            return False
        body = self.master_log.slice_from(self.master.next_offset, self.master.next_size())
        if not body:
            return False
        self.to_slave += self.master.frame(len(body), zlib.crc32(body), self.now) + body
        return True

    def settle(self, piece: Callable[[], int] = lambda: 1 << 20) -> None:
        """Move bytes until nothing moves any more."""
        while self.to_master or self.to_slave or self.send():
            if self.to_master:
                self.give_master(piece())
            if self.to_slave:
                self.give_slave(piece())

    @property
    def acked(self) -> int:
        reports = [fact.appended for fact in self.master_facts if isinstance(fact, SlaveReported)]
        return reports[-1] if reports else -1


def pair_of(dialect: str, master_log: Log, slave_log: Log) -> Pair:
    if dialect == "bare":
        return Pair(bare_master(master_log), master_log, BareSlave(slave_log, LIMITS, 0.0), slave_log)
    return Pair(ours_master(master_log), master_log, ours_slave(slave_log), slave_log)


# ---------------------------------------------------------------- both dialects


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
    lots = random.Random(seed)

    pair.settle(lambda: lots.randint(1, piece_max))
    for size in later:
        master_log.content += lots.randbytes(size)
        pair.settle(lambda: lots.randint(1, piece_max))

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
    said = pair.master.heartbeat(0.0)  # ours says at once up to where consumers may see
    assert bool(said) is (dialect == "authenticated")

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

    pair.to_master += BARE_REPORT.pack(offset=absurd) if dialect == "bare" else encode_report(absurd, 0)
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


# ---------------------------------------------------------------- the bare dialect


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
    assert master.receive(b"\0\0\0\x01\x2c", 0.0)[0] == [SlaveReported(300, 300)]


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

    with pytest.raises(HaRefused, match="nobody was sent more than what lies before 2500"):
        master.receive(BARE_REPORT.pack(offset=2800), 0.0)


def test_a_bare_slave_left_behind_by_retention_is_refused_with_what_to_do() -> None:
    """The segment that it needs next has been deleted."""
    log = Log.of(3000)
    master = bare_master(log)
    master.receive(BARE_REPORT.pack(offset=500), 0.0)

    log.start, log.content = 1000, log.content[1000:]

    with pytest.raises(HaRefused, match="needs offset 500, the master's log begins at 1000"):
        master.next_size()


def test_a_bare_slave_refuses_a_frame_that_does_not_join() -> None:
    """An offset that is not the end of a log that is not empty; heartbeats too."""
    slave = BareSlave(Log.of(100), LIMITS, 0.0)

    with pytest.raises(HaRefused, match="sends from offset 90, this log ends at 100"):
        slave.receive(BARE_HEADER.pack(offset=90, size=0), 0.0)


def test_a_bare_slave_refuses_frames_over_a_segment_border() -> None:
    """The only sign of another segment size that the bare protocol gives."""
    slave = BareSlave(Log.of(100), LIMITS, 0.0)

    with pytest.raises(HaRefused, match="mappedFileSizeCommitLog"):
        slave.receive(BARE_HEADER.pack(offset=100, size=SEGMENT), 0.0)


def test_a_bare_slave_takes_data_before_it_has_reported() -> None:
    """A header, split anywhere, then its body."""
    slave = BareSlave(Log(), LIMITS, 0.0)
    frame = BARE_HEADER.pack(offset=SEGMENT, size=3) + b"abc"

    for at in range(len(frame) - 1):
        assert not any(isinstance(fact, LogReceived) for fact in slave.receive(frame[at : at + 1], 0.0)[0])
    facts, _ = slave.receive(frame[-1:], 0.0)

    assert [(fact.offset, b"".join(fact.pieces)) for fact in facts if isinstance(fact, LogReceived)] == [(SEGMENT, b"abc")]
    assert slave.report(0.0) == BARE_REPORT.pack(offset=SEGMENT + 3)


# ---------------------------------------------------------------- one dialect at the other's port


def test_a_bare_slave_at_our_master_is_told_apart_by_its_first_report() -> None:
    """The master names the key to set, and what it sends on parting tells our bare slave the same."""
    master = ours_master(Log.of(100))

    with pytest.raises(WrongDialect, match="haProtocol = rocketmq"):
        master.receive(BARE_REPORT.pack(offset=50), 0.0)
    with pytest.raises(WrongDialect, match="haProtocol = ledgermq"):
        BareSlave(Log(), LIMITS, 0.0).receive(master.farewell(), 0.0)


def test_our_slave_at_a_bare_master_is_told_apart_by_its_tag() -> None:
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


# ---------------------------------------------------------------- our handshake


def refused(slave: AuthenticatedSlave, slave_log: Log, master: MasterCore, master_log: Log) -> tuple[str, str]:
    """Run a handshake that fails; return what either side says."""
    pair = Pair(master, master_log, slave, slave_log)
    with pytest.raises(HaRefused) as master_says:
        pair.settle()
    assert pair.master_facts == []
    pair.to_slave += master.farewell()
    with pytest.raises(HaRefused) as slave_says:
        pair.settle()
    return str(master_says.value), str(slave_says.value)


def test_a_slave_without_the_secret_is_refused() -> None:
    """It learns nothing of the log, and both sides name the key."""
    log = Log()

    both = refused(ours_slave(log, secret=b"guess"), log, ours_master(Log.of(100)), Log.of(100))

    assert all("haSecret" in text for text in both)


@pytest.mark.parametrize(
    ("identity", "limits", "text"),
    [
        (NodeIdentity("other", "b", 1, b"S" * 16), LIMITS, "brokerClusterName"),
        (NodeIdentity("c", "other", 1, b"S" * 16), LIMITS, "brokerName"),
        (NodeIdentity("c", "b", 0, b"S" * 16), LIMITS, "brokerId"),
        (NodeIdentity("c", "b", 1, b"M" * 16), LIMITS, "copy of the master's"),
        (SLAVE, TransferLimits(segment_size=8192), "mappedFileSizeCommitLog"),
    ],
    ids=["cluster", "broker name", "broker id", "node", "segment size"],
)
def test_a_slave_that_cannot_belong_here_is_refused_with_what_to_do(
    identity: NodeIdentity, limits: TransferLimits, text: str
) -> None:
    """The same sentence reaches the logs of both nodes."""
    log, master_log = Log(), Log.of(100)

    master_says, slave_says = refused(
        ours_slave(log, identity=identity, limits=limits), log, ours_master(master_log), master_log
    )

    assert text in master_says
    assert master_says in slave_says


def test_a_log_without_a_common_epoch_is_refused_not_emptied() -> None:
    """A store that never belonged to this master is left alone."""
    log, master_log = Log.of(100), Log.of(100)
    slave = ours_slave(log, EpochList((Epoch(1, 0, b"X" * 16, 1),)))

    master_says, _ = refused(slave, log, ours_master(master_log), master_log)

    assert "share no epoch" in master_says
    assert log.content == Log.of(100).content


def test_a_master_without_the_secret_is_refused_by_the_slave() -> None:
    """A welcome must prove the secret too."""
    log = Log()
    slave = ours_slave(log)
    pair = Pair(ours_master(Log.of(100)), Log.of(100), slave, log)
    pair.give_master(100)
    pair.give_slave(1000)
    pair.give_master(1000)
    pair.to_slave[-1] ^= 1

    with pytest.raises(HaRefused, match="haSecret"):
        pair.give_slave(1000)


def test_a_recorded_hello_does_not_open_another_connection() -> None:
    """The proof covers the challenge of this connection."""
    log = Log()
    pair = Pair(ours_master(Log.of(100)), Log.of(100), ours_slave(log), log)
    pair.give_master(100)
    pair.give_slave(1000)
    recorded = bytes(pair.to_master)

    other = AuthenticatedMaster(Log.of(100), LIMITS, lambda _: 0, 0.0, MASTER, SECRET, b"9" * 32, EpochList(), lambda: 0)
    other.receive(TAG, 0.0)
    with pytest.raises(HaRefused, match="does not know the secret"):
        other.receive(recorded, 0.0)


def test_a_memory_bomb_is_refused_before_it_is_held() -> None:
    """An announced size beyond what a hello can have ends the connection."""
    master = ours_master(Log.of(100))
    master.receive(TAG, 0.0)

    with pytest.raises(HaProtocolError):
        master.receive(envelope(KIND_HELLO, b"x" * 70_000)[:16], 0.0)


def test_a_handshake_that_does_not_end_is_cut_after_ten_seconds() -> None:
    """A peer that says nothing, or half a hello, holds a connection for no longer."""
    master = ours_master(Log.of(100))
    master.receive(TAG, 9.0)

    assert master.silent_for(10.0) is None
    assert master.silent_for(10.5) == 10.5


def test_any_damaged_byte_of_the_handshake_is_noticed() -> None:
    """No flipped byte of a hello leads to a welcome."""

    def hello_sent() -> Pair:
        log = Log.of(50)
        pair = Pair(ours_master(Log.of(100)), Log.of(100), ours_slave(log), log)
        pair.give_master(100)
        pair.give_slave(1000)
        return pair

    for at in range(len(hello_sent().to_master)):
        pair = hello_sent()
        pair.to_master[at] ^= 0x41
        try:
            pair.give_master(1000)
        except HaError:
            continue
        assert not pair.to_slave, "at most it waits for more"


# ---------------------------------------------------------------- our dialect: where logs part


def test_a_slave_with_bytes_that_the_master_lost_drops_them_and_says_what_was_promised() -> None:
    """The master came back shorter; what lay behind the common point goes, and the fact names what had been answered."""
    old = EpochList((Epoch(1, 0, b"M" * 16, 2),))
    master_log = Log.of(800)
    slave_log = Log.of(1000)
    master_log.content += b"new"
    new = EpochList((*old.entries, Epoch(2, 800, b"M" * 16, 2)))
    pair = Pair(ours_master(master_log, new), master_log, ours_slave(slave_log, old, confirmed=950), slave_log)

    pair.settle()

    assert pair.slave_facts[0] == TailDropped(800, 1000, confirmed_end=950, promised_end=1000)
    assert slave_log.content == master_log.content
    assert isinstance(pair.slave, AuthenticatedSlave)
    assert pair.slave.epochs == new
    assert pair.acked == 803


def test_bytes_that_nobody_was_promised_go_without_a_claim() -> None:
    """Written by an ASYNC_MASTER, confirmed by nobody."""
    old = EpochList((Epoch(1, 0, b"M" * 16, 1),))
    new = EpochList((*old.entries, Epoch(2, 800, b"M" * 16, 1)))
    master_log, slave_log = Log.of(800), Log.of(1000)
    pair = Pair(ours_master(master_log, new), master_log, ours_slave(slave_log, old), slave_log)

    pair.settle()

    assert pair.slave_facts[0] == TailDropped(800, 1000, confirmed_end=800, promised_end=800)


def test_an_old_master_rejoins_the_slave_that_took_over() -> None:
    """It had written on alone; what the new master never got goes."""
    common = EpochList((Epoch(1, 0, b"S" * 16, 1),))
    new_master_log, old_master_log = Log.of(900), Log.of(1000)
    new_master_log.content += Log.of(300, seed=7).content
    epochs = EpochList((*common.entries, Epoch(2, 900, b"N" * 16, 1)))
    slave = ours_slave(old_master_log, EpochList((*common.entries, Epoch(2, 950, b"S" * 16, 1))))
    pair = Pair(ours_master(new_master_log, epochs), new_master_log, slave, old_master_log)

    pair.settle()

    assert old_master_log.content == new_master_log.content


def test_a_slave_too_far_behind_is_filled_anew() -> None:
    """Its log is a true beginning of the master's, but the master has deleted what follows: all of it goes."""
    master_log, slave_log = Log.of(3 * SEGMENT), Log.of(1000)
    master_log.start, master_log.content = SEGMENT, master_log.content[SEGMENT:]
    pair = Pair(ours_master(master_log), master_log, ours_slave(slave_log, from_first=True), slave_log)

    pair.settle()

    fact = pair.slave_facts[0]
    assert isinstance(fact, LogAbandoned)
    assert (fact.start, fact.old_end, fact.diverged) == (SEGMENT, 1000, False)
    assert (slave_log.start, slave_log.content) == (master_log.start, master_log.content)


def test_sync_from_first_gives_an_empty_slave_the_whole_log() -> None:
    """The slave asks for it; the master's default is the last segment."""
    master_log, slave_log = Log.of(2 * SEGMENT + 5), Log()
    pair = Pair(ours_master(master_log), master_log, ours_slave(slave_log, from_first=True), slave_log)

    pair.settle()

    assert slave_log.content == master_log.content


def test_a_first_report_other_than_the_agreed_one_is_refused() -> None:
    """A slave cannot claim more, or other, than its hello proved."""
    log = Log.of(50)
    pair = Pair(ours_master(Log.of(100)), Log.of(100), ours_slave(log), log)
    pair.give_master(100)
    pair.give_slave(1000)
    pair.give_master(1000)

    pair.to_master += encode_report(100, 0)
    with pytest.raises(HaProtocolError, match="wants to go on at 100, its log parts from ours at 50"):
        pair.give_master(1000)
    assert pair.master_facts == []


# ---------------------------------------------------------------- our dialect: transfer


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


def test_a_master_says_at_once_when_consumers_may_see_more() -> None:
    """The bytes go before they are flushed; the flush alone is told by a frame without bytes, and once."""
    pair = joined_pair()
    assert isinstance(pair.slave, AuthenticatedSlave)
    pair.master_log.readable_max = 100
    pair.master_log.content += bytes(200)
    pair.settle()
    assert pair.slave.readable == 100

    pair.master_log.readable_max = 300
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
