"""Planted bugs that once lost or hid acknowledged messages, or let one request of a stranger end, stall or fill a server.

Most of them cannot be drawn by a simulator: they need a file that is damaged at rest, an operator's command, a configuration or
a stranger's bytes. These are found by tests, which run in the process in which the bug is planted.
"""

# ruff: noqa: ARG001, ARG005 - a mutant has the parameters of what it replaces

from __future__ import annotations

import contextlib
import io
import logging
import sys
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import trio

from ledgermq.broker import config as broker_config
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.entries import EncodedEntries
from ledgermq.broker.modes.classic import ClassicReplication
from ledgermq.broker.requests.postponed_sends import PostponedSends
from ledgermq.broker.requests.pull import PullService
from ledgermq.broker.tables.commits import Commits
from ledgermq.broker.tables.offsets import ConsumerOffsets
from ledgermq.ha.classic import sync as table_sync
from ledgermq.ha.classic.acks import Acknowledgements
from ledgermq.ha.classic.master import HAService
from ledgermq.message import numbers
from ledgermq.remoting import bounds as remoting_bounds
from ledgermq.remoting.changed_settings import KeptFile
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.errors import RequestRefused
from ledgermq.remoting.server import ServerConnection
from ledgermq.store import opening
from ledgermq.store.derived import consumequeue
from ledgermq.store.derived.dispatch import Dispatcher as StoreDispatcher
from ledgermq.store.derived.index import IndexFiles
from ledgermq.store.errors import OffsetGap
from ledgermq.store.json_file import JsonFile
from ledgermq.store.keeping import cleaning, cutting
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.log.segments import Segments
from ledgermq.store.message_store import MessageStore
from ledgermq.store.read_side import ReadSide
from ledgermq.store.recovery.checkpointing import CheckpointKeeper
from ledgermq.testing.history import History
from ledgermq.world import logs
from ledgermq.world.disk import RealDisk
from ledgermq.world.events import ROOT_LOGGER

from .outcome import Outcome
from .simulate.store import simulate_store

Make = Callable[[Any], Any]
TESTS = Path(__file__).resolve().parents[1] / "tests"


@attrs.define
class _Failures:
    """Collects the names of tests that fail."""

    names: list[str] = attrs.field(factory=list[str])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)


def _is_test(module: ModuleType) -> bool:
    return str(TESTS) in str(getattr(module, "__file__", None))


@contextlib.contextmanager
def _events_logged() -> Generator[None]:
    """Log events for the length of a `with` block, as tests expect; simulators silence them."""
    logger = logging.getLogger(ROOT_LOGGER)
    before = logger.level
    logger.setLevel(logging.NOTSET)
    try:
        yield
    finally:
        logger.setLevel(before)


def found_by(*tests: str) -> Callable[[int], Outcome]:
    """Run tests, given by their place below `tests/`, in this process until one fails."""

    def run(_seed: int) -> Outcome:
        failures = _Failures()
        for name in [name for name, module in sys.modules.items() if _is_test(module)]:
            del sys.modules[name]  # it may refer to what is planted, or to what was
        with contextlib.redirect_stdout(io.StringIO()), _events_logged():
            arguments = ["-q", "-x", "-p", "no:cacheprovider", "-W", "ignore", "-m", "", *(str(TESTS / test) for test in tests)]
            pytest.main(arguments, plugins=[failures])
        return Outcome(History(sync_flush=False), [f"{name} fails" for name in failures.names])

    return run


def do_nothing(_: Any) -> Callable[..., None]:
    """The replacement of what a planted bug leaves out."""
    return lambda *_: None


def _expiring(seed: int) -> Outcome:
    """A store whose segments expire while it is read."""
    return simulate_store(seed, lambda draw: attrs.evolve(draw, expiry=True))


def _move_no_group_back(_: Any) -> Callable[[Any, Any], dict[str, int]]:
    return lambda self, ends: {}


def _commit_unchecked(_: Any) -> Callable[[Any, str, str, int, int], None]:
    return lambda self, group, topic, queue_id, offset: self.offsets.commit(group, topic, queue_id, offset)


def _take_commits_before_the_role(_: Any) -> Any:
    return property(lambda self: not self.role.is_replica)


def _see_no_gap(_: Any) -> Any:
    return property(lambda self: None)


def _find_no_fault(_: Any) -> Callable[..., None]:
    return lambda *arguments: None


def _refuse_every_gap(original: Any) -> Callable[[Any, int, Any], None]:
    def append_raw(self: Any, offset: int, data: Any) -> None:
        if self.segments.files and offset != self.max_offset:
            raise OffsetGap(offset, self.max_offset)
        original(self, offset, data)

    return append_raw


def append_before_the_removal_is_synced(original: Any) -> Callable[..., None]:
    """For a log or ledger whose `failure` refuses appends after a failed one."""

    def withdraw(self: Any, *arguments: Any) -> None:
        try:
            original(self, *arguments)
        finally:
            self.failure = None

    return withdraw


def _fail_for_queues_that_are_gone(_: Any) -> Any:
    async def sync(self: Any, queue: Any, failed: list[Any]) -> None:
        try:
            await self.store.world.workers.run(queue.sync)
        except OSError:
            failed.append(queue)

    return sync


def _keep_the_index(original: Any) -> Callable[[Any, int], None]:
    return lambda self, physical_offset: original(self, physical_offset) if physical_offset else None


def _believe_first_reports(_: Any) -> Callable[[Any, Any, int], None]:
    return lambda self, slave, offset: self.hold(slave, offset)


def _mark_no_partial_index(_: Any) -> Any:
    async def sync_partial(self: Any, index: Any) -> None:
        await trio.lowlevel.checkpoint()

    return sync_partial


def _delete_what_is_cut(_: Any) -> Callable[[Any, Any, int], str]:
    return lambda disk, segments, offset: ""


def _derive_nothing_for_readers(_: Any) -> Callable[..., None]:
    return lambda *_, **__: None


def _take_any_number(_: Any) -> Callable[[Any, int, int], int]:
    return lambda value, low, high: int(value)


def _render_locals(_: Any) -> Callable[[BaseException], list[str]]:
    def trace_of(error: BaseException) -> list[str]:
        return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format()).splitlines()

    return trace_of


def _give_nobody_up(_: Any) -> Any:
    return property(lambda self: False)


def _end_no_turn(_: Any) -> Callable[[Any, float], bool]:
    return lambda self, began: False


def _answer_all_at_once(_: Any) -> Any:
    def register_long(self: Any, codes: Any) -> None:
        for code, handler in codes.items():
            self.register_waiting(code, handler)

    return register_long


def _take_any_name(_: Any) -> Callable[..., str]:
    def checked_name(kind: str, name: str, characters_max: int = 0) -> str:
        return name

    return checked_name


def _bound_nothing(_: Any) -> Callable[..., None]:
    return lambda *_: None


def _believe_every_table(_: Any) -> Callable[..., bool]:
    return lambda *arguments: True


def _log_everything(_: Any) -> Callable[[Any, str], int]:
    return lambda self, event: 0


def _remove_ahead_of_the_mark(_: Any) -> Any:
    async def mark_until(self: Any, offset: int) -> int:
        await trio.lowlevel.checkpoint()
        return offset

    return mark_until


def _forget_removals(original: Any) -> Any:
    async def allow_removal(self: Any, log_min_offset: int) -> None:
        before = self._removals
        await original(self, log_min_offset)
        self._removals = before

    return allow_removal


def _forget_before_removing(original: Any) -> Any:
    def remove(self: Any, segment: Any) -> None:
        try:
            original(self, segment)
        except OSError:
            self.files.remove(segment)
            raise

    return remove


def _remove_whatever_is_oldest(_: Any) -> Any:
    async def remove_oldest(self: Any) -> None:
        await self._workers.run(self.segments.disk.sync_directory, self.segments.directory)
        self.segments.remove(self.segments.files[0])

    return remove_oldest


def _write_no_tables(_: Any) -> Any:
    async def before_cut(self: Any, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        self.tables.differ_from_log()

    return before_cut


def _do_not_sync_removals(original: Any) -> Any:
    async def remove_oldest(self: Any) -> None:
        self._removal_unsynced = False
        await original(self)

    return remove_oldest


def _expire_early(original: Any) -> Callable[..., Any]:
    def due(files: Any, *, now_ms: int, **rest: Any) -> Any:
        return original(files, now_ms=now_ms + 30 * 60_000, **rest)

    return due


def _index_any_number_of_keys(_: Any) -> Callable[[Any, Any, int], int]:
    return lambda self, records, end: end


def _true_for_any_path(_: Any) -> Callable[[Any, str], bool]:
    return lambda self, path: True


def _never_there(_: Any) -> Any:
    return property(lambda self: False)


def _ignore_failed_writes(original: Any) -> Any:
    async def save(self: Any, world: Any, content: bytes) -> None:
        with contextlib.suppress(RequestRefused):
            await original(self, world, content)

    return save


PLANTED: tuple[tuple[str, Any, str, Make, Callable[[int], Outcome]], ...] = (
    (
        "move no group back behind its queue",
        ConsumerOffsets,
        "keep_inside",
        _move_no_group_back,
        found_by("broker/test_offsets.py"),
    ),
    ("commit beyond the end of a queue", Commits, "commit", _commit_unchecked, found_by("broker/test_offset_requests.py")),
    (
        "commit at a node that may not be elected",
        PullService,
        "_takes_commits",
        _take_commits_before_the_role,
        found_by("broker/test_dledger_requests.py"),
    ),
    (
        "copy damaged records",
        ReadSide,
        "is_sound",
        _believe_every_table,
        found_by("broker/test_retry.py", "broker/test_delay_faults.py"),
    ),
    ("see no gap between segments", Segments, "gap", _see_no_gap, found_by("store/test_damage.py")),
    ("make files for any topic", consumequeue, "queue_fault", _find_no_fault, found_by("store/test_names.py")),
    (
        "stay stuck inside the first record",
        LocalCommitLog,
        "append_raw",
        _refuse_every_gap,
        found_by("store/test_opening.py"),
    ),
    (
        "append before the removal of a failed append is synced",
        LocalCommitLog,
        "_withdraw",
        append_before_the_removal_is_synced,
        found_by("store/test_local_commitlog.py"),
    ),
    (
        "fail for ever because a queue is gone",
        CheckpointKeeper,
        "_sync",
        _fail_for_queues_that_are_gone,
        found_by("store/test_checkpointing.py"),
    ),
    ("let twins replace each other", HAService, "_twin_of", _find_no_fault, found_by("ha/classic/test_master.py")),
    ("keep the index of a log that was cleared", IndexFiles, "cut", _keep_the_index, found_by("store/test_message_store.py")),
    (
        "believe first reports",
        Acknowledgements,
        "claim",
        _believe_first_reports,
        found_by("ha/classic/test_acks.py"),
    ),
    ("take any value of a setting", BrokerConfig, "__attrs_post_init__", _find_no_fault, found_by("broker/test_config.py")),
    ("ignore keys that promise safety", broker_config, "ONLY", lambda _: {}, found_by("broker/test_config.py")),
    ("open queues that only RocketMQ reads", opening, "FOREIGN_QUEUES", lambda _: (), found_by("store/test_opening.py")),
    (
        "index a whole file again",
        CheckpointKeeper,
        "_sync_partial_index",
        _mark_no_partial_index,
        found_by("store/test_index_power_cuts.py"),
    ),
    ("take any file for a topic", RealDisk, "is_directory", _true_for_any_path, found_by("store/test_opening.py")),
    ("begin where a table's file is empty", JsonFile, "exists", _never_there, found_by("broker/test_table_files.py")),
    ("serve what could not be written", KeptFile, "save", _ignore_failed_writes, found_by("namesrv/test_server.py")),
    ("delete what an operator cuts", cutting, "_move_aside", _delete_what_is_cut, found_by("store/test_cutting.py")),
    (
        "derive nothing for a reader",
        MessageStore,
        "catch_up",
        _derive_nothing_for_readers,
        found_by("broker/test_offset_requests.py", "store/test_read_side.py"),
    ),
    ("take numbers of any size", numbers, "_within", _take_any_number, found_by("message/test_numbers.py")),
    ("render locals in a log", logs, "trace_of", _render_locals, found_by("world/test_logs.py")),
    ("log every event", logs.RateLimit, "admit", _log_everything, found_by("world/test_logs.py")),
    (
        "go on for a peer that is given up",
        ServerConnection,
        "is_given_up",
        _give_nobody_up,
        found_by("remoting/test_server.py", "remoting/test_dispatcher.py"),
    ),
    ("end no turn of a long batch", ServerConnection, "is_turn_over", _end_no_turn, found_by("remoting/test_server.py")),
    (
        "answer long requests all at once",
        Dispatcher,
        "register_long",
        _answer_all_at_once,
        found_by("remoting/test_dispatcher.py"),
    ),
    ("overtake sends that wait", PostponedSends, "__contains__", _find_no_fault, found_by("broker/test_postponed_sends.py")),
    ("take any name of a stranger", remoting_bounds, "checked_name", _take_any_name, found_by("remoting/test_bounds.py")),
    ("fill tables without a bound", EncodedEntries, "check_room", _bound_nothing, found_by("broker/test_entries.py")),
    ("believe a stranger's tables", table_sync, "is_proved", _believe_every_table, found_by("ha/classic/test_sync.py")),
    (
        "index any number of keys in a turn",
        StoreDispatcher,
        "_keep_round_short",
        _index_any_number_of_keys,
        found_by("store/test_dispatch.py"),
    ),
    ("remove segments ahead of the mark", CheckpointKeeper, "mark_until", _remove_ahead_of_the_mark, _expiring),
    (
        "mark segments that were removed",
        CheckpointKeeper,
        "allow_removal",
        _forget_removals,
        found_by("store/test_cleaning.py"),
    ),
    ("forget a segment that stays", Segments, "remove", _forget_before_removing, found_by("store/test_cleaning.py")),
    ("do not sync removals", LocalCommitLog, "remove_oldest", _do_not_sync_removals, found_by("store/test_cleaning.py")),
    (
        "remove another segment than the chosen one",
        LocalCommitLog,
        "remove_oldest",
        _remove_whatever_is_oldest,
        found_by("store/test_cleaning.py"),
    ),
    (
        "follow the log while segments are removed",
        cleaning.Cleaner,
        "follow_log",
        lambda _: cleaning.Cleaner._follow_log,  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        _expiring,
    ),
    (
        "cut a log while tables' files contain its events",
        ClassicReplication,
        "_before_cut",
        _write_no_tables,
        found_by("broker/test_replication.py"),
    ),
    ("expire half an hour early", cleaning, "due", _expire_early, _expiring),
)
"""Name, owner, attribute, the function that makes the faulty replacement, and what must find it."""
