"""Topics: created, changed, shown, deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from click.testing import Result

Run = Callable[..., Result]


def lines_of(result: Result) -> list[str]:
    return result.stdout.splitlines()


def test_topics_are_created_changed_shown_and_deleted(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """Every step is seen by the next."""
    ledgermq("topic", "create", "Mine", "--queues", "3")
    assert "Mine" in as_json("topic", "list")
    assert "TBW102" not in as_json("topic", "list")
    assert "TBW102" in as_json("topic", "list", "--all")
    (route,) = as_json("topic", "route", "Mine")
    assert (route["read"], route["write"], route["perm"]) == (3, 3, "rw")

    ledgermq("topic", "update", "Mine", "--queues", "5", "--perm", "r")
    (route,) = as_json("topic", "route", "Mine")
    assert (route["write"], route["perm"]) == (5, "r")
    assert "permissions" in ledgermq("send", "Mine", "x", status=1).stderr

    assert len(as_json("topic", "show", "Mine")["queues"]) == 5
    ledgermq("topic", "delete", "Mine", "--yes")
    assert "Mine" not in as_json("topic", "list")


def test_an_update_changes_what_is_named_and_nothing_else(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """What a topic has and nobody names stays; what changes is known to clients when the command ends."""
    ledgermq("topic", "create", "Kept", "--queues", "4", "--order", "--attribute", "message.type=FIFO")

    printed = ledgermq("topic", "update", "Kept", "--perm", "r").stdout
    assert printed == "topic Kept on broker-a: 4 queues, permission r, ordered, message.type=FIFO\n"
    (row,) = as_json("topic", "update", "Kept", "--write-queues", "2", "--no-order")["brokers"]
    assert row == {
        "broker": "broker-a",
        "read_queues": 4,
        "write_queues": 2,
        "perm": "r",
        "order": False,
        "attributes": {"message.type": "FIFO"},
    }

    assert "say what to change" in ledgermq("topic", "update", "Kept", status=2).stderr
    assert (
        "Create it with `ledgermq topic create Absent`" in ledgermq("topic", "update", "Absent", "--perm", "r", status=1).stderr
    )
    assert "Absent" not in as_json("topic", "list"), "an update does not create"


def test_a_topic_that_exists_is_created_again_only_as_it_is(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """A second `create` would otherwise take queues away, with the messages in them."""
    ledgermq("topic", "create", "Twice", "--queues", "4")

    assert "4 queues" in ledgermq("topic", "create", "Twice", "--queues", "4").stdout
    error = ledgermq("topic", "create", "Twice", status=1).stderr
    assert "topic Twice exists on broker-a with other settings: 4 queues, permission rw; nothing was changed" in error
    assert "ledgermq topic update Twice" in error
    assert as_json("topic", "route", "Twice")[0]["read"] == 4


def test_queues_with_messages_are_taken_away_by_force_alone(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """The error says what could not be read any more, and how to go about it."""
    ledgermq("topic", "create", "Shrunk", "--queues", "4")
    ledgermq("send", "Shrunk", *"abcdefgh")

    error = ledgermq("topic", "update", "Shrunk", "--queues", "2", status=1).stderr
    assert "4 messages of topic Shrunk in the queues broker-a:2, broker-a:3 could not be read any more" in error
    assert "--write-queues" in error
    assert as_json("topic", "route", "Shrunk")[0]["read"] == 4
    ledgermq("topic", "update", "Shrunk", "--write-queues", "2")
    assert len(lines_of(ledgermq("consume", "Shrunk", "--from-beginning"))) == 8

    ledgermq("topic", "update", "Shrunk", "--queues", "2", "--force")
    assert len(lines_of(ledgermq("consume", "Shrunk", "--from-beginning"))) == 4


def test_a_new_topic_is_known_when_the_command_ends(ledgermq: Run) -> None:
    """A send right behind it would otherwise use the queues that it thinks are created by sending."""
    for number in range(5):
        ledgermq("topic", "create", f"Fresh{number}", "--queues", "1")
        assert "Fresh" in ledgermq("send", f"Fresh{number}", "a", "b", "c").stdout


def test_a_topic_has_a_queue(ledgermq: Run) -> None:
    """Nothing could be sent to one without."""
    assert "not in the range" in ledgermq("topic", "create", "Empty", "--queues", "0", status=2).stderr


def test_deleting_asks_first(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """Without a yes nothing is deleted, and the exit status says so."""
    ledgermq("topic", "create", "Precious")

    ledgermq("topic", "delete", "Precious", status=1)

    assert "Precious" in as_json("topic", "list")
