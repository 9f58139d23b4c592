"""What floors of whole nodes have in common: whatever a run lets out is a violation, and a seed draws the same each time."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import pytest

from harness.simulate.cluster import ClusterRun
from harness.simulate.cluster_draw import ClusterDraw
from harness.simulate.nodes import simulate
from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.store import message_store
from ledgermq.store.derived.consumequeue import ConsumeQueue
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


class ImpatientRun(ClusterRun):
    """A run that waits for its consumers a short time only."""

    converge_seconds = 5.0


def test_a_run_that_fails_to_converge_says_all_the_same_which_message_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start gives the last queue offset out again, so the consumer waits in vain for a message that has no place."""
    real = message_store.queue_offsets_of

    def one_too_few(queues: Iterable[ConsumeQueue]) -> dict[tuple[str, int], int]:
        return {key: max(offset - 1, 0) for key, offset in real(queues).items()}

    monkeypatch.setattr(message_store, "queue_offsets_of", one_too_few)
    draw = attrs.evolve(ClusterDraw.of(5), workloads=("plain",), promotes=False, restores=False)

    with logs_silenced():
        violations = simulate(ImpatientRun.of(draw), CLUSTER_CHECKERS).violations

    assert "5.0 s after healing plain: the consumer lacks" in violations[0]
    assert any(violation.startswith("nothing_acknowledged_is_lost") for violation in violations)
    assert any("queue 0: the records at" in violation and "both have offset" in violation for violation in violations)


def test_one_seed_draws_the_same_settings_each_time() -> None:
    """Nothing but the seed decides them."""
    assert ClusterDraw.of(7) == ClusterDraw.of(7) != ClusterDraw.of(8)
