"""Held pulls: requests that wait for a message on a queue (RocketMQ PullRequestHoldService).

Arrivals wake those whose filter matches; the others wait on. Deadlines are put off to common moments, as RocketMQ's are, so
that ten thousand idle consumers cost one timer and are answered in batches. Bounds: `per_owner_max` and `total_max`; beyond
them `hold` declines. Invariant: a held pull is in its queue's list, its owner's set and its deadline's, or in none of them.
Pure: time is handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import attrs

Request = TypeVar("Request")
Key = TypeVar("Key")

LONG_SECONDS, LONG_STEP_SECONDS, SHORT_STEP_SECONDS = 10.0, 5.0, 1.0
"""Waits of at least the first end at multiples of the second, shorter ones at multiples of the third."""
PER_OWNER_MAX = 16_384
"""One consumer process holds one pull for each of its queues; some own thousands."""
TOTAL_MAX = 200_000
"""About 100 MiB."""
CODES_PER_WEIGHT = 8
"""A pull that wants this many tags counts as one more pull."""

Arrival = tuple[str, int, int, int]
"""Topic, queue id, next offset of the queue, tags code of the message before it."""


@attrs.define(eq=False)
class HeldPull(Generic[Request]):
    """One waiting request."""

    topic: str
    queue_id: int
    offset: int
    """The first offset that is wanted."""
    codes: frozenset[int] | None
    """Hashes of wanted tags; None for all."""
    deadline: float
    """By the monotonic clock; from `common_deadline`, else every pull costs a look of its own."""
    owner: Hashable
    request: Request

    @property
    def weight(self) -> int:
        """How much of `total_max` it takes: a pull that wants many tags takes more memory."""
        return 1 if self.codes is None else 1 + len(self.codes) // CODES_PER_WEIGHT


def common_deadline(now: float, seconds: float) -> float:
    """When a pull that may wait for so long is answered: then or a little later, together with others."""
    step = LONG_STEP_SECONDS if seconds >= LONG_SECONDS else SHORT_STEP_SECONDS
    return math.ceil((now + seconds) / step) * step


_Pulls = dict[HeldPull[Request], None]
"""A set that keeps the order in which pulls came."""


@attrs.define(eq=False)
class HeldPulls(Generic[Request]):
    """All held pulls of a broker."""

    per_owner_max: int = PER_OWNER_MAX
    total_max: int = TOTAL_MAX
    _queues: dict[tuple[str, int], _Pulls[Request]] = attrs.field(factory=dict[tuple[str, int], "_Pulls[Request]"])
    _owners: dict[Hashable, _Pulls[Request]] = attrs.field(factory=dict[Hashable, "_Pulls[Request]"])
    _deadlines: dict[float, _Pulls[Request]] = attrs.field(factory=dict[float, "_Pulls[Request]"])
    _count: int = 0
    _weight: int = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull[Request]) -> bool:
        """Keep a pull until it is woken, due or dropped; False if there is no room for it."""
        of_owner = self._owners.get(pull.owner)
        if self._weight + pull.weight > self.total_max or (of_owner is not None and len(of_owner) >= self.per_owner_max):
            return False
        if of_owner is None:
            of_owner = self._owners[pull.owner] = {}
        of_owner[pull] = None
        self._queues.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._deadlines.setdefault(pull.deadline, {})[pull] = None
        self._count += 1
        self._weight += pull.weight
        return True

    def arrived(self, arrivals: Iterable[Arrival]) -> list[HeldPull[Request]]:
        """Release the pulls that these messages are for."""
        queues = self._queues
        woken: list[HeldPull[Request]] = []
        if not queues:
            return woken
        for topic, queue_id, next_offset, tags_code in arrivals:
            waiting = queues.get((topic, queue_id))
            if waiting is None:
                continue
            matched = [
                pull for pull in waiting if next_offset > pull.offset and (pull.codes is None or tags_code in pull.codes)
            ]
            for pull in matched:
                self._remove(pull)
            woken += matched
        return woken

    def due(self, now: float) -> list[HeldPull[Request]]:
        """Release the pulls whose time is up."""
        over = sorted(deadline for deadline in self._deadlines if deadline <= now)
        pulls = [pull for deadline in over for pull in self._deadlines[deadline]]
        for pull in pulls:
            self._remove(pull)
        return pulls

    def release(self, chosen: Callable[[HeldPull[Request]], bool]) -> list[HeldPull[Request]]:
        """Release the pulls that are chosen, whatever their queues hold."""
        pulls = [pull for waiting in self._queues.values() for pull in waiting if chosen(pull)]
        for pull in pulls:
            self._remove(pull)
        return pulls

    def drop(self, owner: Hashable) -> int:
        """Forget the pulls of a closed connection; return how many there were."""
        pulls = list(self._owners.get(owner, ()))
        for pull in pulls:
            self._remove(pull)
        return len(pulls)

    def _remove(self, pull: HeldPull[Request]) -> None:
        _discard(self._queues, (pull.topic, pull.queue_id), pull)
        _discard(self._owners, pull.owner, pull)
        _discard(self._deadlines, pull.deadline, pull)
        self._count -= 1
        self._weight -= pull.weight


def _discard(table: dict[Key, _Pulls[Request]], key: Key, pull: HeldPull[Request]) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
