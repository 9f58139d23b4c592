"""Errors of the remoting layer.

RemotingError
├── LocalProtocolError     we tried to send what the protocol cannot carry: a bug of ours
├── RemoteProtocolError    the peer sent what is not remoting: its connection is closed
├── ConnectionLost         the connection ended while a call was out; if the call was sent, it may have been carried out
├── CallTimeout            no answer in time; if the call was sent, it may have been carried out
├── RequestRefused         a request is answered with a code and a remark
├── BadProperties          a text of properties that Java refuses too (also a ValueError)
└── BadTlsSetting          a setting of TLS that nobody can run with; nothing was started
"""

from __future__ import annotations

from .codes import ResponseCode


class RemotingError(Exception):
    """Base of all."""


class LocalProtocolError(RemotingError):
    """We tried to send what the protocol cannot carry."""


class RemoteProtocolError(RemotingError):
    """The peer sent what is not remoting; there is no way to find the next frame."""


class ConnectionLost(RemotingError):
    """The connection to `address` ended while a call was out, or never came about.

    `sent` is False if certainly nothing of the request went out.
    """

    def __init__(self, address: str, reason: str, *, sent: bool = True) -> None:
        super().__init__(f"connection to {address} lost: {reason}")
        self.address = address
        self.reason = reason
        self.sent = sent


class CallTimeout(RemotingError):
    """No answer from `address` within `timeout_ms`.

    `sent` is False if certainly nothing of the request went out; `silent` is True if nothing was received since the call.
    """

    def __init__(self, address: str, code: int, timeout_ms: int, *, sent: bool = True, silent: bool = False) -> None:
        super().__init__(f"no answer from {address} to request {code} within {timeout_ms} ms")
        self.address = address
        self.code = code
        self.timeout_ms = timeout_ms
        self.sent = sent
        self.silent = silent


class RequestRefused(RemotingError):
    """Raised by handlers: the request is answered with `code` and `remark`, nothing else was done."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class BadProperties(RemotingError, ValueError):
    """A text of properties that cannot be read; nothing of it was taken."""


class BadTlsSetting(RemotingError):
    """The value of `key` is not `allowed`."""

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(f"{key} must be {allowed} (got {value!r})")
        self.key = key
        self.value = value
        self.allowed = allowed
