"""The classic log that a simulated group begins with, and the check that it is served to the end."""

from __future__ import annotations

import attrs
import pytest

from harness.simulate.older import check_older_log, leave_older_log
from harness.simulate.scene import Node
from ledgermq.store.opening import open_message_store
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import sim_machines

MESSAGES = 31


def test_every_node_has_the_same_log_and_a_message_that_is_missing_is_noticed() -> None:
    async def main() -> None:
        machines = sim_machines(1, 2)
        configs = broker_configs("store", "10.0.0.1", mode="dledger", nodes=2, raft_ports=[1, 2])
        nodes = [Node(machine, config, lambda _node, _broker: None) for machine, config in zip(machines, configs, strict=True)]

        await leave_older_log(nodes, MESSAGES)

        for node in nodes:
            classic = attrs.evolve(node.config, enable_dleger_commit_log=False)
            async with open_message_store(node.machine.world(), classic.store_config()) as store:
                check_older_log(node.host, store, MESSAGES)
                with pytest.raises(AssertionError, match="Older 1 ends at 15, 16 was expected"):
                    check_older_log(node.host, store, MESSAGES + 1)

    seeded_run(main, seed=1)
