"""`ledgermq cluster status` of masters and slaves."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from ledgermq.cli.cluster import degradations_of, outages_of, state_of
from ledgermq.cli.main import main
from ledgermq.client.admin import Admin
from ledgermq.client.admin.values import Cluster
from ledgermq.client.errors import BrokerSystemError, ClientError, NoAnswer, NotSupported
from ledgermq.client.route import BrokerRoute
from ledgermq.native import path_text
from ledgermq.world.address import Address
from ledgermq.world.version import own_version

from .processes import Ledgermq, Run, Start, until


def statuses(runner: Run, namesrv: str, status: int = 0) -> dict[int, dict[str, Any]]:
    """What the command prints of each broker, by its id."""
    found = runner("cluster", "status", "--json", status=status, namesrv=namesrv)
    return {row["id"]: row for row in json.loads(found.stdout)}


def test_a_pair_shows_its_roles_its_lag_and_its_last_acknowledgement(start: Start, runner: Run) -> None:
    """`up --mode ha` is all it takes; by `--json` with every number, in the table in words."""
    up = start("up", "--mode", "ha", "--port", "0", "--broker-port", "0")
    namesrv = up.wait_for(r"name server +(\S+:\d+)\n")[1]
    up.wait_for(r"broker-a +sync master .*\nbroker-a +slave ")
    until(lambda: CliRunner().invoke(main, ["cluster", "status", "--namesrv", namesrv]).exit_code == 0)
    runner("send", "hello", "first", namesrv=namesrv)

    rows = statuses(runner, namesrv)

    assert [(number, row["role"], row["broker"]) for number, row in rows.items()] == [
        (0, "master", "broker-a"),
        (1, "slave", "broker-a"),
    ]
    assert {row["version"] for row in rows.values()} == {f"ledgermq {own_version()}"}
    assert {row["path"] for row in rows.values()} == {path_text()}
    assert {row["runtime"]["broker_version_desc"] for row in rows.values()} == {"V4_9_8"}, "what clients are told"
    assert int(rows[0]["log_end"]) == int(rows[1]["log_end"]) > 0, "the send was answered when the slave had it"
    assert re.fullmatch(r"127\.0\.0\.1:\d+ 0 bytes behind, acked \d+ ms ago", rows[0]["replication"])
    assert re.fullmatch(r"follows 127\.0\.0\.1:\d+, 0 bytes behind", rows[1]["replication"])
    (slave,) = rows[0]["ha"]["ha_connection_info"]
    assert (slave["broker_id"], slave["diff"], slave["in_sync"]) == (1, 0, True)
    assert slave["last_ack_millis"] < 10_000
    heading, *lines = runner("cluster", "status", namesrv=namesrv).stdout.splitlines()
    assert " ".join(heading.split()) == "BROKER ID ROLE ADDRESS VERSION PATH IN_TPS OUT_TPS DISK_PERCENT LOG_END REPLICATION"
    assert [("0 bytes behind" in line, "acked" in line, "follows" in line) for line in lines] == [
        (True, True, False),
        (True, False, True),
    ]


@pytest.mark.slow
def test_what_keeps_a_slave_from_following_is_shown(start: Start, runner: Run, tmp_path: Path) -> None:
    """A master without slaves, a slave that is refused, one that reaches nobody; and a broker that hangs ends with status 1."""
    namesrv = "127.0.0.1:" + start("namesrv", "--host", "127.0.0.1", "--port", "0").wait_for(r"127.0.0.1:(\d+)")[1]

    def broker(number: int, role: str, *more: str) -> Ledgermq:
        store = ("--storePathRootDir", str(tmp_path / str(number)))
        common = ("-n", namesrv, "--listenPort", "0", "--brokerIP1", "127.0.0.1", *store, "--brokerId", str(number))
        started = start("broker", *common, "--brokerRole", role, *more)
        started.wait_for("boot success")
        return started

    master = broker(0, "SYNC_MASTER", "--haSecret", "one")
    broker(1, "SLAVE", "--haSecret", "another")
    broker(2, "SLAVE", "--haMasterAddress", "127.0.0.1:1")

    def shows(number: int, reason: str) -> Callable[[], bool]:
        return lambda: re.match(reason, statuses(runner, namesrv, status=1)[number]["replication"]) is not None

    until(shows(1, r"127\.0\.0\.1:\d+: the master does not know our secret.*haSecret"))
    until(shows(2, r"cannot reach 127\.0\.0\.1:1"))
    until(shows(0, "no slave$"))

    lonely = runner("cluster", "status", namesrv=namesrv, status=1)
    none, refused, lost = lonely.stderr.splitlines()
    assert none == "missing: broker-a: no slave of its SYNC_MASTER, so sends end with SLAVE_NOT_AVAILABLE"
    assert re.match(r"missing: broker-a: slave 1 at \S+ is not fed: \S+ the master does not know our secret", refused)
    assert re.match(r"missing: broker-a: slave 2 at \S+ is not fed: cannot reach 127\.0\.0\.1:1", lost)

    master.process.send_signal(signal.SIGSTOP)
    found = runner("cluster", "status", namesrv=namesrv, status=1)
    master.process.send_signal(signal.SIGCONT)
    assert re.search(r" \S+:\d+ did not answer: request 28 \(GET_BROKER_RUNTIME_INFO\) within \d+ ms\n", found.stdout)
    assert "cannot reach 127.0.0.1:1" in found.stdout
    assert re.match(r"missing: broker-a: master 0 at \S+: .*did not answer", found.stderr)

    assert master.stop() == 0
    headless = runner("cluster", "status", namesrv=namesrv, status=1)
    assert headless.stderr == "missing: broker-a: no master, so nothing can be sent to it\n"


class Silent:
    """An admin client of brokers that hang."""

    async def cluster(self) -> Cluster:
        await trio.lowlevel.checkpoint()
        return Cluster(tuple(BrokerRoute(f"broker-{at}", "C", {0: Address("10.0.0.1", at)}) for at in range(20)))

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        await trio.sleep(5)
        raise NoAnswer(broker, "within 5000 ms")


async def test_many_brokers_that_hang_take_no_longer_than_one(autojump_clock: trio.testing.MockClock) -> None:
    rows, nodes = await state_of(cast("Admin", Silent()))

    assert trio.current_time() == pytest.approx(5)
    assert [row["address"] for row in rows] == [f"10.0.0.1:{at}" for at in range(20)]
    assert all("did not answer" in row["error"] for row in rows)
    assert nodes == []


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (NoAnswer("10.0.0.1:0", "within 5000 ms"), "10.0.0.1:0 did not answer: within 5000 ms"),
        (NotSupported(3, "no such request", "10.0.0.1:0"), None),
        (BrokerSystemError(1, "Can not get HARuntimeInfo", "10.0.0.1:0"), None),
    ],
    ids=("hangs", "older", "Apache's in a DLedger group"),
)
async def test_a_broker_that_hangs_half_way_is_no_broker_without_a_replication_state(
    failure: ClientError, error: str | None
) -> None:
    """A node of a DLedger group that hangs would otherwise be missing, and the check of its cluster say that all is well."""

    class Halting(Silent):
        async def cluster(self) -> Cluster:
            return Cluster((await super().cluster()).brokers[:1])

        async def broker_runtime(self, broker: str) -> dict[str, str]:
            await trio.lowlevel.checkpoint()
            return {"brokerVersionDesc": "V4_9_8"}

        async def ha_status(self, broker: str) -> dict[str, Any]:
            await trio.lowlevel.checkpoint()
            raise failure

    (row,), nodes = await state_of(cast("Admin", Halting()))

    assert (row["version"], row["error"], nodes) == ("V4_9_8", error, [])


@pytest.mark.parametrize("command", ["cluster", "dledger"])
def test_a_cluster_of_which_nothing_is_left_is_no_healthy_one(start: Start, runner: Run, command: str) -> None:
    """The name server has forgotten brokers that are gone, so an empty table may be the worst case."""
    namesrv = start("namesrv", "--port", "0").wait_for(r"listening on \S+:(\d+)")[1]
    found = runner(command, "status", "--json", namesrv=f"127.0.0.1:{namesrv}", status=1)
    assert json.loads(found.stdout) == []
    assert re.match(r"missing: .*the name server knows", found.stderr)


def test_a_replica_that_no_controller_would_elect_is_named() -> None:
    """And a broker that has lost its controllers, which nobody would replace; not a learner, which is never in sync."""

    def row(number: int, controller: dict[str, Any]) -> dict[str, Any]:
        role, address = ("slave" if number else "master"), f"10.0.0.{number}:10911"
        ha = {"master": not number, "controller": controller}
        return {
            "broker": "a", "id": number, "role": role, "address": address, "ha": ha, "error": None, "waits_in_vain": None,
        }  # fmt: skip

    replicas = [row(2, {"trouble": "it is silent"}), row(3, {"trouble": None}), row(4, {"async_learner": True})]
    found = degradations_of([row(0, {"sync_state_set": [1, 2]}), *replicas], [])

    assert found == [
        "a: 10.0.0.2:10911 has no controller, so none elects: it is silent",
        "a: replica 3 at 10.0.0.3:10911 is not in sync",
    ]
    assert degradations_of([row(0, {"sync_state_set": [1]})], []) == ["a: no replica is in sync with its master"]


@pytest.mark.parametrize(
    ("trouble", "connected", "wanted", "found"),
    [
        ("it is silent", [], 2, ["a: sends wait for replica 2, which is gone, until a controller removes it"]),
        ("it is silent", [2], 2, []),
        (None, [], 2, []),
        (None, [2], 3, ["a: sends are refused, because of 3 copies 2 are in sync"]),
    ],
)
def test_a_master_that_acknowledges_nothing_is_an_outage(
    trouble: str | None, connected: list[int], wanted: int, found: list[str]
) -> None:
    """Because no controller relieves it of a lost replica, or because of minInSyncReplicas."""
    ha = {
        "controller": {"trouble": trouble, "waits_for": [2], "sync_state_set": [1, 2], "min_in_sync_replicas": wanted},
        "ha_connection_info": [{"broker_id": number} for number in connected],
    }
    assert outages_of([{"broker": "a", "id": 0, "role": "master", "address": "h:1", "ha": ha, "error": None}], []) == found


async def test_a_master_under_a_controller_needs_no_slave_for_its_role() -> None:
    """Its file may still say SYNC_MASTER."""

    class Lonely(Silent):
        async def cluster(self) -> Cluster:
            return Cluster((await super().cluster()).brokers[:1])

        async def broker_runtime(self, broker: str) -> dict[str, str]:
            await trio.lowlevel.checkpoint()
            return {}

        async def ha_status(self, broker: str) -> dict[str, Any]:
            await trio.lowlevel.checkpoint()
            return {"master": True, "haConnectionInfo": [], "controller": {"brokerId": 1, "syncStateSet": [1]}}

        async def broker_config(self, broker: str) -> dict[str, str]:
            await trio.lowlevel.checkpoint()
            return {"brokerRole": "SYNC_MASTER"}

    rows, _ = await state_of(cast("Admin", Lonely()))

    assert degradations_of(rows, []) == ["broker-0: no replica is in sync with its master"]
