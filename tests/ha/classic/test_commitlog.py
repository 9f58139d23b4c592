"""The two waits of a SYNC_MASTER's put."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from ledgermq.ha.classic.commitlog import classic_log
from ledgermq.ha.classic.settings import HaSettings
from ledgermq.ha.errors import InSyncReplicasNotEnough
from ledgermq.message.layout import encode_host, encode_record
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.log.segments import Segments
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers


@attrs.define(eq=False)
class Local(LocalCommitLog):
    """A local log that waits for a flush which the test decides."""

    flushes: list[Callable[[PutStatus], None]] = attrs.field(factory=list[Callable[[PutStatus], None]])

    def when_stored(self, end: int, done: Callable[[PutStatus], None]) -> None:
        self.flushes.append(done)


def local_log(*, waits: bool = True) -> Local:
    return Local(Segments(SimDisk(), "log", 4096), SimClock(now=lambda: 0.0), SimWorkers(), sync_flush=waits)


RECORD = encode_record(b"T", 0, 0, b"body", b"", 0, 0, 0, encode_host("10.0.0.1", 1), 0, encode_host("10.0.0.1", 1))

OK, DISK, SLAVE = PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT


@pytest.mark.parametrize("flush_first", [True, False])
@pytest.mark.parametrize(
    ("flush", "replicated", "answered"), [(OK, True, OK), (DISK, True, DISK), (OK, False, SLAVE), (DISK, False, SLAVE)]
)
def test_both_waits_run_side_by_side_and_a_failed_replication_wins(
    flush: PutStatus, replicated: bool, answered: PutStatus, flush_first: bool
) -> None:
    """The put is answered once, after both; replication other than PUT_OK replaces the flush result."""
    local, clock = local_log(), SimClock(now=lambda: 0.0)
    log = classic_log(local, HaSettings(sync_master=True), clock)
    log.acks.hold("slave", 0)
    end = log.append([RECORD]).end
    answers: list[PutStatus] = []
    log.when_stored(end, answers.append)

    def end_flush() -> None:
        local.flushes[0](flush)

    def end_replication() -> None:
        log.acks.hold("slave", end) if replicated else log.acks.expire(3.0)

    steps = [end_flush, end_replication] if flush_first else [end_replication, end_flush]
    steps[0]()
    assert answers == []
    steps[1]()
    assert answers == [answered]


def test_without_a_slave_the_put_is_stored_and_says_so_once_it_is_flushed() -> None:
    """SLAVE_NOT_AVAILABLE replaces the flush result; the message is in the log."""
    local = local_log()
    log = classic_log(local, HaSettings(sync_master=True), SimClock(now=lambda: 0.0))
    end = log.append([RECORD]).end
    answers: list[PutStatus] = []

    log.when_stored(end, answers.append)
    local.flushes[0](OK)

    assert answers == [PutStatus.SLAVE_NOT_AVAILABLE]
    assert local.max_offset == len(RECORD)


@pytest.mark.parametrize(
    ("sync_master", "sync_flush", "waits"), [(True, False, True), (False, False, False), (False, True, True)]
)
def test_a_put_waits_if_either_promise_asks_for_it(sync_master: bool, sync_flush: bool, waits: bool) -> None:
    """An ASYNC_MASTER waits for what its disk promises only."""
    assert (
        classic_log(local_log(waits=sync_flush), HaSettings(sync_master=sync_master), SimClock(now=lambda: 0.0)).waits is waits
    )


@pytest.mark.parametrize(("asked", "replicas"), [(1, 2), (2, 2), (3, 3)])
def test_a_sync_master_never_waits_for_less_than_one_slave(asked: int, replicas: int) -> None:
    """5.x's silent default of waiting for nobody is not ours."""
    assert HaSettings(sync_master=True, in_sync_replicas=asked).replicas == replicas
    assert HaSettings(sync_master=False, in_sync_replicas=asked).replicas == 1


def test_too_few_copies_within_reach_refuse_the_append() -> None:
    """Nothing is appended, and the numbers are on the error."""
    local = local_log()
    log = classic_log(local, HaSettings(sync_master=True, min_in_sync_replicas=2), SimClock(now=lambda: 0.0))

    with pytest.raises(InSyncReplicasNotEnough, match="1 copies are within reach, minInSyncReplicas asks for 2"):
        log.append([RECORD])
    assert local.max_offset == 0


async def test_a_stopping_master_answers_who_still_waits(autojump_clock: trio.testing.MockClock) -> None:
    """Nobody is left without an answer when the log stops."""
    log = classic_log(local_log(waits=False), HaSettings(sync_master=True), SimClock())
    log.acks.hold("slave", 0)
    answers: list[PutStatus] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.when_stored(10, answers.append)
        nursery.cancel_scope.cancel()

    assert answers == [SLAVE]
