"""How an entry that a leader has appended ends, as far as its waiter is told."""

from __future__ import annotations

import enum
from collections.abc import Callable


class Outcome(enum.Enum):
    """The outcome of an entry, as far as it is known when its waiter is called."""

    COMMITTED = "committed"
    TERM_CHANGED = "term changed"
    """This node no longer leads; the entry may be committed by another leader, or be lost (DLedger 501)."""
    TIMED_OUT = "timed out"
    """There was no majority in time; the entry stays in the log and is usually committed later (DLedger 502)."""


Done = Callable[[Outcome], None]
