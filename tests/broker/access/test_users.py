"""The table of users and rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from ledgermq.broker.access.policies import Acl
from ledgermq.broker.access.users import (
    ACCESS_BYTES_MAX,
    AccessTable,
    BadUser,
    User,
    access_content,
    credentials_in,
    read_access,
)
from ledgermq.message.json import dumps
from ledgermq.remoting.errors import RequestRefused

ALICE = User("alice", "hush")
RIGHTS = Acl.from_json(
    {
        "subject": "User:alice",
        "policies": [{"entries": [{"resource": "Topic:T1", "actions": ["Pub"], "decision": "Allow"}]}],
    }
)


def test_what_is_stored_is_read_again() -> None:
    """The content of the file, and of what a slave copies."""
    table, copy = AccessTable(), AccessTable()
    table.apply({"alice": ALICE, "root": User("root", "x", is_super=True, is_enabled=False)}, {"User:alice": RIGHTS})
    copy.apply({"gone": User("gone", "x")}, {})
    copy.load(orjson.loads(dumps(table.to_json())))

    assert copy.users == table.users
    assert copy.acls == table.acls


def test_a_deleted_user_is_gone_with_its_room() -> None:
    table = AccessTable()
    table.apply({"alice": ALICE}, {"User:alice": RIGHTS})
    table.apply({"alice": None, "never": None}, {"User:alice": None})

    assert (table.users, table.acls) == ({}, {})
    assert dumps(table.to_json()) == b'{"acls":{},"users":{}}'


def test_a_change_keeps_what_it_does_not_name() -> None:
    known = User("alice", "hush", is_super=True, is_enabled=False)

    assert User.from_json({"username": "alice", "userStatus": "enable"}, known) == User("alice", "hush", is_super=True)
    assert User.from_json({"username": "alice", "password": "new"}, known) == User("alice", "new", True, False)


@pytest.mark.parametrize(
    "value",
    [
        {"username": "alice"},
        {"username": "", "password": "secret-word"},
        {"username": "a b", "password": "secret-word"},
        {"username": "alice", "password": 5},
        {"username": "alice", "password": "secret-word" * 100},
        {"username": "alice", "password": "secret-word", "userType": "King"},
        {"username": "alice", "password": "secret-word", "userStatus": "on"},
    ],
)
def test_a_value_that_is_no_user_is_refused_without_its_password(value: dict[str, Any]) -> None:
    with pytest.raises(BadUser) as refused:
        User.from_json(value)

    assert "secret-word" not in str(refused.value)


def test_passwords_are_never_shown() -> None:
    assert "hush" not in repr(ALICE)
    assert ALICE.to_json(password=False)["password"] is None


def test_the_table_is_bounded() -> None:
    """A broker encodes and reads it in one turn of the event loop."""
    table = AccessTable()
    count = ACCESS_BYTES_MAX // 300
    table.apply({f"u{number}": User(f"u{number}", "p" * 250) for number in range(count)}, {})

    with pytest.raises(RequestRefused, match="the table of users is full"):
        table.check_room([User("a" * 255, "p" * 255)], [])


MANY_SOURCES = {f"Topic:{at}": ["::"] * 100 for at in range(10)}


@pytest.mark.parametrize(("subjects", "sources"), [(85, MANY_SOURCES), (3300, {"*": []})])
def test_full_tables_are_read_within_a_turn(
    cpu_seconds: Callable[[], float], subjects: int, sources: dict[str, list[str]]
) -> None:
    entries = [
        {"resource": name, "actions": ["Pub"], "decision": "Deny", "sourceIps": given} for name, given in sources.items()
    ]
    rights = {f"User:{number}": {"policies": [{"entries": entries}]} for number in range(subjects)}
    users = {str(number): {"password": "p"} for number in range(6000)}
    table = AccessTable()
    before = cpu_seconds()
    table.load({"acls": rights, "users": users})

    assert cpu_seconds() - before < 0.1  # 50 ms in truth; with all sources read it would be more than half a second
    assert all(0.9 < len(orjson.dumps(each)) / ACCESS_BYTES_MAX < 1 for each in table.to_json().values())


def test_the_user_of_a_configuration_is_a_json_object() -> None:
    found = credentials_in('{"username": "root", "password": "hush"}', "username", "password")

    assert found is not None
    assert (found.access_key, found.secret_key) == ("root", "hush")
    assert credentials_in(" ", "username", "password") is None


@pytest.mark.parametrize("text", ["hush", "[]", '{"username": "root"}', '{"username": "root", "password": ""}', '"hush"'])
def test_another_text_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(BadUser, match="JSON object") as refused:
        credentials_in(text, "username", "password")

    assert "hush" not in str(refused.value)


def test_an_event_is_read_as_it_was_written() -> None:
    """Deletions among them, which JSON of RocketMQ's kind could not hold as nulls."""
    users, acls = {"alice": ALICE, "gone": None}, {"User:alice": RIGHTS, "User:gone": None}

    assert read_access(orjson.loads(dumps(access_content(users, acls)))) == (users, acls)
