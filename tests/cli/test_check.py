"""The status and the line of `ledgermq check`."""

from __future__ import annotations

import signal

from .conftest import Run, Start


def test_a_cluster_that_serves_is_ok(runner: Run, namesrv: str) -> None:
    assert runner("check", "--disk", "100", namesrv=namesrv).stdout.startswith("OK: 1 brokers of 1 names, ")


def test_a_group_that_lags_and_a_disk_that_fills_up_are_warnings(runner: Run, namesrv: str) -> None:
    """In one line, with what is beyond its bound."""
    runner("topic", "create", "Checked", "--queues", "1", namesrv=namesrv)
    runner("send", "Checked", "one", "two", "three", namesrv=namesrv)
    runner("consume", "Checked", "--group", "readers", "--max", "1", "--from-beginning", namesrv=namesrv)

    late = runner("check", "--group", "readers", "--lag", "0", "--disk", "100", namesrv=namesrv, status=1).stdout

    assert late == "WARNING: readers is 2 messages behind\n"
    full = runner("check", "--disk", "1", namesrv=namesrv, status=1).stdout
    assert full.startswith("WARNING: broker-a: the disk of ")


def test_a_group_that_does_not_exist_is_unknown(runner: Run, namesrv: str) -> None:
    """A misspelt group is a mistake of the caller and no outage; what is worse decides on the status, and both are named."""
    misspelt = runner("check", "--group", "raeders", "--disk", "100", namesrv=namesrv, status=3).stdout
    assert misspelt == "UNKNOWN: there is no group 'raeders'\n"
    assert runner("check", "--group", "no name", "--disk", "100", namesrv=namesrv, status=3).stdout.startswith("UNKNOWN: ")

    full = runner("check", "--group", "raeders", "--disk", "1", namesrv=namesrv, status=1).stdout
    assert full.startswith("WARNING: broker-a: the disk of ")
    assert full.endswith("; there is no group 'raeders'\n")


def test_what_clients_cannot_use_is_critical(start: Start, runner: Run) -> None:
    """A name without a master, and no name server; a wrong option is neither, but unknown."""
    names = start("namesrv", "--port", "0")
    address = "127.0.0.1:" + names.wait_for(r"0\.0\.0\.0:(\d+)")[1]

    nobody = runner("check", namesrv=address, status=2).stdout
    assert nobody == "CRITICAL: the name server knows no broker\n"
    assert names.stop(signal.SIGTERM) == 0
    gone = runner("check", namesrv=address, status=2).stdout
    assert gone.startswith("CRITICAL: ")
    assert gone.count("\n") == 1
    assert "--disk" in runner("check", "--disk", "0", namesrv=address, status=3).stderr
