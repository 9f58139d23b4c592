"""Bugs in the nodes of a DLedger group, outside the Raft core, that the simulator of whole nodes or a test must find."""

# ruff: noqa: ARG005 - a mutant has the parameters of what it replaces

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import attrs

from ledgermq.broker.registration import Registration
from ledgermq.broker.tables.locks import QueueLocks
from ledgermq.broker.tables.table_log import TableLog
from ledgermq.broker.tables.tables import Tables
from ledgermq.ha.dledger.commitlog import DLedgerCommitLog
from ledgermq.ha.dledger.disk_tasks import DiskTasks
from ledgermq.ha.dledger.ledger.ledger import Ledger
from ledgermq.ha.dledger.log_reader import LedgerReader
from ledgermq.ha.dledger.native.links import Links
from ledgermq.ha.dledger.outcomes import Outcome as Stored
from ledgermq.ha.dledger.settings import NATIVE
from ledgermq.ha.raft import quorum
from ledgermq.store.log.pending import PendingPuts
from ledgermq.store.message_store import MessageStore

from .outcome import Outcome
from .simulate.dledger import DLedgerDraw, simulate_dledger
from .store_mutants import append_before_the_removal_is_synced, do_nothing, found_by


def with_workloads(*workloads: str) -> Callable[[int], Outcome]:
    """The simulator of whole nodes of a group, with only these workloads."""

    def mend(draw: DLedgerDraw) -> DLedgerDraw:
        return attrs.evolve(draw, workloads=workloads)

    return lambda seed: simulate_dledger(seed, mend)


def _count_unsynced(*, on_leader: bool) -> Callable[[Any], Any]:
    """Count written entries as synced at once, on the leader or on the followers."""

    def make(original: Any) -> Any:
        def written(self: Any) -> None:
            if (self.core.leadership is not None) == on_leader:
                self.core.persisted(self.core.sync_point())
            original(self)

        return written

    return make


def _acknowledge_when_deposed(original: Any) -> Any:
    def fail(self: Any, outcome: Any) -> None:
        original(self, self.reached if outcome is Stored.TERM_CHANGED else outcome)

    return fail


def _serve_beyond_commit(_: Any) -> Any:
    return property(attrgetter("max_offset"))


def _repeat_an_offset(original: Any) -> Any:
    def next_offsets_of(self: Any, keys: Any) -> Any:
        return {key: max(offset - 1, 0) for key, offset in original(self, keys).items()}

    return next_offsets_of


def _commit_what_one_node_has(_: Any) -> Callable[[Any, Any], int]:
    return lambda match, configuration: max(match.values())


def _pass_over_tables(_: Any) -> Callable[..., None]:
    def apply(self: Any, control: Any, now: float, *lacks: Any) -> None:
        """Leave all tables as they are."""

    return apply


def _state_in_one_turn(_: Any) -> Any:
    async def state(self: Any, offset: int) -> None:
        if not self.tables.in_log or offset > self.tables.stated_from:
            for append in self._statement():
                append()
            await self.store.event_done(self.changed_end)

    return state


async def _state_nothing(_self: Any, _offset: int) -> None:
    """Append no tables before their events expire."""


def _pass_over_leases(_: Any) -> Callable[[Any, Any, float], None]:
    return lambda self, rows, now: None


def _fill_nobody(_: Any) -> Callable[[Any, Any], None]:
    return lambda self, peer: None


def _register_without_the_term(_: Any) -> Any:
    return property(lambda self: self.topics.version)


def _register_at_the_next_period(_: Any) -> Callable[[Any], None]:
    return lambda self: None


def with_large_tables(seed: int) -> Outcome:
    """The simulator of whole nodes of a group whose tables are large, without clients that look at more than queues."""
    return simulate_dledger(seed, lambda draw: attrs.evolve(draw, workloads=("plain", "pulls"), older_offsets=20_000))


def with_expiry(seed: int) -> Outcome:
    """The simulator of whole nodes of a group whose messages expire, without clients that look at more than queues."""
    workloads = ("plain", "pulls")
    return simulate_dledger(seed, lambda draw: attrs.evolve(draw, workloads=workloads, dialect=NATIVE).expiring())


QUEUES = with_workloads("plain", "pulls")
TABLES = with_workloads("plain", "groups")
DLEDGER_BUGS: tuple[tuple[str, Any, str, Callable[[Any], Any], Callable[[int], Outcome]], ...] = (
    ("dledger: count the leader before its sync", DiskTasks, "written", _count_unsynced(on_leader=True), QUEUES),
    ("dledger: count followers before their sync", DiskTasks, "written", _count_unsynced(on_leader=False), QUEUES),
    (
        "dledger: append before the removal of a failed append is synced",
        Ledger,
        "_withdraw",
        append_before_the_removal_is_synced,
        found_by("ha/dledger/test_recovery.py"),
    ),
    (
        "dledger: answer no leader that is no member here",
        Links,
        "_dial_back",
        do_nothing,
        found_by("ha/dledger/test_replica.py"),
    ),
    ("dledger: acknowledge when deposed", PendingPuts, "fail", _acknowledge_when_deposed, QUEUES),
    ("dledger: serve beyond the commit", DLedgerCommitLog, "readable_offset", _serve_beyond_commit, QUEUES),
    ("dledger: give out a queue offset again", MessageStore, "_next_offsets_of", _repeat_an_offset, QUEUES),
    ("dledger: commit what one node has", quorum, "committed_index", _commit_what_one_node_has, QUEUES),
    ("dledger: pass over tables in the log", Tables, "apply", _pass_over_tables, TABLES),
    ("dledger: append large tables in one turn", TableLog, "state", _state_in_one_turn, with_large_tables),
    ("dledger: let tables expire", TableLog, "state", lambda _: _state_nothing, with_expiry),
    ("dledger: fill no node that was away for too long", LedgerReader, "snapshot", _fill_nobody, with_expiry),
    ("dledger: pass over leases in the log", QueueLocks, "apply", _pass_over_leases, with_workloads("plain", "ordered")),
    ("dledger: register without the term", Registration, "_version", _register_without_the_term, QUEUES),
    ("dledger: register at the next period", Registration, "register_again", _register_at_the_next_period, QUEUES),
)
"""Name, class or module, attribute, the function that makes the faulty replacement, and the simulator or tests that must find
it."""
