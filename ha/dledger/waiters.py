"""The puts that wait for their entries to be committed, with their deadlines, in log order; it does no I/O."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable

import attrs

from ...store.errors import is_full
from ..errors import TooManyPending
from ..raft.errors import Refused, TransferInProgress
from ..raft.units import LogIndex
from .java.messages import Code


class Outcome(enum.Enum):
    """The outcome of an entry, as far as it is known when its waiter is called."""

    COMMITTED = "committed"
    TERM_CHANGED = "term changed"
    """This node no longer leads; the entry may be committed by another leader, or be lost (DLedger 501)."""
    TIMED_OUT = "timed out"
    """There was no majority in time; the entry stays in the log and is usually committed later (DLedger 502)."""


CODE_OF_OUTCOME = {
    Outcome.COMMITTED: Code.SUCCESS,
    Outcome.TERM_CHANGED: Code.TERM_CHANGED,
    Outcome.TIMED_OUT: Code.WAIT_QUORUM_ACK_TIMEOUT,
}
"""The code that a client of DLedger itself gets for each outcome."""


def code_of_refusal(error: Exception) -> Code:
    """Return the code for a client of DLedger itself whose entry was not appended."""
    if isinstance(error, TransferInProgress):
        return Code.LEADER_TRANSFERRING
    if isinstance(error, TooManyPending):
        return Code.LEADER_PENDING_FULL
    if isinstance(error, Refused):
        return Code.NOT_LEADER
    return Code.DISK_FULL if is_full(error) else Code.DISK_ERROR


Done = Callable[[Outcome], None]


@attrs.define(eq=False)
class Waiters:
    """Waiters in ascending order of their entries."""

    _waiting: deque[tuple[LogIndex, float, Done]] = attrs.field(factory=deque[tuple[LogIndex, float, Done]])

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, index: LogIndex, deadline: float, done: Done) -> None:
        """Wait until the entry is committed; `done` must not raise."""
        self._waiting.append((index, deadline, done))

    def commit(self, index: LogIndex) -> None:
        """End the waits for entries up to `index` as committed."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= index:
            waiting.popleft()[2](Outcome.COMMITTED)

    def expire(self, now: float) -> None:
        """End the waits whose deadline has passed as timed out."""
        expired = [done for _, deadline, done in self._waiting if deadline <= now]
        if expired:
            self._waiting = deque(one for one in self._waiting if one[1] > now)
        for done in expired:
            done(Outcome.TIMED_OUT)

    def change_term(self) -> None:
        """End all waits because this node no longer leads in the term of their entries."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, done in waiting:
            done(Outcome.TERM_CHANGED)
