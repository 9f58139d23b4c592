"""What a simulated run knows of the nodes of a DLedger group."""

from __future__ import annotations

from harness.simulate.group import peer_of
from harness.simulate.scene import Node
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.sim.world import sim_machines


def test_a_node_has_the_name_that_its_group_knows() -> None:
    """An operator removes it by that name."""
    machines = sim_machines(1, 2)
    configs = broker_configs("store", "10.0.0.1", mode="dledger", nodes=2, raft_ports=[1, 2])

    names = [peer_of(Node(machine, config)) for machine, config in zip(machines, configs, strict=True)]

    assert names == ["n0", "n1"]
