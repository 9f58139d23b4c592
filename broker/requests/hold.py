"""Held pulls: requests that wait for a message on a queue (RocketMQ PullRequestHoldService).

An arriving message wakes the pulls whose filter matches it; the others continue to wait. Deadlines are rounded up to common
times, as in RocketMQ, so that ten thousand idle consumers need one timer and are answered in batches. Bounds: above
`per_owner_max` or `total_max`, `hold` declines. Invariant: a held pull is in the sets of its queue, its owner and its deadline,
or in none of them. Pulls are taken lazily, so that the caller decides how many it takes in one turn of the event loop; a pull
that is woken or dropped in another way meanwhile is not taken. Pure: the time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import attrs

Request = TypeVar("Request")
Key = TypeVar("Key")

LONG_SECONDS, LONG_STEP_SECONDS, SHORT_STEP_SECONDS = 10.0, 5.0, 1.0
"""Waits of `LONG_SECONDS` or more end at multiples of `LONG_STEP_SECONDS`, shorter ones of `SHORT_STEP_SECONDS`."""
PER_OWNER_MAX = 16_384
"""The most held pulls of one connection; a further one is refused. A consumer process has one for each of its queues, which
may be thousands."""
TOTAL_MAX = 200_000
"""The largest total weight of held pulls, which then use about 100 MiB; a further pull is refused."""
CODES_PER_WEIGHT = 8
"""A pull has a weight of one, and one more for each multiple of this many tags that it wants."""

Arrival = tuple[str, int, int, int]
"""The topic, the queue id, the queue's next offset, and the tags code of the message before that offset."""


@attrs.define(eq=False)
class HeldPull(Generic[Request]):
    """One waiting request."""

    topic: str
    queue_id: int
    offset: int
    """The first offset that the pull asks for."""
    codes: frozenset[int] | None
    """The hashes of the wanted tags; None for all messages."""
    deadline: float
    """When the pull is answered at the latest, by the monotonic clock; `common_deadline` lets many pulls share one."""
    owner: Hashable
    request: Request

    @property
    def weight(self) -> int:
        """The part of `total_max` that the pull uses; a pull with many tags needs more memory."""
        return 1 if self.codes is None else 1 + len(self.codes) // CODES_PER_WEIGHT


def common_deadline(now: float, seconds: float) -> float:
    """The deadline of a pull that may wait for `seconds`, rounded up so that it is shared with other pulls."""
    step = LONG_STEP_SECONDS if seconds >= LONG_SECONDS else SHORT_STEP_SECONDS
    return math.ceil((now + seconds) / step) * step


_Pulls = dict[HeldPull[Request], None]
"""A set of pulls in the order of their arrival."""

Queue = tuple[str, int]
"""A topic and a queue id."""
Newest = dict[int, int]
"""What is new on a queue: for each tags code, the next offset behind the last message with it."""
Taken = Iterator[HeldPull[Request] | None]
"""Pulls that are removed as they are taken from the iterator; None for each one that is looked at and stays."""


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

    def arrived(self, arrivals: Iterable[Arrival]) -> dict[Queue, Newest]:
        """Return what is new on the queues of these messages on which pulls wait."""
        queues = self._queues
        found: dict[Queue, Newest] = {}
        for topic, queue_id, next_offset, tags_code in arrivals if queues else ():
            if (queue := (topic, queue_id)) in queues:
                newest = found.setdefault(queue, {})
                newest[tags_code] = max(next_offset, newest.get(tags_code, 0))
        return found

    def waiting(self, queue: Queue) -> int:
        """How many pulls wait on a queue."""
        return len(self._queues.get(queue, ()))

    def matching(self, queue: Queue, newest: Newest) -> Taken[Request]:
        """Take the pulls of a queue that match its new messages."""
        last = max(newest.values())

        def matches(pull: HeldPull[Request]) -> bool:
            if last <= pull.offset or pull.codes is None:
                return last > pull.offset
            return any(newest[code] > pull.offset for code in newest.keys() & pull.codes)

        return self._taken(list(self._queues.get(queue, ())), matches)

    def due(self, now: float) -> Taken[Request]:
        """Take the pulls whose deadline has passed, the earliest first."""
        over = sorted(deadline for deadline in self._deadlines if deadline <= now)
        return self._taken([pull for deadline in over for pull in self._deadlines[deadline]], lambda _: True)

    def release(self, chosen: Callable[[HeldPull[Request]], bool]) -> Taken[Request]:
        """Take the pulls for which `chosen` is true, whether their queues have messages or not."""
        return self._taken([pull for waiting in self._owners.values() for pull in waiting], chosen)

    def _taken(self, pulls: list[HeldPull[Request]], chosen: Callable[[HeldPull[Request]], bool]) -> Taken[Request]:
        for pull in pulls:
            if pull in self._owners.get(pull.owner, ()) and chosen(pull):
                self._remove(pull)
                yield pull
            else:
                yield None

    def drop(self, owner: Hashable) -> int:
        """Remove the pulls of a closed connection; return how many there were."""
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
