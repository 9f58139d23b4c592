"""Errors of the broker.

BrokerError
└── BadConfig     a broker.conf holds a value that no broker can run with; nothing was started

What a request is refused with travels as `remoting.errors.RequestRefused`.
"""

from __future__ import annotations


class BrokerError(Exception):
    """Base of all."""


class BadConfig(BrokerError):
    """The value of `key` is not `allowed`."""

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(f"{key} must be {allowed} (got {value!r})")
        self.key = key
        self.value = value
        self.allowed = allowed
