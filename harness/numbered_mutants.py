"""Planted bugs in how brokers recognise repeated sends."""

# ruff: noqa: ARG002, ARG005 - a mutant has the parameters of what it replaces

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from ledgermq.broker.requests.send import SendHandler
from ledgermq.broker.tables.numbered_sends import NumberedSends
from ledgermq.ha.dledger.node import DLedgerNode
from ledgermq.ha.errors import LeadershipLost
from ledgermq.ha.raft.errors import Refused
from ledgermq.message.send_number import SendNumber
from ledgermq.store.statuses import PutStatus

from .dledger_mutants import with_workloads
from .outcome import Outcome
from .store_mutants import found_by

Make = Callable[[Any], Any]


def _enter_own_puts_only(original: Any) -> Callable[..., None]:
    def derived(self: Any, record: Any) -> None:
        if self.store.writability.role_refusal is None:
            original(self, record)

    return derived


def _read_nothing_at_a_start(_: Any) -> Callable[..., None]:
    def read_log(self: Any, start: int, end: int) -> None:
        """Leave the table as the file has it."""

    return read_log


def _answer_at_once(original: Any) -> Callable[..., None]:
    class _Stored:
        def when_stored(self, end: int, done: Callable[[PutStatus], None]) -> None:
            done(PutStatus.PUT_OK)

    class _Store:
        waits, may_answer_early, log = True, False, _Stored()

    def answer_when_safe(self: Any, *arguments: Any, **named: Any) -> None:
        store, self.store = self.store, _Store()
        try:
            original(self, *arguments, **named)
        finally:
            self.store = store

    return answer_when_safe


def _number_batches_as_one(_: Any) -> Callable[[SendNumber, int], SendNumber]:
    return lambda self, count: self


def _lead_with_what_is_committed(_: Any) -> Callable[..., Any]:
    async def prepare_to_lead(self: Any, *_: Any, **__: Any) -> None:
        """Wait for what earlier leaders committed, and not until it is derived."""
        while True:
            try:
                await self.replica.read_index()
            except (Refused, LeadershipLost):
                await trio.sleep(self.settings.tick_seconds)
            else:
                return

    return prepare_to_lead


REPEATED = with_workloads("plain", "numbered")
TESTS = found_by("broker/test_numbered_sends.py")
NUMBERED_BUGS: tuple[tuple[str, Any, str, Make, Callable[[int], Outcome]], ...] = (
    ("sends: enter own puts only", NumberedSends, "_derived", _enter_own_puts_only, REPEATED),
    ("sends: read no log at a start", NumberedSends, "_read_log", _read_nothing_at_a_start, TESTS),
    ("sends: answer a repetition at once", SendHandler, "_answer_when_safe", _answer_at_once, TESTS),
    ("sends: take them before the log is derived", DLedgerNode, "prepare_to_lead", _lead_with_what_is_committed, TESTS),
    ("sends: check the first message of a batch only", SendNumber, "after", _number_batches_as_one, REPEATED),
)
"""Name, owner, attribute, the function that makes the faulty replacement, and the simulator that must find it."""
