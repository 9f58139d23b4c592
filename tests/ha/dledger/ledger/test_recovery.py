"""Power cuts at every call to the disk: what was synced is there, what is there is the log, and the start never fails."""

from __future__ import annotations

import contextlib
import errno
import random
from typing import Any, cast

import attrs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledgermq.ha.dledger.ledger.ledger import Ledger
from ledgermq.store.errors import NotWritable
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.medium import SECTOR

from ..ledgers import FILE_SIZE, clear, content, force, message, open_small

Entry = tuple[int, int, bytes]


class PowerCutError(Exception):
    """The machine went off in the middle of a call."""


@attrs.define(eq=False)
class Fuse:
    """Counts the calls that change the medium, and ends the machine at one of them."""

    calls_left: int

    def burn(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise PowerCutError


@attrs.define(eq=False)
class Fused:
    """A disk or a file whose changes burn the fuse first."""

    inner: Any
    fuse: Fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in ("open", "write", "sync", "clear", "remove", "replace", "sync_directory"):
            return found

        def change(*args: Any, **named: Any) -> Any:
            self.fuse.burn()
            made = found(*args, **named)
            return Fused(made, self.fuse) if name == "open" else made

        return change


def fused(disk: SimDisk, fuse: Fuse) -> SimDisk:
    """The same disk with a fuse."""
    return cast("SimDisk", Fused(disk, fuse))


@attrs.define(eq=False)
class Model:
    """What the log is, and how much of it must survive."""

    log: list[Entry] = attrs.field(factory=list[Entry])
    safe: int = 0
    """So many entries are on the medium."""
    longest: list[Entry] = attrs.field(factory=list[Entry])
    """What may be found besides `log`: the log as it was before the call that was cut short, or as it was to be."""


def append(ledger: Ledger, model: Model, number: int) -> None:
    term = max(ledger.end_term, 0) + number % 2
    records = [message(number + at, number % 1700) for at in range(1 + number % 3)]
    model.longest = model.log + [(len(model.log) + at, term, record) for at, record in enumerate(records)]
    ledger.append(term, records)
    model.log = content(ledger)


def sync(ledger: Ledger, model: Model, number: int) -> None:
    force(ledger)
    model.safe = len(model.log)


def checkpoint(ledger: Ledger, model: Model, number: int) -> None:
    ledger.commit(ledger.synced_index - number % 5)
    ledger.write_checkpoint()


def truncate(ledger: Ledger, model: Model, number: int) -> None:
    index = max(ledger.committed_index + 1, ledger.end_index - number % 7)
    model.longest, model.safe = model.log, min(model.safe, index)
    ledger.truncate(index)
    model.log = model.log[:index]


OPERATIONS = {"append": append, "sync": sync, "checkpoint": checkpoint, "truncate": truncate}
operations = st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 4000)), min_size=1, max_size=14)


def without_place(entries: list[Entry]) -> list[tuple[int, int, bytes]]:
    """Entries whose messages do not name their place, as they were handed to the ledger."""
    return [(index, term, body[:28] + bytes(8) + body[36:]) for index, term, body in entries]


@settings(max_examples=400, deadline=None)
@given(operations, st.integers(0, 60), st.integers(0, 1 << 32), st.booleans(), st.integers(0, 25))
@example([("append", 1), ("truncate", 3), ("append", 0), ("append", 9)], 15, 7, True, 3)
def test_what_was_synced_survives_a_power_cut(
    steps: list[tuple[str, int]], calls: int, seed: int, at_edges: bool, recovery_calls: int
) -> None:
    """Whatever call the cut comes in, that of a recovery too; and no torn entry is taken for one."""
    disk, model = SimDisk(random.Random(seed)), Model()
    try:
        ledger = open_small(fused(disk, Fuse(calls)))
        for name, number in steps:
            OPERATIONS[name](ledger, model, number)
        model.longest = model.log
    except PowerCutError:
        pass
    disk = disk.power_cut(seed, at_edges=at_edges)
    try:
        open_small(fused(disk, Fuse(recovery_calls)))
    except PowerCutError:
        disk = disk.power_cut(seed + 1, at_edges=at_edges)
    else:
        disk = disk.kill()

    found = content(open_small(disk))
    assert len(found) >= model.safe
    longest = model.longest if len(model.longest) > len(model.log) else model.log
    assert without_place(found) == without_place(longest)[: len(found)]
    disk = disk.power_cut(seed + 2)
    assert content(open_small(disk)) == found


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 40), st.integers(0, 1 << 32))
def test_an_index_that_a_power_cut_left_half_made_is_made_again(calls: int, seed: int) -> None:
    """The checkpoint may name an entry whose index record survived, while records before it did not."""
    disk = SimDisk(random.Random(seed))
    ledger, model = open_small(disk), Model()
    for number in range(30):
        append(ledger, model, number)
    sync(ledger, model, 0)
    checkpoint(ledger, model, 0)
    ledger.close()
    disk.remove_tree("store/dledger-n0/index")
    disk.sync_directory("store/dledger-n0")
    with contextlib.suppress(PowerCutError):
        ledger = open_small(fused(disk, Fuse(calls)))
        append(ledger, model, 7)
    disk = disk.power_cut(seed)

    found = open_small(disk)

    assert content(found)[: model.safe] == model.log[: model.safe]
    assert found.end_index >= model.safe - 1


@settings(max_examples=150, deadline=None)
@given(operations, st.integers(0, 60), st.integers(0, 1 << 32))
def test_a_killed_process_loses_nothing(steps: list[tuple[str, int]], calls: int, seed: int) -> None:
    """The page cache holds every entry whose append has returned."""
    disk, model = SimDisk(random.Random(seed)), Model()
    try:
        ledger = open_small(fused(disk, Fuse(calls)))
        for name, number in steps:
            OPERATIONS[name](ledger, model, number)
        model.longest = model.log
    except PowerCutError:
        pass
    found = content(open_small(disk.kill()))

    shorter = min(len(model.log), len(model.longest))
    assert len(found) >= shorter or len(found) >= model.safe
    longest = model.longest if len(model.longest) > len(model.log) else model.log
    assert without_place(found) == without_place(longest)[: len(found)]


@settings(max_examples=100, deadline=None)
@given(operations, st.integers(0, 1 << 32), st.floats(0.05, 0.5))
def test_an_append_that_the_disk_refused_leaves_nothing(steps: list[tuple[str, int]], seed: int, error: float) -> None:
    """The log goes on as if it had never been tried, and a restart finds no trace of it."""
    disk, model = SimDisk(random.Random(seed)), Model()
    ledger = open_small(disk)
    for name, number in steps:
        disk.faults.write_error = error if name == "append" else 0.0
        try:
            OPERATIONS[name](ledger, model, number)
        except OSError:
            assert content(ledger) == model.log
            disk.faults.write_error = 0.0
            ledger.heal()
        model.longest = model.log
    disk.faults.write_error = 0.0

    assert content(ledger) == model.log
    assert content(open_small(disk.kill())) == model.log


@pytest.mark.parametrize("sync_error", [0.0, 0.5])
def test_a_refused_entry_does_not_come_back_in_place_of_its_successor(sync_error: float) -> None:
    """Both have the same index and term, so no other node, which has the successor, would notice the difference."""
    refused, successor = message(1, 1500), message(2, 1500)
    lost = 0
    for seed in range(60):
        disk = SimDisk(random.Random(seed))
        ledger = open_small(disk)
        ledger.append(1, [message(0)])
        force(ledger)
        disk.faults.write_error = 1.0
        with pytest.raises(OSError, match="Input/output"):
            ledger.append(1, [refused])
        disk.faults.write_error, disk.faults.sync_error = 0.0, sync_error
        for _ in range(20):
            with contextlib.suppress(NotWritable):
                ledger.append(1, [successor])
                break
            with contextlib.suppress(OSError):
                ledger.heal()

        disk.faults.calm()
        cut = disk.power_cut(seed)
        read = cut.open(f"store/dledger-n0/data/{0:020}").read(ledger.end_of(0), 1600)
        found = content(open_small(cut))

        assert not {body[100:] for _, _, body in found[1:]} - {successor[100:]}
        # The removal is certain before the successor is written: each sector is a new one or empty.
        assert all(not any(part) or part in bytes(ledger.data.files[0].view) for part in _sectors(read, ledger.end_of(0)))
        lost += len(found) == 1
    assert 0 < lost < 60, "no power cut has hit the successor, so this test shows nothing"


def _sectors(read: bytes, start: int) -> list[bytes]:
    """The parts of `read`, which begins at position `start`, by the sector of the medium."""
    first = -start % SECTOR
    return [read[:first], *(read[at : at + SECTOR] for at in range(first, len(read), SECTOR))]


def synced(disk: SimDisk, committed: int) -> Ledger:
    """A ledger with 60 entries on the medium, and a checkpoint."""
    ledger = open_small(disk)
    ledger.append(1, [message(number) for number in range(60)])
    force(ledger)
    ledger.commit(committed)
    ledger.write_checkpoint()
    return ledger


@pytest.mark.parametrize("begin", [45, 1000])
@pytest.mark.parametrize("how", ["kill", "power_cut"])
def test_a_ledger_whose_clearing_was_interrupted_is_whole_or_begins_anew(how: str, begin: int) -> None:
    """Whatever call the end comes in: else the node would not start again until an operator empties its store."""
    found = set[int]()
    for calls in range(30):
        disk = SimDisk(random.Random(calls))
        ledger = synced(disk, committed=40)
        before = content(ledger)
        fuse = Fuse(1000)
        ledger = open_small(fused(disk, fuse))
        fuse.calls_left = calls
        with contextlib.suppress(PowerCutError):
            clear(ledger, begin, 7 * FILE_SIZE, 3, [(40, b"group")])

        disk = disk.kill() if how == "kill" else disk.power_cut(calls)
        ledger = open_small(disk)

        found.add(ledger.begin_index)
        if ledger.begin_index == 0:
            assert content(ledger) == before
        else:
            end = ledger.end_index, ledger.end_position, ledger.end_term
            assert (ledger.begin_index, *end) == (begin, begin - 1, 7 * FILE_SIZE, 3)
            assert ledger.configurations == [(40, b"group")]
            assert not ledger.data.files
    assert found == {0, begin}


@attrs.define(eq=False)
class Refusal(Fuse):
    """Lets one call fail, and none after it."""

    def burn(self) -> None:
        self.calls_left -= 1
        if self.calls_left == -1:
            raise OSError(errno.EIO, "refused")


@pytest.mark.parametrize("cut", ["truncate", "clear"])
def test_a_node_starts_again_whose_disk_refused_a_cut(cut: str) -> None:
    """Whatever call it was; a checkpoint and the repair of a failed sync are tried before the cut is repeated."""
    for calls in range(30):
        disk = SimDisk(random.Random(calls))
        synced(disk, committed=3)
        refusal = Refusal(1000)
        ledger = open_small(fused(disk, refusal))
        ledger.append(1, [message(60)])
        before = content(ledger)
        refusal.calls_left = calls
        with contextlib.suppress(OSError):
            if cut == "truncate":
                ledger.truncate(10)
            else:
                clear(ledger, 1000, 7 * FILE_SIZE, 3)
        for meanwhile in (ledger.write_checkpoint, ledger.heal):
            with contextlib.suppress(OSError):
                meanwhile()

        ledger = open_small(disk.kill())

        if ledger.begin_index == 0:
            assert ledger.end_index >= 9
            assert content(ledger) == before[: ledger.end_index + 1]
        else:
            assert (cut, ledger.begin_index, ledger.end_index) == ("clear", 1000, 999)


def test_a_ledger_that_began_anew_starts_again_though_its_first_entry_is_lost() -> None:
    """Its first file is there without an entry; the checkpoint says which one must come."""
    lost = 0
    for seed in range(30):
        disk = SimDisk(random.Random(seed))
        ledger = open_small(disk)
        clear(ledger, 1000, 7 * FILE_SIZE, 3, [(40, b"group")])
        ledger.append(4, [message(0, 1500)])

        disk = disk.power_cut(seed)
        lost += disk.exists(ledger.data.files[0].path)
        ledger = open_small(disk)
        lost -= ledger.end_index == 1000

        assert (ledger.begin_index, ledger.term_of(999), ledger.configurations) == (1000, 3, [(40, b"group")])
        if ledger.empty:
            placed = ledger.append(4, [message(0, 1500)])
            assert (placed.first_index, placed.start) == (1000, 7 * FILE_SIZE)
            force(ledger)
            assert open_small(disk.power_cut(seed)).end_index == 1000
    assert lost, "no power cut has lost the entry alone, so this test shows nothing"
