"""The handshake between two nodes of a group before the first frame, for both sides; it does no I/O.

Dialler: TAG. Listener: challenge. Dialler: hello with MAC. Listener: welcome with MAC, or a refusal that says what to do. After
that, frames go from the dialler to the listener only; each node dials every other. No frame of a peer that does not know the
secret is accepted, so it can neither vote, nor send entries, nor acknowledge any.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import accumulate, pairwise

import attrs

from ...envelopes import (
    ENVELOPE,
    KIND_CHALLENGE,
    KIND_HELLO,
    KIND_REFUSAL,
    KIND_WELCOME,
    MAC_SIZE,
    NODE_SIZE,
    NONCE_SIZE,
    envelope,
    mac,
    same_mac,
)
from ...errors import HaProtocolError, HaRefused, WrongRaftDialect
from .layout import (
    HANDSHAKE_PART_MAX,
    HELLO,
    IDENTITY,
    KNOWS_ADDRESS,
    KNOWS_IDENTITY,
    LANE_CONTROL,
    LANE_ENTRIES,
    NAME_BYTES_MAX,
    TAG,
    WELCOME,
)

_AS_DIALLER, _AS_LISTENER, _AS_REFUSAL = b"ledgermq raft dialler", b"ledgermq raft listener", b"ledgermq raft refusal"
NOT_BEGUN, EXPIRED = -1, -2
"""Values in place of the position of entry 0: the ledger has no entry yet, or entry 0 has expired."""
NO_OLDER_LOG = -1
UNKNOWN = bytes(NODE_SIZE)
"""The id of a group, or of a start, that is not known."""
REMOTING_FRAME_MAX = 16 * 1024 * 1024
"""The largest length at the beginning of a remoting frame, by which a Java node of DLedger is recognised."""


@attrs.frozen
class LogBeginning:
    """The beginning of a node's ledger, and the end of the classic log that it continues."""

    position: int = NOT_BEGUN
    """The position of entry 0, or `NOT_BEGUN` or `EXPIRED`."""
    older_end: int = NO_OLDER_LOG
    """The end of the last record of the older log, or `NO_OLDER_LOG`."""
    older_crc: int = 0
    """CRC-32 of the older log's last bytes; without an older log, of the body of entry 0 once that is committed, else 0."""

    @property
    def has_older_log(self) -> bool:
        return self.older_end != NO_OLDER_LOG


@attrs.frozen
class NodeCard:
    """The identity of a node, and the properties that must match those of its peers."""

    group: str
    peer: str
    """Its id in the group, for example `n0`."""
    node: bytes
    """16 random bytes, stored with its ledger."""
    data_file_size: int
    beginning: LogBeginning = LogBeginning()
    serves: str = ""
    """The address where its broker serves clients; empty if the node has no broker."""
    group_id: bytes = UNKNOWN
    """The random id of the group, from its log; `UNKNOWN` before the node has it committed, and of earlier versions."""
    start: bytes = UNKNOWN
    """16 random bytes of this start of the node; `UNKNOWN` for nodes of earlier versions."""
    address: str = ""
    """The address of its Raft port; empty for nodes of earlier versions."""


@attrs.frozen
class Hello:
    """The dialler's part of the handshake."""

    card: NodeCard
    lane: int
    to: str
    nonce: bytes


def _next_part(inbox: bytearray) -> tuple[int, bytes] | None:
    """Remove the next part of the handshake from `inbox` and return it; None while it is incomplete."""
    if len(inbox) < ENVELOPE.size:
        if not TAG.startswith(bytes(inbox[: len(TAG)])):
            raise _stranger(bytes(inbox))
        return None
    tag, size, kind = ENVELOPE.codec.unpack_from(inbox)
    if tag != TAG:
        raise _stranger(bytes(inbox[: ENVELOPE.size]))
    if not 0 <= size <= HANDSHAKE_PART_MAX:
        raise HaProtocolError(f"a part of {size} bytes in a handshake, at most {HANDSHAKE_PART_MAX} are allowed")
    if len(inbox) < ENVELOPE.size + size:
        return None
    body = bytes(inbox[ENVELOPE.size : ENVELOPE.size + size])
    del inbox[: ENVELOPE.size + size]
    return kind, body


def _stranger(received: bytes) -> Exception:
    """The error for a peer that begins with these bytes."""
    if received[:7] == TAG[:7] and len(received) >= len(TAG):
        return HaProtocolError(f"version {received[7]} of the native Raft dialect; this node speaks version {TAG[7]}")
    if len(received) >= 4 and 0 < int.from_bytes(received[:4], "big") <= REMOTING_FRAME_MAX:
        return WrongRaftDialect("java", "native")
    return HaProtocolError("a peer on the Raft port speaks neither the native dialect nor DLedger's: what came is no greeting")


def challenge_of(random: bytes) -> bytes:
    """Return a challenge of `NONCE_SIZE` bytes that shows that its sender knows the identity, and the address behind it."""
    return random[: NONCE_SIZE - len(KNOWS_ADDRESS)] + KNOWS_ADDRESS


def _identity(card: NodeCard) -> bytes:
    return IDENTITY.pack(group=card.group_id, start=card.start)


def encode_hello(hello: Hello, *, with_identity: bool = True, with_address: bool = True) -> bytes:
    """Encode the body of a hello, without its MAC; the address comes with the identity alone."""
    card = hello.card
    group, own, to, serves = card.group.encode(), card.peer.encode(), hello.to.encode(), card.serves.encode()
    head = HELLO.pack(
        nonce=hello.nonce,
        node=card.node,
        lane=hello.lane,
        data_file_size=card.data_file_size,
        begin_position=card.beginning.position,
        older_end=card.beginning.older_end,
        older_crc=card.beginning.older_crc,
        group_size=len(group),
        from_size=len(own),
        to_size=len(to),
        serves_size=len(serves),
    )
    address = card.address.encode() if with_address else b""
    return head + group + own + to + serves + (_identity(card) + address if with_identity else b"")


def decode_hello(body: bytes) -> Hello:
    """Decode the body of a hello.

    Raises:
        HaProtocolError: the body is not a valid hello.
    """
    try:
        head = HELLO.unpack(body)
        names, serves_size = (head["group_size"], head["from_size"], head["to_size"]), head["serves_size"]
        sizes = (*names, serves_size)
        wrong_names = not all(0 < length <= NAME_BYTES_MAX for length in names)
        ends = list(accumulate(sizes, initial=HELLO.size))
        more = len(body) - ends[-1]
        wrong_end = more != 0 and not 0 <= more - IDENTITY.size <= NAME_BYTES_MAX
        if wrong_names or wrong_end or not 0 <= serves_size <= NAME_BYTES_MAX:
            raise HaProtocolError(f"a hello of {len(body)} bytes with names of {sizes} bytes")
        identity = IDENTITY.unpack(body[ends[-1] :]) if more else {"group": UNKNOWN, "start": UNKNOWN}
        address = body[ends[-1] + IDENTITY.size :].decode()
        group, own, to, serves = (body[start:end].decode() for start, end in pairwise(ends))
    except (struct.error, UnicodeDecodeError) as error:
        raise HaProtocolError(f"a hello that does not add up: {error}") from error
    if head["lane"] not in (LANE_CONTROL, LANE_ENTRIES):
        raise HaProtocolError(f"a hello for lane {head['lane']}, which does not exist")
    beginning = LogBeginning(head["begin_position"], head["older_end"], head["older_crc"])
    card = NodeCard(
        group, own, head["node"], head["data_file_size"], beginning, serves, identity["group"], identity["start"], address
    )
    return Hello(card, head["lane"], to, head["nonce"])


@attrs.define(eq=False)
class Dialler:
    """The side that connects and later sends the frames."""

    hello: Hello
    secret: bytes = attrs.field(repr=False)
    done: bool = False
    listener_node: bytes = b""
    listener_start: bytes = UNKNOWN
    _their_nonce: bytes = b""
    _inbox: bytearray = attrs.field(factory=bytearray)

    def opening(self) -> bytes:
        """Return the bytes to send first."""
        return TAG

    def receive(self, received: bytes) -> bytes:
        """Process received bytes and return the bytes to send.

        Raises:
            HaProtocolError, HaRefused, WrongRaftDialect: the connection must be closed.
        """
        self._inbox += received
        answer = b""
        while not self.done and (part := _next_part(self._inbox)) is not None:
            answer += self._take(*part)
        return answer

    def _take(self, kind: int, body: bytes) -> bytes:
        if kind == KIND_CHALLENGE and not self._their_nonce and len(body) == NONCE_SIZE:
            self._their_nonce = body
            hello = encode_hello(self.hello, with_identity=self._with_identity, with_address=body.endswith(KNOWS_ADDRESS))
            return envelope(TAG, KIND_HELLO, hello + mac(self.secret, _AS_DIALLER, body, hello))
        text, proof = body[:-MAC_SIZE], body[-MAC_SIZE:]
        nonces = (self.hello.nonce, self._their_nonce)
        if kind == KIND_REFUSAL:
            # The signature of the text is not verified, because the text is only logged for the operator.
            raise HaRefused(text.decode("utf-8", "replace"))
        size = WELCOME.size + (IDENTITY.size if self._with_identity else 0)
        if kind != KIND_WELCOME or len(text) != size or not self._their_nonce:
            raise HaProtocolError(f"part {kind} of the handshake, where a welcome must come")
        if not same_mac(proof, mac(self.secret, _AS_LISTENER, *nonces, text)):
            raise HaRefused("the node that listens there does not know the secret: set the same haSecret on all nodes")
        self.listener_node = WELCOME.unpack(text)["node"]
        if self._with_identity:
            self.listener_start = IDENTITY.unpack(text[WELCOME.size :])["start"]
        self.done = True
        return b""

    @property
    def _with_identity(self) -> bool:
        return self._their_nonce.endswith(KNOWS_IDENTITY)


@attrs.define(eq=False)
class Listener:
    """The side that accepts the connection and later receives the frames."""

    card: NodeCard
    secret: bytes = attrs.field(repr=False)
    nonce: bytes
    """32 unpredictable bytes, different for each connection."""
    judge: Callable[[Hello], str | None]
    """Returns why a dialler that knows the secret is refused, or None if it is accepted."""
    peer: Hello | None = None
    """The hello of the dialler, once it has proved that it knows the secret and was accepted."""
    rest: bytes = b""
    """The bytes received after the handshake: the beginning of the first frame."""
    farewell: bytes = b""
    """The bytes to send before a refused connection is closed."""
    _greeted: bool = False
    _inbox: bytearray = attrs.field(factory=bytearray)

    def receive(self, received: bytes) -> bytes:
        """Process received bytes and return the bytes to send.

        Raises:
            HaProtocolError, HaRefused, WrongRaftDialect: the connection must be closed after sending `farewell`.
        """
        self._inbox += received
        answer = b""
        if not self._greeted:
            if len(self._inbox) < len(TAG):
                if not TAG.startswith(bytes(self._inbox)) and len(self._inbox) >= 4:
                    raise _stranger(bytes(self._inbox))
                return b""
            if bytes(self._inbox[: len(TAG)]) != TAG:
                raise _stranger(bytes(self._inbox[: len(TAG)]))
            del self._inbox[: len(TAG)]
            self._greeted = True
            answer = envelope(TAG, KIND_CHALLENGE, self.nonce)
        if self.peer is None and (part := _next_part(self._inbox)) is not None:
            answer += self._take(*part)
            self.rest = bytes(self._inbox)
        return answer

    def _take(self, kind: int, body: bytes) -> bytes:
        if kind != KIND_HELLO or len(body) < MAC_SIZE:
            raise HaProtocolError(f"part {kind} of the handshake, where a hello must come")
        text, proof = body[:-MAC_SIZE], body[-MAC_SIZE:]
        if not same_mac(proof, mac(self.secret, _AS_DIALLER, self.nonce, text)):
            raise self._refused(b"", "the node that dials does not know the secret: set the same haSecret on all nodes")
        hello = decode_hello(text)
        reason = self._mismatch(hello) or self.judge(hello)
        if reason is not None:
            raise self._refused(hello.nonce, reason)
        self.peer = hello
        had_identity = len(text) > len(encode_hello(hello, with_identity=False))
        welcome = WELCOME.pack(node=self.card.node) + (_identity(self.card) if had_identity else b"")
        return envelope(TAG, KIND_WELCOME, welcome + mac(self.secret, _AS_LISTENER, hello.nonce, self.nonce, welcome))

    def _mismatch(self, hello: Hello) -> str | None:
        theirs, own = hello.card, self.card
        if theirs.group != own.group:
            return (
                f"node {theirs.peer} of group {theirs.group} dialled a node of group {own.group}: correct dLegerGroup, or the "
                "addresses in dLegerPeers"
            )
        if theirs.node == own.node and theirs.peer != own.peer:
            return (
                f"the store of node {theirs.peer} is a copy of that of node {own.peer}, identity included: a node must begin "
                "with an empty store, which the leader fills"
            )
        if theirs.peer == own.peer:
            return f"two nodes of group {own.group} have the id {own.peer}: give each its own dLegerSelfId"
        if hello.to != own.peer:
            return (
                f"node {theirs.peer} takes this node for {hello.to}, but it is {own.peer}: the addresses in dLegerPeers of "
                "one of the two are wrong"
            )
        if theirs.data_file_size != own.data_file_size:
            return (
                f"node {theirs.peer} cuts its data files at {theirs.data_file_size} bytes, node {own.peer} at "
                f"{own.data_file_size}: set mappedFileSizeCommitLog to one value on all nodes; the store of a node that had "
                "another one must be emptied"
            )
        if UNKNOWN not in (theirs.group_id, own.group_id) and theirs.group_id != own.group_id:
            return _of_two_groups(own, theirs)
        return _older_mismatch(own, theirs)

    def _refused(self, nonce: bytes, reason: str) -> HaRefused:
        text = reason.encode()
        self.farewell = envelope(TAG, KIND_REFUSAL, text + mac(self.secret, _AS_REFUSAL, nonce, self.nonce, text))
        return HaRefused(reason)


def _older_mismatch(own: NodeCard, theirs: NodeCard) -> str | None:
    """Return why two ledgers do not continue the same classic log, or None if they do."""
    first, second = own.beginning, theirs.beginning
    if first.has_older_log and second.has_older_log and first != second:
        return (
            f"the classic commit logs that the ledger continues differ: that of node {own.peer} ends at {first.older_end}, "
            f"that of node {theirs.peer} at {second.older_end}. {_COPY} from the node that has all messages"
        )
    for one, other in ((own, theirs), (theirs, own)):
        if one.beginning.has_older_log and other.beginning == LogBeginning():
            return (
                f"the ledger continues a classic commit log that ends at {one.beginning.older_end}, which node {other.peer} "
                f"does not have: it could not serve those messages as the leader. {_COPY} from node {one.peer}"
            )
    if first.position >= 0 and second.position >= 0 and first.position != second.position:
        return (
            f"the ledger of node {own.peer} begins at {first.position}, that of node {theirs.peer} at {second.position}: they "
            "continue different logs and cannot be one group"
        )
    both = first.older_crc and second.older_crc and not first.has_older_log and not second.has_older_log
    if both and first.older_crc != second.older_crc:
        return _of_two_groups(own, theirs)
    return None


def _of_two_groups(own: NodeCard, theirs: NodeCard) -> str:
    return (
        f"the ledgers of node {own.peer} and node {theirs.peer} are of two groups that have the name {own.group}. Correct the "
        "addresses, or give each group its own dLegerGroup; a node can change its group only with an empty store"
    )


_COPY = "Stop the node that lacks messages, empty its store, and copy the directories commitlog and config into it"
