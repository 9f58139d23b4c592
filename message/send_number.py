"""The number of a send, by which a broker recognises that a send is repeated. Pure.

A client sends it as a field of the request, `producer id.epoch.sequence.oldest`; the broker that stores the message writes it
into the message's properties, so that every node that has the log can tell which sends are in it. A batch is one number for
each message: the field of the request has that of the first one, and the others follow.
"""

from __future__ import annotations

from typing import NamedTuple

from .properties import PROPERTY_END, SEND_NUMBER_MARK

REQUEST_FIELD = "sendNumber"
"""The field of a send request that holds the number. Only it counts: a property that a client copied from another message does
not say that the client repeats that send."""
REPEATED_FIELD = "repeated"
"""The field of an answer that says that an earlier request has stored the message."""
OFFSETS_FIELD = "queueOffsets"
"""The field of an answer to a batch that has each message's queue offset, if they are not consecutive."""
KNOWS_NUMBERS_FIELD = "sendNumbers"
"""The field of an answer to a heartbeat that says that the broker recognises repeated sends."""

PRODUCER_ID_MAX = 64
_LIMIT = 10**15
"""Epochs and sequences are below it. Milliseconds since 1970 are, too."""


class SendNumber(NamedTuple):
    """The number of one message's send. A named tuple, because one is made for every numbered message."""

    producer_id: str
    """Random, or derived from what is written; at most 64 printable characters of ASCII without a point."""
    epoch: int
    """A producer with a higher epoch has replaced all those with lower ones."""
    sequence: int
    """Counts the messages of the producer and epoch, to whatever topic and queue."""
    oldest: int
    """The producer repeats no send with a lower sequence any more."""

    def __str__(self) -> str:
        return f"{self.producer_id}.{self.epoch}.{self.sequence}.{self.oldest}"

    def after(self, count: int) -> SendNumber:
        """The number of the message that is `count` messages further in a batch.

        Raises:
            ValueError: it has more digits than a number may have.
        """
        sequence = self.sequence + count
        if sequence >= _LIMIT:
            raise ValueError(f"a batch that begins with send {self} has a message whose sequence is not below {_LIMIT}")
        return SendNumber(self.producer_id, self.epoch, sequence, self.oldest)


def parse_send_number(text: str) -> SendNumber:
    """Read a number.

    Raises:
        ValueError: it is none.
    """
    # Written for speed, because this runs twice per numbered message; a regular expression takes three times as long.
    parts = text.split(".")
    if len(parts) == 4 and 0 < len(parts[0]) <= PRODUCER_ID_MAX and len(text) <= PRODUCER_ID_MAX + 48 and text.isascii():
        try:
            epoch, sequence, oldest = int(parts[1]), int(parts[2]), int(parts[3])
        except ValueError:
            epoch = sequence = oldest = -1
        if 0 <= epoch < _LIMIT and 0 <= oldest <= sequence < _LIMIT and text.isprintable():
            return SendNumber(parts[0], epoch, sequence, oldest)
    raise ValueError(f"a send number is producer id.epoch.sequence.oldest, at most 15 digits each (got {text!r:.120})")


def number_property(number: SendNumber) -> str:
    """The property of a message that holds its number, as part of a property string."""
    return f"{SEND_NUMBER_MARK}{number}{PROPERTY_END}"


def without_number(properties: str) -> str:
    """The property string without a number, which a client may have copied from another message."""
    if SEND_NUMBER_MARK not in properties:
        return properties
    return "".join(
        f"{item}{PROPERTY_END}" for item in properties.split(PROPERTY_END) if item and not item.startswith(SEND_NUMBER_MARK)
    )
