"""Leases of queues to ordered consumers."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.broker.tables import locks as module
from ledgermq.broker.tables.locks import HANDOVER_SECONDS, LEASE_SECONDS, OWNER_BELIEVES_SECONDS, QueueLocks, lease_rows
from ledgermq.message.message import MessageQueue
from ledgermq.message.units import QueueId

A, B = (MessageQueue("T1", "b1", QueueId(queue_id)) for queue_id in (0, 1))


def content_of(locks: QueueLocks) -> dict[str, Any]:
    """The content of the file of leases."""
    return {"followed": locks.followed, "locks": {group: locks.rows_of(group) for group, _ in locks.groups()}}


def lock(locks: QueueLocks, group: str, client_id: str, queues: list[MessageQueue], now: float) -> list[MessageQueue]:
    """Lock queues, with a log that applies each change at once; returns what the client has."""
    held, wanted = locks.lock(group, client_id, queues, now)
    if wanted:
        locks.apply(lease_rows(wanted), now)
    return [queue for queue in queues if queue in held or (group, queue) in wanted]


def unlock(locks: QueueLocks, group: str, client_id: str, queues: list[MessageQueue]) -> None:
    """Unlock queues, with the same log."""
    locks.apply(lease_rows(locks.unlock(group, client_id, queues)), 0)


def expire(locks: QueueLocks, now: float) -> None:
    """End leases that are not renewed, with the same log."""
    locks.apply(lease_rows(locks.expired(locks.keys(), now)), now)


def test_a_queue_has_one_owner() -> None:
    """Who comes second gets what is left."""
    locks = QueueLocks()

    assert lock(locks, "g", "c1", [A], 0) == [A]
    assert lock(locks, "g", "c2", [A, B], 1) == [B]
    assert lock(locks, "other group", "c2", [A], 1) == [A]


def test_a_lease_is_renewed_by_its_owner() -> None:
    """Every lock of the owner starts the lease anew."""
    locks = QueueLocks()
    lock(locks, "g", "c1", [A], 0)
    lock(locks, "g", "c1", [A], 50)

    assert lock(locks, "g", "c2", [A], LEASE_SECONDS + 40) == []
    assert locks.owned("g", "c1", [A]) == [A]


def test_an_expired_lease_is_taken_over() -> None:
    """After 60 silent seconds anyone may have the queue."""
    locks = QueueLocks()
    lock(locks, "g", "c1", [A], 0)

    assert lock(locks, "g", "c2", [A], LEASE_SECONDS) == []
    assert not locks.are_held("g", LEASE_SECONDS + 0.1)
    assert lock(locks, "g", "c2", [A], LEASE_SECONDS + 0.1) == [A]


def test_only_the_owner_gives_a_lease_back() -> None:
    """An unlock by somebody else is ignored."""
    locks = QueueLocks()
    lock(locks, "g", "c1", [A], 0)
    unlock(locks, "g", "c2", [A])
    assert locks.owned("g", "c1", [A]) == [A]

    unlock(locks, "g", "c1", [A, B])

    assert locks.owned("g", "c1", [A]) == []


def test_expired_leases_are_forgotten() -> None:
    """Groups that come and go leave nothing behind."""
    locks = QueueLocks()
    lock(locks, "g", "c1", [A], 0)
    lock(locks, "g", "c1", [B], 30)

    expire(locks, LEASE_SECONDS + 1)
    assert locks.owned("g", "c1", [A, B]) == [B]
    expire(locks, LEASE_SECONDS + 31)

    assert not locks._leases  # pyright: ignore[reportPrivateUsage]


def test_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that nobody has need not exist; what expires or is given back makes room."""
    monkeypatch.setattr(module, "LEASES_MAX", 2)
    locks = QueueLocks()
    queues = [MessageQueue("T", "b", QueueId(n)) for n in range(4)]

    assert lock(locks, "g", "c1", queues, 0.0) == queues[:2]
    assert lock(locks, "g", "c1", queues, 1.0) == queues[:2]
    unlock(locks, "g", "c1", queues[:1])
    assert lock(locks, "h", "c2", queues[2:], 1.0) == queues[2:3]
    expire(locks, LEASE_SECONDS + 2)
    assert lock(locks, "h", "c2", queues, LEASE_SECONDS + 2) == queues[:2]


def test_owners_survive_a_restart() -> None:
    """For as long as they may go on without having renewed; then anyone may take over."""
    before = QueueLocks()
    lock(before, "g", "c1", [A, B], 0)
    lock(before, "h", "c2", [A], 0)
    unlock(before, "h", "c2", [A])

    locks = QueueLocks()
    locks.load(content_of(before), 1000)

    assert lock(locks, "g", "c2", [A], 1000 + OWNER_BELIEVES_SECONDS) == []
    assert lock(locks, "g", "c1", [B], 1000 + OWNER_BELIEVES_SECONDS) == [B]
    assert lock(locks, "h", "c3", [A], 1000) == [A]
    assert lock(locks, "g", "c2", [A, B], 1000.1 + OWNER_BELIEVES_SECONDS) == [A]


def test_a_replica_gives_no_lease() -> None:
    """Its master does."""
    locks = QueueLocks()
    lock(locks, "g", "c1", [A], 0)
    locks.follow()

    assert lock(locks, "g", "c1", [A], 1) == []
    assert not locks.are_held("g", 1)


def test_a_new_master_gives_no_lease_before_those_of_the_former_one_have_ended() -> None:
    """It does not know them: neither a member that asks for a new queue nor one that renews is believed."""
    locks = QueueLocks()
    locks.follow()
    locks.lead(100)

    assert lock(locks, "g", "c1", [A], 100 + OWNER_BELIEVES_SECONDS) == []
    assert lock(locks, "g", "c2", [A], 100 + HANDOVER_SECONDS) == [A]
    assert lock(locks, "g", "c1", [A], 100 + HANDOVER_SECONDS) == []


def test_a_restart_of_a_new_master_waits_again() -> None:
    """Up to its first lease the file says that another node has been the master; afterwards it lists all leases."""
    before = QueueLocks()
    before.follow()
    before.lead(0)
    lock(before, "g", "c1", [A], 1)

    locks = QueueLocks()
    locks.load(content_of(before), 1000)
    locks.lead(1000)
    assert lock(locks, "g", "c1", [A], 1000 + OWNER_BELIEVES_SECONDS) == []
    changes = locks.changes
    assert lock(locks, "g", "c1", [A], 1000 + HANDOVER_SECONDS) == [A]
    assert locks.changes > changes, "the file is written before the answer leaves"

    after = QueueLocks()
    after.load(content_of(locks), 2000)
    after.lead(2000)
    assert lock(after, "g", "c2", [B], 2000) == [B]


def test_only_changes_of_owners_are_written() -> None:
    """Renewals come every 20 s from every member, and say nothing new."""
    locks = QueueLocks()
    lock(locks, "g", "c1", [A], 0)
    changes = locks.changes
    lock(locks, "g", "c1", [A], 20)
    lock(locks, "g", "c2", [A], 30)
    assert locks.changes == changes
    lock(locks, "g", "c2", [A], 20 + LEASE_SECONDS + 1)
    assert locks.changes == changes + 1


@pytest.mark.parametrize("stored", [{"locks": 5}, {"locks": {"g": [["t", "b"]]}}, {"locks": {"g": [["t", "b", "x", "c"]]}}, 7])
def test_a_file_that_makes_no_sense_is_refused(stored: object) -> None:
    """Leases that nobody knows of would be given to two."""
    with pytest.raises((TypeError, ValueError)):
        QueueLocks().load(stored, 0)


def test_a_new_leader_waits_as_long_as_an_owner_may_go_on_whose_lease_the_last_one_renewed() -> None:
    """A leader that is cut off renews leases for another moment, while the next one leads already."""
    locks = QueueLocks()
    lock(locks, "g", "c1", [A], 0)

    locks.take_over(1000)

    assert lock(locks, "g", "c2", [A], 1000 + OWNER_BELIEVES_SECONDS + 1) == []
    assert lock(locks, "g", "c2", [A], 1000.1 + HANDOVER_SECONDS) == [A]


def test_the_bytes_of_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are in one file; each change and each end of a lease keeps the sum right."""
    monkeypatch.setattr(module, "LEASES_BYTES_MAX", 2 * len("gT1b1c1"))
    locks = QueueLocks()

    assert lock(locks, "g", "c1", [A, B], 0) == [A, B]
    assert lock(locks, "h", "c1", [A], 1) == []
    unlock(locks, "g", "c1", [A])
    assert lock(locks, "h", "long name", [A], 1) == []
    assert lock(locks, "h", "c1", [A], 1) == [A]
    expire(locks, LEASE_SECONDS + 2)
    assert lock(locks, "g", "c1", [A], 100) == [A]
    locks.apply(lease_rows({("g", A): "c1", ("h", A): ""}), 100)
    assert lock(locks, "g", "c1", [B], 100) == [B]
    locks.clear()
    assert lock(locks, "g", "c2", [A, B], 100) == [A, B]


def test_leases_that_wait_for_the_log_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a log applies nothing, only so many changes are kept in memory, by their number and by their bytes."""
    monkeypatch.setattr(module, "LEASES_MAX", 3)
    locks = QueueLocks()

    for number in range(9):
        held, wanted = locks.lock(f"g{number}", "c1", [A], 0)
        locks.propose(wanted)
        assert not held
        assert bool(wanted) is (number < 3)

    locks.drop_proposed()
    monkeypatch.setattr(module, "LEASES_BYTES_MAX", len("gT1b1c1"))
    locks.propose(locks.lock("g", "c1", [A], 0)[1])
    assert locks.lock("h", "c1", [A], 0) == ([], {})


def test_a_queue_that_somebody_is_about_to_get_is_given_to_nobody_else() -> None:
    """The log decides in its order: who asks again is answered alike, and who gives back makes room before that is applied."""
    locks = QueueLocks()
    locks.propose(locks.lock("g", "c1", [A], 0)[1])

    assert locks.lock("g", "c2", [A], 0) == ([], {})
    assert locks.lock("g", "c1", [A], 0) == ([], {("g", A): "c1"})
    released = locks.unlock("g", "c1", [A])
    assert released == {("g", A): ""}
    locks.propose(released)
    assert locks.lock("g", "c2", [A], 0) == ([], {("g", A): "c2"})
