"""`ledgermq message`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .processes import Run


def test_a_message_is_found_by_every_way(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """By either id, by key, by place, and by looking through a time."""
    sent = as_json("send", "Found", "needle", "--key", "order-7")

    found = [
        as_json("message", "show", sent["offset_message_id"]),
        as_json("message", "show", sent["message_id"], "--topic", "Found"),
        as_json("message", "by-offset", "Found", str(sent["queue_offset"]), "--queue", str(sent["queue_id"])),
        *as_json("message", "by-key", "Found", "order-7"),
        *as_json("message", "find", "Found", "--contains", "need"),
    ]

    assert [message["body"] for message in found] == ["needle"] * 5
    assert {message["message_id"] for message in found} == {sent["message_id"]}
    assert "needle" in ledgermq("message", "show", sent["offset_message_id"]).stdout
    assert "no message" in ledgermq("message", "by-key", "Found", "nobody", status=1).stderr
    assert "no message" in ledgermq("message", "by-offset", "Found", "99", "--queue", "0", status=1).stderr
