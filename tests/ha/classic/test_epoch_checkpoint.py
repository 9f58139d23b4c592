"""RocketMQ's file of epochs, as its brokers have written it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.classic.epoch_checkpoint import decode_checkpoint, encode_checkpoint
from ledgermq.ha.classic.epochs import UNKNOWN_WRITER, Epoch, EpochList
from ledgermq.ha.errors import CorruptEpochs


def foreign(*pairs: tuple[int, int]) -> EpochList:
    return EpochList(tuple(Epoch(number, start, UNKNOWN_WRITER, 1) for number, start in pairs))


@pytest.mark.parametrize(
    ("content", "epochs"),
    [
        (b"1\n1725254278\n1-0\n", foreign((1, 0))),
        (b"2\n238979843\n1-0\n2-2170\n", foreign((1, 0), (2, 2170))),
        (b"3\n1220719531\n1-0\n2-2170\n3-13279\n", foreign((1, 0), (2, 2170), (3, 13279))),
    ],
)
def test_the_text_is_the_one_that_a_broker_of_rocketmqs_has_written(content: bytes, epochs: EpochList) -> None:
    """Files of two brokers 5.5.0; the CRC of the second list has its highest bit set, which is left out."""
    assert encode_checkpoint(epochs) == content
    assert decode_checkpoint(content) == epochs


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=20))
def test_a_list_is_read_as_it_was_written(pairs: dict[int, int]) -> None:
    """Any ascending list, the empty one included."""
    epochs = foreign(*zip(sorted(pairs), sorted(pairs.values()), strict=True))

    assert decode_checkpoint(encode_checkpoint(epochs)) == epochs


def test_a_crc_of_zero_is_not_checked() -> None:
    """RocketMQ writes none where it has none."""
    assert decode_checkpoint(b"1\n0\n4-77\n") == foreign((4, 77))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no list of epochs"),
        (b"2\n0\n1-0\n", "1 of 2 epochs"),
        (b"1\n5\n1-0\n", "CRC 5 expected, 1725254278 found"),
        (b"1\n0\n1\n", "no list of epochs"),
        (b"1\n0\n1--5\n", "no list of epochs"),
        (b"1\n0\n2147483648-0\n", "no list of epochs"),
        (b"1\n0\n1-9223372036854775808\n", "no list of epochs"),
        (b"2\n0\n2-0\n1-5\n", "cannot follow"),
        (b"1\nx\n1-0\n", "no list of epochs"),
        (b"\xff\n0\n1-0\n", "no list of epochs"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(content: bytes, reason: str) -> None:
    """It is never taken for an empty history."""
    with pytest.raises(CorruptEpochs, match=reason):
        decode_checkpoint(content)


@given(st.binary(max_size=60))
def test_random_bytes_are_a_list_or_an_error(content: bytes) -> None:
    """No other exception leaves the decoder."""
    with contextlib.suppress(CorruptEpochs):
        decode_checkpoint(content)
