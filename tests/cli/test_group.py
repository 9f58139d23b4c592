"""Consumer groups: created, changed, listed, deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
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


def test_what_a_group_has_lost_is_shown(ledgermq: Run, as_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that were deleted before the group had read them; no look at its positions tells that afterwards."""

    async def lost(_admin: object, group: str) -> dict[str, int]:
        await trio.lowlevel.checkpoint()
        return {"Orders": 17} if group == "losers" else {}

    ledgermq("group", "create", "losers")
    ledgermq("group", "create", "keepers")
    assert as_json("group", "show", "losers")["lost"] == {}
    monkeypatch.setattr("ledgermq.client.admin.Admin.lost_messages", lost)

    assert as_json("group", "show", "losers")["lost"] == {"Orders": 17}
    words = "lost, because they were deleted before the group had read them: 17 messages of Orders"
    assert words in ledgermq("group", "show", "losers").stdout
    assert "lost" not in ledgermq("group", "show", "keepers").stdout


def test_members_are_shown_and_positions_cloned(runner: Run, namesrv: str) -> None:
    """A group that nobody is a member of says so; the other group goes on where the first one is."""
    runner("topic", "create", "Cloned", "--queues", "1", namesrv=namesrv)
    runner("send", "Cloned", "one", "two", "three", namesrv=namesrv)
    runner("consume", "Cloned", "--group", "first", "--max", "2", "--from-beginning", namesrv=namesrv)

    said = runner("group", "clone", "first", "second", "Cloned", namesrv=namesrv).stdout

    assert said == "second is where first is in Cloned; queues: 1\n"
    assert (
        "no route for topic 'Clone'" in runner("group", "clone", "first", "second", "Clone", namesrv=namesrv, status=1).stderr
    )
    runner("topic", "create", "Unread", namesrv=namesrv)
    unread = runner("group", "clone", "first", "second", "Unread", namesrv=namesrv, status=1).stderr
    assert "first has no position in Unread; nothing was changed" in unread
    assert (
        "No member of the group is connected now." in runner("group", "connections", "first", namesrv=namesrv, status=1).stderr
    )
