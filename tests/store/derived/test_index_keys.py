"""Hashes of keys, in two steps and together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.strings import string_hash
from ledgermq.store.derived.index_keys import KeyBatch, KeyHashes, key_hash


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=40)), min_size=1, max_size=20))
def test_hashes_in_two_steps_are_javas(pairs: list[tuple[str, str]]) -> None:
    hashes = KeyHashes()

    split = [hashes.split(topic, key) for topic, key in pairs]

    batch = KeyBatch([state for state, _ in split], [tail for _, tail in split], [], [])
    assert batch.hashes() == [key_hash(topic, key) for topic, key in pairs]
    assert [key_hash(*pair) for pair in pairs] == [abs(string_hash("#".join(pair))) for pair in pairs]


def test_what_is_remembered_of_keys_is_bounded_in_bytes() -> None:
    """Over all topics together; unique keys are the producers' choice, and may be as long as properties may."""
    hashes = KeyHashes()

    for n in range(20_000):
        hashes.split("T", f"{n:05}-prefix-12345678")
        hashes.split(f"T{n}", "prefix-12345678")
        hashes.split("T", f"{n:0100}")

    assert 0 < len(hashes.states) <= 16_384
    assert max(len(prefix) for _, prefix in hashes.states) <= 64
