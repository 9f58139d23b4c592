"""Planted bugs in the failover of a pair of brokers, and in what a broker trusts when it starts."""

# ruff: noqa: ARG005 - a mutant has the parameters of what it replaces

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import attrs

from ledgermq.broker.tables.locks import QueueLocks
from ledgermq.ha.classic.epochs import EpochList
from ledgermq.ha.classic.slave import HAClient
from ledgermq.store.derived.index_file import HEADER, IndexFile
from ledgermq.store.derived.index_slots import SLOT
from ledgermq.store.recovery.checkpointing import CheckpointKeeper
from ledgermq.testing.history import End

from .outcome import Outcome
from .simulate.cluster import simulate_cluster
from .simulate.cluster_draw import ClusterDraw
from .simulate.store import simulate_store
from .simulate.surroundings import NO_TROUBLE
from .store_mutants import found_by

Make = Callable[[Any], Any]


def _accept_every_loss(_: Any) -> Callable[[Any, int, int, int, int], None]:
    return lambda self, start, end, confirmed_end, promised_end: None


def _give_locks_at_once(_: Any) -> Callable[[Any], None]:
    return lambda self: None


def _remember_nothing_at_once(_: Any) -> Callable[[Any], None]:
    return lambda self: None


def _name_all_epochs_alike(original: Any) -> Callable[..., Any]:
    def begun(self: Any, log_start: int, log_end: int, writer: bytes, *rest: Any) -> Any:
        return original(self, log_start, log_end, bytes(len(writer)), *rest)

    return begun


def _trust_every_slot(original: Any) -> Callable[[Any, int], None]:
    def rewind(self: Any, next_entry: int) -> None:
        size = self.slot_count * SLOT.size
        slots = bytes(self.view[HEADER.size : HEADER.size + size])
        original(self, next_entry)
        self.file.write(array("B", slots), HEADER.size)

    return rewind


def _drawn(**changes: Any) -> Callable[[int], Outcome]:
    """The simulator of whole nodes, with pairs whose operators resolve every loss."""

    def mend(draw: ClusterDraw) -> ClusterDraw:
        pair = attrs.evolve(draw, nodes=2, sync_master=True, in_sync_replicas=2, accepts_loss=False, around=NO_TROUBLE)
        return attrs.evolve(pair, **changes)

    return lambda seed: simulate_cluster(seed, mend)


PAIR_BUGS: tuple[tuple[str, Any, str, Make, Callable[[int], Outcome]], ...] = (
    ("drop what a shorter master lacks", HAClient, "_refuse_loss", _accept_every_loss, _drawn(restores=True)),
    (
        "believe an old readable limit",
        CheckpointKeeper,
        "note_readable",
        _remember_nothing_at_once,
        _drawn(
            restores=True,
            sync_flush=True,
            slaves_sync_flush=True,
            life_seconds=10.0,
            lives=4,
            ends=(End.KILL,) * 4,
            outage_seconds=(0.5,) * 4,
            workloads=("plain",),
        ),
    ),
    (
        "give locks at once after a promotion",
        QueueLocks,
        "follow",
        _give_locks_at_once,
        found_by("broker/test_locks.py"),
    ),
    (
        "name all epochs alike",
        EpochList,
        "begun",
        _name_all_epochs_alike,
        _drawn(restores=True, workloads=("plain", "concurrent")),
    ),
    ("trust every slot of the index after a power cut", IndexFile, "rewind", _trust_every_slot, simulate_store),
)
"""Name, owner, attribute, the function that makes the faulty replacement, and the simulator that must find it."""
