"""Errors of the remoting layer.

RemotingError
├── LocalProtocolError     a frame cannot be encoded in the protocol: a bug of ours
├── RemoteProtocolError    the peer sent bytes that are not remoting: its connection is closed
├── ConnectionLost         the connection ended during a call; if the call was sent, it may have been carried out
├── CallTimeout            no answer in time; if the call was sent, it may have been carried out
├── RequestRefused         a request is answered with a code and a remark
├── BadProperties          a text of properties that Java refuses too; also a ValueError
└── BadTlsSetting          a setting of TLS is not allowed; nothing was started
BadSetting
├── BadTlsSetting
└── those of the configurations of brokers, name servers and controllers
"""

from __future__ import annotations

from .codes import RequestCode, ResponseCode

_KNOWN_CODES = frozenset(int(code) for code in RequestCode)


class RemotingError(Exception):
    """Base of all."""


class LocalProtocolError(RemotingError):
    """A frame cannot be encoded in the protocol."""


class RemoteProtocolError(RemotingError):
    """The peer sent bytes that are not remoting; the next frame cannot be found."""


class ConnectionLost(RemotingError):
    """The connection to `address` ended during a call, or was never established.

    `sent` is False if certainly no byte of the request was sent.
    """

    def __init__(self, address: str, reason: str, *, sent: bool = True) -> None:
        super().__init__(f"connection to {address} lost: {reason}")
        self.address = address
        self.reason = reason
        self.sent = sent


class CallTimeout(RemotingError):
    """No answer from `address` within `timeout_ms`.

    `sent` is False if certainly no byte of the request was sent; `silent` is True if nothing was received since the call.
    """

    def __init__(self, address: str, code: int, timeout_ms: int, *, sent: bool = True, silent: bool = False) -> None:
        name = f" ({RequestCode(code).name})" if code in _KNOWN_CODES else ""
        self.call = f"request {code}{name} within {timeout_ms} ms"
        super().__init__(f"no answer from {address} to {self.call}")
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
    """A text of properties that cannot be read; no entry of it was used."""


class BadSetting(Exception):
    """The value of `key` is not `allowed`."""

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(f"{key} must be {allowed} (got {value!r})")
        self.key = key
        self.value = value
        self.allowed = allowed


class BadTlsSetting(BadSetting, RemotingError):
    """A setting of TLS is not allowed."""
