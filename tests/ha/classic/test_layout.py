"""The bytes on the HA port."""

from __future__ import annotations

import zlib

import attrs
import pytest

from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.layout import (
    BARE_HEADER,
    BARE_REPORT,
    DATA,
    HELLO,
    TAG,
    WELCOME,
    Hello,
    NodeIdentity,
    Welcome,
    decode_hello,
    decode_welcome,
    encode_data_header,
    encode_hello,
    encode_report,
    encode_welcome,
)
from ledgermq.ha.envelopes import ENVELOPE, envelope, mac, same_mac
from ledgermq.ha.errors import HaError, HaProtocolError

EPOCHS = EpochList((Epoch(1, 0, b"w" * 16, 1), Epoch(3, 4096, b"v" * 16, 2)))
HELLO_VALUE = Hello(NodeIdentity("cluster", "broker-ä", 1, b"n" * 16), b"c" * 32, 1 << 30, 0, 9000, True, EPOCHS)
LEARNER_VALUE = attrs.evolve(HELLO_VALUE, from_first=False, learner=True)
WELCOME_VALUE = Welcome(b"m" * 16, 0, 12_000, 8192, EPOCHS)


def test_bare_frames_are_the_bytes_of_rocketmq() -> None:
    """A report is one big-endian long, a header a long and an int."""
    assert BARE_REPORT.pack(offset=0x0102030405060708) == bytes(range(1, 9))
    assert BARE_HEADER.pack(offset=3999, size=97) == bytes.fromhex("0000000000000f9f 00000061")


def test_our_tag_is_no_offset_that_a_bare_peer_could_report() -> None:
    """Read as a bare report it is negative, and not the -1 that RocketMQ keeps for no report."""
    assert BARE_REPORT.unpack(TAG)["offset"] < -1


def test_a_report_carries_its_checksum() -> None:
    """24 bytes: kind, appended, flushed, CRC-32 of those."""
    fields = b"HARP" + (500).to_bytes(8, "big") + (400).to_bytes(8, "big")

    assert encode_report(500, 400) == fields + zlib.crc32(fields).to_bytes(4, "big")


def test_a_data_header_covers_its_body() -> None:
    """The checksum goes over the log bytes and the fields before it."""
    header = encode_data_header(zlib.crc32(b"body"), size=4, offset=7, epoch=2, confirmed=5, master_end=11, readable=9)

    assert len(header) == DATA.size == 48
    assert header[:4] == b"HADT"
    assert int.from_bytes(header[-4:], "big") == zlib.crc32(b"body" + header[:-4])


def test_hello_and_welcome_survive_the_wire() -> None:
    """What one side says is what the other reads."""
    assert decode_hello(encode_hello(HELLO_VALUE)) == HELLO_VALUE
    assert decode_hello(encode_hello(LEARNER_VALUE)) == LEARNER_VALUE
    assert decode_welcome(encode_welcome(WELCOME_VALUE)) == WELCOME_VALUE
    assert envelope(TAG, 2, b"xyz")[: ENVELOPE.size] == TAG + (3).to_bytes(4, "big") + (2).to_bytes(4, "big")


@pytest.mark.parametrize("size", [0, 10, HELLO.size - 1, HELLO.size, HELLO.size + 20, -1])
def test_a_cut_hello_is_refused(size: int) -> None:
    """No cut of a hello is read as another hello."""
    with pytest.raises(HaProtocolError):
        decode_hello(encode_hello(HELLO_VALUE)[:size])


@pytest.mark.parametrize("size", [0, WELCOME.size - 1, WELCOME.size, -1])
def test_a_cut_welcome_is_refused(size: int) -> None:
    """No cut of a welcome is read as another welcome."""
    with pytest.raises(HaProtocolError):
        decode_welcome(encode_welcome(WELCOME_VALUE)[:size])


def test_epochs_out_of_order_are_refused() -> None:
    """A peer's list is held to the same invariant as our own."""
    body = encode_welcome(WELCOME_VALUE)
    swapped = body[: WELCOME.size] + body[-32:] + body[WELCOME.size : -32]

    with pytest.raises(HaError):
        decode_welcome(swapped)


def test_a_mac_depends_on_secret_and_every_part() -> None:
    """Another secret or another nonce gives another proof."""
    proof = mac(b"secret", b"label", b"nonce", b"body")

    assert same_mac(proof, mac(b"secret", b"label", b"nonce", b"body"))
    assert not same_mac(proof, mac(b"other", b"label", b"nonce", b"body"))
    assert not same_mac(proof, mac(b"secret", b"label", b"nonCe", b"body"))
