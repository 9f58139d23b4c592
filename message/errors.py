"""Errors of the message layer.

MessageError
├── CorruptRecord      bytes of a disk or a peer are not a record
├── CorruptBatch       the sizes in the body of a batch send are inconsistent
├── BadMessageId       text is not an offset message id
└── JsonError          text is not JSON, even by fastjson's rules
"""

from __future__ import annotations


class MessageError(Exception):
    """Base of all."""


class CorruptRecord(MessageError):
    """Bytes are not a stored message."""


class CorruptBatch(MessageError):
    """Bytes are not a sequence of batch items."""


class BadMessageId(MessageError):
    """Text is not an offset message id."""


class JsonError(MessageError):
    """Text is not JSON; `position` counts bytes or characters from its start."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"not JSON at {position}: {reason}")
        self.position = position
