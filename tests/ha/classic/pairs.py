"""A master and a slave of any dialect over a wire that cuts and merges bytes as it likes; no socket, no clock."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

import attrs

from ledgermq.ha.classic.authenticated import AuthenticatedMaster, AuthenticatedSlave
from ledgermq.ha.classic.autoswitch import AutoSwitchMaster, AutoSwitchSlave
from ledgermq.ha.classic.bare import BareMaster, BareSlave
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.layout import NodeIdentity
from ledgermq.ha.classic.protocol import (
    EpochBegun,
    JoinedMaster,
    LogAbandoned,
    LogReceived,
    MasterCore,
    MasterFact,
    SlaveCore,
    SlaveFact,
    SlaveReported,
    TailDropped,
    TransferLimits,
)

SEGMENT = 4096
LIMITS = TransferLimits(batch_size=512, segment_size=SEGMENT)
MASTER = NodeIdentity("c", "b", 0, b"M" * 16)
SLAVE = NodeIdentity("c", "b", 1, b"S" * 16)
SECRET = b"secret"
DIALECTS = ["bare", "autoswitch", "authenticated"]


@attrs.define
class Log:
    """A log in memory; what is not there any more is cut off in front."""

    start: int = 0
    content: bytearray = attrs.field(factory=bytearray)
    readable_limit: int | None = None

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
        return self.max_offset if self.readable_limit is None else min(self.max_offset, self.readable_limit)

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        end = min(self.max_offset, offset + size_max, offset - offset % SEGMENT + SEGMENT)
        return memoryview(bytes(self.content[offset - self.start : end - self.start]))


def bare_master(log: Log, **_: object) -> MasterCore:
    return BareMaster(log, LIMITS, lambda _: log.max_offset - log.max_offset % SEGMENT, lambda: log.max_offset, 0.0)


ONE_EPOCH = EpochList((Epoch(1, 0, b"M" * 16, 1),))


def auto_master(log: Log, epochs: EpochList = ONE_EPOCH) -> AutoSwitchMaster:
    return AutoSwitchMaster(
        log,
        LIMITS,
        lambda first: log.min_offset if first else log.max_offset - log.max_offset % SEGMENT,
        0.0,
        epochs,
    )


def auto_slave(
    log: Log, epochs: EpochList | None = None, *, from_first: bool = True, learner: bool = False, confirmed: int = 0
) -> AutoSwitchSlave:
    if epochs is None:
        epochs = ONE_EPOCH if log.content else EpochList()
    return AutoSwitchSlave(log, LIMITS, 0.0, 2, epochs, from_first, learner, confirmed)


def ours_master(log: Log, epochs: EpochList | None = None, secret: bytes = SECRET, confirmed: int = 77) -> MasterCore:
    return AuthenticatedMaster(
        log,
        LIMITS,
        lambda first: log.min_offset if first else log.max_offset - log.max_offset % SEGMENT,
        0.0,
        MASTER,
        secret,
        b"1" * 32,
        EpochList((Epoch(1, 0, b"M" * 16, 1),)) if epochs is None else epochs,
        lambda: confirmed,
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
    if dialect == "autoswitch":
        return Pair(auto_master(master_log), master_log, auto_slave(slave_log, from_first=False), slave_log)
    return Pair(ours_master(master_log), master_log, ours_slave(slave_log), slave_log)
