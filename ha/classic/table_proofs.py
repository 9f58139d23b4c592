"""Proof that a copy of the master's tables comes from somebody who shares the secret with the slave. Pure.

The tables travel over the port of clients, where anybody may answer: whoever registers as master with a name server is asked
for them. So the slave sends a nonce with its request, and a master of ours answers with a MAC over nonce, code and body. A
slave that has a secret takes no table without it; without a secret, and from an Apache master, nothing is proved.
"""

from __future__ import annotations

from .layout import mac, same_mac

NONCE_FIELD, PROOF_FIELD = "haNonce", "haProof"
"""Header fields of the request and of its answer, in hexadecimal."""
NONCE_SIZE = 32
_AS_TABLES = b"ledgermq tables"


def table_proof(secret: bytes, nonce: str, code: int, body: bytes) -> str | None:
    """What a master answers with; None if it has no secret, or if the nonce is none."""
    try:
        given = bytes.fromhex(nonce)
    except ValueError:
        return None
    if not secret or len(given) != NONCE_SIZE:
        return None
    return mac(secret, _AS_TABLES, given, code.to_bytes(4, "big"), body).hex()


def is_proved(secret: bytes, nonce: str, code: int, body: bytes, proof: str) -> bool:
    """Whether a slave with this secret may take a body."""
    expected = table_proof(secret, nonce, code, body)
    return expected is not None and same_mac(expected.encode(), proof.encode())
