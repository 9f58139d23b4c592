"""Proofs of tables."""

from __future__ import annotations

import pytest

from ledgermq.ha.classic.table_proofs import NONCE_SIZE, is_proved, table_proof

NONCE, SECRET, BODY = "0a" * NONCE_SIZE, b"secret", b'{"offsetTable":{}}'


def test_who_shares_the_secret_proves_it() -> None:
    """For this nonce, this request and this body."""
    proof = table_proof(SECRET, NONCE, 43, BODY)

    assert proof is not None
    assert is_proved(SECRET, NONCE, 43, BODY, proof)


@pytest.mark.parametrize(
    ("secret", "nonce", "code", "body"),
    [
        (b"other", NONCE, 43, BODY),
        (SECRET, "0b" * NONCE_SIZE, 43, BODY),
        (SECRET, NONCE, 21, BODY),
        (SECRET, NONCE, 43, BODY + b" "),
    ],
    ids=["another secret", "an older answer", "the answer to another request", "another body"],
)
def test_nothing_else_is_proved(secret: bytes, nonce: str, code: int, body: bytes) -> None:
    """A proof cannot be used again, or for something else."""
    proof = table_proof(secret, nonce, code, body)

    assert proof is not None
    assert not is_proved(SECRET, NONCE, 43, BODY, proof)


@pytest.mark.parametrize("proof", ["", "x", "\u00e9", "00" * 32])
def test_what_is_no_proof_proves_nothing(proof: str) -> None:
    """Whatever a stranger answers."""
    assert not is_proved(SECRET, NONCE, 43, BODY, proof)


@pytest.mark.parametrize("nonce", ["", "zz" * NONCE_SIZE, "0a", "  " * NONCE_SIZE])
def test_a_master_answers_what_is_no_nonce_without_a_proof(nonce: str) -> None:
    """As one that has no secret does."""
    assert table_proof(SECRET, nonce, 43, BODY) is None
    assert table_proof(b"", NONCE, 43, BODY) is None
