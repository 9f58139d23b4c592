"""The settings and the drain of a broker that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
from click import ClickException

from ledgermq.cli.broker_admin import stop_sends
from ledgermq.client.admin import Admin
from ledgermq.client.admin.values import Cluster
from ledgermq.client.errors import NoAnswer
from ledgermq.client.route import BrokerRoute
from ledgermq.world.address import Address

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


@attrs.define
class Group:
    """A DLedger group that n0 leads at first, and whose transfers fail; those to `late` happen all the same."""

    late: str = ""
    leader: str = "n0"
    asked: list[tuple[str, str]] = attrs.field(factory=list[tuple[str, str]])

    async def cluster(self) -> Cluster:
        """The name server names the leader."""
        await trio.lowlevel.checkpoint()
        return Cluster((BrokerRoute("broker-a", "C", {0: Address("10.0.0.1", int(self.leader[1:]))}),))

    async def ha_status(self, broker: str) -> dict[str, Any]:
        address = str((await self.cluster()).brokers[0].addresses[0]) if broker == "broker-a" else broker
        own = f"n{address[-1]}"
        peers = [{"id": peer, "connected": True} for peer in ("n0", "n1", "n2") if peer != own]
        return {"dledger": {"selfId": own, "role": "leader" if own == self.leader else "follower", "peers": peers}}

    async def change_dledger_group(self, broker: str, action: str, peer: str) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append((broker, peer))
        if peer == self.late:
            self.leader = peer
        raise NoAnswer(broker, f"{action} within 65 s")


async def test_a_leader_that_hands_over_too_late_for_an_answer_is_drained() -> None:
    """By its name the next transfer would go to the new leader, and take leadership from it again."""
    group = Group(late="n1")

    assert await stop_sends(cast("Admin", group), "broker-a") == ("n0 does not lead its group", True)
    assert group.asked == [("10.0.0.1:0", "n1")]


async def test_a_leader_from_which_no_voter_takes_over_is_not_drained() -> None:
    group = Group()
    with pytest.raises(ClickException, match=r"no other voter of its group has taken over from broker-a, which still leads$"):
        await stop_sends(cast("Admin", group), "broker-a")
    assert group.asked == [("10.0.0.1:0", "n1"), ("10.0.0.1:0", "n2")]
