"""What floors of whole nodes have in common: whatever a run lets out is a violation, and a seed draws the same each time."""

from __future__ import annotations

import attrs

from harness.simulate.cluster import ClusterRun
from harness.simulate.cluster_draw import ClusterDraw
from harness.simulate.nodes import simulate
from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.testing.checkers import CLUSTER_CHECKERS
from ledgermq.testing.logs import logs_silenced


class FailingRun(ClusterRun):
    """A run whose nodes fail as soon as they have started."""

    def started(self, node: Node, broker: Broker) -> None:
        raise ValueError("a node could not start")


def test_an_error_that_a_node_lets_out_is_a_violation() -> None:
    """The outcome says where it came from, and the run ends."""
    run = FailingRun.of(attrs.evolve(ClusterDraw.of(1), workloads=()))

    with logs_silenced():
        outcome = simulate(run, CLUSTER_CHECKERS)

    assert any("ValueError: a node could not start" in violation for violation in outcome.violations)


def test_one_seed_draws_the_same_settings_each_time() -> None:
    """Nothing but the seed decides them."""
    assert ClusterDraw.of(7) == ClusterDraw.of(7) != ClusterDraw.of(8)
