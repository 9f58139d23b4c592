"""Hashes of keys, in two steps and together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.strings import string_hash
from ledgermq.store.index_keys import KeyBatch, KeyHashes, key_hash


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=40)), min_size=1, max_size=20))
def test_hashes_in_two_steps_are_javas(pairs: list[tuple[str, str]]) -> None:
    hashes = KeyHashes()

    split = [hashes.split(topic, key) for topic, key in pairs]

    batch = KeyBatch([state for state, _ in split], [tail for _, tail in split], [], [])
    assert batch.hashes() == [key_hash(topic, key) for topic, key in pairs]
    assert [key_hash(*pair) for pair in pairs] == [abs(string_hash("#".join(pair))) for pair in pairs]


def test_remembered_prefixes_stay_bounded() -> None:
    hashes = KeyHashes()

    for n in range(10_000):
        hashes.split("T", f"{n:05}-prefix-12345678")
        hashes.split(f"T{n}", "prefix-12345678")

    assert len(hashes.topics) <= 1024
    assert all(len(prefixes) <= 4096 for prefixes in hashes.topics.values())
