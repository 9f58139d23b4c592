"""`python -m harness.mutants`: plant known bugs, one at a time, and count the seeds until the simulator finds each.

This tests the simulator itself: every mutant must be found within `SEEDS_MAX` seeds.
"""

# ruff: noqa: ARG001, ARG005 - a mutant has the parameters of what it replaces

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import inf
from operator import attrgetter
from typing import Any

import attrs
import trio

from ledgermq.broker import delay
from ledgermq.broker.requests import retry
from ledgermq.broker.requests.hold import HeldPulls
from ledgermq.broker.tables.groups import GroupTable
from ledgermq.broker.tables.offsets import ConsumerOffsets
from ledgermq.broker.tables.resets import PendingResets
from ledgermq.client.redelivery import Redelivery
from ledgermq.ha.classic.acks import Acknowledgements
from ledgermq.ha.classic.commitlog import ClassicCommitLog
from ledgermq.message.layout import decode_record
from ledgermq.store import message_store
from ledgermq.store.derived.consumequeue import ConsumeQueue
from ledgermq.store.derived.events import LogEvents
from ledgermq.store.derived.index import IndexFiles
from ledgermq.store.derived.index_file import IndexFile
from ledgermq.store.derived.index_slots import SlotTable
from ledgermq.store.log import local_recovery
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.log.segments import Segments
from ledgermq.store.put_side import PutSide
from ledgermq.store.read_side import ReadSide
from ledgermq.store.recovery import recovery
from ledgermq.store.statuses import PutStatus
from ledgermq.world.events import ROOT_LOGGER

from .client_mutants import CLIENT_BUGS, WIDE_BUGS, end_a_reset_with_the_first_who_follows
from .controller_mutants import CONTROLLER_BUGS
from .dledger_mutants import DLEDGER_BUGS
from .elected_mutants import ELECTED_BUGS
from .numbered_mutants import NUMBERED_BUGS
from .outcome import Outcome
from .pair_mutants import PAIR_BUGS
from .raft.mutants import RAFT_BUGS
from .raft.simulate import simulate_raft
from .simulate.cluster import simulate_cluster
from .simulate.cluster_draw import ClusterDraw
from .simulate.cores import simulate_cores
from .simulate.store import simulate_store
from .simulate.surroundings import Surroundings
from .store_mutants import PLANTED, found_by
from .table_mutants import TABLE_BUGS

SEEDS_MAX = 1000
SECONDS_MAX = 300.0
MISFITS = ("TypeError:", "AttributeError:")
"""Violations of a planted bug that has not followed a change of the code around it."""


class BrokenMutant(Exception):
    """A planted bug fails by itself."""


@attrs.frozen
class Mutant:
    """One planted bug: an attribute of a class or module, and the function that makes its replacement."""

    name: str
    owner: Any
    attribute: str
    make: Callable[[Any], Any]
    simulate: Callable[[int], Outcome] = simulate_store
    """The simulator that must find it."""

    @contextmanager
    def planted(self) -> Generator[None]:
        """Plant the bug for the length of a `with` block."""
        original: Any = self.owner.__dict__[self.attribute]
        setattr(self.owner, self.attribute, self.make(original))
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, original)


def _ack_before_sync(_: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda self, end, done: done(PutStatus.PUT_OK)


def _ignore_a_failed_sync(_: Any) -> Callable[[Any, Any], Any]:
    return lambda self, reason: None


def _sync_only_for_answers(original: Any) -> Any:
    async def flush(self: Any) -> None:
        await trio.lowlevel.checkpoint()
        if self.sync_flush:
            await original(self)

    return flush


def _reuse_queue_offsets(original: Any) -> Callable[[Any], Any]:
    return lambda queues: {key: max(offset - 1, 0) for key, offset in original(queues).items()}


def _lose_the_tail(original: Any) -> Any:
    def read_back(commit_log: Any, dispatcher: Any, start: int, evidence: Any, order: Any) -> Any:
        end, count = original(commit_log, dispatcher, start, evidence, order)
        return (start, 0) if count else (end, count)

    return read_back


def _serve_unsynced_bytes(_: Any) -> Any:
    return property(attrgetter("max_offset"))


def _no_sync_of_queues(_: Any) -> Callable[[Any], Any]:
    return lambda self: None


def _no_sync_of_directories(original: Any) -> Any:
    def sync(self: Segments, start: int, end: int) -> None:
        self.created = False
        original(self, start, end)

    return sync


def _no_sync_after_recovery(_: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda self, start, end: None


def _trust_every_body(original: Any) -> Any:
    def read_back(self: Any, start: int, evidence: Any) -> Any:
        return original(self, start, attrs.evolve(evidence, check_crc=False))

    return read_back


def _trust_every_end(_: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda segments, offset, size: False


def _miss_properties_that_are_not_there(original: Any) -> Callable[[Any, Any, Any], Any]:
    def lacks_a_sector(segments: Any, offset: int, size: int) -> Any:
        beyond = (offset + size) % local_recovery.SECTOR
        segment = segments.find(offset)
        end = segment.view[: offset - segment.start + size][-beyond:]
        return original(segments, offset, size) or (beyond in (1, 2) and not any(end))

    return lacks_a_sector


def _leave_a_failed_append(_: Any) -> Any:
    def clear_withdrawn(self: Any, until: int) -> None:
        self._withdrawn.clear()

    return clear_withdrawn


def _keep_no_deletion(_: Any) -> Any:
    async def to_json(self: Any) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"deletedQueues": {}}

    return to_json


def _restart_offsets(original: Any) -> Callable[[Any, Any], Any]:
    def next_offsets_of(self: Any, topic: str) -> Any:
        offsets = original(self, topic)
        for queue_id in offsets:
            self.next_offsets[topic, queue_id] = 0
        return offsets

    return next_offsets_of


def _pass_over_events(_: Any) -> Callable[[Any, Any, Any], bool]:
    return lambda self, physical_offset, size: True


def _forget_a_key(original: Any) -> Callable[[Any, Any], Any]:
    return lambda self, entries: original(self, entries[1:] if len(entries) > 3 else entries)


def _no_sync_of_index(_: Any) -> Any:
    def sync(self: IndexFile) -> None:
        self.synced_entry = self.next_entry

    return sync


def _keep_torn_queues(_: Any) -> Callable[[Any, Any], Any]:
    return lambda self, physical_offset: None


def _keep_queue_offsets(_: Any) -> Any:
    def take_back(self: Any, messages: Any, queue_offsets: Any) -> None:
        pass

    return take_back


def _forget_a_page(original: Any) -> Any:
    def look_through(self: Any) -> None:
        original(self)
        self._changed_pages.discard(max(self._changed_pages, default=0))

    return look_through


def _accept_any_report(original: Any) -> Callable[[Any, Any, int], None]:
    return lambda self, slave, offset: original(self, slave, max(offset, self._last_end))


def _count_a_slave_twice(original: Any) -> Any:
    def hold(self: Any, slave: Any, offset: int) -> None:
        original(self, (slave, offset % 2), offset)

    return hold


def _confirm_beyond_the_slowest(_: Any) -> Any:
    def hold(self: Any, slave: Any, offset: int) -> None:
        self._held[slave] = offset
        self.confirmed = max(self.confirmed, offset)
        self._pending.reach(self.confirmed)

    return hold


def _forget_an_offset(original: Any) -> Any:
    def load(self: Any, stored: Any) -> None:
        original(self, stored)
        if len(self.table) > 2:
            self.table.topics.popitem()

    return load


def _forget_offsets(original: Any) -> Any:
    def load(self: Any, stored: Any) -> None:
        original(self, stored)
        self.table.topics.clear()

    return load


def _drop_a_stranger(original: Any) -> Any:
    def drop(self: Any, owner: Any) -> int:
        others: list[Any] = [other for other in self._owners if other != owner]
        return int(original(self, owner)) + (int(original(self, others[0])) if others else 0)

    return drop


def _keep_waiters_of_the_closed(_: Any) -> Callable[[Any, Any], int]:
    return lambda self, owner: 0


def _deliver_early(_: Any) -> Callable[[Any, int, int], int]:
    return lambda self, due_ms, now_ms: min(due_ms, now_ms)


def _lose_some_delayed_messages(original: Any) -> Callable[[Any], Any]:
    def delivery_of(record: Any) -> Any:
        message = original(record)
        return None if message is not None and bytes(message.body).startswith(b"3") else message

    return delivery_of


def _show_what_the_master_may_lose(_: Any) -> Any:
    return property(lambda self: self.flushed_offset if self.sync_flush else self.max_offset)


def _answer_without_slaves(_: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda self, end, done: self.inner.when_stored(end, done)


def _drop_dead_letters(original: Any) -> Any:
    def handle(self: Any, connection: Any, request: Any) -> Any:
        stored = decode_record(self.store.message_at(request.integer("offset")))
        group = self.groups.find(request.text("group"))
        if stored.reconsume_times >= retry.retries_max(group, request):
            return request.response()
        return original(self, connection, request)

    return handle


def _give_up_early(original: Any) -> Callable[[Any, Any], int]:
    return lambda group, request: original(group, request) - 1


def _try_for_ever(original: Any) -> Callable[[Any, Any], int]:
    return lambda group, request: 1 << 30


def _deliver_backwards(original: Any) -> Any:
    def get(self: Any, topic: str, queue_id: int, offset: int, *rest: Any, **options: Any) -> Any:
        result = original(self, topic, queue_id, offset, *rest, **options)
        if len(result.slices) > 2 and not topic.startswith("%"):
            result.slices[0], result.slices[1] = result.slices[1], result.slices[0]
        return result

    return get


def _skip_a_message(original: Any) -> Any:
    def get(self: Any, topic: str, queue_id: int, offset: int, *rest: Any, **options: Any) -> Any:
        result = original(self, topic, queue_id, offset, *rest, **options)
        if len(result.slices) > 2:
            del result.slices[1]
        return result

    return get


def _with(*workloads: str) -> Callable[[int], Outcome]:
    """The simulator of whole nodes with only these workloads."""
    return lambda seed: simulate_cluster(seed, lambda draw: attrs.evolve(draw, workloads=workloads))


def _widely_with(*workloads: str) -> Callable[[int], Outcome]:
    """The same simulator with failing name servers and networks, of which one path always works."""

    def mend(draw: ClusterDraw) -> ClusterDraw:
        around = Surroundings.of(random.Random(draw.seed))  # noqa: S311 - never secrets
        around = attrs.evolve(around, spare=True, name_servers=max(around.name_servers, 2))
        return attrs.evolve(draw, workloads=("plain", *workloads), around=around, promotes=False)

    return lambda seed: simulate_cluster(seed, mend)


def _keep_deleted_messages(_: Any) -> Callable[[Any, Any], None]:
    return lambda self, deletion: None


def _forget_groups(original: Any) -> Callable[[Any, Any], None]:
    return lambda self, stored: original(self, {})


def _acknowledge_failed_messages(_: Any) -> Any:
    async def retry(self: Any, source: Any, message: Any, delay_level: int) -> None:
        await trio.lowlevel.checkpoint()
        if source.assigned.give_back(message):
            source.assigned.finish(message)

    return retry


FOUND_BY_TESTS = {
    "raft: remember with a part of the log": found_by("ha/raft/test_forgetting.py"),
    "believe a slave that knows no offset": found_by("client/test_queue_keeping.py"),
    "keep a silent connection": found_by("client/test_session.py"),
}
"""Bugs for which a directed test takes the place of drawn runs, of which too many would be needed."""
MUTANTS = (
    Mutant("ack before sync", LocalCommitLog, "when_stored", _ack_before_sync),
    Mutant("go on after a failed sync", LocalCommitLog, "_stop", _ignore_a_failed_sync),
    Mutant("reuse a queue offset after restart", message_store, "queue_offsets_of", _reuse_queue_offsets),
    Mutant("lose the tail on recovery", recovery, "_read_back", _lose_the_tail),
    Mutant("serve bytes not yet on the medium", LocalCommitLog, "readable_offset", _serve_unsynced_bytes),
    Mutant("trust bodies without their CRC", LocalCommitLog, "read_back", _trust_every_body),
    Mutant("trust the end of a record without looking", local_recovery, "_lacks_a_sector", _trust_every_end),
    Mutant("miss properties that are not there", local_recovery, "_lacks_a_sector", _miss_properties_that_are_not_there),
    Mutant("do not sync what recovery read back", LocalCommitLog, "rewrite", _no_sync_after_recovery),
    Mutant("do not sync directories", Segments, "sync", _no_sync_of_directories),
    Mutant("do not sync consume queues", ConsumeQueue, "sync", _no_sync_of_queues),
    Mutant("keep queue units behind the mark", ConsumeQueue, "truncate", _keep_torn_queues),
    Mutant("leave the bytes of a failed append", LocalCommitLog, "_clear_withdrawn", _leave_a_failed_append),
    Mutant("keep the queue offsets of a failed append", PutSide, "_take_back", _keep_queue_offsets),
    Mutant("forget a key of a batch", IndexFiles, "put_batch", _forget_a_key),
    Mutant("forget a changed page of the index", SlotTable, "_look_through", _forget_a_page),
    Mutant("call an index file forced that is not", IndexFile, "sync", _no_sync_of_index),
    Mutant("do not write deletions down", LogEvents, "to_json", _keep_no_deletion),
    Mutant("begin at 0 again after a deletion", PutSide, "next_offsets_of", _restart_offsets),
    Mutant("pass over deletions", LogEvents, "apply", _pass_over_events),
    Mutant("accept any HA report", Acknowledgements, "hold", _accept_any_report, simulate_cores),
    Mutant("count one slave twice", Acknowledgements, "hold", _count_a_slave_twice, simulate_cores),
    Mutant("take the fastest slave for all", Acknowledgements, "hold", _confirm_beyond_the_slowest, simulate_cores),
    Mutant("forget a consumer offset on restart", ConsumerOffsets, "load", _forget_an_offset, simulate_cores),
    Mutant("drop a waiter when another connection closes", HeldPulls, "drop", _drop_a_stranger, simulate_cores),
    Mutant("keep the waiters of a closed connection", HeldPulls, "drop", _keep_waiters_of_the_closed, simulate_cores),
    Mutant("deliver a delayed message early", vars(delay)["_Level"], "due_of", _deliver_early, simulate_cluster),
    Mutant("sync only before answers", LocalCommitLog, "flush", _sync_only_for_answers, simulate_cluster),
    Mutant(
        "show what the master may lose", LocalCommitLog, "readable_offset", _show_what_the_master_may_lose, simulate_cluster
    ),
    Mutant("answer before slaves hold it", ClassicCommitLog, "when_stored", _answer_without_slaves, simulate_cluster),
    Mutant("ask the fastest of three nodes", Acknowledgements, "hold", _confirm_beyond_the_slowest, simulate_cluster),
    Mutant("forget all offsets on restart", ConsumerOffsets, "load", _forget_offsets, simulate_cluster),
    Mutant("drop dead letters", retry.SendBack, "handle", _drop_dead_letters, simulate_cluster),
    Mutant("give up one attempt early", retry, "retries_max", _give_up_early, simulate_cluster),
    Mutant("never give up", retry, "retries_max", _try_for_ever, simulate_cluster),
    Mutant("swap two messages of an answer", ReadSide, "get", _deliver_backwards, simulate_cluster),
    Mutant("leave a message out of an answer", ReadSide, "get", _skip_a_message, simulate_cluster),
    *(
        Mutant(name, owner, attribute, make, FOUND_BY_TESTS.get(name, _with("plain", *workloads)))
        for name, owner, attribute, make, workloads in CLIENT_BUGS
    ),
    *(
        Mutant(name, owner, attribute, make, FOUND_BY_TESTS.get(name, _widely_with(*workloads)))
        for name, owner, attribute, make, workloads in WIDE_BUGS
    ),
    Mutant("lose some delayed messages", delay, "delivery_of", _lose_some_delayed_messages, _with("plain", "delayed")),
    Mutant(
        "keep the messages of a deleted topic", ConsumeQueue, "restart", _keep_deleted_messages, _with("plain", "deletions")
    ),
    Mutant(
        "end a reset with the first who follows it",
        PendingResets,
        "follow",
        end_a_reset_with_the_first_who_follows,
        _with("plain", "offsets"),
    ),
    Mutant("forget groups on restart", GroupTable, "load", _forget_groups, _with("plain", "groups")),
    Mutant("acknowledge failed messages", Redelivery, "retry", _acknowledge_failed_messages, _with("plain", "concurrent")),
    *(Mutant(*planted) for planted in PAIR_BUGS),
    *(Mutant(*planted) for planted in PLANTED),
    *(Mutant(*planted, FOUND_BY_TESTS.get(planted[0], simulate_raft)) for planted in RAFT_BUGS),
    *(Mutant(*planted) for planted in DLEDGER_BUGS),
    *(Mutant(*planted) for planted in NUMBERED_BUGS),
    *(Mutant(*planted) for planted in TABLE_BUGS),
    *(Mutant(*planted) for planted in CONTROLLER_BUGS),
    *(Mutant(*planted) for planted in ELECTED_BUGS),
)


def seeds_until_found(mutant: Mutant, seeds_max: int = SEEDS_MAX, seconds_max: float = inf) -> tuple[int, str] | None:
    """Run seeds with the bug planted; returns how many it took and the violation, or None if it was not found in that time.

    The time of the processor counts, so that a busy machine misses no bug. A seed that fails without the bug too does
    not count.

    Raises:
        BrokenMutant: what was planted does not fit what it replaces, and would be found without any checker.
    """
    started = time.process_time()
    for seed in range(seeds_max):
        if time.process_time() - started > seconds_max:
            break
        with mutant.planted():
            outcome = mutant.simulate(seed)
        if outcome.violations and any(misfit in outcome.violations[0] for misfit in MISFITS):
            raise BrokenMutant(f"{mutant.name}: {outcome.violations[0]}")
        if outcome.violations and not mutant.simulate(seed).violations:
            return seed + 1, outcome.violations[0]
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help=f"seeds after which a bug counts as missed ({SEEDS_MAX})")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_MAX, help=f"or so many seconds of the processor ({SECONDS_MAX:.0f})"
    )
    parser.add_argument("names", nargs="*", help="parts of the names of the bugs to plant (all)")
    chosen = parser.parse_args(arguments)
    logging.getLogger(ROOT_LOGGER).setLevel(logging.CRITICAL)
    missed = 0
    for mutant in MUTANTS:
        if chosen.names and not any(name in mutant.name for name in chosen.names):
            continue
        try:
            found = seeds_until_found(mutant, chosen.seeds, chosen.seconds)
        except BrokenMutant as error:
            missed, line = missed + 1, f"BROKEN {error}"
        else:
            missed += found is None
            line = "MISSED" if found is None else f"{found[0]:4} seeds  {found[1][:100]}"
        print(f"{mutant.name:44} {line}", flush=True)  # noqa: T201
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
