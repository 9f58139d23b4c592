"""Whole nodes in controller mode in the simulated world: what `make sim` does not ask of its seeds, and seeds that failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest

from harness.simulate.elected import simulate_elected
from harness.simulate.elected_draw import Blow, ElectedDraw
from ledgermq.testing.history import End
from ledgermq.testing.logs import logs_silenced


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with logs_silenced():
        yield


ONCE_FAILED = {
    4: "an elected broker had not synced the end of its log, did not derive it, and gave out queue offsets a second time",
    157: "what a follower showed that had another log than the elected master was judged as read from the group",
    2010: "brokers went to a controller that was named as leader and had lost power, and the next one took the master for dead",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    assert simulate_elected(seed).violations == []


def test_a_group_goes_on_when_one_node_after_another_fails_alone() -> None:
    """The master is killed, a broker loses power, and the leading controller is killed."""
    failures = (Blow("end master"), Blow("end", End.POWER), Blow("end leading controller"))

    def mend(draw: ElectedDraw) -> ElectedDraw:
        return attrs.evolve(draw, controllers=3, workloads=("plain", "pulls"), failures=failures)

    outcome = simulate_elected(1, mend)

    assert outcome.violations == []
    assert outcome.counts["single_failure"] == 3


@pytest.mark.slow
def test_one_seed_gives_one_trace_in_another_process_too() -> None:
    """Whatever order sets of texts have there."""
    here = simulate_elected(1)
    command = [sys.executable, "-m", "harness.simulate", "--floor", "elected", "--seed", "1", "--trace"]
    env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "99"}

    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env)

    assert f"trace {here.digest}" in out.stdout
    assert here.violations == []
    assert here.counts["acknowledged"] > 0
    assert here.counts["pulls_judged"] > 0
    assert here.counts["elections"] > 0


@pytest.mark.slow
def test_a_replica_with_an_older_copy_of_its_disk_loses_nothing_that_the_others_have() -> None:
    """The copy was made while the broker ran or, the last one, while it was stopped in order."""

    def mend(draw: ElectedDraw) -> ElectedDraw:
        failures = (Blow("restore master", End.KILL, 0.05), Blow("restore", End.POWER), Blow("restore", End.CLEAN, 0.05))
        alone = attrs.evolve(draw, blows=(), failures=failures, restarts=False)
        return attrs.evolve(alone, controllers=3, workloads=("plain", "pulls"), members_min=2)

    outcome = simulate_elected(1, mend)

    assert outcome.violations == []
    assert outcome.counts["restored_backup"] == 3
    assert outcome.counts["losses_allowed"] == 0


@pytest.mark.slow
def test_a_replica_may_lose_what_it_acknowledged_until_its_stop_was_complete_and_its_disk_replaced() -> None:
    def mend(draw: ElectedDraw) -> ElectedDraw:
        blows = (Blow("restore", End.CLEAN, 0.05),) * 4
        alone = attrs.evolve(draw, blows=blows, failures=(), restarts=False, disk_errors=False)
        return attrs.evolve(alone, nodes=2, controllers=1, workloads=("plain",), members_min=2, copies=None)

    assert simulate_elected(1, mend).violations == []


def test_replicas_that_an_administrator_elects_or_forgets_lose_nothing_and_come_back() -> None:
    """A master that is forgotten gets another id, and follows who was elected instead."""

    def mend(draw: ElectedDraw) -> ElectedDraw:
        orders = (Blow("forget"), Blow("elect"), Blow("forget"), Blow("elect"), Blow("forget"))
        return attrs.evolve(draw, workloads=("plain", "pulls"), blows=orders, failures=(), restarts=False, life_seconds=1.0)

    outcome = simulate_elected(4, mend)

    assert outcome.violations == []
    assert outcome.counts["forget_carried_out"] == 3
    assert outcome.counts["losses_allowed"] == 0


@pytest.mark.slow
def test_brokers_that_speak_rocketmqs_frames_to_each_other_lose_nothing() -> None:
    def mend(draw: ElectedDraw) -> ElectedDraw:
        failures = (Blow("end master"), Blow("restore master", End.POWER, 0.05))
        return attrs.evolve(draw, workloads=("plain", "pulls"), failures=failures, autoswitch=True)

    outcome = simulate_elected(1, mend)

    assert outcome.violations == []
    assert outcome.counts["restored_backup"] == 1
