"""Servers under a service manager."""

from __future__ import annotations

import configparser
import os
import shlex
import socket
from collections.abc import Generator
from pathlib import Path

import pytest
import trio
import trio.testing
from click.testing import CliRunner

from ledgermq.cli.main import main
from ledgermq.cli.systemd import ServiceManager

from .processes import PATIENCE_SECONDS, Start

UNITS = sorted((Path(__file__).parents[2] / "examples" / "systemd").glob("*.service"))


@pytest.fixture
def manager(tmp_path: Path) -> Generator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(PATIENCE_SECONDS)
        yield listening


def test_a_server_says_that_it_is_ready_that_it_runs_and_that_it_stops(
    start: Start, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that units which depend on it wait, and one that hangs is started again."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "100000")

    server = start("namesrv", "--host", "127.0.0.1", "--port", "0")
    said = [manager.recv(100) for _ in range(3)]
    assert server.stop() == 0
    while said[-1] == b"WATCHDOG=1":
        said.append(manager.recv(100))

    assert said[:3] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    assert said[-1] == b"STOPPING=1"


async def test_the_watchdog_hears_twice_in_its_period(manager: socket.socket, autojump_clock: trio.testing.MockClock) -> None:
    """One message may be late without a restart."""
    watched = ServiceManager(manager.getsockname(), 30.0)
    with trio.move_on_after(59):
        await watched.keep_watched()

    manager.setblocking(False)
    assert [manager.recv(100) for _ in range(4)] == [b"WATCHDOG=1"] * 4
    with pytest.raises(BlockingIOError):
        manager.recv(100)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "100000"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
    ],
)
async def test_what_is_not_asked_for_is_not_said(environment: dict[str, str]) -> None:
    """A watchdog of another process, or without a socket, is none; a socket that is away ends nothing."""
    manager = ServiceManager.of(environment)

    manager.ready()
    manager.stopping()
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(1):
        await manager.keep_watched()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_commands_of_the_units_exist(unit: Path) -> None:
    """With the options that they are given; a misspelt one would be noticed at the first start of a machine."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    service = parser["Service"]
    program, command, *options = shlex.split(service["ExecStart"])
    configured = [option for option in options if option != "-c" and not option.endswith(".conf")]

    found = CliRunner().invoke(main, [command, *configured, "-p"])

    assert found.exit_code == 0, found.output
    assert f"ledgermq-{command}" == unit.stem.rstrip("@")
    assert os.path.basename(program) == "ledgermq"
    assert service["Type"] == "notify"
