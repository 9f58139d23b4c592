"""The caller of a state machine: every committed entry once, in order, over snapshots."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from harness.raft.state_machine import StateMachineCaller
from harness.raft.storage import MemoryStorage
from ledgermq.ha.raft.batch import Batch, Snapshot
from ledgermq.ha.raft.log import RaftLog
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.ready import CommittedRange, Ready
from ledgermq.ha.raft.units import PeerId

GROUP = Configuration((PeerId("a"),))


@attrs.define
class Register:
    """Remembers every value it was given."""

    values: list[Any] = attrs.field(factory=list[Any])

    def apply(self, batch: Batch) -> None:
        self.values.extend(value for _, value in batch.payload)

    def save(self) -> list[Any]:
        return list(self.values)

    def load(self, snapshot: Snapshot) -> None:
        self.values = list(snapshot.payload)


def a_storage(*values: str) -> MemoryStorage:
    storage = MemoryStorage(GROUP)
    storage.append(tuple((1, value) for value in values))
    storage.sync()
    return storage


def test_committed_entries_are_applied_once_and_in_order() -> None:
    machine = Register()
    caller = StateMachineCaller(machine, a_storage("x", "y", "z"), -1)

    caller.obey(Ready(committed=CommittedRange(0, 1)))
    caller.obey(Ready(committed=CommittedRange(2, 2)))

    assert machine.values == ["x", "y", "z"]
    assert caller.applied_index == 2


def test_range_that_repeats_an_entry_is_refused() -> None:
    caller = StateMachineCaller(Register(), a_storage("x", "y"), -1)
    caller.obey(Ready(committed=CommittedRange(0, 1)))

    with pytest.raises(AssertionError, match="do not follow the last applied 1"):
        caller.obey(Ready(committed=CommittedRange(1, 1)))


def test_snapshot_of_one_machine_continues_another() -> None:
    storage = a_storage("x", "y", "z")
    caller = StateMachineCaller(Register(), storage, -1)
    caller.obey(Ready(committed=CommittedRange(0, 1)))
    snapshot = caller.take_snapshot(RaftLog.of(storage.log_state()))
    assert snapshot == Snapshot(1, 1, GROUP, ["x", "y"])

    other = Register()
    following = StateMachineCaller(other, storage, -1)
    following.obey(Ready(snapshot=snapshot, committed=CommittedRange(2, 2)))

    assert other.values == ["x", "y", "z"]
