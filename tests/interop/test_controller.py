"""Our controller with strangers: mqadmin of rocketmq-tools 5.5.0, and brokers of Apache's."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from . import servers
from .conftest import mqadmin, start_java
from .driver import Driver
from .servers import Maker, broker_config, controller_config, free_port, start_broker, start_controller, start_namesrv

pytestmark = pytest.mark.interop

SETTLED_SECONDS = 120.0


def both_in_sync(replicas: dict[int, str]) -> bool:
    return sorted(replicas.values()) == ["in sync", "master"]


@attrs.frozen
class Elected:
    """A controller, and mqadmin beside it."""

    address: str
    java: Driver | None

    def admin(self, *words: str) -> str:
        assert self.java is not None
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


@contextmanager
def cluster(folder: Path, maker: Maker) -> Generator[tuple[str, str, list[servers.Server]]]:
    """A name server, a controller of ours and two brokers of this make: the addresses of the first two, and the brokers."""
    namesrv_port, controller_port = free_port(), free_port()
    namesrv, address = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{controller_port}"
    with ExitStack() as started:
        namesrv_server = start_namesrv(Maker.OURS, folder / "namesrv", namesrv_port)
        started.callback(namesrv_server.kill)
        config = controller_config(Maker.OURS, controller_port, folder / "controller" / "store")
        controller = start_controller(Maker.OURS, folder / "controller", config)
        started.callback(controller.kill)
        controller.wait_ready()
        brokers: list[servers.Server] = []
        for number in (1, 2):
            own = folder / f"broker{number}"
            keys = {"enableControllerMode": "true", "controllerAddr": address}
            keys |= {"bindAddress": "127.0.0.1"} if maker is Maker.OURS else {"brokerId": "-1"}
            broker = start_broker(maker, own, {**broker_config(free_port(), namesrv, own / "store"), **keys})
            started.callback(broker.kill)
            brokers.append(broker.wait_ready())
        yield namesrv, address, brokers


@pytest.fixture(scope="module")
def elected(tmp_path_factory: pytest.TempPathFactory) -> Generator[Elected]:
    folder: Path = tmp_path_factory.mktemp("controller")
    with cluster(folder, Maker.OURS) as (namesrv, address, _), ExitStack() as started:
        java = start_java("5.5.0", namesrv, folder / "java")
        started.callback(java.close)
        found = Elected(address, java)
        found.until(both_in_sync)
        yield found


def test_brokers_of_apache_take_the_roles_that_our_controller_gives(tmp_path: Path) -> None:
    """The master is killed, the other one takes its place, after the time-out that it gave."""
    with cluster(tmp_path, Maker.APACHE_55) as (_, address, brokers):
        replicas = Elected(address, None)
        (master,) = (broker_id for broker_id, role in replicas.until(both_in_sync).items() if role == "master")

        brokers[master - 1].kill()

        replicas.until(lambda roles: roles == {3 - master: "master"})


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
    elected.until(lambda replicas: replicas[other] == "master" and both_in_sync(replicas))


def test_living_replicas_are_not_cleaned_unless_asked(elected: Elected) -> None:
    clean = ("cleanBrokerMetadata", "-bn", "broker-a", "-b", "2", "-c", "DefaultCluster")
    assert "success" not in elected.admin(*clean)  # it prints the reason on standard error
    assert 2 in elected.replicas()

    assert "success" in elected.admin(*clean, "-l")

    elected.until(lambda replicas: 2 not in replicas and "master" in replicas.values())
