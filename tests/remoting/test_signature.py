"""Signatures of requests, as RocketMQ's clients make them."""

from __future__ import annotations

import base64
import hashlib
import hmac

from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.signature import Credentials, sign


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
