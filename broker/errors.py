"""Errors of the broker.

BrokerError
├── BadConfig       a broker.conf holds a value that no broker can run with; nothing was started
├── BadTable        a file under config/ is JSON, but not the table it should be; nothing was started
└── BadAccountFile  a file of accounts is missing or cannot be read; nothing was started, or the earlier accounts count

A refusal of a request is a `remoting.errors.RequestRefused`.
"""

from __future__ import annotations

from ..remoting.errors import BadSetting


class BrokerError(Exception):
    """The base of all errors of the broker."""


class BadConfig(BadSetting, BrokerError):
    """A setting of a broker is not allowed."""


class BadTable(BrokerError):
    """The content of the file `path` is not its table."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} is not what it should be ({reason}): repair it, put an earlier one in its place, or remove it and its "
            ".bak to begin with an empty table; the broker was not started"
        )
        self.path = path


class BadAccountFile(BrokerError):
    """The file `path` has no accounts of ACL 1.0; the text contains no secret."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
