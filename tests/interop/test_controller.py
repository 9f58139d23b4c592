"""mqadmin of rocketmq-tools 5.5.0, unmodified, against our controller, which elects the master of two of our brokers."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from . import servers
from .conftest import mqadmin, start_java
from .driver import Driver
from .servers import Maker, broker_config, free_port, start_broker, start_namesrv, start_our_controller

pytestmark = pytest.mark.interop

SETTLED_SECONDS = 60.0


@attrs.frozen
class Elected:
    """A controller, and mqadmin beside it."""

    address: str
    java: Driver

    def admin(self, *words: str) -> str:
        return mqadmin(self.java, words[0], "-a", self.address, *words[1:])

    def replicas(self) -> dict[int, str]:
        """The role of each replica that is alive, as `ledgermq controller status` shows it."""
        command = [sys.executable, "-m", "ledgermq.cli.main", "controller", "status", "--json", "--controller", self.address]
        shown = subprocess.run(command, capture_output=True, check=False, env=servers.our_environment())
        rows = json.loads(shown.stdout)["replicas"]
        return {row["id"]: row["role"] for row in rows if row["alive"]}

    def until(self, expected: Callable[[dict[int, str]], bool]) -> dict[int, str]:
        deadline = time.monotonic() + SETTLED_SECONDS
        while not expected(found := self.replicas()):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        return found


@pytest.fixture(scope="module")
def elected(tmp_path_factory: pytest.TempPathFactory) -> Generator[Elected]:
    folder: Path = tmp_path_factory.mktemp("controller")
    namesrv_port, controller_port, group_port = free_port(), free_port(), free_port()
    namesrv, address = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{controller_port}"
    with ExitStack() as started:
        namesrv_server = start_namesrv(Maker.OURS, folder / "namesrv", namesrv_port)
        started.callback(namesrv_server.kill)
        config = {
            "listenPort": controller_port,
            "bindAddress": "127.0.0.1",
            "controllerDLegerPeers": f"n0-127.0.0.1:{group_port}",
            "controllerStorePath": folder / "controller" / "store",
            "configStorePath": folder / "controller" / "changes",
        }
        controller = start_our_controller(folder / "controller", config)
        started.callback(controller.kill)
        controller.wait_ready()
        for number in (1, 2):
            own = folder / f"broker{number}"
            settings = broker_config(
                free_port(),
                namesrv,
                own / "store",
                enableControllerMode="true",
                controllerAddr=address,
                bindAddress="127.0.0.1",
            )
            broker = start_broker(Maker.OURS, own, settings)
            started.callback(broker.kill)
            broker.wait_ready()
        java = start_java("5.5.0", namesrv, folder / "java")
        started.callback(java.close)
        found = Elected(address, java)
        found.until(lambda replicas: sorted(replicas.values()) == ["in sync", "master"])
        yield found


def test_the_leader_is_shown(elected: Elected) -> None:
    printed = elected.admin("getControllerMetaData")

    assert "#ControllerLeaderId\tn0" in printed
    assert f"#ControllerLeaderAddress\t{elected.address}" in printed
    assert f"#Peer:\tn0:{elected.address}" in printed


def test_the_replicas_in_sync_are_shown(elected: Elected) -> None:
    for chosen in (("-b", "broker-a"), ("-c", "DefaultCluster")):
        printed = elected.admin("getSyncStateSet", *chosen)
        assert "#brokerName\tbroker-a" in printed
        assert "#SyncStateSetNums\t2" in printed
        assert printed.count("alive=true") == 2


def test_settings_are_shown_and_changed(elected: Elected) -> None:
    assert "enableElectUncleanMaster" in elected.admin("getControllerConfig")

    changed = elected.admin("updateControllerConfig", "-k", "scanNotActiveBrokerInterval", "-v", "4000")

    assert "update controller config success" in changed
    assert "4000" in elected.admin("getControllerConfig")


def test_a_master_is_elected(elected: Elected) -> None:
    """By its id, in the way of a planned change, and the other one follows it."""
    (other,) = (broker_id for broker_id, role in elected.replicas().items() if role != "master")

    printed = elected.admin("electMaster", "-b", str(other), "-bn", "broker-a", "-c", "DefaultCluster")

    assert "#ClusterName\tDefaultCluster" in printed
    assert re.search(r"#MasterEpoch\t[1-9]", printed)
    elected.until(lambda replicas: replicas[other] == "master" and sorted(replicas.values()) == ["in sync", "master"])


def test_living_replicas_are_not_cleaned_unless_asked(elected: Elected) -> None:
    clean = ("cleanBrokerMetadata", "-bn", "broker-a", "-b", "2", "-c", "DefaultCluster")
    assert "success" not in elected.admin(*clean)  # it prints the reason on standard error
    assert 2 in elected.replicas()

    assert "success" in elected.admin(*clean, "-l")

    elected.until(lambda replicas: 2 not in replicas and "master" in replicas.values())
