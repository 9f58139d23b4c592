"""Errors of the remoting layer.

RemotingError
├── LocalProtocolError     we tried to send what the protocol cannot carry: a bug of ours
├── RemoteProtocolError    the peer sent what is not remoting: its connection is closed
├── ConnectionLost         the connection ended while a call was out; whether it was carried out is unknown
├── CallTimeout            no answer in time; whether it was carried out is unknown
├── RequestRefused         a request is answered with a code and a remark
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
    """The connection to `address` ended while a call was out."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"connection to {address} lost: {reason}")
        self.address = address
        self.reason = reason


class CallTimeout(RemotingError):
    """No answer from `address` within `timeout_ms`."""

    def __init__(self, address: str, code: int, timeout_ms: int) -> None:
        super().__init__(f"no answer from {address} to request {code} within {timeout_ms} ms")
        self.address = address
        self.code = code
        self.timeout_ms = timeout_ms


class RequestRefused(RemotingError):
    """Raised by handlers: the request is answered with `code` and `remark`, nothing else was done."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class BadTlsSetting(RemotingError):
    """The value of `key` is not `allowed`."""

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(f"{key} must be {allowed} (got {value!r})")
        self.key = key
        self.value = value
        self.allowed = allowed
