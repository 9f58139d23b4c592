"""Nodes of DLedger groups under `ledgermq up`: processes that may be killed, come back, and end with their parent."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ledgermq.cli.main import main
from ledgermq.cli.processes import announced_address

from .processes import Run, Start, until

SECONDS_MAX = 60.0
_ROW = re.compile(r"^broker-a +(master|follower) +(\S+) +(\d+)$", re.MULTILINE)


def is_running(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(process_ids: list[int]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while any(map(is_running, process_ids)):
        assert time.monotonic() < deadline, "processes outlive the one that started them"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_group_goes_on_without_a_node_that_is_killed_and_has_it_back_soon(start: Start, runner: Run) -> None:
    """Every send is answered; the killed process is replaced by one with the same address and store."""
    up = start("up", "--mode", "dledger", "--port", "0", "--broker-port", "0")
    namesrv = up.wait_for(r"name server +(\S+:\d+)\n")[1]
    shown = up.wait_for(r"(?s)PROCESS\n(.*)Ctrl-C stops")[1]
    rows = {role: (address, int(process_id)) for role, address, process_id in _ROW.findall(shown)}
    address, process_id = rows["master"]
    assert "SEND_OK" in runner("send", "hello", "first", "--timeout", "60", namesrv=namesrv).stdout

    os.kill(process_id, signal.SIGKILL)
    assert "SEND_OK" in runner("send", "hello", "second", "--timeout", "60", namesrv=namesrv).stdout
    up.wait_for(rf"broker_process_ended.*{process_id}|{process_id}.*broker_process_ended")
    up.wait_for(r"broker_process_started")

    def is_back() -> bool:
        found = CliRunner().invoke(main, ["dledger", "status", "--json", "--namesrv", namesrv])  # ends with 1 while it is away
        nodes = json.loads(found.stdout)
        return found.exit_code == 0 and [row["role"] for row in nodes if row["address"] == address] == ["follower"]

    until(is_back)
    assert sorted(runner("consume", "hello", "--from-beginning", namesrv=namesrv).stdout.split()) == ["first", "second"]
    processes = [int(match[2]) for match in _ROW.findall(shown)]
    assert up.stop() == 0
    wait_until_gone(processes)


@pytest.mark.parametrize("address", ["127.0.0.1:10911", "[::1]:10911"])
def test_the_address_of_a_node_is_read_from_its_announcement(address: str) -> None:
    """An IPv6 address has brackets, as the text around it has."""
    assert announced_address(f"The broker[broker-a, {address}] boot success\n") == address


def test_brokers_end_when_their_parent_is_killed(start: Start) -> None:
    """Nobody is left to stop them in order."""
    up = start("up", "--mode", "dledger", "--nodes", "1", "--port", "0", "--broker-port", "0")
    shown = up.wait_for(r"(?s)PROCESS\n(.*)Ctrl-C stops")[1]
    processes = [int(match[2]) for match in _ROW.findall(shown)]
    assert all(map(is_running, processes))

    up.process.kill()

    wait_until_gone(processes)


def test_a_broker_that_cannot_start_ends_all_with_its_reason(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = start("up", "--mode", "dledger", "--port", "0", "--broker-port", str(port))
        output, _ = up.process.communicate(timeout=SECONDS_MAX)

    assert up.process.returncode == 1
    assert "Another server runs there" in output
    assert "the broker broker-a did not start" in output
    assert "Traceback" not in output
