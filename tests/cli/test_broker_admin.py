"""The settings and the drain of a broker that runs."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Run, Start


def test_settings_are_shown_and_changed(runner: Run, namesrv: str) -> None:
    """What a broker reads only at its start is refused, and nothing is changed."""
    assert runner("broker", "config", "get", "broker-a", "fileReservedTime", namesrv=namesrv).stdout == "fileReservedTime=72\n"
    everything = json.loads(runner("broker", "config", "get", "broker-a", "--json", namesrv=namesrv).stdout)
    assert everything["brokerName"] == "broker-a"

    changed = runner("broker", "config", "set", "broker-a", "fileReservedTime=48", "scrubBytesPerSecond=1m", namesrv=namesrv)

    assert changed.stdout == "fileReservedTime=48  (was 72)\nscrubBytesPerSecond=1048576  (was 0)\n"
    refused = runner("broker", "config", "set", "broker-a", "fileReservedTime=1", "listenPort=1", namesrv=namesrv, status=1)
    assert "listenPort cannot be changed while the broker runs" in refused.stderr
    assert runner("broker", "config", "get", "broker-a", "fileReservedTime", namesrv=namesrv).stdout == "fileReservedTime=48\n"
    assert "no setting nonsense" in runner("broker", "config", "get", "broker-a", "nonsense", namesrv=namesrv, status=1).stderr
    runner("broker", "config", "set", "broker-a", "fileReservedTime=72", "scrubBytesPerSecond=0", namesrv=namesrv)


def test_a_drained_master_refuses_sends_and_is_read_on(runner: Run, namesrv: str) -> None:
    runner("topic", "create", "Drained", "--queues", "1", namesrv=namesrv)
    runner("send", "Drained", "before", namesrv=namesrv)

    said = runner("broker", "drain", "broker-a", "--wait", "0", namesrv=namesrv)

    assert said.stdout == "broker-a takes no sends: brokerPermission=4. Stop it with SIGTERM\n"
    assert "`ledgermq broker config set broker-a brokerPermission=6` takes it back" in said.stderr
    runner("send", "Drained", "after", "--timeout", "1", namesrv=namesrv, status=1)
    read = runner("consume", "Drained", "--from-beginning", "--max", "1", namesrv=namesrv).stdout
    assert "before" in read
    runner("broker", "config", "set", "broker-a", "brokerPermission=6", namesrv=namesrv)
    runner("send", "Drained", "again", namesrv=namesrv)


def test_a_drained_leader_hands_over(start: Start, runner: Run, tmp_path: Path) -> None:
    """To a node that is connected; draining it once more changes nothing."""
    cluster = start("up", "--port", "0", "--broker-port", "0", "--mode", "dledger", "--store", str(tmp_path / "store"))
    address = cluster.wait_for(r"name server +(\S+:\d+)\n")[1]
    nodes = json.loads(runner("dledger", "status", "--json", namesrv=address).stdout)
    (leader,) = (node for node in nodes if node["role"] == "leader")

    said = runner("broker", "drain", leader["address"], namesrv=address).stdout

    assert said.startswith(f"{leader['address']} takes no sends: n")
    assert " leads now. " in said
    nodes = json.loads(runner("dledger", "status", "--json", namesrv=address).stdout)
    assert [node["self_id"] for node in nodes if node["role"] == "leader"] != [leader["self_id"]]
    again = runner("broker", "drain", leader["address"], namesrv=address).stdout
    assert f"{leader['self_id']} does not lead its group" in again
