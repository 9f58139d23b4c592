"""What the judge of a soak finds in what a service has journalled."""

from __future__ import annotations

import random
from pathlib import Path

from harness.processes.journal import Journal
from harness.processes.services import DELETED, DELETED_GROUP, PLAIN, TrioService
from harness.processes.soak import COPIES_MAX, Soak, namesrv_of, servers_of
from ledgermq.testing.checkers.consumers import PASSED_ON_SECONDS
from ledgermq.testing.history import Commit, Deletion, Handling


def soak(tmp_path: Path) -> Soak:
    rng = random.Random(1)
    with servers_of(tmp_path) as servers:
        service = TrioService(namesrv_of(servers), Journal(rng), rng, tmp_path, 1.0)
        return Soak(tmp_path, rng, service, 0.0, lambda _: None, servers)


def handled(number: int, group: str, topic: str, offset: int, began: float = 1.0) -> Handling:
    return Handling(group, "m", (topic, 0), offset, number, began, ended=began + 1, done=True, settled_at=began + 1)


def test_a_message_that_a_group_never_handled_is_found(tmp_path: Path) -> None:
    run = soak(tmp_path)
    run.journal.history.subscriptions = {("g", PLAIN)}
    put = run.journal.new_put(PLAIN)
    put.acknowledged, put.queue_offset = True, 0

    assert len(run.judge()) == 1

    run.journal.history.handlings.append(handled(put.number, "g", PLAIN, 0))
    assert run.judge() == []


def test_only_what_was_sent_after_the_last_deletion_has_to_be_handled(tmp_path: Path) -> None:
    run = soak(tmp_path)
    before, after = run.journal.new_put(DELETED), run.journal.new_put(DELETED)
    before.acknowledged = after.acknowledged = True
    before.sent_at, after.sent_at = 1.0, 4.0
    run.journal.history.deletions.append(Deletion(DELETED, 2.0, 0, answered_at=3.0))

    assert len(run.judge()) == 1

    run.journal.history.handlings.append(handled(after.number, DELETED_GROUP, DELETED, 0))
    assert run.judge() == []


def test_more_copies_than_a_producer_tries_are_found(tmp_path: Path) -> None:
    run = soak(tmp_path)
    number = run.journal.new_put(PLAIN).number
    run.journal.history.handlings += [handled(number, "g", PLAIN, offset) for offset in range(COPIES_MAX)]
    assert run.judge() == []

    run.journal.history.handlings.append(handled(number, "g", PLAIN, COPIES_MAX))
    assert len(run.judge()) == 1


def test_a_delivery_long_after_its_commit_is_found(tmp_path: Path) -> None:
    run = soak(tmp_path)
    number = run.journal.new_put(PLAIN).number
    run.journal.history.handlings.append(handled(number, "g", PLAIN, 0))
    run.record(Commit(3.0, "g", (PLAIN, 0), 1, 0))
    assert run.judge() == []

    run.journal.history.handlings.append(handled(number, "g", PLAIN, 0, began=4.0 + PASSED_ON_SECONDS))
    assert len(run.judge()) == 1
