"""Looking into a store that a broker has written."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from click.testing import Result


class Ledgermq(Protocol):
    process: subprocess.Popen[str]

    def wait_for(self, pattern: str) -> re.Match[str]: ...
    def stop(self) -> int: ...


Run = Callable[..., Result]


@pytest.fixture
def store(start: Callable[..., Ledgermq], runner: Run, tmp_path: Path) -> Path:
    """The store of a broker that took three messages and has stopped."""
    cluster = start("up", "--port", "0", "--broker-port", "0", "--store", str(tmp_path))
    address = cluster.wait_for(r"name server +(\S+:\d+)\n")[1]
    runner("topic", "create", "Dumped", "--queues", "1", namesrv=address)  # messages of several queues have no order
    runner("send", "Dumped", "one", "two", "three", "--tag", "a", namesrv=address)
    assert cluster.stop() == 0
    return tmp_path / "broker-a"


def test_a_store_is_dumped_and_verified(runner: Run, store: Path) -> None:
    """What was sent is there in order, and log and queues agree; damage is found and makes the exit status 1."""
    dumped = [
        json.loads(line) for line in runner("store", "dump", str(store), "--topic", "Dumped", "--json").stdout.splitlines()
    ]
    assert [message["body"] for message in dumped] == ["one", "two", "three"]
    (only,) = runner(
        "store", "dump", str(store), "--topic", "Dumped", "--queue", str(dumped[1]["queue_id"]), "--max", "1"
    ).stdout.splitlines()
    assert only.endswith("offset 0  one")

    sound = runner("store", "verify", str(store)).stdout
    assert "4 records in 1 queues" in sound
    assert sound.endswith("sound\n")

    (log,) = (store / "commitlog").iterdir()
    with log.open("r+b") as file:
        file.seek(dumped[2]["physical_offset"] + 20)
        file.write(b"\x07" * 8)
    report = json.loads(runner("store", "verify", str(store), "--json", status=1).stdout)
    assert report["problem_count"] > 0

    with log.open("r+b") as file:
        file.seek(file.read(1 << 16).index(b"three"))  # the file has a size of 1 GiB
        file.write(b"seven")
    to_the_damage = runner("store", "dump", str(store), status=1)
    assert [line.split()[-1] for line in to_the_damage.stdout.splitlines()] == ["one", "two"]
    assert f"no sound record at {dumped[2]['physical_offset']}" in to_the_damage.stderr


def test_a_file_in_the_place_of_a_directory_is_named(runner: Run, tmp_path: Path) -> None:
    """By the commands that read a store and by the broker that would make one."""
    (tmp_path / "commitlog").write_text("not a directory")

    assert runner("store", "dump", str(tmp_path), status=1).stderr == f"Error: {tmp_path}/commitlog: Not a directory\n"
    error = runner("broker", "--listenPort", "0", "--storePathRootDir", str(tmp_path), status=1).stderr
    assert f"{tmp_path}/commitlog: File exists\nThe store needs a directory there" in error


def test_a_directory_that_is_no_store_is_named(runner: Run, tmp_path: Path) -> None:
    """Most likely the folder above or below was meant."""
    for command in ("dump", "verify"):
        assert "storePathRootDir" in runner("store", command, str(tmp_path), status=1).stderr
    assert "--topic" in runner("store", "dump", str(tmp_path), "--queue", "1", status=2).stderr


def test_the_stores_below_a_directory_are_named(runner: Run, store: Path) -> None:
    """`up --store DIR` makes one for each broker: for DIR itself the error names the stores and what to run instead."""
    (store.parent / "broker b" / "commitlog").mkdir(parents=True)

    for arguments in (("dump",), ("cut", "--at", "0", "--yes")):
        error = runner("store", *arguments, str(store.parent), status=1).stderr
        assert f"store {arguments[0]} {store}\n" in error
        assert f"store {arguments[0]} '{store.parent}/broker b'\n" in error
        assert f"{store.parent}/namesrv" not in error
    assert not (store.parent / "lock").exists()


def test_the_stores_below_a_directory_are_verified_each(runner: Run, store: Path) -> None:
    """`up --store DIR` makes one for each broker, and DIR is what its user knows; one without messages hides no other."""
    text = runner("store", "verify", str(store.parent)).stdout
    assert text.splitlines()[0] == f"{store}:"
    assert text.endswith("sound\n")
    (store.parent / "broker-0" / "commitlog").mkdir(parents=True)

    unused, found = json.loads(runner("store", "verify", "--json", str(store.parent)).stdout)

    assert (unused["store"], unused["records"]) == (f"{store.parent}/broker-0", 0)
    assert found["store"] == str(store)
    assert found["problems"] == []


def test_a_store_without_messages_is_not_taken_for_something_else(runner: Run, tmp_path: Path) -> None:
    """A broker that never stored anything leaves a log directory without files."""
    (tmp_path / "commitlog").mkdir()

    assert "a store without messages" in runner("store", "verify", str(tmp_path), status=1).stderr


def test_ledgers_are_dumped_and_verified_and_never_cut(start: Callable[..., Ledgermq], runner: Run, tmp_path: Path) -> None:
    """Each node of a group has the messages; a ledger is cut by its leader only."""
    group = start("up", "--mode", "dledger", "--port", "0", "--broker-port", "0", "--store", str(tmp_path))
    address = group.wait_for(r"name server +(\S+:\d+)\n")[1]
    runner("topic", "create", "Dumped", "--queues", "1", namesrv=address)
    runner("send", "Dumped", "one", "two", "three", "--timeout", "60", namesrv=address)
    assert group.stop() == 0
    reports = json.loads(runner("store", "verify", str(tmp_path), "--json").stdout)
    assert len(reports) == 3
    for report in reports:
        dumped = runner("store", "dump", report["store"], "--topic", "Dumped", "--json").stdout.splitlines()
        assert [json.loads(line)["body"] for line in dumped] == ["one", "two", "three"]
        refused = runner("store", "cut", report["store"], "--at", "0", "--yes", status=1)
        assert "has a ledger of a DLedger group" in refused.output


def test_a_dump_of_events_shows_no_password(start: Callable[..., Ledgermq], runner: Run, tmp_path: Path) -> None:
    """Without access control the log has the users that are created, too."""
    cluster = start("up", "--port", "0", "--broker-port", "0", "--store", str(tmp_path))
    address = cluster.wait_for(r"name server +(\S+:\d+)\n")[1]
    (tmp_path / "secret").write_text("swordfish")
    runner("user", "create", "alice", "--password-file", str(tmp_path / "secret"), namesrv=address)
    assert cluster.stop() == 0

    dumped = runner("store", "dump", str(tmp_path / "broker-a"), "--topic", "rmq_sys_ledgermq_control", "--json").stdout
    assert "(with passwords, not shown)" in dumped
    assert "swordfish" not in dumped
