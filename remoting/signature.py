"""Signatures of requests for brokers with access control (RocketMQ AclClientRPCHook, the same in ACL 1.0 and 2.0). Pure.

A request carries the access key and an HMAC-SHA1 over the values of all its fields, in the order of their names, followed by
the body. Responses are not signed.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Collection, Sequence

import attrs

from .command import FRAME_HEAD, RemotingCommand, decode_command, encode_frame

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"
HEADER_SIZE_MASK = 0xFFFFFF
"""The bits of a frame's header word that are the length of the header."""
_UNSIGNED_BY_SOME = ("_UNIQUE_KEY_QUERY", SECURITY_TOKEN)
"""Fields that some clients send and do not sign: Java clients up to 4.9.3 the first one, Go clients the second one."""


@attrs.frozen
class Credentials:
    """A user and the password with which it signs requests; the password appears in no text."""

    access_key: str
    """The name of the user."""
    secret_key: str = attrs.field(repr=False)
    """The password."""
    security_token: str | None = attrs.field(default=None, repr=False)
    """A token that some services of others want; brokers of ours and of Apache's do not look at it."""


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Add the fields that prove who sends a request; nothing in it may change afterwards."""
    command.ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        command.ext[SECURITY_TOKEN] = credentials.security_token
    command.ext[SIGNATURE] = _signature(command, credentials.secret_key, ()).decode()


def signed_frame(frame: Sequence[bytes], credentials: Credentials) -> bytes:
    """Sign a request that is encoded already, in any number of parts; returns the whole frame."""
    content = b"".join(frame)
    _, word = FRAME_HEAD.unpack_from(content)
    body_at = FRAME_HEAD.size + (word & HEADER_SIZE_MASK)
    command = decode_command(word >> 24, content[FRAME_HEAD.size : body_at], content[body_at:])
    sign(command, credentials)
    return encode_frame(command)


def is_signed(command: RemotingCommand, secret_key: str) -> bool:
    """Whether the signature of a request was made with this secret, over the fields that any version of a client signs."""
    given = command.ext.get(SIGNATURE, "").encode("utf-8", "surrogatepass")
    if hmac.compare_digest(_signature(command, secret_key, ()), given):
        return True
    doubtful = [name for name in _UNSIGNED_BY_SOME if name in command.ext]
    variants = [*((name,) for name in doubtful), *((tuple(doubtful),) if len(doubtful) > 1 else ())]
    return any(hmac.compare_digest(_signature(command, secret_key, left_out), given) for left_out in variants)


def _signature(command: RemotingCommand, secret_key: str, left_out: Collection[str]) -> bytes:
    ext = command.ext
    signed = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE and name not in left_out])
    content = signed.encode("utf-8", "surrogatepass") + command.body
    return b64encode(hmac.digest(secret_key.encode("utf-8", "surrogatepass"), content, "sha1"))
