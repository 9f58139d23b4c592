"""Consumer groups: created, changed, listed, deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result

Run = Callable[..., Result]


def test_groups_are_created_listed_and_deleted(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """The configuration is RocketMQ's."""
    ledgermq("group", "create", "workers", "--retries", "3", "--no-broadcast")
    (created,) = (group for group in as_json("group", "list") if group["group"] == "workers")
    assert (created["retry_max_times"], created["consume_broadcast_enable"]) == (3, False)

    error = ledgermq("group", "create", "workers", status=1).stderr
    assert "group workers exists on broker-a with other settings: consumeBroadcastEnable is False, retryMaxTimes is 3" in error
    assert "ledgermq group update workers" in error
    ledgermq("group", "create", "workers", "--retries", "3", "--no-broadcast")

    updated = ledgermq("group", "update", "workers", "--retries", "5").stdout
    assert updated == "group workers on broker-a: 5 retries, no broadcasting\n"
    assert "there is no group 'strangers'" in ledgermq("group", "update", "strangers", "--retries", "5", status=1).stderr
    assert "say what to change" in ledgermq("group", "update", "workers", status=2).stderr

    ledgermq("group", "delete", "workers", "--yes")
    assert "workers" not in ledgermq("group", "list").stdout.split()
