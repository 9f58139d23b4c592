"""Resets of consumer groups that clients have not followed yet (RocketMQ `resetOffsetTable`). Pure: the time is an argument.

A client that read a queue, or asked for the group's offset there, before the reset must not continue at its own position: it
would skip what the group should read again, and its commits would undo the reset. During a rebalance there may be two such
clients, the previous reader and the next one. Hence each client follows a reset separately: when it asks for the group's
offset, or pulls exactly there. The reset is forgotten some time after the first client has followed it.

In a DLedger group the log contains the resets, but not which clients have followed them. At the next leader all clients follow
them again, and repeat what they have not committed.
"""

from __future__ import annotations

from weakref import WeakSet

import attrs

FOLLOWED_SECONDS = 600.0
"""A reset is forgotten this long after the first client has followed it. A client that a network has cut off for longer may
still return and continue at its own position."""


@attrs.define(eq=False)
class _Followed:
    """The clients that have followed the reset of one queue."""

    until: float
    """When the reset is forgotten, by the monotonic clock."""
    clients: WeakSet[object] = attrs.field(factory=WeakSet[object])
    """Connections, which must not stay in memory when they have ended."""


@attrs.define(eq=False)
class PendingResets:
    """The queues of each group that were reset, until they are forgotten."""

    _queues: dict[tuple[str, str], dict[int, _Followed | None]] = attrs.field(
        factory=dict[tuple[str, str], "dict[int, _Followed | None]"]
    )
    """By (topic, group) and queue id; None while no client has followed the reset."""

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, group: str, topic: str, queue_id: int) -> None:
        """Record a reset; an earlier one of the same queue is replaced."""
        self._queues.setdefault((topic, group), {})[queue_id] = None

    def holds(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset of the queue is recorded, whoever has followed it."""
        return queue_id in self._queues.get((topic, group), ())

    def must_follow(self, group: str, topic: str, queue_id: int, client: object) -> bool:
        """Whether the client has to continue at the group's offset before it may pull elsewhere or commit."""
        queues = self._queues.get((topic, group))
        if queues is None or queue_id not in queues:
            return False
        followed = queues[queue_id]
        return followed is None or client not in followed.clients

    def follow(self, group: str, topic: str, queue_id: int, client: object, now: float) -> None:
        """Record that the client knows the group's offset; nothing happens if the queue was not reset."""
        queues = self._queues.get((topic, group))
        if queues is None or queue_id not in queues:
            return
        followed = queues[queue_id]
        if followed is None:
            followed = queues[queue_id] = _Followed(now + FOLLOWED_SECONDS)
        followed.clients.add(client)

    def take_all(self) -> set[tuple[str, str, int]]:
        """Forget all resets; returns the topic, group and queue id of each."""
        taken = {(topic, group, queue_id) for (topic, group), queues in self._queues.items() for queue_id in queues}
        self._queues.clear()
        return taken

    def of(self, *, topic: str | None = None, group: str | None = None) -> set[tuple[str, str, int]]:
        """The topic, group and queue id of each reset on a topic, or of a group."""
        keys = self._keys(topic, group)
        return {(*key, queue_id) for key in keys for queue_id in self._queues[key]}

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Forget the resets on a topic, or of a group."""
        for key in self._keys(topic, group):
            del self._queues[key]

    def _keys(self, topic: str | None, group: str | None) -> list[tuple[str, str]]:
        return [key for key in self._queues if key[0] == topic or key[1] == group]

    def expire(self, now: float) -> None:
        """Forget the resets whose time is over."""
        for key, queues in list(self._queues.items()):
            for queue_id in [queue_id for queue_id, one in queues.items() if one is not None and one.until <= now]:
                del queues[queue_id]
            if not queues:
                del self._queues[key]
