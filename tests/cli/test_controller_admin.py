"""`ledgermq controller status`, `elect` and `forget`, against a controller and two brokers."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import attrs
import pytest

from ledgermq.cli.controller_admin import Asked, leader_of, missing_of
from ledgermq.ha.controller.protocol import GetMetadataResponse
from ledgermq.testing.ports import BROKER_PORTS, reserved_ports
from ledgermq.world.address import Address

from .processes import Run, Start, until


@attrs.frozen
class Elected:
    """A controller by its address, and the command line that asks it."""

    address: str
    runner: Run

    def run(self, *words: str, status: int | None = 0) -> Any:
        return self.runner("controller", *words, "--controller", self.address, status=status)

    def roles(self) -> dict[int, str]:
        """The role of each replica; whether something is missing does not matter."""
        shown = self.run("status", "--json", status=None).stdout
        return {row["id"]: row["role"] for row in json.loads(shown)["replicas"]}


@pytest.fixture
def elected(start: Start, runner: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Elected]:
    monkeypatch.setenv("LEDGERMQ_HA_SECRET", "s3cret")
    with reserved_ports("127.0.0.1", 2, BROKER_PORTS) as ports, reserved_ports("127.0.0.1", 1) as (group_port,):
        conf = tmp_path / "controller.conf"
        conf.write_text(
            f"controllerDLegerPeers=n0-127.0.0.1:{group_port}\ncontrollerStorePath={tmp_path}/controller\n"
            "authenticationEnabled=true\n"
        )
        controller = start("controller", "-c", str(conf), "--host", "127.0.0.1", "--port", "0")
        address = controller.wait_for(r"asked at (127.0.0.1:\d+)")[1]
        for port in ports:
            keys = {
                "brokerName": "b1",
                "listenPort": port,
                "haListenPort": port + 1,
                "bindAddress": "127.0.0.1",
                "brokerIP1": "127.0.0.1",
                "storePathRootDir": tmp_path / f"store{port}",
                "enableControllerMode": "true",
                "controllerAddr": address,
            }
            start("broker", *(word for key, value in keys.items() for word in (f"--{key}", str(value)))).wait_for(
                "boot success"
            )
        found = Elected(address, runner)
        until(lambda: sorted(found.roles().values()) == ["in sync", "master"])
        yield found


def test_masters_are_shown_elected_and_forgotten(elected: Elected) -> None:
    roles = elected.roles()
    (master,) = (broker_id for broker_id, role in roles.items() if role == "master")
    (other,) = roles.keys() - {master}
    shown = elected.run("status").stdout
    assert re.search(r"n0 +leader +controller", shown)
    assert re.search(rf"b1 +{master} +master +yes", shown)
    assert f"{master} is master of b1 already, in epoch 1" in elected.run("elect", "b1").stdout

    assert elected.run("elect", "b1", str(other)).stdout == f"{other} is master of b1, in epoch 2\n"
    assert elected.roles()[other] == "master"
    assert "b1 has no replica 9" in elected.run("elect", "b1", "9", status=1).stderr

    assert "may be alive: stop them, or add --living" in elected.run("forget", "b1", str(master), status=1).stderr
    assert elected.run("forget", "b1", str(master), "--living").stdout == f"{master} of b1 forgotten\n"
    assert master not in elected.roles()
    until(lambda: elected.roles() == {other: "master", 3: "in sync"})  # it was alive, so it comes back with a new id


def test_who_lacks_the_secret_of_a_controller_elects_and_forgets_nothing(
    elected: Elected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor sees anything; the reason says what is missing."""
    before = elected.roles()

    with monkeypatch.context() as stranger:
        stranger.delenv("LEDGERMQ_HA_SECRET")
        refused = [elected.run(*words, status=1) for words in (("elect", "b1"), ("forget", "b1"), ("status",))]

    assert all("signed with its haSecret only" in found.stderr for found in refused)
    assert elected.roles() == before


def test_a_controller_that_does_not_answer_is_named(runner: Run) -> None:
    """Nothing is changed without a leader."""
    found = runner("controller", "status", "--controller", "127.0.0.1:1", status=1)
    assert re.search(r"127.0.0.1:1 +-", found.stdout)
    assert "missing: no controller leads" in found.stderr

    refused = runner("controller", "elect", "b1", "2", "--controller", "127.0.0.1:1", status=1)
    assert "no controller leads (127.0.0.1:1: " in refused.stderr
    assert "nothing was changed" in refused.stderr


@pytest.mark.parametrize("address", ["nowhere", "", ";"])
def test_an_address_that_is_none_is_wrong_usage(runner: Run, address: str) -> None:
    assert "--controller" in runner("controller", "status", "--controller", address, status=2).stderr


def test_a_name_server_is_no_controller(runner: Run, namesrv: str) -> None:
    found = runner("controller", "status", "--controller", namesrv, status=1)
    assert f"missing: {namesrv}: this is no controller, which listens on port 19876 by default" in found.stderr


def replica(name: str, number: int, role: str, *, alive: bool = True) -> dict[str, Any]:
    return {"broker": name, "id": number, "role": role, "alive": alive, "address": f"h{number}:10911"}


def test_what_is_missing_is_named() -> None:
    one, two = Address("h1", 1), Address("h2", 1)
    led = Asked(one, GetMetadataResponse(group="g", is_leader=True), None)
    rows = [
        replica("b1", 1, "master"),
        replica("b1", 2, "in sync"),
        replica("b1", 3, "behind"),  # one that only copies the log always is
        replica("b2", 1, "master", alive=False),
        replica("b3", 1, "in sync"),
        replica("b4", 1, "master"),
        replica("b4", 2, "behind", alive=False),
    ]

    assert leader_of([Asked(two, None, "gone"), led]) == one
    assert missing_of([led, Asked(two, None, "gone")], one, rows) == [
        "h2:1: gone",
        "b2: no master is alive",
        "b3: no master is alive",
        "b4: no replica is in sync with its master",
        "b4: replica 2 at h2:10911 is not alive",
    ]
