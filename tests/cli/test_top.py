"""What `ledgermq top` draws."""

from __future__ import annotations

import io
from typing import Any, NoReturn, cast

import pytest
from rich.console import Console

from ledgermq.cli.top import Rate, Seen, frame, look, rate_of
from ledgermq.client.admin import Admin
from ledgermq.client.errors import ClientError

from .conftest import Run

ROW: dict[str, Any] = {
    "broker": "broker-a",
    "id": 0,
    "role": "master",
    "address": "10.0.0.1:10911",
    "in_tps": 5.0,
    "out_tps": 7.0,
    "disk_percent": 12.3,
    "log_end": 4711,
    "replication": "no slave",
    "error": None,
    "runtime": {"msg_put_total_today_now": 100, "msg_get_total_today_now": 50},
}


def later(puts: int, gets: int) -> dict[str, Any]:
    return {**ROW, "runtime": {"msg_put_total_today_now": puts, "msg_get_total_today_now": gets}}


def test_rates_are_those_since_the_last_look() -> None:
    """At the first look those of the broker; a broker that was started anew does not count backwards."""
    before = Seen(10.0, [ROW], [], {})

    assert rate_of(ROW, None, 10.0) == Rate(5.0, 7.0)
    assert rate_of(later(300, 60), before, 12.0) == Rate(100.0, 5.0)
    assert rate_of(later(0, 0), before, 12.0) == Rate(0.0, 0.0)
    assert rate_of({**ROW, "address": "new"}, before, 12.0) == Rate(5.0, 7.0)


async def test_a_failover_is_a_fault_in_the_frame() -> None:
    """What was seen last stays, because the cluster is looked at just then; at the first look there is nothing else to show."""

    class Electing:
        async def cluster(self) -> NoReturn:
            raise ClientError("no master")

    admin, before = cast("Admin", Electing()), Seen(0.0, [ROW], ["a slave"], {"readers": 3})

    seen = await look(admin, (), before)

    assert (seen.rows, seen.lags) == ([ROW], {"readers": 3})
    assert seen.faults == ["no master"]
    with pytest.raises(ClientError):
        await look(admin, ())


def test_a_frame_has_what_is_missing_brokers_and_groups() -> None:
    """Groups that lag most come first; names of strangers are no markup."""
    silent = {**ROW, "address": "10.0.0.2:10911", "log_end": None, "disk_percent": None, "runtime": None, "error": "silent"}
    text = io.StringIO()

    Console(file=text, width=140).print(frame(Seen(0.0, [ROW, silent], ["a slave"], {"few": 1, "[red]many": 30}), None))

    lines = text.getvalue().splitlines()
    assert lines[0].rstrip() == "missing: a slave"
    assert any("broker-a" in line and "4711" in line and "no slave" in line for line in lines)
    (many, few) = (next(at for at, line in enumerate(lines) if name in line) for name in ("[red]many", "few"))
    assert many < few


@pytest.mark.filterwarnings("default")
def test_one_frame_of_a_cluster_is_printed(runner: Run, namesrv: str) -> None:
    runner("topic", "create", "Topped", "--queues", "1", namesrv=namesrv)
    runner("send", "Topped", "one", namesrv=namesrv)
    runner("consume", "Topped", "--group", "readers", "--max", "1", "--from-beginning", namesrv=namesrv)

    printed = runner("top", "--once", "--group", "readers", namesrv=namesrv).stdout

    assert "master" in printed
    assert "readers" in printed
