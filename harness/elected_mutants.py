"""Bugs in the controller mode that the simulator of whole nodes, or a test, must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ledgermq.ha.classic.authenticated import AuthenticatedMaster, AuthenticatedSlave
from ledgermq.ha.classic.commitlog import ClassicCommitLog
from ledgermq.ha.classic.in_sync import InSyncAcknowledgements
from ledgermq.ha.classic.slave import HAClient
from ledgermq.ha.controller import decisions, session
from ledgermq.ha.controller.identity import IdentityFiles
from ledgermq.ha.controller.liveness import Liveness
from ledgermq.ha.dledger.disk_tasks import DiskTasks
from ledgermq.store.message_store import MessageStore
from ledgermq.testing.history import End

from .controller_mutants import elect_one_outside, judge_at_once, keep_those_who_crashed
from .outcome import Outcome
from .simulate.elected import simulate_elected
from .simulate.elected_draw import MUTE, Blow, ElectedDraw
from .store_mutants import do_nothing, found_by


def with_plain_clients(seed: int) -> Outcome:
    """The simulator of whole nodes, with clients that only send, pull and consume."""

    def mend(draw: ElectedDraw) -> ElectedDraw:
        return attrs.evolve(draw, workloads=("plain", "pulls"))

    return simulate_elected(seed, mend)


def with_synced_puts(seed: int) -> Outcome:
    """The simulator of whole nodes with SYNC_FLUSH."""

    def mend(draw: ElectedDraw) -> ElectedDraw:
        return attrs.evolve(draw, workloads=("plain",), sync_flush=True)

    return simulate_elected(seed, mend)


def with_blows(*blows: Blow, alone: tuple[Blow, ...] = (), **settings: Any) -> Callable[[int], Outcome]:
    """The simulator of whole nodes, in which these faults happen, then failures of one node alone, and nothing else.

    Args:
        settings: fields of the draw that are not as they are by default.
    """

    def mend(draw: ElectedDraw) -> ElectedDraw:
        plain = attrs.evolve(draw, workloads=("plain",), nodes=2, controllers=3, life_seconds=5.0, sync_seconds_max=0.0)
        calm = attrs.evolve(plain, sync_flush=False, connection_losses=False, half_open=False, partitions=False)
        still = attrs.evolve(calm, one_way_cuts=False, disk_errors=False, clock_jumps=False, clock_drift=0.0, restarts=False)
        usual = attrs.evolve(still, twice=False, members_min=1, copies=None, autoswitch=False)
        return attrs.evolve(usual, blows=blows, failures=alone, **settings)

    return lambda seed: simulate_elected(seed, mend)


def _count_those_connected(_: Any) -> Any:
    return property(lambda self: frozenset(self._held) - {self.own_id})


def _leave_out_at_once(original: Any) -> Callable[..., Any]:
    def proposal(self: Any, *arguments: Any) -> Any:
        wanted = original(self, *arguments)
        if wanted is not None and not wanted.members >= self.members:
            self.members &= wanted.members
            self._proposed = frozenset()
            self._required_changed()
            self._advance()
        return wanted

    return proposal


def _wait_for_the_confirmed_only(_: Any) -> Any:
    return property(lambda self: self.members - {self.own_id})


def _rule_nobody_out(original: Any) -> Callable[..., Any]:
    def proposal(self: Any, *arguments: Any) -> Any:
        wanted = original(self, *arguments)
        return None if wanted is not None and wanted.members == self.members else wanted

    return proposal


def _name_the_lowest_id(_: Any) -> Any:
    return property(lambda self: [min(self.members - {self.own_id})])


def _follow_any_epoch(original: Any) -> Callable[[Any, int, bytes, list[Any]], None]:
    def take(self: Any, kind: int, body: bytes, facts: list[Any]) -> None:
        self.epoch_min = 0
        original(self, kind, body, facts)

    return take


def _serve_later_epochs(original: Any) -> Callable[[Any, Any], None]:
    def judge(self: Any, slave: Any) -> None:
        self.elected = False
        original(self, slave)

    return judge


def _wait_for_nothing(_: Any) -> Callable[[Any], Any]:
    async def call(self: Any) -> None: ...

    return call


def _go_on_before_a_sync(_: Any) -> Callable[[Any], Any]:
    async def become_writable(self: Any) -> None:
        await self._derive_readable()
        self.take_up_next_offsets()

    return become_writable


def _believe_the_last_stop(_: Any) -> Callable[[Any], bool]:
    return lambda self: self.disk.exists(f"{self.root}/abort")


def _change_at_first(change: Callable[[Any], None]) -> Callable[[Any], Callable[[Any], None]]:
    """Make a function that changes a new object before it begins to work."""

    def plant(original: Any) -> Callable[[Any], None]:
        def begin(self: Any) -> None:
            change(self)
            original(self)

        return begin

    return plant


LEADER_ENDS = with_blows(Blow("slow", seconds=10.0), alone=(Blow("end leading controller"),) * 2)
POWER_ENDS = with_blows(alone=(Blow("end master", End.POWER, 0.05),) * 2)
MASTERS_END = with_blows(*(Blow("end masters", seconds=2.0),) * 4)
RESTARTS = with_blows(alone=(Blow("end", End.POWER, 0.05),) * 2, twice=True)
RESTORED = with_blows(alone=(Blow("restore master", seconds=0.05),) * 2)
SLAVES_END = with_blows(*(Blow("end", seconds=2.0),) * 4, members_min=2)
ONE_OF_TWO = with_blows(*(Blow("end", seconds=2.0),) * 2, copies=2)
MUTE_LEADERS = with_blows(alone=(Blow(MUTE),) * 2)
HANDSHAKES = found_by("ha/classic/test_authenticated.py")
SETS, CONVERSATIONS = found_by("ha/classic/test_in_sync.py"), found_by("ha/controller/test_session.py")


ELECTED_BUGS: tuple[tuple[str, Any, str, Callable[[Any], Any], Callable[[int], Outcome]], ...] = (
    ("elected: count whoever is connected", InSyncAcknowledgements, "required", _count_those_connected, with_plain_clients),
    ("elected: leave out a member at once", InSyncAcknowledgements, "proposal", _leave_out_at_once, with_plain_clients),
    (
        "elected: wait only for confirmed members",
        InSyncAcknowledgements,
        "required",
        _wait_for_the_confirmed_only,
        with_plain_clients,
    ),
    (
        "elected: confirm the whole log at once",
        InSyncAcknowledgements,
        "__attrs_post_init__",
        _change_at_first(lambda acks: setattr(acks, "confirmed", acks.log_end())),
        SETS,
    ),
    ("elected: rule out nobody who was proposed", InSyncAcknowledgements, "proposal", _rule_nobody_out, SETS),
    ("elected: hand over to the lowest id only", InSyncAcknowledgements, "successors", _name_the_lowest_id, CONVERSATIONS),
    ("elected: wait a second for a decision", session, "DECIDED_SECONDS", lambda _: 1.0, CONVERSATIONS),
    ("elected: elect one outside the set", decisions, "elect", elect_one_outside, MASTERS_END),
    ("elected: a fresh leader judges at once", Liveness, "begin", judge_at_once, LEADER_ENDS),
    ("elected: keep those who crashed", decisions, "_after_restart", keep_those_who_crashed, POWER_ENDS),
    ("elected: keep a master whose disk is an older copy", decisions, "_after_restart", keep_those_who_crashed, RESTORED),
    (
        "elected: acknowledge with too few members",
        InSyncAcknowledgements,
        "__attrs_post_init__",
        _change_at_first(lambda acks: setattr(acks, "members_min", 1)),
        SLAVES_END,
    ),
    (
        "elected: acknowledge with one copy of two",
        InSyncAcknowledgements,
        "__attrs_post_init__",
        _change_at_first(lambda acks: setattr(acks, "replicas", 1)),
        ONE_OF_TWO,
    ),
    ("elected: forget a crash before registering", IdentityFiles, "note_crash", _believe_the_last_stop, RESTARTS),
    ("elected: lead with a disk that refuses", DiskTasks, "_refused", do_nothing, MUTE_LEADERS),
    ("elected: acknowledge what is not synced", HAClient, "_sync_reported", _wait_for_nothing, with_synced_puts),
    (
        "elected: store before the epoch is kept",
        ClassicCommitLog,
        "refuse",
        do_nothing,
        found_by("ha/classic/test_node.py"),
    ),
    (
        "elected: begin an epoch inside a record",
        MessageStore,
        "drop_incomplete_record",
        _wait_for_nothing,
        found_by("broker/test_elected.py"),
    ),
    (
        "elected: go on before the end of the log is synced",
        MessageStore,
        "become_writable",
        _go_on_before_a_sync,
        simulate_elected,
    ),
    ("elected: follow a master of any epoch", AuthenticatedSlave, "_take_welcome", _follow_any_epoch, HANDSHAKES),
    ("elected: serve slaves of later epochs", AuthenticatedMaster, "_judge", _serve_later_epochs, HANDSHAKES),
)
"""Name, class or module, attribute, the function that makes the faulty replacement, and the simulator or tests that must find
it."""
