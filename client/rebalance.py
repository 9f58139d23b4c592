"""RocketMQ's allocation strategies, which divide the queues of a topic among the members of a consumer group.

Every member computes the same allocation from the same two sorted lists, without a coordinator. A member that the broker
does not list (yet) gets no queues.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from ..message.message import MessageQueue
from .arguments import check_function
from .errors import InvalidArgument

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""The arguments are our client id, all queues of a topic and all client ids, both sorted; the result is our queues."""

VIRTUAL_NODES = 10


def allocate(
    strategy: Strategy, client_id: str, queues: Iterable[MessageQueue], client_ids: Iterable[str]
) -> list[MessageQueue]:
    """Sort queues and client ids, as every member must, and apply `strategy`."""
    members = sorted(set(client_ids))
    return strategy(client_id, sorted(queues), members) if client_id in members else []


def average(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Allocate equal ranges of queues; the first members get one more if there is a remainder (RocketMQ `AVG`).

    >>> average("b", [MessageQueue("t", "x", i) for i in range(3)], ["a", "b"])
    [MessageQueue(topic='t', broker_name='x', queue_id=2)]
    """
    index, members = client_ids.index(client_id), len(client_ids)
    share, rest = divmod(len(queues), members)
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def average_by_circle(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Allocate the queues round-robin to the members (RocketMQ `AVG_BY_CIRCLE`)."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


def consistent_hash(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Allocate each queue to the next member on a hash ring: a change of members then moves few queues (`CONSISTENT_HASH`)."""
    ring = sorted((_ring_position(f"{member}-{node}"), member) for member in client_ids for node in range(VIRTUAL_NODES))
    positions = [position for position, _ in ring]

    def owner(queue: MessageQueue) -> str:
        # Java members of the group must find the same owner, so the key is the text of their `MessageQueue.toString`.
        key = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        return ring[bisect_left(positions, _ring_position(key)) % len(ring)][1]

    return [queue for queue in queues if owner(queue) == client_id]


def _ring_position(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


STRATEGIES: dict[str, Strategy] = {
    "average": average,
    "circle": average_by_circle,
    "consistent_hash": consistent_hash,
}
"""The strategies by the names that `open_consumer` accepts."""


def strategy_of(given: str | Strategy) -> Strategy:
    """The strategy for a name, or `given` itself if it is a function.

    Raises:
        InvalidArgument: no strategy has that name, or the function is async.
    """
    if callable(given):
        check_function("strategy", given)
        return given
    if given not in STRATEGIES:
        raise InvalidArgument(f"strategy must be one of {', '.join(STRATEGIES)} or a function (got {given!r})")
    return STRATEGIES[given]
