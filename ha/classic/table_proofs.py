"""Proof that tables are copied between nodes that share the secret. Pure.

Tables are requested at the client port of the broker that is registered as master with a name server, and any process can
register. So the slave sends a nonce with its request, and a master of ours answers with a MAC over nonce, code and body. A
slave with a secret accepts no table without this proof; without a secret, or from an Apache master, nothing is proved. The
slave signs its requests as a client does, for a master with access control, with credentials that both derive from the secret.
"""

from __future__ import annotations

from ...remoting.signature import Credentials
from ..envelopes import mac, same_mac

NONCE_FIELD, PROOF_FIELD = "haNonce", "haProof"
"""Header fields of the request and of its answer, in hexadecimal."""
NONCE_SIZE = 32
NODE_NAME = "*node"
"""The access key of nodes that share the secret; no user can have this name."""
_AS_TABLES, _AS_NODE = b"ledgermq tables", b"ledgermq node"


def node_credentials(secret: bytes) -> Credentials | None:
    """With what nodes that share a secret sign requests to each other; None without a secret."""
    return Credentials(NODE_NAME, mac(secret, _AS_NODE).hex()) if secret else None


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
