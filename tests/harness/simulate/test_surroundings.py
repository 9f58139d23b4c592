"""Name servers, hosts and middleboxes that fail around simulated nodes."""

from __future__ import annotations

import random

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from harness.simulate.surroundings import NAME_SERVERS_MAX, Surroundings
from ledgermq.testing.logs import logs_silenced


def test_everything_is_drawn_by_some_seed() -> None:
    drawn = [Surroundings.of(random.Random(seed)) for seed in range(50)]

    assert {each.name_servers for each in drawn} == set(range(1, NAME_SERVERS_MAX + 1))
    for name in attrs.fields_dict(Surroundings):
        assert len({getattr(each, name) for each in drawn}) > 1, name
    assert all(each.name_servers > 1 for each in drawn if each.spare), "all may fail but one"


@pytest.mark.slow
def test_what_fails_around_the_nodes_is_counted_and_mended() -> None:
    around = Surroundings(
        name_servers=2, name_servers_die=True, name_servers_hang=True, brokers_hang=True, swallowing=True, forgetting=True
    )

    def mend(draw: ClusterDraw) -> ClusterDraw:
        return attrs.evolve(draw, workloads=("plain",), around=around, promotes=False)

    missing = {"name_server_killed", "hanging_host", "swallowing_host", "forgotten_connection"}
    for seed in (6, 8, 1, 5):
        with logs_silenced():
            outcome = simulate_cluster(seed, mend)
        assert outcome.violations == []
        missing -= outcome.counts.keys()
        if not missing:
            break

    assert missing == set()
