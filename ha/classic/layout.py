"""The bytes of the HA port in all dialects.

Bare (RocketMQ HAConnection, HAClient): reports of 8 bytes one way, headers of 12 bytes and log bytes the other way, without
greeting and checksums. AutoSwitch (RocketMQ AutoSwitchHAConnection, AutoSwitchHAClient): every frame begins with its state, and
a handshake exchanges epochs; no checksums either. Authenticated (ours): a greeting that no other peer can send or misread, a
handshake of enveloped parts, then reports and data frames with checksums. `TAG` as a bare offset is negative, so no bare master
acknowledges a put for it, and as a state it is none of RocketMQ's.
"""

from __future__ import annotations

import struct

import attrs

from ...message.checksum import crc32
from ...message.fields import Field, Layout
from ..envelopes import MAC_SIZE
from ..errors import CorruptEpochs, HaProtocolError
from .epochs import EPOCHS_MAX, UNKNOWN_WRITER, Epoch, EpochList

# --- bare dialect ---

BARE_REPORT = Layout(
    "bare report, slave to master",
    (Field("offset", "q", "end of the slave's log: the next byte it needs"),),
)
BARE_HEADER = Layout(
    "bare data header, master to slave",
    (
        Field("offset", "q", "physical offset of the first byte that follows"),
        Field("size", "i", "bytes of log that follow; 0 is a heartbeat"),
    ),
)
assert BARE_REPORT.size == 8
assert BARE_HEADER.size == 12

# --- AutoSwitch dialect ---

STATE_HANDSHAKE, STATE_TRANSFER = 1, 2
"""The states of RocketMQ's HAConnectionState in which frames are sent."""

AUTO_HANDSHAKE = Layout(
    "AutoSwitch handshake, slave to master",
    (
        Field("state", "i", "1"),
        Field("from_last", "h", "1 = an empty log is to be filled from the master's last segment, not its first"),
        Field("learner", "h", "1 = the slave never joins the SyncStateSet"),
        Field("broker_id", "q", "the id that the controller has given to the slave"),
    ),
)
AUTO_WELCOME = Layout(
    "AutoSwitch handshake, master to slave; then epochs",
    (
        Field("state", "i", "1"),
        Field("size", "i", "bytes of the epochs that follow"),
        Field("max_offset", "q", "end of the master's log"),
        Field("last_epoch", "i", "number of the last epoch"),
    ),
)
AUTO_EPOCH = Layout(
    "one epoch of an AutoSwitch handshake",
    (Field("number", "i", "ascends along the log"), Field("start", "q", "physical offset of its first byte")),
)
AUTO_REPORT = Layout(
    "AutoSwitch report, slave to master",
    (Field("state", "i", "2"), Field("offset", "q", "end of the slave's log; 0 = it is empty")),
)
AUTO_DATA = Layout(
    "AutoSwitch data header, master to slave; then log bytes",
    (
        Field("state", "i", "2"),
        Field("size", "i", "bytes of log that follow; 0 is a heartbeat"),
        Field("offset", "q", "physical offset of the first byte that follows; -1 = the master's log is empty"),
        Field("epoch", "i", "epoch of these bytes; where one ends after them, RocketMQ sends the number of the next one"),
        Field("epoch_start", "q", "physical offset of the first byte of that epoch"),
        Field("confirmed", "q", "confirm offset: up to where consumers may read"),
    ),
)

assert AUTO_HANDSHAKE.size == 16
assert AUTO_WELCOME.size == 20
assert AUTO_EPOCH.size == 12
assert AUTO_REPORT.size == 12
assert AUTO_DATA.size == 36

# --- authenticated dialect: handshake ---

TAG = b"\x89LMQHA\r\x01"
"""The first bytes that either side sends; the last byte is the version. As a bare offset they are negative, see above."""

CHALLENGE = Layout("challenge, master to slave", (Field("nonce", "32s", "the slave's MAC must cover it"),))
HELLO = Layout(
    "hello, slave to master; then cluster, broker name and epochs",
    (
        Field("nonce", "32s", "the master's MAC must cover it"),
        Field("node", "16s", "random, kept with the store: one node counts once, however many connections it has"),
        Field("broker_id", "q", "above 0 on a slave"),
        Field("segment_size", "q", "both sides cut the log alike or not at all"),
        Field("min_offset", "q", "beginning of the slave's log"),
        Field("max_offset", "q", "end of the slave's log"),
        Field(
            "flags",
            "i",
            "1 = an empty log is to be filled from the master's first segment, not its last; 2 = only copy the log",
        ),
        Field("cluster_size", "h", "bytes of the cluster name"),
        Field("broker_name_size", "h", "bytes of the broker name"),
        Field("epoch_count", "h", "epochs that follow the names"),
    ),
)
WELCOME = Layout(
    "welcome, master to slave; then epochs",
    (
        Field("node", "16s", "who is master"),
        Field("min_offset", "q", "beginning of the master's log"),
        Field("max_offset", "q", "end of the master's log"),
        Field("fresh_start", "q", "where a slave begins that has nothing the master could continue"),
        Field("epoch_count", "h", "epochs that follow"),
    ),
)
EPOCH = Layout(
    "one epoch of a log",
    (
        Field("number", "i", "ascends along the log"),
        Field("start", "q", "physical offset of its first byte"),
        Field("writer", "16s", "drawn by the master when the epoch began; older versions: its node"),
        Field("replicas", "i", "copies a put waited for; 1 = the master's alone"),
    ),
)

FLAG_FROM_FIRST, FLAG_LEARNER = 1, 2
HANDSHAKE_PART_MAX = 64 * 1024
"""The largest part of a handshake: names and a full list of epochs fit; a larger part is refused."""

assert HELLO.size + 2 * 255 + EPOCHS_MAX * EPOCH.size + MAC_SIZE <= HANDSHAKE_PART_MAX
assert struct.unpack(">q", TAG)[0] < -1  # a bare master uses -1 for "no report yet"

# --- authenticated dialect: transfer ---

REPORT = Layout(
    "report, slave to master",
    (
        Field("kind", "4s", "HARP"),
        Field("appended", "q", "end of the slave's log"),
        Field("flushed", "q", "of which on the medium"),
        Field("crc", "I", "CRC-32 of the fields before"),
    ),
)
DATA = Layout(
    "data header, master to slave; then log bytes",
    (
        Field("kind", "4s", "HADT"),
        Field("size", "i", "bytes of log that follow; 0 is a heartbeat"),
        Field("offset", "q", "physical offset of the first byte that follows"),
        Field("epoch", "i", "epoch that these bytes belong to; a frame never spans two"),
        Field("confirmed", "q", "end of what enough nodes hold for the master's puts to be answered"),
        Field("master_end", "q", "end of the master's log"),
        Field("readable", "q", "up to where the master lets consumers see, and so may the slave"),
        Field("crc", "I", "CRC-32 of the log bytes, then of the fields before"),
    ),
)
REPORT_KIND, DATA_KIND = b"HARP", b"HADT"
CRC_SIZE = 4
FRAME_BODY_MAX = 4 * 1024 * 1024
"""The most log bytes of one frame; RocketMQ's slave has a buffer of 4 MiB, so no master sends more."""

assert REPORT.size == 24
assert DATA.size == 48

_CRC = struct.Struct(">I")


@attrs.frozen
class NodeIdentity:
    """The identity of a node within its broker name."""

    cluster: str
    broker_name: str
    broker_id: int
    node: bytes
    """16 random bytes, stored beside the log."""


@attrs.frozen
class Hello:
    """The slave's part of the handshake."""

    identity: NodeIdentity
    nonce: bytes
    segment_size: int
    min_offset: int
    max_offset: int
    from_first: bool
    epochs: EpochList
    learner: bool = False
    """Whether the slave only copies the log and acknowledges no put."""


@attrs.frozen
class Welcome:
    """The master's part of the handshake."""

    node: bytes
    min_offset: int
    max_offset: int
    fresh_start: int
    epochs: EpochList


def encode_auto_welcome(epochs: EpochList, max_offset: int) -> bytes:
    """Encode the master's part of an AutoSwitch handshake."""
    body = b"".join(AUTO_EPOCH.pack(number=entry.number, start=entry.start) for entry in epochs)
    last = epochs.last.number if epochs.last is not None else 0
    return AUTO_WELCOME.pack(state=STATE_HANDSHAKE, size=len(body), max_offset=max_offset, last_epoch=last) + body


def decode_auto_epochs(body: bytes) -> EpochList:
    """Decode the epochs of an AutoSwitch handshake, whose writers are unknown.

    Raises:
        HaProtocolError: the bytes are no list of epochs.
    """
    if len(body) % AUTO_EPOCH.size or len(body) > EPOCHS_MAX * AUTO_EPOCH.size:
        raise HaProtocolError(f"{len(body)} bytes, which are no list of at most {EPOCHS_MAX} epochs")
    entries = tuple(Epoch(number, start, UNKNOWN_WRITER, 1) for number, start in AUTO_EPOCH.codec.iter_unpack(body))
    if entries and min(entries[0].number, entries[0].start) < 0:
        raise HaProtocolError(f"epoch {entries[0].number} at {entries[0].start}")
    try:
        return EpochList(entries)
    except CorruptEpochs as error:
        raise HaProtocolError(str(error)) from error


def encode_hello(hello: Hello) -> bytes:
    """Encode the body of a hello, without its MAC."""
    cluster, name = hello.identity.cluster.encode(), hello.identity.broker_name.encode()
    return (
        HELLO.pack(
            nonce=hello.nonce,
            node=hello.identity.node,
            broker_id=hello.identity.broker_id,
            segment_size=hello.segment_size,
            min_offset=hello.min_offset,
            max_offset=hello.max_offset,
            flags=FLAG_FROM_FIRST * hello.from_first | FLAG_LEARNER * hello.learner,
            cluster_size=len(cluster),
            broker_name_size=len(name),
            epoch_count=len(hello.epochs),
        )
        + cluster
        + name
        + _encode_epochs(hello.epochs)
    )


def decode_hello(body: bytes) -> Hello:
    """Decode the body of a hello.

    Raises:
        HaProtocolError: the body is not a valid hello.
    """
    try:
        head = HELLO.unpack(body)
        names_at, name_at = HELLO.size, HELLO.size + head["cluster_size"]
        epochs_at = name_at + head["broker_name_size"]
        if head["cluster_size"] < 0 or head["broker_name_size"] < 0:
            raise HaProtocolError("a hello with a negative size")
        return Hello(
            identity=NodeIdentity(
                body[names_at:name_at].decode(), body[name_at:epochs_at].decode(), head["broker_id"], head["node"]
            ),
            nonce=head["nonce"],
            segment_size=head["segment_size"],
            min_offset=head["min_offset"],
            max_offset=head["max_offset"],
            from_first=bool(head["flags"] & FLAG_FROM_FIRST),
            epochs=_decode_epochs(body, epochs_at, head["epoch_count"]),
            learner=bool(head["flags"] & FLAG_LEARNER),
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise HaProtocolError(f"a hello that does not add up: {error}") from error


def encode_welcome(welcome: Welcome) -> bytes:
    """Encode the body of a welcome, without its MAC."""
    return WELCOME.pack(
        node=welcome.node,
        min_offset=welcome.min_offset,
        max_offset=welcome.max_offset,
        fresh_start=welcome.fresh_start,
        epoch_count=len(welcome.epochs),
    ) + _encode_epochs(welcome.epochs)


def decode_welcome(body: bytes) -> Welcome:
    """Decode the body of a welcome.

    Raises:
        HaProtocolError: the body is not a valid welcome.
    """
    try:
        head = WELCOME.unpack(body)
    except struct.error as error:
        raise HaProtocolError(f"a welcome that does not add up: {error}") from error
    return Welcome(
        head["node"],
        head["min_offset"],
        head["max_offset"],
        head["fresh_start"],
        _decode_epochs(body, WELCOME.size, head["epoch_count"]),
    )


def _encode_epochs(epochs: EpochList) -> bytes:
    return b"".join(
        EPOCH.pack(number=entry.number, start=entry.start, writer=entry.writer, replicas=entry.replicas) for entry in epochs
    )


def _decode_epochs(body: bytes, position: int, count: int) -> EpochList:
    if count < 0 or position + count * EPOCH.size != len(body):
        raise HaProtocolError(f"{count} epochs do not fill the {len(body) - position} bytes that are there")
    entries = (EPOCH.unpack(body, position + index * EPOCH.size) for index in range(count))
    return EpochList(tuple(Epoch(**entry) for entry in entries))


def encode_report(appended: int, flushed: int) -> bytes:
    """Encode one report."""
    fields = REPORT.codec.pack(REPORT_KIND, appended, flushed, 0)[:-CRC_SIZE]
    return fields + _CRC.pack(crc32(fields))


def encode_data_header(
    body_crc: int, *, size: int, offset: int, epoch: int, confirmed: int, master_end: int, readable: int
) -> bytes:
    """The header of a data frame whose `size` log bytes have the CRC-32 `body_crc`."""
    fields = DATA.codec.pack(DATA_KIND, size, offset, epoch, confirmed, master_end, readable, 0)[:-CRC_SIZE]
    return fields + _CRC.pack(crc32(fields, body_crc))
