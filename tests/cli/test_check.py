"""The status and the line of `ledgermq check`."""

from __future__ import annotations

import signal
from typing import NoReturn

import pytest

from ledgermq.client.admin import Admin
from ledgermq.client.errors import ClientError

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
    """A name without a master, and no name server."""
    names = start("namesrv", "--port", "0")
    address = "127.0.0.1:" + names.wait_for(r"0\.0\.0\.0:(\d+)")[1]

    nobody = runner("check", namesrv=address, status=2).stdout
    assert nobody == "CRITICAL: the name server knows no broker\n"
    assert names.stop(signal.SIGTERM) == 0
    gone = runner("check", namesrv=address, status=2).stdout
    assert gone.startswith("CRITICAL: ")
    assert gone.count("\n") == 1


def test_a_wrong_option_is_unknown_in_one_line(runner: Run) -> None:
    """Nagios reads the first line of the standard output; the status 2 of other commands would wake somebody."""
    for options, named in ((("--disk", "0"), "--disk"), (("-n", "host:abc"), "abc"), (("--no-such",), "--no-such")):
        said = runner("check", *options, status=3).stdout
        assert said.startswith("UNKNOWN: ")
        assert named in said
        assert said.count("\n") == 1


def test_a_name_that_the_name_server_has_forgotten_is_missed(runner: Run, namesrv: str) -> None:
    assert runner("check", "--brokers", "1", "--disk", "100", namesrv=namesrv).stdout.startswith("OK: ")

    missed = runner("check", "--brokers", "2", "--disk", "100", namesrv=namesrv, status=2).stdout

    assert missed == "CRITICAL: the name server knows 1 broker names, 2 are expected\n"


def test_a_group_that_cannot_be_asked_for_hides_no_outage(runner: Run, namesrv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that goes away meanwhile fails the request for the lag."""

    async def fail(_: Admin, group: str) -> NoReturn:
        raise ClientError(f"no answer for {group}")

    monkeypatch.setattr(Admin, "group_stats", fail)

    said = runner("check", "--group", "readers", "--brokers", "2", "--disk", "100", namesrv=namesrv, status=2).stdout

    assert said.startswith("CRITICAL: the name server knows 1 broker names, 2 are expected; readers: ")
