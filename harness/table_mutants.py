"""Bugs in the state machine of the tables, in both modes, that the simulators of brokers must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledgermq.broker.tables.table_log import TableLog
from ledgermq.broker.tables.tables import Tables
from ledgermq.message.control import OFFSETS_COMMITTED

from .dledger_mutants import TABLES, with_expiry
from .outcome import Outcome
from .simulate.cluster import simulate_cluster


def _apply_the_last_event_again(original: Any) -> Callable[..., None]:
    last: dict[int, tuple[Any, Any]] = {}  # the tables, too, so that no others get their id

    def apply(self: Any, control: Any, now: float, *lacks: Any) -> None:
        original(self, control, now, *lacks)
        if id(self) in last:
            original(self, last[id(self)][1], now, *lacks)
        last[id(self)] = self, control

    return apply


def _apply_one_event_late(original: Any) -> Callable[..., None]:
    held: dict[int, tuple[Any, Any]] = {}  # the tables, too, so that no others get their id

    def apply(self: Any, control: Any, now: float, *lacks: Any) -> None:
        late, held[id(self)] = held.get(id(self)), (self, control)
        if late is not None:
            original(self, late[1], now, *lacks)

    return apply


def _follow_no_commits(original: Any) -> Callable[..., None]:
    def apply(self: Any, control: Any, now: float, *lacks: Any) -> None:
        if self.leads or control.kind != OFFSETS_COMMITTED:
            original(self, control, now, *lacks)

    return apply


def _answer_at_once(_: Any) -> Callable[..., None]:
    return lambda *_, **__: None


def _state_no_offsets(original: Any) -> Callable[[Any], Any]:
    def statement(self: Any) -> Any:
        for append in original(self):
            if getattr(append, "args", (None, None))[-1] != self._offsets_event:
                yield append

    return statement


TABLE_BUGS: tuple[tuple[str, Any, str, Callable[[Any], Any], Callable[[int], Outcome]], ...] = (
    ("tables: apply an event twice", Tables, "apply", _apply_the_last_event_again, TABLES),
    ("tables: apply an event twice, classic", Tables, "apply", _apply_the_last_event_again, simulate_cluster),
    ("tables: apply an event late", Tables, "apply", _apply_one_event_late, TABLES),
    ("tables: apply an event late, classic", Tables, "apply", _apply_one_event_late, simulate_cluster),
    ("tables: answer before the event is applied", TableLog, "settling", _answer_at_once, TABLES),
    ("tables: follow no commits, classic", Tables, "apply", _follow_no_commits, simulate_cluster),
    ("tables: state no offsets", TableLog, "_statement", _state_no_offsets, with_expiry),
)
"""Name, class, attribute, the function that makes the faulty replacement, and the simulator that must find it."""
