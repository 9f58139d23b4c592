"""The inputs that the coverage-guided fuzzer has kept, judged as it judges: `make fuzz` looks for more."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.fuzz.corpus import needed, read_inputs
from harness.fuzz.judge import Finding, Target, always, judge, judging
from harness.fuzz.seeds import seeds
from harness.fuzz.targets import TARGETS
from ledgermq.message.batch import decode_batch, encode_batch
from ledgermq.message.errors import CorruptBatch

CORPUS = Path(__file__).with_name("corpus")
CORPUS_BYTES_MAX = 1 << 20
"""Of all targets; it lies in the repository."""
EVERYWHERE = pytest.mark.usefixtures("autojump_clock")


@EVERYWHERE
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
async def test_kept_inputs_are_read_or_refused_as_documented(target: Target) -> None:
    """No other error leaves a decoder, none takes long, none takes more memory than its input warrants."""
    inputs = read_inputs(CORPUS / target.name)

    with judging():
        async with target.opens() as decode:
            taken = [judge(target, decode, data) for data in inputs]

    assert any(taken), "nothing right is among the kept inputs"
    assert not target.raises or not all(taken), "nothing wrong is among the kept inputs"


@EVERYWHERE
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
async def test_right_inputs_of_today_are_read(target: Target) -> None:
    """The fuzzer starts from what our encoders and peers write, and gets past the first checks with it."""
    with judging():
        async with target.opens() as decode:
            assert judge(target, decode, seeds()[target.name][0])


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    """Nothing is kept for a target that is gone, and together it is less than a mebibyte."""
    directories = {path.name for path in CORPUS.iterdir()}

    assert directories == {target.name for target in TARGETS} == set(seeds())
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < CORPUS_BYTES_MAX


def _busy(data: bytes) -> None:
    until = time.thread_time() + 0.5
    while time.thread_time() < until:
        pass


def _greedy(data: bytes) -> bytes:
    return data * (1 << 20)


def _careless(data: bytes) -> int:
    return data[9]


@pytest.mark.parametrize(
    ("decode", "error"),
    [(_busy, Finding), (_greedy, Finding), (_careless, IndexError)],
    ids=["slow", "greedy", "undocumented"],
)
def test_a_bad_decoder_is_found(decode: Callable[[bytes], object], error: type[Exception]) -> None:
    """Too slow, too greedy, or raising what it must not: the judge lets none pass."""
    target = Target("bad", always(decode), (ValueError,))

    with judging(), pytest.raises(error):
        judge(target, decode, b"12345678")


def test_only_inputs_that_take_new_steps_are_kept() -> None:
    """Of several that do the same, the smallest."""
    target = Target("batch", always(decode_batch), (CorruptBatch,))
    one, other = encode_batch([(0, b"a", b"")]), encode_batch([(0, b"bc", b"")])

    assert needed(target, decode_batch, [other, b"12", b"1", one, b"", other]) == [b"", b"1", one]
