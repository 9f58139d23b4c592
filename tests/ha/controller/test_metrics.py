"""What a controller answers to collectors and probes."""

from __future__ import annotations

import orjson
from prometheus_client.parser import text_string_to_metric_families

from ledgermq.ha.controller.config import ControllerConfig
from ledgermq.ha.controller.metrics import monitoring_of
from ledgermq.ha.controller.protocol import ElectMasterRequest
from ledgermq.ha.controller.server import open_controller
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.metrics import Latencies, LoopTurns
from ledgermq.testing.ports import reserved_ports
from ledgermq.world.real import real_world

from ...broker.test_monitoring import get
from .controllers import CLUSTER, NAME, Group, Node, scenario, serving


async def metrics_of(node: Node) -> dict[tuple[str, ...], float]:
    """The values of a controller's metrics, by name and own labels."""
    clock = node.machine.clock
    pages = monitoring_of(node.up.service, LoopTurns(clock), Latencies(clock))
    text = b"".join([part async for part in pages.text()]).decode()
    constant = {"cluster", "node_type", "node_id"}
    return {
        (sample.name, *(value for label, value in sample.labels.items() if label not in constant)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_controller_knows_the_sets_and_the_leader_alone_who_is_alive() -> None:
    async def story(group: Group) -> None:
        replicas = await serving(group)
        leader = await group.leader()
        named = ElectMasterRequest(cluster_name=CLUSTER, broker_name=NAME, broker_id=9, designate_elect=True)
        await group.ask(leader, RequestCode.CONTROLLER_ELECT_MASTER, named)
        replicas[1].die()
        await group.until(lambda: leader.up.node.situation.is_dead(leader.set, 2))

        for node in group.nodes:
            await group.until(lambda node=node: NAME in node.up.node.state.sets and len(node.set.in_sync) == 2)
            found = await metrics_of(node)

            assert found["ledgermq_raft_leads",] == (node is leader)
            assert found["ledgermq_raft_term",] == leader.up.node.replica.leading.term
            assert found["ledgermq_controller_broker_names",] == 1
            assert found["ledgermq_controller_masterless_names",] == 0
            assert found["ledgermq_controller_replicas", NAME] == 2
            assert found["ledgermq_controller_in_sync_replicas", NAME] == 2
            assert found["ledgermq_controller_master_epoch", NAME] == 1
            assert found.get(("ledgermq_controller_live_replicas", NAME)) == (1 if node is leader else None)
            assert found["ledgermq_controller_elections_total",] == (node is leader)
            code = "CONTROLLER_BROKER_NEED_TO_BE_REGISTERED"
            refused = found.get(("ledgermq_controller_requests_refused_total", code))
            assert refused == (1 if node is leader else None)

    scenario(story, nodes=3)


def test_a_controller_is_ready_while_it_knows_who_leads() -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        clock = leader.machine.clock

        def lacks(node: Node) -> str | None:
            return monitoring_of(node.up.service, LoopTurns(clock), Latencies(clock)).faults()["leader"]

        await group.until(lambda: all(lacks(node) is None for node in group.nodes))
        for node in group.nodes:
            if node is not leader:
                await node.kill()

        await group.until(lambda: lacks(leader) == "no controller leads")

    scenario(story, nodes=3)


async def test_a_controller_serves_its_pages_if_its_file_says_so(tmp_path: object) -> None:
    with reserved_ports("127.0.0.1", 2) as (port, group_port):
        config = ControllerConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            peers=f"n0-127.0.0.1:{group_port}",
            store_path=str(tmp_path),
            metrics_exporter_type="PROM",
            metrics_prom_exporter_port=port,
        )
        async with open_controller(config, real_world()):
            status, text = await get(port, "/metrics")
            ready, checks = await get(port, "/readyz")

    labels = '{cluster="",node_id="controller",node_type="controller"}'
    assert status == 200
    assert f"ledgermq_controller_broker_names{labels} 0.0" in text.decode()
    assert (ready, orjson.loads(checks)["leader"]) in ((200, "ok"), (503, "no controller leads"))
