"""What clients have done since they were opened, as snapshots that a program can read at any time and from any thread."""

from __future__ import annotations

import attrs


@attrs.frozen
class ProducerStatistics:
    """The sends of one producer. One that ended before a broker was asked, as with `NoRoute`, is not counted."""

    stored: int
    """Messages that a broker has acknowledged; those sent without acknowledgement are not counted."""
    failed: int
    """Messages whose send has raised after at least one attempt; some may have been stored."""
    retries: int
    """Attempts after the first one, of a request with any number of messages."""


@attrs.frozen
class ConsumerStatistics:
    """The messages of one consumer."""

    received: int
    """Messages that brokers have answered; one that is delivered again by a broker counts again."""
    acknowledged: int
    failed: int
    """Deliveries that were retried or given back, those that could not be decoded among them."""
    waiting: int
    """Messages that are prefetched now and not handed out."""
    in_hand: int
    """Messages that are handed out now."""
    held_bytes: int
    """The size of the pull answers that are kept in memory now, of the queues that are read."""
