"""`ledgermq cluster status` of masters and slaves."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .processes import Ledgermq, Run, Start, until


def statuses(runner: Run, namesrv: str) -> dict[int, dict[str, Any]]:
    """What the command prints of each broker, by its id."""
    return {row["id"]: row for row in json.loads(runner("cluster", "status", "--json", namesrv=namesrv).stdout)}


def test_a_pair_shows_its_roles_its_lag_and_its_last_acknowledgement(start: Start, runner: Run) -> None:
    """`up --mode ha` is all it takes; by `--json` with every number, in the table in words."""
    up = start("up", "--mode", "ha", "--port", "0", "--broker-port", "0")
    namesrv = up.wait_for(r"name server +(\S+:\d+)\n")[1]
    up.wait_for(r"broker-a +sync master .*\nbroker-a +slave ")
    until(lambda: statuses(runner, namesrv)[0]["replication"] != "no slave")
    runner("send", "hello", "first", namesrv=namesrv)

    rows = statuses(runner, namesrv)

    assert [(number, row["role"], row["broker"]) for number, row in rows.items()] == [
        (0, "master", "broker-a"),
        (1, "slave", "broker-a"),
    ]
    assert int(rows[0]["log_end"]) == int(rows[1]["log_end"]) > 0, "the send was answered when the slave had it"
    assert re.fullmatch(r"127\.0\.0\.1:\d+ 0 bytes behind, acked \d+ ms ago", rows[0]["replication"])
    assert re.fullmatch(r"follows 127\.0\.0\.1:\d+, 0 bytes behind", rows[1]["replication"])
    (slave,) = rows[0]["ha"]["ha_connection_info"]
    assert (slave["broker_id"], slave["diff"], slave["in_sync"]) == (1, 0, True)
    assert slave["last_ack_millis"] < 10_000
    heading, *lines = runner("cluster", "status", namesrv=namesrv).stdout.splitlines()
    assert " ".join(heading.split()) == "BROKER ID ROLE ADDRESS VERSION IN_TPS OUT_TPS DISK_PERCENT LOG_END REPLICATION"
    assert [("0 bytes behind" in line, "acked" in line, "follows" in line) for line in lines] == [
        (True, True, False),
        (True, False, True),
    ]


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
        return lambda: re.match(reason, statuses(runner, namesrv)[number]["replication"]) is not None

    until(shows(1, r"127\.0\.0\.1:\d+: the master does not know our secret.*haSecret"))
    until(shows(2, r"cannot reach 127\.0\.0\.1:1"))
    until(shows(0, "no slave$"))

    master.process.send_signal(signal.SIGSTOP)
    shown = runner("cluster", "status", namesrv=namesrv, status=1).stdout
    master.process.send_signal(signal.SIGCONT)
    assert "did not answer" in shown
    assert "cannot reach 127.0.0.1:1" in shown
