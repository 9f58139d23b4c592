"""Locks for ordered consumption: leases of (group, queue) to one client (RocketMQ RebalanceLockManager).

A lease lasts `LEASE_SECONDS` from its last renewal; then every client may take it. Who has a lease changes only when the log
says so (`apply`); renewals are known to the master alone. Leases survive a restart of the broker, because their owners continue
to consume meanwhile: a queue that was leased when the broker ended is leased to no other client until its owner must have
stopped. A slave may lack the last leases that its master has given, so when it becomes master it gives none until all of them
must have ended. Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from math import inf
from typing import Any

import attrs

from ...message.message import MessageQueue
from ...message.numbers import int_of
from ...message.units import QueueId
from ..json_values import table_of

LEASE_SECONDS = 60.0
"""How long a lease lasts after its last renewal."""
OWNER_BELIEVES_SECONDS = 30.0
"""How long a client continues to consume after its last renewal (RocketMQ's REBALANCE_LOCK_MAX_LIVE_TIME)."""
HANDOVER_SECONDS = 1.1 * OWNER_BELIEVES_SECONDS
"""How long a new master gives no leases; the additional tenth allows for clients whose clocks run slowly, and in a DLedger
group for a leader that was cut off, which renews leases until it notices that."""
LEASES_MAX = 100_000
"""The most leases of all groups; then no new one is given. Their file is encoded in one turn of the event loop."""
LEASES_BYTES_MAX = 16 * 1024 * 1024
"""The most bytes of the texts of all leases, which their file contains; then no new one is given. An ordinary
lease has some 60."""


LeaseKey = tuple[str, MessageQueue]
"""The group and the queue of a lease."""
_Leases = dict[MessageQueue, tuple[str, float]]
"""The owner of each queue, and when its lease was last renewed."""


@attrs.define(eq=False)
class QueueLocks:
    """Leases by group and queue."""

    _leases: dict[str, _Leases] = attrs.field(factory=dict[str, _Leases])
    _count: int = 0
    _bytes: int = 0
    """The bytes of the texts of all leases."""
    proposed: dict[LeaseKey, str] = attrs.field(factory=dict[LeaseKey, str])
    """The next owners of queues, empty for none, whose events are appended and not applied yet."""
    _proposed_bytes: int = 0
    changes: int = 0
    """Counts changes of owners, but not renewals; the file is written when the count has grown."""
    _followed: bool = False
    """Whether this node has followed another master since it gave its last lease."""
    _granted_from: float = 0.0
    """No lease is given before this time of the monotonic clock."""

    def load(self, stored: Any, now: float) -> None:
        """Load the leases that the broker had given when it ended; their owners may have renewed them just before.

        Raises:
            TypeError, ValueError: the content is not a table of lists of leases.
        """
        self._followed = table_of(stored, "the content").get("followed") is True
        renewed = now - LEASE_SECONDS + OWNER_BELIEVES_SECONDS
        for group, rows in table_of(table_of(stored, "the content").get("locks"), "locks").items():
            self._add(group, rows, renewed)

    def _add(self, group: str, rows: Iterable[Any], renewed: float) -> None:
        for topic, broker_name, queue_id, client_id in rows:
            queue = MessageQueue(str(topic), str(broker_name), QueueId(int_of(queue_id)))
            if self._count < LEASES_MAX and queue not in self._leases.get(group, {}):
                self._enter(group, queue, str(client_id), renewed)

    def _enter(self, group: str, queue: MessageQueue, client_id: str, renewed: float) -> None:
        """Enter a lease in the place of the one that the queue may have."""
        self._remove(group, queue)
        self._leases.setdefault(group, {})[queue] = client_id, renewed
        self._count += 1
        self._bytes += _bytes_of(group, queue, client_id)

    def take_over(self, now: float) -> None:
        """Begin to give leases as leader; the last leader renews its own until it knows that it was deposed."""
        renewed = now - LEASE_SECONDS + HANDOVER_SECONDS
        for leases in self._leases.values():
            for queue, (owner, _) in leases.items():
                leases[queue] = owner, renewed

    def apply(self, rows: Iterable[Any], now: float) -> None:
        """Apply changes of leases that another node has appended to the log (`lease_rows`).

        Raises:
            TypeError, ValueError: the rows are not a list of leases. Nothing was changed.
        """
        changes = [
            (str(group), MessageQueue(str(topic), str(broker_name), QueueId(int_of(queue_id))), str(client_id))
            for group, topic, broker_name, queue_id, client_id in rows
        ]
        for group, queue, client_id in changes:
            if self.proposed.get((group, queue)) == client_id:
                del self.proposed[group, queue]
                self._proposed_bytes -= _bytes_of(group, queue, client_id)
            if client_id:
                self._enter(group, queue, client_id, now)
            else:
                self._remove(group, queue)
        self.changes += 1

    def keys(self) -> Iterator[LeaseKey]:
        """The groups and queues of all leases; leases may be added and removed before the end is reached."""
        return ((group, queue) for group in list(self._leases) for queue in list(self._leases.get(group, ())))

    def next_owner(self, key: LeaseKey) -> str:
        """The owner of a queue when all that was proposed is applied; empty if it has none."""
        group, queue = key
        return self.proposed.get(key, self._leases.get(group, {}).get(queue, ("",))[0])

    @property
    def followed(self) -> bool:
        """Whether this node has followed another master since it gave its last lease."""
        return self._followed

    def groups(self) -> list[tuple[str, Sized]]:
        """Each group and its leases."""
        return list(self._leases.items())

    def rows_of(self, group: str) -> list[list[Any]]:
        """The leases of a group, as they are stored in the file."""
        leases = self._leases.get(group, {})
        return [[queue.topic, queue.broker_name, queue.queue_id, owner] for queue, (owner, _) in leases.items()]

    def _remove(self, group: str, queue: MessageQueue) -> None:
        leases = self._leases.get(group, {})
        if (lease := leases.pop(queue, None)) is not None:
            self._count -= 1
            self._bytes -= _bytes_of(group, queue, lease[0])
            if not leases:
                del self._leases[group]

    def follow(self) -> None:
        """Remove all leases, because another node is the master and gives its own."""
        self.changes += not self._followed
        self._followed, self._granted_from = True, inf
        self.clear()

    def clear(self) -> None:
        """Remove all leases."""
        self.changes += bool(self._count)
        self._leases.clear()
        self._count = self._bytes = 0

    def lead(self, now: float) -> None:
        """Give leases from now on; if this node has followed, only after the former master's leases must have ended."""
        if self._followed:
            self._granted_from = now + HANDOVER_SECONDS

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now: float
    ) -> tuple[list[MessageQueue], dict[LeaseKey, str]]:
        """Renew the leases of a client, and find what it may have besides.

        Returns: the queues that it has leased, and the changes to propose so that it gets others.
        """
        if self._followed:
            if now < self._granted_from:
                return [], {}
            self._followed = False  # from now on the file contains every lease that a restart must know
            self.changes += 1
        held: list[MessageQueue] = []
        wanted: dict[LeaseKey, str] = {}
        count, size = self._count + len(self.proposed), self._bytes + self._proposed_bytes
        for queue in queues:
            owner, renewed = self._leases.get(group, {}).get(queue, ("", now))
            coming = self.proposed.get((group, queue))
            if owner == client_id and coming is None:
                self._leases[group][queue] = owner, now
                held.append(queue)
            elif coming is None and owner and now - renewed <= LEASE_SECONDS:
                continue
            elif coming in (None, "", client_id):
                size += _bytes_of(group, queue, client_id)
                if count + len(wanted) >= LEASES_MAX or size > LEASES_BYTES_MAX:
                    break
                wanted[group, queue] = client_id
        return held, wanted

    def owned(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Those of the queues that the client has leased."""
        leases = self._leases.get(group, {})
        return [queue for queue in queues if leases.get(queue, ("",))[0] == client_id]

    def propose(self, owners: Mapping[LeaseKey, str]) -> None:
        """Note changes whose events are appended."""
        for key, owner in owners.items():
            if key in self.proposed:
                self._proposed_bytes -= _bytes_of(*key, self.proposed[key])
            self.proposed[key] = owner
            self._proposed_bytes += _bytes_of(*key, owner)

    def drop_proposed(self) -> None:
        """Forget changes that are not applied, because they may never be."""
        self.proposed.clear()
        self._proposed_bytes = 0

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> dict[LeaseKey, str]:
        """The changes to propose so that the leases of this client end; those of other clients stay."""
        leases = self._leases.get(group, {})
        return {
            (group, queue): ""
            for queue in queues
            if self.proposed.get((group, queue), leases.get(queue, ("",))[0]) == client_id
        }

    def expired(self, keys: Iterable[LeaseKey], now: float) -> dict[LeaseKey, str]:
        """The changes to propose so that those of these leases end which nobody has renewed in time."""
        return {
            key: ""
            for key in keys
            if (lease := self._leases.get(key[0], {}).get(key[1])) is not None
            and now - lease[1] > LEASE_SECONDS
            and key not in self.proposed
        }

    def are_held(self, group: str, now: float) -> bool:
        """Whether any client of the group has leased a queue."""
        return any(now - renewed <= LEASE_SECONDS for _, renewed in self._leases.get(group, {}).values())


def lease_rows(owners: Mapping[LeaseKey, str]) -> list[list[Any]]:
    """Leases and their owners as they are stored in the log."""
    return [[group, queue.topic, queue.broker_name, queue.queue_id, owner] for (group, queue), owner in owners.items()]


def _bytes_of(group: str, queue: MessageQueue, client_id: str) -> int:
    return len(group.encode()) + len(queue.topic.encode()) + len(queue.broker_name.encode()) + len(client_id.encode())
