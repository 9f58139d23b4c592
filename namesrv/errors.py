"""Errors of the name server.

NamesrvError
└── BadNamesrvConfig     a configuration holds a value that no name server can run with; nothing was changed

A refused request is answered by raising `remoting.errors.RequestRefused`.
"""

from __future__ import annotations


class NamesrvError(Exception):
    """Base of all."""


class BadNamesrvConfig(NamesrvError):
    """The value of `key` is not `allowed`."""

    def __init__(self, key: str, value: str, allowed: str) -> None:
        super().__init__(f"{key} must be {allowed} (got {value!r})")
        self.key = key
        self.value = value
        self.allowed = allowed
