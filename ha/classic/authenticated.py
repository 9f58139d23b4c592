"""Our own HA protocol: both sides prove that they know the secret, agree where their logs diverge, and transfer the log.

Handshake: slave TAG; master challenge; slave hello with MAC; master welcome with MAC; slave first report, which must be
exactly the offset that both computed. Then data frames go one way and reports the other, each with a checksum. A report counts
only up to what was sent on this connection, so a slave cannot acknowledge bytes that it did not get.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum, auto

import attrs

from ...message.checksum import crc32
from ...message.fields import Buffer
from ..envelopes import (
    ENVELOPE,
    KIND_CHALLENGE,
    KIND_HELLO,
    KIND_REFUSAL,
    KIND_WELCOME,
    MAC_SIZE,
    NONCE_SIZE,
    envelope,
    mac,
    same_mac,
)
from ..errors import HaProtocolError, HaRefused, WrongDialect
from .epochs import EpochList, common_point
from .layout import (
    BARE_HEADER,
    CRC_SIZE,
    DATA,
    DATA_KIND,
    FRAME_BODY_MAX,
    HANDSHAKE_PART_MAX,
    REPORT,
    REPORT_KIND,
    TAG,
    Hello,
    NodeIdentity,
    Welcome,
    decode_hello,
    decode_welcome,
    encode_data_header,
    encode_hello,
    encode_report,
    encode_welcome,
)
from .pieces import Pieces
from .protocol import (
    EpochBegun,
    JoinedMaster,
    LogAbandoned,
    LogBounds,
    LogReceived,
    MasterFact,
    SlaveFact,
    SlaveJoined,
    SlaveReported,
    TailDropped,
    TransferLimits,
)
from .rejoining import rejoin_point

BATCH_MAX = 512 * 1024
"""The most log bytes of one frame: enough to make the cost of a frame small, and few enough for one turn of the event loop
and the processor's caches."""
BATCH_SECONDS_MAX = 0.05
"""If sending a frame takes longer, the next ones are half as large: each frame is acknowledged as a whole, so a slow
connection needs small ones."""

_AS_SLAVE, _AS_MASTER, _AS_REFUSAL = b"ledgermq ha slave", b"ledgermq ha master", b"ledgermq ha refusal"


class Stage(Enum):
    """The progress of a connection."""

    GREETING = auto()
    HANDSHAKE = auto()
    REQUEST = auto()
    """The welcome was sent; the slave's first report must follow."""
    TRANSFER = auto()


def _nobody_has(_node: bytes) -> str | None:
    return None


@attrs.define(eq=False)
class AuthenticatedMaster:
    """The master's end of a connection in our dialect."""

    log: LogBounds
    limits: TransferLimits
    fresh_start: Callable[[bool], int]
    """Where a slave with an empty log begins; the argument is whether the slave asks for the first segment."""
    opened_at: float
    identity: NodeIdentity
    secret: bytes = attrs.field(repr=False)
    nonce: bytes
    """32 unpredictable bytes, never used before."""
    epochs: EpochList
    confirmed: Callable[[], int]
    """The confirmed offset, which every frame carries."""
    taken: Callable[[bytes], str | None] = _nobody_has
    """Why a node with this identity may not join, because another connection has it; None if it may."""
    elected: bool = False
    """Whether a controller has elected this master."""
    stage: Stage = Stage.GREETING
    next_offset: int = -1
    checksummed: bool = attrs.field(default=True, init=False)
    _farewell: bytes = b""
    _slave: Hello | None = None
    _expected: int = -1
    _fresh: bool = False
    _batch: int = attrs.field(init=False)
    _inbox: Pieces = attrs.field(factory=Pieces)
    _last_read: float = attrs.field(init=False)
    _last_write: float = attrs.field(init=False)
    _last_size: int = 0
    _sent_readable: int = -1

    def __attrs_post_init__(self) -> None:
        self._last_read = self._last_write = self.opened_at
        self._batch = min(self.limits.batch_size, BATCH_MAX)

    @property
    def ready(self) -> bool:
        return self.stage is Stage.TRANSFER

    def receive(self, received: Buffer, now: float) -> tuple[list[MasterFact], bytes]:
        if len(received):
            self._last_read = now
        self._inbox.feed(received)
        answer = b""
        if self.stage is Stage.GREETING:
            answer += self._greet()
        if self.stage is Stage.HANDSHAKE:
            answer += self._handshake()
        if self.stage in (Stage.REQUEST, Stage.TRANSFER):
            return self._reports(), answer
        return [], answer

    def _greet(self) -> bytes:
        if self._inbox.size < len(TAG):
            return b""
        greeting = self._inbox.read(len(TAG))
        if greeting[:-1] == TAG[:-1] and greeting != TAG:
            raise HaProtocolError(f"version {greeting[-1]} of the HA protocol; this node speaks version {TAG[-1]}")
        if greeting != TAG:
            if greeting[0] & 0x80:
                raise HaProtocolError("neither the HA protocol nor RocketMQ's: the first bytes are no greeting and no offset")
            # An Apache slave reads this as a heartbeat at an impossible offset; one of ours recognises it and logs what to set.
            self._farewell = BARE_HEADER.pack(offset=struct.unpack(">q", TAG)[0], size=0)
            raise WrongDialect("rocketmq")
        self.stage = Stage.HANDSHAKE
        return envelope(TAG, KIND_CHALLENGE, self.nonce)

    def _handshake(self) -> bytes:
        part = _next_part(self._inbox)
        if part is None:
            return b""
        kind, body = part
        if kind != KIND_HELLO or len(body) < MAC_SIZE:
            raise HaProtocolError(f"part {kind} of the handshake instead of a hello")
        body, proof = body[:-MAC_SIZE], body[-MAC_SIZE:]
        if not same_mac(proof, mac(self.secret, _AS_SLAVE, self.nonce, body)):
            raise self._refusal(b"", "the slave does not know the secret: set the same haSecret on both nodes")
        slave = decode_hello(body)
        welcome = Welcome(
            self.identity.node,
            self.log.min_offset,
            self.log.max_offset,
            self.fresh_start(slave.from_first),
            self.epochs,
        )
        try:
            self._judge(slave)
            point = rejoin_point(slave, welcome)
        except HaRefused as refusal:
            raise self._refusal(slave.nonce, str(refusal)) from refusal
        self._slave, self._fresh = slave, point is None
        self._expected = welcome.fresh_start if point is None else point
        self.stage = Stage.REQUEST
        answer = encode_welcome(welcome)
        return envelope(TAG, KIND_WELCOME, answer + mac(self.secret, _AS_MASTER, slave.nonce, self.nonce, answer))

    def _judge(self, slave: Hello) -> None:
        who, own = slave.identity, self.identity
        if (who.cluster, who.broker_name) != (own.cluster, own.broker_name):
            raise HaRefused(
                f"a slave of {who.cluster}/{who.broker_name} at the master of {own.cluster}/{own.broker_name}: "
                "brokerClusterName and brokerName must be the same"
            )
        if who.node == own.node:
            raise HaRefused("the slave's store is a copy of the master's, identity included: remove haIdentity.json from it")
        if who.broker_id <= 0 or who.broker_id == own.broker_id:
            raise HaRefused(f"a slave with brokerId {who.broker_id}: give it one of its own, above 0")
        if (twin := self.taken(who.node)) is not None:
            raise HaRefused(twin)
        theirs, own_last = slave.epochs.last, self.epochs.last
        if self.elected and theirs is not None and own_last is not None and theirs.number > own_last.number:
            raise HaRefused(f"the slave has epoch {theirs.number}, and this master was elected for epoch {own_last.number}")
        if slave.segment_size != self.limits.segment_size:
            raise HaRefused(
                f"the slave cuts its log every {slave.segment_size} bytes, the master every {self.limits.segment_size}: "
                "set mappedFileSizeCommitLog to the same value on both, and let the slave begin with an empty store"
            )

    def _refusal(self, slave_nonce: bytes, reason: str) -> HaRefused:
        text = reason.encode()
        self._farewell = envelope(TAG, KIND_REFUSAL, text + mac(self.secret, _AS_REFUSAL, slave_nonce, self.nonce, text))
        return HaRefused(reason)

    def _reports(self) -> list[MasterFact]:
        # Many reports may arrive at once; each is checked, and only the last one is returned.
        facts: list[MasterFact] = []
        last: SlaveReported | None = None
        while self._inbox.size >= REPORT.size:
            packed = self._inbox.read(REPORT.size)
            kind, appended, flushed, crc = REPORT.codec.unpack(packed)
            if kind != REPORT_KIND or crc != crc32(packed[:-CRC_SIZE]):
                raise HaProtocolError("a damaged report")
            if self.stage is Stage.REQUEST:
                facts.append(self._start(appended))
                continue
            if not 0 <= appended <= self.next_offset or flushed > appended:
                raise HaProtocolError(
                    f"a report of {appended} appended and {flushed} flushed, but only bytes before {self.next_offset} were sent"
                )
            last = SlaveReported(appended, flushed)
        if last is not None:
            facts.append(last)
        return facts

    def _start(self, appended: int) -> SlaveJoined:
        assert self._slave is not None
        if appended != self._expected:
            raise HaProtocolError(f"the slave wants to go on at {appended}, its log parts from ours at {self._expected}")
        self.next_offset = appended
        self.stage = Stage.TRANSFER
        who = self._slave.identity
        return SlaveJoined(who.node, who.broker_id, appended, fresh=self._fresh, learner=self._slave.learner)

    def farewell(self) -> bytes:
        return self._farewell

    def next_size(self) -> int:
        if self.next_offset < self.log.min_offset:
            raise HaRefused(
                f"the slave needs offset {self.next_offset}, the log now begins at {self.log.min_offset}; the slave is "
                "filled from the beginning when it connects again"
            )
        epoch_end = self.epochs.next_start(self.next_offset)
        size = self._batch
        if self.log.max_offset - self.next_offset > size:
            # Frames end at multiples of their size, and so at borders of pages, because a slave writes whole pages faster.
            size -= self.next_offset % size
        return size if epoch_end is None else min(size, epoch_end - self.next_offset)

    def _adapt(self, now: float) -> None:
        """Choose the size of frames by the time that sending the last full one took."""
        if self._last_size < self._batch:
            return
        if now - self._last_write > BATCH_SECONDS_MAX:
            self._batch = max(self._batch // 2, min(self.limits.batch_size, BATCH_MAX))
        else:
            self._batch = min(self._batch * 2, BATCH_MAX)

    def frame(self, size: int, body_crc: int, now: float) -> bytes:
        self._adapt(now)
        header = self._header(size, body_crc)
        self.next_offset += size
        self._last_write, self._last_size = now, size
        return header

    def _header(self, size: int, body_crc: int) -> bytes:
        epoch = self.epochs.at(self.next_offset)
        self._sent_readable = self.log.readable_offset
        return encode_data_header(
            body_crc,
            size=size,
            offset=self.next_offset,
            epoch=epoch.number if epoch is not None else 0,
            confirmed=self.confirmed(),
            master_end=self.log.max_offset,
            readable=self._sent_readable,
        )

    def heartbeat(self, now: float) -> bytes:
        if not self.ready:
            return b""
        if now - self._last_write < self.limits.heartbeat_seconds and self._sent_readable == self.log.readable_offset:
            return b""
        self._last_write = now
        return self._header(0, 0)

    def silent_for(self, now: float) -> float | None:
        if not self.ready:
            age = now - self.opened_at
            return age if age > self.limits.handshake_seconds else None
        silence = now - self._last_read
        return silence if silence > self.limits.housekeeping_seconds else None


@attrs.define(eq=False)
class AuthenticatedSlave:
    """The slave's end of a connection in our dialect."""

    log: LogBounds
    limits: TransferLimits
    opened_at: float
    identity: NodeIdentity
    secret: bytes = attrs.field(repr=False)
    nonce: bytes
    """32 unpredictable bytes, never used before."""
    epochs: EpochList
    """The epochs of the slave's log, updated as bytes are received."""
    from_first: bool = False
    confirmed: int = 0
    """The confirmed offset as the master sent it, on earlier connections too; at most the end of the slave's log."""
    master_end: int = 0
    """The end of the master's log, as it was sent last."""
    epoch_min: int = 0
    """The epoch for which a controller has elected the master; one of an earlier epoch was deposed, and is not followed."""
    learner: bool = False
    """Whether the slave only copies the log and acknowledges no put."""
    readable: int | None = None
    """The master's readable offset, once it was sent on this connection."""
    stage: Stage = Stage.GREETING
    wanted: int = 0
    _end: int = attrs.field(init=False)
    """The end of the log once all facts so far are carried out."""
    _hello: Hello | None = None
    _challenge: bytes = b""
    _master_epochs: EpochList = attrs.field(factory=EpochList)
    _inbox: Pieces = attrs.field(factory=Pieces)
    _last_read: float = attrs.field(init=False)
    _last_report: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._last_read = self._last_report = self.opened_at
        self._end = self.log.max_offset

    @property
    def joined(self) -> bool:
        return self.stage is Stage.TRANSFER

    @property
    def held(self) -> int:
        return self._inbox.size

    def opening(self) -> bytes:
        return TAG

    def receive(self, received: Buffer, now: float) -> tuple[list[SlaveFact], bytes]:
        if len(received):
            self.heard(now)
        self._inbox.feed(received)
        facts: list[SlaveFact] = []
        answer = b""
        while self.stage is not Stage.TRANSFER and (part := _next_part(self._inbox)) is not None:
            if self.stage is Stage.GREETING:
                answer += self._answer_challenge(*part)
            else:
                self._take_welcome(*part, facts)
                answer += self.report(now)
        if self.stage is Stage.TRANSFER:
            self._frames(facts)
        self._inbox.settle()
        return facts, answer

    def heard(self, now: float) -> None:
        self._last_read = now

    def _answer_challenge(self, kind: int, body: bytes) -> bytes:
        if kind != KIND_CHALLENGE or len(body) != NONCE_SIZE:
            raise HaProtocolError(f"part {kind} of the handshake with {len(body)} bytes instead of a challenge")
        self._challenge = body
        self._hello = Hello(
            self.identity,
            self.nonce,
            self.limits.segment_size,
            self.log.min_offset,
            self.log.max_offset,
            self.from_first,
            self.epochs,
            self.learner,
        )
        self.stage = Stage.HANDSHAKE
        hello = encode_hello(self._hello)
        return envelope(TAG, KIND_HELLO, hello + mac(self.secret, _AS_SLAVE, body, hello))

    def _take_welcome(self, kind: int, body: bytes, facts: list[SlaveFact]) -> None:
        if kind not in (KIND_WELCOME, KIND_REFUSAL) or len(body) < MAC_SIZE:
            raise HaProtocolError(f"part {kind} of the handshake instead of a welcome")
        body, proof = body[:-MAC_SIZE], body[-MAC_SIZE:]
        label = _AS_MASTER if kind == KIND_WELCOME else _AS_REFUSAL
        if not same_mac(proof, mac(self.secret, label, self.nonce, self._challenge, body)):
            raise HaRefused("the master does not know our secret: set the same haSecret on both nodes")
        if kind == KIND_REFUSAL:
            raise HaRefused(f"the master refused: {body.decode('utf-8', 'replace')}")
        assert self._hello is not None
        welcome = decode_welcome(body)
        if (newest := welcome.epochs.last.number if welcome.epochs.last is not None else 0) < self.epoch_min:
            raise HaRefused(f"the master has epoch {newest}, and the master of epoch {self.epoch_min} is to be followed")
        point = rejoin_point(self._hello, welcome)
        start = welcome.fresh_start if point is None else point
        if point is None and self._end > self.log.min_offset:
            facts.append(self._abandoned(start, welcome))
        elif point is not None and point < self._end:
            facts.append(TailDropped(point, self._end, *self._promises(point, welcome.epochs)))
        self._end = start
        self._master_epochs = welcome.epochs
        self.epochs = welcome.epochs.truncated(start)
        self.master_end = welcome.max_offset
        self.confirmed = min(self.confirmed, start)
        facts.append(JoinedMaster(start, self.epochs))
        self.stage = Stage.TRANSFER

    def _promises(self, start: int, master: EpochList) -> tuple[int, int]:
        last = self.epochs.at(self._end - 1)
        # A master that never had our last epoch cannot have lost its bytes in a crash, and nobody knows what was confirmed.
        confirmed = self._end if last is not None and master.never_had(last) else self.confirmed
        return max(start, min(confirmed, self._end)), self.epochs.promised_end(start, self._end)

    def _abandoned(self, start: int, welcome: Welcome) -> LogAbandoned:
        common = common_point(self.epochs, self._end, welcome.epochs, welcome.max_offset)
        common = self.log.min_offset if common is None else max(common, self.log.min_offset)
        return LogAbandoned(start, self.log.min_offset, self._end, common < self._end, *self._promises(common, welcome.epochs))

    def _frames(self, facts: list[SlaveFact]) -> None:
        inbox = self._inbox
        self.wanted = 0
        while inbox.size >= DATA.size:
            header = inbox.peek(DATA.size)
            kind, size, offset, epoch, confirmed, master_end, readable, crc = DATA.codec.unpack(header)
            if kind != DATA_KIND or not 0 <= size <= FRAME_BODY_MAX:
                raise HaProtocolError("the received bytes are not a data frame")
            if inbox.size < DATA.size + size:
                self.wanted = DATA.size + size - inbox.size
                return
            inbox.take(DATA.size)
            body = inbox.take(size)
            found = 0
            for piece in body:
                found = crc32(piece, found)
            found = crc32(header[:-CRC_SIZE], found)
            if found != crc:
                raise HaProtocolError(f"a damaged data frame: CRC {crc:08x} expected, {found:08x} found")
            self._check(offset, size)
            if size:
                self._begin_epoch(epoch, offset, facts)
                facts.append(LogReceived(offset, body))
                self._end += size
            self.master_end, self.readable = master_end, readable
            self.confirmed = max(self.confirmed, min(confirmed, self._end))

    def _check(self, offset: int, size: int) -> None:
        if offset != self._end:
            raise HaProtocolError(f"a data frame for offset {offset}, this log ends at {self._end}")
        if offset % self.limits.segment_size + size > self.limits.segment_size:
            raise HaProtocolError(f"{size} bytes at offset {offset} cross a segment border")

    def _begin_epoch(self, number: int, offset: int, facts: list[SlaveFact]) -> None:
        last = self.epochs.last
        if last is not None and last.number == number:
            return
        known = EpochList(tuple(entry for entry in self._master_epochs if entry.number <= number))
        begins = known.last
        if begins is None or begins.number != number or begins.start > offset or (last is not None and number < last.number):
            raise HaProtocolError(f"a data frame at {offset} of epoch {number}, which the master's list does not put there")
        self.epochs = known
        facts.append(EpochBegun(known))

    def report(self, now: float) -> bytes:
        if not self.joined:
            # The first report is sent after the welcome was accepted, and the stage has changed by then.
            return b""
        self._last_report = now
        return encode_report(self._end, min(self.log.flushed_offset, self._end))

    def report_due(self, now: float) -> bool:
        return self.joined and now - self._last_report >= self.limits.heartbeat_seconds

    def silent_for(self, now: float) -> float | None:
        if not self.joined:
            age = now - self.opened_at
            return age if age > self.limits.handshake_seconds else None
        silence = now - self._last_read
        return silence if silence > self.limits.housekeeping_seconds else None


def _next_part(inbox: Pieces) -> tuple[int, bytes] | None:
    """The next part of the handshake, or None while it is incomplete."""
    if inbox.size < BARE_HEADER.size:
        return None
    tag, size = struct.unpack(">8si", inbox.peek(BARE_HEADER.size))
    if tag == TAG and size == 0:
        raise WrongDialect("rocketmq")
    if tag != TAG or not 0 < size <= HANDSHAKE_PART_MAX:
        raise HaProtocolError("the received bytes are not a part of the handshake")
    if inbox.size < ENVELOPE.size + size:
        return None
    kind = ENVELOPE.unpack(inbox.read(ENVELOPE.size))["kind"]
    return kind, inbox.read(size)
