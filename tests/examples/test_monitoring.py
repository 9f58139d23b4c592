"""The board for Grafana and the alert rules for Prometheus name nothing that no server exposes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from ledgermq.broker.monitoring import monitoring_of as of_broker
from ledgermq.broker.tables.clients import Member
from ledgermq.ha.controller.config import ControllerConfig
from ledgermq.ha.controller.metrics import monitoring_of as of_controller
from ledgermq.ha.controller.server import open_controller
from ledgermq.ha.controller.state import IdApplied
from ledgermq.namesrv.metrics import monitoring_of
from ledgermq.namesrv.routes import RouteTable
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.metrics import Latencies, LoopTurns
from ledgermq.remoting.monitoring import Monitoring
from ledgermq.remoting.server import ServerConnection
from ledgermq.testing.embedded import open_embedded
from ledgermq.testing.ports import reserved_ports
from ledgermq.world.real import real_world

from ..broker.desk import Desk

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
NAME = re.compile(r"\b(?:ledgermq|rocketmq)_\w+")


def expressions_of_board() -> Iterator[str]:
    board: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
    for variable in board["templating"]["list"]:
        yield variable["query"]
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def expressions_of_rules() -> Iterator[str]:
    for line in (FOLDER / "alerts.yml").read_text().splitlines():
        if (found := re.match(r" +expr: (.+)", line)) is not None:
            yield found[1]


async def names_of(mode: str) -> set[str]:
    """The names of all series of the brokers of a cluster, after a send, a pull and a commit."""
    found = set[str]()
    async with open_embedded(mode=mode, nodes=3 if mode == "dledger" else 2) as cluster:
        for node in cluster.nodes:
            broker = node.broker
            assert broker is not None
            broker.stats.topic_put("T", 1, 100)
            broker.stats.group_get("g", "T", 0, 1, 100, 1)
            broker.stats.dead_letter_put("g", "T")
            broker.offsets.commit("g", "T", 0, 0)
            broker.offsets.note_lost("g", "T", 1)
            broker.consumers.register("g", Member(Desk(broker).peer().connection, "c", "JAVA", 0, 0.0, 0), [], {})
            latencies = Latencies(broker.world.clock)
            latencies.add(10, 0.0)
            monitoring = of_broker(broker, LoopTurns(broker.world.clock), latencies)
            found |= await names_on(monitoring)
    return found


async def names_on(page: Monitoring) -> set[str]:
    """The names of all series."""
    text = b"".join([part async for part in page.text()]).decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


async def names_of_a_name_server() -> set[str]:
    clock = real_world().clock
    return await names_on(monitoring_of(RouteTable[ServerConnection](), "n", LoopTurns(clock), Latencies(clock)))


async def names_of_a_controller(directory: Path) -> set[str]:
    """Of the only one of its group, once it leads, with a replica, and after it has refused a request."""
    with reserved_ports("127.0.0.1", 1) as (port,):
        peers = f"n0-127.0.0.1:{port}"
        config = ControllerConfig(listen_port=0, bind_address="127.0.0.1", peers=peers, store_path=str(directory))
        async with open_controller(config, real_world()) as controller:
            clock = real_world().clock
            with trio.fail_after(60):
                while not controller.node.replica.is_leader:  # noqa: ASYNC110 - its own task elects it
                    await trio.sleep(0.01)
            replica = IdApplied(cluster="c", name="b", broker_id=1, address="127.0.0.1:1", check_code="x")
            controller.node.state.apply(replica)
            controller.service.refused[ResponseCode.SYSTEM_BUSY] += 1
            return await names_on(of_controller(controller.service, LoopTurns(clock), Latencies(clock)))


@pytest.mark.parametrize("expressions", [expressions_of_board, expressions_of_rules], ids=["board", "rules"])
async def test_every_metric_that_is_named_is_exposed(expressions: Any, tmp_path: Path) -> None:
    named = {name for expression in expressions() for name in NAME.findall(expression)}
    exposed = await names_of("ha") | await names_of("dledger") | await names_of_a_name_server()
    exposed |= await names_of_a_controller(tmp_path)

    assert len(named) > 15
    assert named <= exposed, named - exposed


def test_every_rule_says_how_grave_it_is_and_what_has_happened() -> None:
    rules = (FOLDER / "alerts.yml").read_text().split("- alert: ")[1:]

    assert len(rules) == len(list(expressions_of_rules()))
    for rule in rules:
        assert re.search(r"labels: \{severity: (page|warn)\}\n +annotations: \{summary: \".+\"\}\n", rule), rule


def test_panels_do_not_overlap() -> None:
    board: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian has it in prometheus)")
def test_prometheus_accepts_the_rules_and_the_metrics() -> None:
    subprocess.run(["promtool", "check", "rules", FOLDER / "alerts.yml"], check=True)
