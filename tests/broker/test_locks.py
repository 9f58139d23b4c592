"""Leases of queues to ordered consumers."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.broker import locks as module
from ledgermq.broker.locks import HANDOVER_SECONDS, LEASE_SECONDS, OWNER_BELIEVES_SECONDS, QueueLocks
from ledgermq.message.message import MessageQueue
from ledgermq.message.units import QueueId

A, B = (MessageQueue("T1", "b1", QueueId(queue_id)) for queue_id in (0, 1))


def content_of(locks: QueueLocks) -> dict[str, Any]:
    """The content of the file of leases."""
    return {"followed": locks.followed, "locks": {group: locks.rows_of(group) for group, _ in locks.groups()}}


def test_a_queue_has_one_owner() -> None:
    """Who comes second gets what is left."""
    locks = QueueLocks()

    assert locks.lock("g", "c1", [A], 0) == [A]
    assert locks.lock("g", "c2", [A, B], 1) == [B]
    assert locks.lock("other group", "c2", [A], 1) == [A]


def test_a_lease_is_renewed_by_its_owner() -> None:
    """Every lock of the owner starts the lease anew."""
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)
    locks.lock("g", "c1", [A], 50)

    assert locks.lock("g", "c2", [A], LEASE_SECONDS + 40) == []
    assert locks.owner("g", A, LEASE_SECONDS + 40) == "c1"


def test_an_expired_lease_is_taken_over() -> None:
    """After 60 silent seconds anyone may have the queue."""
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)

    assert locks.lock("g", "c2", [A], LEASE_SECONDS) == []
    assert locks.owner("g", A, LEASE_SECONDS + 0.1) is None
    assert locks.lock("g", "c2", [A], LEASE_SECONDS + 0.1) == [A]


def test_only_the_owner_gives_a_lease_back() -> None:
    """An unlock by somebody else is ignored."""
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)
    locks.unlock("g", "c2", [A])
    assert locks.owner("g", A, 1) == "c1"

    locks.unlock("g", "c1", [A, B])

    assert locks.owner("g", A, 1) is None


def test_expired_leases_are_forgotten() -> None:
    """Groups that come and go leave nothing behind."""
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)
    locks.lock("g", "c1", [B], 30)

    locks.expire(LEASE_SECONDS + 1)
    assert locks.owner("g", B, LEASE_SECONDS + 1) == "c1"
    locks.expire(LEASE_SECONDS + 31)

    assert not locks._leases  # pyright: ignore[reportPrivateUsage]


def test_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that nobody has need not exist; what expires or is given back makes room."""
    monkeypatch.setattr(module, "LEASES_MAX", 2)
    locks = QueueLocks()
    queues = [MessageQueue("T", "b", QueueId(n)) for n in range(4)]

    assert locks.lock("g", "c1", queues, 0.0) == queues[:2]
    assert locks.lock("g", "c1", queues, 1.0) == queues[:2]
    locks.unlock("g", "c1", queues[:1])
    assert locks.lock("h", "c2", queues[2:], 1.0) == queues[2:3]
    locks.expire(LEASE_SECONDS + 2)
    assert locks.lock("h", "c2", queues, LEASE_SECONDS + 2) == queues[:2]


def test_owners_survive_a_restart() -> None:
    """For as long as they may go on without having renewed; then anyone may take over."""
    before = QueueLocks()
    before.lock("g", "c1", [A, B], 0)
    before.lock("h", "c2", [A], 0)
    before.unlock("h", "c2", [A])

    locks = QueueLocks()
    locks.load(content_of(before), 1000)

    assert locks.lock("g", "c2", [A], 1000 + OWNER_BELIEVES_SECONDS) == []
    assert locks.lock("g", "c1", [B], 1000 + OWNER_BELIEVES_SECONDS) == [B]
    assert locks.lock("h", "c3", [A], 1000) == [A]
    assert locks.lock("g", "c2", [A, B], 1000.1 + OWNER_BELIEVES_SECONDS) == [A]


def test_a_replica_gives_no_lease() -> None:
    """Its master does."""
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)
    locks.follow()

    assert locks.lock("g", "c1", [A], 1) == []
    assert not locks.are_held("g", 1)


def test_a_new_master_gives_no_lease_before_those_of_the_former_one_have_ended() -> None:
    """It does not know them: neither a member that asks for a new queue nor one that renews is believed."""
    locks = QueueLocks()
    locks.follow()
    locks.lead(100)

    assert locks.lock("g", "c1", [A], 100 + OWNER_BELIEVES_SECONDS) == []
    assert locks.lock("g", "c2", [A], 100 + HANDOVER_SECONDS) == [A]
    assert locks.lock("g", "c1", [A], 100 + HANDOVER_SECONDS) == []


def test_a_restart_of_a_new_master_waits_again() -> None:
    """Up to its first lease the file says that another node has been the master; afterwards it lists all leases."""
    before = QueueLocks()
    before.follow()
    before.lead(0)
    before.lock("g", "c1", [A], 1)

    locks = QueueLocks()
    locks.load(content_of(before), 1000)
    locks.lead(1000)
    assert locks.lock("g", "c1", [A], 1000 + OWNER_BELIEVES_SECONDS) == []
    changes = locks.changes
    assert locks.lock("g", "c1", [A], 1000 + HANDOVER_SECONDS) == [A]
    assert locks.changes > changes, "the file is written before the answer leaves"

    after = QueueLocks()
    after.load(content_of(locks), 2000)
    after.lead(2000)
    assert after.lock("g", "c2", [B], 2000) == [B]


def test_only_changes_of_owners_are_written() -> None:
    """Renewals come every 20 s from every member, and say nothing new."""
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)
    changes = locks.changes
    locks.lock("g", "c1", [A], 20)
    locks.lock("g", "c2", [A], 30)
    assert locks.changes == changes
    locks.lock("g", "c2", [A], 20 + LEASE_SECONDS + 1)
    assert locks.changes == changes + 1


@pytest.mark.parametrize("stored", [{"locks": 5}, {"locks": {"g": [["t", "b"]]}}, {"locks": {"g": [["t", "b", "x", "c"]]}}, 7])
def test_a_file_that_makes_no_sense_is_refused(stored: object) -> None:
    """Leases that nobody knows of would be given to two."""
    with pytest.raises((TypeError, ValueError)):
        QueueLocks().load(stored, 0)


def test_a_new_leader_waits_as_long_as_an_owner_may_go_on_whose_lease_the_last_one_renewed() -> None:
    """A leader that is cut off renews leases for another moment, while the next one leads already."""
    locks = QueueLocks()
    locks.lock("g", "c1", [A], 0)

    locks.take_over(1000)

    assert locks.lock("g", "c2", [A], 1000 + OWNER_BELIEVES_SECONDS + 1) == []
    assert locks.lock("g", "c2", [A], 1000.1 + HANDOVER_SECONDS) == [A]


def test_the_bytes_of_leases_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are in one file; each change and each end of a lease keeps the sum right."""
    monkeypatch.setattr(module, "LEASES_BYTES_MAX", 2 * len("gT1b1c1"))
    locks = QueueLocks(dirty={})

    assert locks.lock("g", "c1", [A, B], 0) == [A, B]
    assert locks.lock("h", "c1", [A], 1) == []
    locks.unlock("g", "c1", [A])
    assert locks.lock("h", "long name", [A], 1) == []
    assert locks.lock("h", "c1", [A], 1) == [A]
    locks.expire(LEASE_SECONDS + 2)
    assert locks.lock("g", "c1", [A], 100) == [A]
    locks.apply(locks.rows([("g", A), ("h", A)]), 100)
    assert locks.lock("g", "c1", [B], 100) == [B]
    locks.clear()
    assert locks.lock("g", "c2", [A, B], 100) == [A, B]


def test_leases_that_wait_for_the_log_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a group's log takes nothing, locking and unlocking again and again keeps only so many changes in memory."""
    monkeypatch.setattr(module, "LEASES_MAX", 3)
    locks = QueueLocks(dirty={})

    for number in range(9):
        held = locks.lock(f"g{number}", "c1", [A], 0)
        locks.unlock(f"g{number}", "c1", [A])
        assert bool(held) is (number < 3)

    assert len(locks.dirty or ()) == 3
