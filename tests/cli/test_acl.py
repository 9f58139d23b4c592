"""Rights of users from the command line."""

from __future__ import annotations

from pathlib import Path

from .secured import Run, cluster, rows, run

__all__ = ["cluster", "run"]


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
