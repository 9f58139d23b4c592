"""`ledgermq controller` as a process, alone and inside a name server."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.testing.ports import reserved_ports

from .processes import Run, Start


def test_a_controller_says_that_it_is_ready_and_keeps_its_state(start: Start, runner: Run, tmp_path: Path) -> None:
    """On this machine it needs no secret."""
    with reserved_ports("127.0.0.1", 1) as (group_port,):
        file = tmp_path / "controller.conf"
        file.write_text(f"controllerDLegerPeers=n0-127.0.0.1:{group_port}\ncontrollerStorePath={tmp_path}/store\n")
        for _ in range(2):
            controller = start("controller", "-c", str(file), "--host", "127.0.0.1", "--port", "0")
            controller.wait_for(r"The controller boot success, asked at 127.0.0.1:[1-9]")
            assert controller.stop() == 0, controller.output
    assert (tmp_path / "store" / "dledger-n0").is_dir()


def test_the_configuration_is_printed_without_the_secret(runner: Run, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hush\n")
    conf = tmp_path / "controller.conf"
    conf.write_text(f"haSecretFile={file}\nenableElectUncleanMaster=true\n")

    printed = runner("controller", "-c", str(conf), "-p", "--port", "77").stdout

    assert "listenPort=77\n" in printed
    assert "enableElectUncleanMaster=true\n" in printed
    assert "hush" not in printed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("listenPort=x", "listenPort must be a number"),
        ("controllerDLegerSelfid=n0", "spelt controllerDLegerSelfId"),
        ("haSecret=a\nhaSecretFile=/none", "haSecretFile must be left out where haSecret is set"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_wrong_usage(runner: Run, tmp_path: Path, text: str, found: str) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text(text)

    assert found in runner("controller", "-c", str(conf), status=2).stderr


def test_a_controller_that_strangers_reach_needs_a_secret(runner: Run, tmp_path: Path) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text(f"controllerStorePath={tmp_path}/store\n")

    assert "haSecret is empty" in runner("controller", "-c", str(conf), status=1).stderr


def test_a_name_server_runs_a_controller_too(start: Start, runner: Run, tmp_path: Path) -> None:
    """With the keys of its file, but another one for the port."""
    with reserved_ports("127.0.0.1", 1) as (group_port,):
        conf = tmp_path / "namesrv.conf"
        conf.write_text(
            f"enableControllerInNamesrv=true\ncontrollerListenPort=0\ncontrollerDLegerPeers=n0-127.0.0.1:{group_port}\n"
            f"controllerStorePath={tmp_path}/store\norderMessageEnable=true\n"
        )
        namesrv = start("namesrv", "-c", str(conf), "--host", "127.0.0.1", "--port", "0")
        address = namesrv.wait_for(r"The controller boot success, asked at (127.0.0.1:[1-9]\d*)")[1]
        namesrv.wait_for("The name server boot success, listening on 127.0.0.1:[1-9]")
        assert "unknown_config_keys_ignored" not in namesrv.output

        namesrv.wait_for("leader_elected")
        assert "leader" in runner("controller", "status", "--controller", address).stdout
        assert namesrv.stop() == 0, namesrv.output
