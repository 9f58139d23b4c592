"""JSON that commands print."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeGuard

from click.testing import Result

from ledgermq.cli.output import fitted

Run = Callable[..., Result]


AS_GIVEN = ("properties", "attributes", "addresses", "subscriptions")
"""Fields whose names are not ours."""


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def names_in(value: Any) -> set[str]:
    """Every name of a JSON value that is ours."""
    if is_table(value):
        return set(value).union(*(names_in(each) for name, each in value.items() if name not in AS_GIVEN))
    if is_list(value):
        return set[str]().union(*map(names_in, value))
    return set()


def test_json_has_snake_case_and_numbers_and_nulls(ledgermq: Run, as_json: Callable[..., Any]) -> None:
    """Of every command that prints it, so that a program need not know which of RocketMQ's tables an answer came from."""
    ledgermq("topic", "create", "Spelt")
    sent = as_json("send", "Spelt", "x")
    as_json("consume", "Spelt", "--group", "spellers", "--from-beginning")
    (broker,) = as_json("cluster", "status")
    answers = [
        sent,
        as_json("topic", "list"),
        as_json("topic", "show", "Spelt"),
        as_json("topic", "route", "Spelt"),
        as_json("topic", "update", "Spelt", "--perm", "rw"),
        as_json("group", "list", "--all"),
        as_json("group", "show", "spellers"),
        as_json("group", "update", "spellers", "--retries", "3"),
        as_json("group", "reset", "spellers", "Spelt", "--to", "latest"),
        as_json("message", "show", sent["offset_message_id"]),
        as_json("message", "find", "Spelt"),
        as_json("cluster", "list"),
        as_json("bench", "produce", "--seconds", "0.1"),
        broker,
    ]

    assert {name for answer in answers for name in names_in(answer) if not re.fullmatch("[a-z][a-z0-9_]*", name)} == set()
    assert isinstance(broker["log_end"], int)
    assert broker["error"] is None
    assert broker["disk_percent"] == round(broker["disk_percent"], 2), "28.0, and not 28.000000000000004"
    assert as_json("message", "show", sent["offset_message_id"])["tag"] is None
    assert "TOOLS_CONSUMER" not in ledgermq("group", "list").stdout


def test_a_table_that_is_wider_than_the_terminal_has_a_line_for_each_value() -> None:
    """A terminal would break its lines. Nothing is shortened, and without a terminal it stays a table."""
    rows = [{"broker": "a", "address": "10.0.0.1:10911"}, {"broker": "b", "address": None}]
    table = "BROKER  ADDRESS\na       10.0.0.1:10911\nb       -"

    assert fitted(rows, None) == fitted(rows, 22) == table
    assert fitted(rows, 21) == "BROKER   a\nADDRESS  10.0.0.1:10911\n\nBROKER   b\nADDRESS  -"
