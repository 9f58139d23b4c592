"""Users and their rights from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from ledgermq.testing.embedded import StartedEmbedded, start_embedded

Run = Callable[..., Result]
SECURED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "admin", "password": "swordfish"}),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[StartedEmbedded]:
    with start_embedded(settings=SECURED) as cluster:
        yield cluster


@pytest.fixture
def run(runner: Run, cluster: StartedEmbedded, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command as the administrator, whose credentials are in the environment."""
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "admin")
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", "swordfish")
    return lambda *arguments, **options: runner(*arguments, namesrv=cluster.namesrv, **options)


def rows(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_user_is_created_changed_shown_and_deleted(run: Run, tmp_path: Path) -> None:
    """The password is typed, or comes from a file, and no output has it."""
    file = tmp_path / "password"
    file.write_text("from a file\n")
    created = run("user", "create", "alice", typed="hush\nhush\n")
    run("user", "create", "root", "--super", "--password-file", str(file))
    run("user", "create", "piped", "--password-file", "-", typed="hush\n")
    run("user", "update", "alice", "--password", "--disable", typed="other\nother\n")

    assert created.stdout.endswith("user alice on broker-a\n")
    assert "hush" not in created.output
    assert rows(run("user", "list", "--json")) == [
        {"broker": "broker-a", "user": "admin", "super": True, "enabled": True},
        {"broker": "broker-a", "user": "alice", "super": False, "enabled": False},
        {"broker": "broker-a", "user": "piped", "super": False, "enabled": True},
        {"broker": "broker-a", "user": "root", "super": True, "enabled": True},
    ]
    assert rows(run("user", "show", "root", "--json"))[0]["super"] is True
    assert "The user is existed" in run("user", "create", "root", "--password-file", str(file), status=1).stderr
    run("user", "delete", "alice", "--yes")
    assert "there is no user alice" in run("user", "show", "alice", status=1).stderr
    assert "say what to change" in run("user", "update", "root", status=2).stderr
    file.write_text("\n")
    assert "has no password" in run("user", "create", "empty", "--password-file", str(file), status=2).stderr


def test_rights_are_set_listed_and_taken_away(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("hush")
    run("user", "create", "bob", "--password-file", str(file))

    said = run("acl", "set", "bob", "Topic:orders", "pub,Sub", "--source", "10.0.0.0/8").stdout
    run("acl", "set", "bob", "Group:g*", "Sub", "--deny")
    shown = rows(run("acl", "show", "bob", "--json"))
    assert said == "bob may pub, Sub Topic:orders on broker-a\n"
    assert shown == [
        {
            "broker": "broker-a",
            "user": "bob",
            "resource": "Topic:orders",
            "actions": ["Pub", "Sub"],
            "decision": "allow",
            "sources": ["10.0.0.0/8"],
            "policy": "custom",
        },
        {
            "broker": "broker-a",
            "user": "bob",
            "resource": "Group:g*",
            "actions": ["Sub"],
            "decision": "deny",
            "sources": [],
            "policy": "custom",
        },
    ]
    assert rows(run("acl", "list", "--resource", "Group", "--json")) == shown[1:]
    run("acl", "delete", "bob", "Group:g*", "--yes")
    assert rows(run("acl", "show", "bob", "--json")) == shown[:1]
    run("acl", "delete", "bob", "--yes")
    assert "bob has no rights" in run("acl", "show", "bob").stderr
    assert "a resource type is one of" in run("acl", "set", "bob", "Queue:x", "Pub", status=1).stderr


def test_commands_are_refused_without_credentials(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where they come from."""
    monkeypatch.delenv("LEDGERMQ_SECRET_KEY")
    assert "LEDGERMQ_SECRET_KEY" in run("topic", "create", "T", status=2).stderr
    monkeypatch.delenv("LEDGERMQ_ACCESS_KEY")
    error = run("topic", "create", "T", status=1).stderr

    assert "username cannot be null." in error
    assert "LEDGERMQ_ACCESS_KEY" in error


@pytest.mark.parametrize("source", ["file", "environment"])
def test_the_first_user_of_a_broker_comes_from_a_file_or_the_environment(
    runner: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """And is not among what `-p` prints."""
    arguments = ["broker", "-p"]
    if source == "file":
        (tmp_path / "user").write_text(SECURED["initAuthenticationUser"])
        arguments += ["--initAuthenticationUserFile", str(tmp_path / "user")]
    else:
        monkeypatch.setenv("LEDGERMQ_INIT_AUTHENTICATION_USER", SECURED["initAuthenticationUser"])
    assert "swordfish" not in runner(*arguments).output

    (tmp_path / "user").write_text("swordfish")
    monkeypatch.setenv("LEDGERMQ_INIT_AUTHENTICATION_USER", "swordfish")
    error = runner(*arguments, status=2).stderr
    assert "initAuthenticationUser must be a JSON object" in error
    assert "swordfish" not in error
