"""Signs requests for brokers with access control (RocketMQ AclClientRPCHook, the same in ACL 1.0 and 2.0). Pure.

A request carries the access key and an HMAC-SHA1 over the values of all its fields, in the order of their names, followed by
the body. Responses are not signed.
"""

from __future__ import annotations

import hmac
from base64 import b64encode

import attrs

from .command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"


@attrs.frozen
class Credentials:
    """Who signs, and with which secret; the secret appears in no text."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    security_token: str | None = attrs.field(default=None, repr=False)


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Add the fields that prove who sends a request; nothing in it may change afterwards."""
    command.ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        command.ext[SECURITY_TOKEN] = credentials.security_token
    command.ext.pop(SIGNATURE, None)
    content = "".join(command.ext[name] for name in sorted(command.ext)).encode() + command.body
    command.ext[SIGNATURE] = b64encode(hmac.digest(credentials.secret_key.encode(), content, "sha1")).decode()
