"""Signatures of requests, as RocketMQ's clients make them."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.remoting.command import RemotingCommand, Wire, decode_command, encode_frame
from ledgermq.remoting.frame import FrameReader
from ledgermq.remoting.signature import Credentials, is_signed, sign, signed_frame


def test_a_signature_is_the_one_that_rocketmq_expects() -> None:
    """The vector was taken from a Java client: request 105 for the topic T1 by the account AK1."""
    command = RemotingCommand(105, {"topic": "T1"})

    sign(command, Credentials("AK1", "SK1"))

    assert command.ext == {"topic": "T1", "AccessKey": "AK1", "Signature": "7GfQyYu6OSKh/wB/K1iOGl9PCws="}


def test_fields_are_signed_in_the_order_of_their_names_and_the_body_behind_them() -> None:
    """Whatever their order in the request; a security token is one of them."""
    command = RemotingCommand(310, {"b": "2", "a": "1"}, b"body")

    sign(command, Credentials("AK", "SK", "token"))

    expected = hmac.new(b"SK", b"AKtoken12body", hashlib.sha1).digest()
    assert base64.b64decode(command.ext["Signature"]) == expected


def test_a_request_that_is_sent_again_is_signed_anew() -> None:
    """The old signature is no part of what is signed."""
    command = RemotingCommand(105, {"topic": "T1"})
    sign(command, Credentials("AK1", "SK1"))
    sign(command, Credentials("AK1", "SK1"))

    assert command.ext["Signature"] == "7GfQyYu6OSKh/wB/K1iOGl9PCws="


def test_a_secret_is_never_shown() -> None:
    """Errors and logs show objects as text."""
    assert "SK1" not in repr(Credentials("AK1", "SK1", "token"))


def test_the_vector_of_rocketmq_is_accepted_with_its_secret_alone() -> None:
    signed = RemotingCommand(105, {"topic": "T1", "AccessKey": "AK1", "Signature": "7GfQyYu6OSKh/wB/K1iOGl9PCws="})

    assert is_signed(signed, "SK1")
    assert not is_signed(signed, "SK2")
    assert not is_signed(RemotingCommand(105, {**signed.ext, "topic": "T2"}), "SK1")
    assert not is_signed(RemotingCommand(105, signed.ext, b"body"), "SK1")


@pytest.mark.parametrize("unsigned", [(), ("_UNIQUE_KEY_QUERY",), ("SecurityToken",), ("_UNIQUE_KEY_QUERY", "SecurityToken")])
def test_a_signature_may_leave_out_what_some_clients_do_not_sign(unsigned: tuple[str, ...]) -> None:
    """Java up to 4.9.3 adds `_UNIQUE_KEY_QUERY` after it has signed, and Go adds the token."""
    ext = {"topic": "T1", "_UNIQUE_KEY_QUERY": "true", "SecurityToken": "token", "AccessKey": "AK1"}
    content = "".join(ext[name] for name in sorted(ext) if name not in unsigned).encode()
    ext["Signature"] = base64.b64encode(hmac.new(b"SK1", content, hashlib.sha1).digest()).decode()

    assert is_signed(RemotingCommand(12, ext), "SK1")


@pytest.mark.parametrize("signature", ["", "x", "é", "\ud800", "7GfQyYu6OSKh/wB/K1iOGl9PCws"])
def test_what_is_no_signature_is_refused(signature: str) -> None:
    assert not is_signed(RemotingCommand(105, {"topic": "T1", "AccessKey": "AK1", "Signature": signature}), "SK1")
    assert not is_signed(RemotingCommand(105, {"topic": "T1", "AccessKey": "AK1"}), "SK1")


@given(st.dictionaries(st.text(), st.text(), max_size=6), st.binary(max_size=50), st.text(min_size=1))
def test_what_we_sign_is_accepted(ext: dict[str, str], body: bytes, secret: str) -> None:
    command = RemotingCommand(10, ext, body)

    sign(command, Credentials("AK1", secret))

    assert is_signed(command, secret)


@pytest.mark.parametrize("wire", list(Wire))
def test_a_frame_that_is_encoded_already_is_signed(wire: Wire) -> None:
    """Whatever parts it has; nothing else of it changes."""
    frame = encode_frame(RemotingCommand(310, {"b": "T1"}, b"body", opaque=7, flag=2, wire=wire))
    (parts,) = FrameReader().feed(signed_frame((frame[:20], frame[20:]), Credentials("AK1", "SK1")))
    command = decode_command(*parts)

    assert is_signed(command, "SK1")
    assert (command.ext["b"], command.body, command.opaque, command.flag) == ("T1", b"body", 7, 2)
