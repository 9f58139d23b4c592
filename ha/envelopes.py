"""What the handshakes on the slaves' port and on the Raft port have in common: the envelope of a part, and its proof.

Both sides of a handshake prove that they know a secret, with a nonce from each side. A part is an envelope and the bytes
that it announces. Which parts there are and what they hold is decided by each protocol, which has a tag of its own.
"""

from __future__ import annotations

import hashlib
import hmac

from ..message.fields import Field, Layout

ENVELOPE = Layout(
    "handshake envelope",
    (
        Field("tag", "8s", "tells our protocols from others and from each other; the last byte is the version"),
        Field("size", "i", "bytes that follow the envelope, MAC included; 0 = a bare master's heartbeat that echoes the tag"),
        Field("kind", "i", "1 challenge, 2 hello, 3 welcome, 4 refusal"),
    ),
)
KIND_CHALLENGE, KIND_HELLO, KIND_WELCOME, KIND_REFUSAL = 1, 2, 3, 4

NONCE_SIZE = 32
MAC_SIZE = 32
NODE_SIZE = 16

assert ENVELOPE.size == 16


def envelope(tag: bytes, kind: int, body: bytes) -> bytes:
    """Encode one part of a handshake."""
    return ENVELOPE.pack(tag=tag, size=len(body), kind=kind) + body


def mac(secret: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over parts whose lengths both sides know."""
    return hmac.digest(secret, b"".join(parts), hashlib.sha256)


def same_mac(one: bytes, other: bytes) -> bool:
    """Compare two MACs in a time that does not depend on where they differ."""
    return hmac.compare_digest(one, other)
