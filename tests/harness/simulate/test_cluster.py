"""Whole nodes in the simulated world: what `make sim` does not ask of its seeds, and seeds that once failed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from harness.simulate.workloads.registry import CLASSIC_WORKLOADS, WORKLOADS
from ledgermq.testing.logs import logs_silenced


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with logs_silenced():
        yield


ONCE_FAILED = {
    43: "members that could not reach the master went on where its slave had last copied their offsets",
    51: "the disk failed during a clean stop, so a table was not written",
    90: "owners of ordered queues were held against a master that had been restored from before their leases",
    5016: "commits of one life were held against the crash of the next one only",
    5027: "a group was ahead of a queue whose end a power cut had taken, and passed over what came in its place",
    50002: "a commit at a slave that was behind the log stayed there for good",
    91128: "index entries of an earlier log counted as the place from which on records had to be indexed again",
    5145: "logs were compared before the slave had joined its master again",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    outcome = simulate_cluster(seed)

    assert outcome.violations == []
    assert outcome.counts["acknowledged"] > 0


OF_CONSUMERS = {"NOTIFY_CONSUMER_IDS_CHANGED", "RESET_CONSUMER_CLIENT_OFFSET"}
"""Requests that brokers make of consumers, which are not counted."""


@pytest.mark.slow
def test_all_workloads_together_draw_every_request_that_they_name() -> None:
    def mend(draw: ClusterDraw) -> ClusterDraw:
        return attrs.evolve(draw, workloads=CLASSIC_WORKLOADS, life_seconds=40.0)

    missing = {code.name for name in CLASSIC_WORKLOADS for code in WORKLOADS[name].codes} - OF_CONSUMERS
    for seed in (11, 8, 1, 5):
        outcome = simulate_cluster(seed, mend)
        assert outcome.violations == []
        missing -= outcome.requests.keys()
        if not missing:
            break

    assert missing == set()


@pytest.mark.slow
def test_one_seed_gives_one_trace_in_another_process_too() -> None:
    """Whatever order sets of texts have there."""
    here = simulate_cluster(5)
    command = [sys.executable, "-m", "harness.simulate", "--floor", "cluster", "--seed", "5", "--trace"]
    env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "99"}

    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env)

    assert f"trace {here.digest}" in out.stdout
    assert here.violations == []
    assert here.counts["acknowledged"] > 0
