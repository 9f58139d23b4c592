"""Users from the command line, and the credentials of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from .secured import SECURED, Run, cluster, rows, run

__all__ = ["cluster", "run"]


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


@pytest.mark.parametrize("place", ["a file", "standard input"])
def test_a_password_that_is_not_text_is_wrong_usage(runner: Run, tmp_path: Path, place: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"caf\xe9")

    name, typed = (str(file), None) if place == "a file" else ("-", file.read_bytes())

    assert (
        f"the password in {name} is not UTF-8"
        in runner("user", "create", "u", "--password-file", name, typed=typed, status=2).stderr
    )


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
