"""Errors of the message layer.

MessageError
├── CorruptRecord      bytes of a disk or a peer are not a record
├── CorruptBatch       the body of a batch send does not add up
└── BadMessageId       text is not an offset message id
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
