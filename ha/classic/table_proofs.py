"""Proof that a copy of the master's tables comes from a node that shares the secret with the slave. Pure.

Tables are requested at the client port of the broker that is registered as master with a name server, and any process can
register. So the slave sends a nonce with its request, and a master of ours answers with a MAC over nonce, code and body. A
slave with a secret accepts no table without this proof; without a secret, or from an Apache master, nothing is proved.
"""

from __future__ import annotations

from ..envelopes import mac, same_mac

NONCE_FIELD, PROOF_FIELD = "haNonce", "haProof"
"""Header fields of the request and of its answer, in hexadecimal."""
NONCE_SIZE = 32
_AS_TABLES = b"ledgermq tables"


def table_proof(secret: bytes, nonce: str, code: int, body: bytes) -> str | None:
    """The proof in a master's answer; None if the master has no secret or the nonce is malformed."""
    try:
        given = bytes.fromhex(nonce)
    except ValueError:
        return None
    if not secret or len(given) != NONCE_SIZE:
        return None
    return mac(secret, _AS_TABLES, given, code.to_bytes(4, "big"), body).hex()


def is_proved(secret: bytes, nonce: str, code: int, body: bytes, proof: str) -> bool:
    """Whether a slave with this secret may accept a body."""
    expected = table_proof(secret, nonce, code, body)
    return expected is not None and same_mac(expected.encode(), proof.encode())
