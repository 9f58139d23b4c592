"""The commands that back up a running broker and restore what they kept, on real files."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import cast

import pytest

from ledgermq.cli.backup import CommandKeep
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles, open_ledger
from ledgermq.store.errors import BackupRefused
from ledgermq.store.keeping.backup import DirectoryKeep
from ledgermq.store.offline import log_files, read_log
from ledgermq.world.disk import RealDisk
from ledgermq.world.memory_disk import MemoryDisk

from ..store.keeping.test_backup import SIZE, Store
from .conftest import Run, Start


def bodies(runner: Run, store: Path) -> list[str]:
    lines = runner("store", "dump", str(store), "--topic", "T", "--json").stdout.splitlines()
    return [json.loads(line)["body"] for line in lines]


@pytest.fixture
def address(start: Start, runner: Run, tmp_path: Path) -> str:
    """The name server of a broker that runs, and has three messages."""
    cluster = start("up", "--port", "0", "--broker-port", "0", "--store", str(tmp_path / "store"))
    address = cluster.wait_for(r"name server +(\S+:\d+)\n")[1]
    runner("topic", "create", "T", "--queues", "1", namesrv=address)
    runner("send", "T", "one", "two", "three", namesrv=address)
    return address


def test_a_running_broker_is_backed_up_and_restored(runner: Run, address: str, tmp_path: Path) -> None:
    """A second point adds only what is new, a moment between the points is restored, and damage is found."""
    store, kept = str(tmp_path / "store/broker-a"), tmp_path / "kept"

    first = json.loads(runner("store", "backup", store, str(kept), "--json").stdout)
    runner("send", "T", "four", namesrv=address)
    runner("send", "T", "five", namesrv=address)
    second = json.loads(runner("store", "backup", store, str(kept), "--json").stdout)

    assert second["copied_bytes"] + second["linked_bytes"] == second["end"] - first["end"] > 0
    assert runner("store", "verify-backup", str(kept)).stdout.endswith("\nsound\n")
    said = runner("store", "restore", str(kept), str(tmp_path / "all")).stdout
    assert f"restored physical offsets 0 to {second['end']}\n" in said
    assert bodies(runner, tmp_path / "all") == ["one", "two", "three", "four", "five"]
    four = json.loads(runner("store", "dump", str(tmp_path / "all"), "--topic", "T", "--json").stdout.splitlines()[3])
    runner("store", "restore", str(kept), str(tmp_path / "some"), "--until", str(four["store_timestamp"]))
    assert bodies(runner, tmp_path / "some") == ["one", "two", "three", "four"]
    assert runner("store", "verify", str(tmp_path / "some")).stdout.endswith("sound\n")

    manifest = kept / "points" / first["point"] / "manifest.json"
    manifest.write_bytes(b"x" + manifest.read_bytes())
    left_out = runner("store", "restore", str(kept), str(tmp_path / "newest")).stderr
    assert f"points/{first['point']}/manifest.json of the backup is damaged" in left_out
    assert bodies(runner, tmp_path / "newest") == ["one", "two", "three", "four", "five"]

    (piece, *_) = (kept / "commitlog").iterdir()
    piece.write_bytes(b"x" + piece.read_bytes()[1:])
    assert f"commitlog/{piece.name} of the backup is damaged" in runner("store", "verify-backup", str(kept), status=1).stdout
    refused = runner("store", "restore", str(kept), str(tmp_path / "damaged"), status=1).stderr
    assert f"commitlog/{piece.name} of the backup is damaged" in refused
    assert f"{tmp_path / 'damaged'} is incomplete: remove it" in refused
    assert "remove it" not in runner("store", "restore", str(kept), str(tmp_path / "all"), status=1).stderr
    dumped = runner("store", "dump", str(tmp_path / "damaged"), status=1).stderr
    assert "has not finished writing this store" in dumped
    unopened = runner("broker", "--listenPort", "0", "--storePathRootDir", str(tmp_path / "damaged"), status=1).stderr
    assert "commitlog-unfinished" in unopened


def test_two_backups_at_once_do_not_write_to_one_directory(runner: Run, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "0".zfill(20)).write_bytes(b"x")
    lock = RealDisk().lock(str(tmp_path / "lock"))

    refused = runner("store", "backup", str(tmp_path), str(tmp_path), status=1).stderr

    lock.release()
    assert refused == f"Error: another backup writes to {tmp_path}; no point was added\n"


def test_a_command_that_stops_reading_has_not_stored_the_object(tmp_path: Path) -> None:
    """Whatever its status."""
    keep = CommandKeep(DirectoryKeep(RealDisk(), str(tmp_path)), "true {}")

    with pytest.raises(BackupRefused, match="`true x` ended with status 0 before it had read all; x was not stored"):
        keep.put("x", [bytes(1 << 20)] * 2)


def test_commands_keep_the_objects(runner: Run, address: str, tmp_path: Path) -> None:
    """As those of an object store do; the directory has the manifests, and a command that fails adds no point."""
    del address
    store, objects = str(tmp_path / "store/broker-a"), tmp_path / "objects"
    program = "import pathlib,sys; p=pathlib.Path(sys.argv[1]); p.parent.mkdir(parents=True,exist_ok=True); "
    put = f"{sys.executable} -c '{program}p.write_bytes(sys.stdin.buffer.read())' {objects}/{{}}"
    get = f"{sys.executable} -c '{program}sys.stdout.buffer.write(p.read_bytes())' {objects}/{{}}"
    kept = str(tmp_path / "kept")

    failed = runner("store", "backup", store, kept, "--put", "false {}", status=1).stderr
    assert re.search(r"`false commitlog/0+-\d+` ended with status 1( before it had read all)?; .* was not stored", failed)
    assert "needs a {}" in runner("store", "backup", store, kept, "--put", "cat", status=2).stderr
    runner("store", "backup", store, kept, "--put", put)

    assert not (tmp_path / "kept/commitlog").exists()
    assert runner("store", "verify-backup", kept, "--get", get).stdout.endswith("\nsound\n")
    runner("store", "restore", kept, str(tmp_path / "restored"), "--get", get)
    assert bodies(runner, tmp_path / "restored") == ["one", "two", "three"]
    (piece,) = (objects / "commitlog").iterdir()
    piece.unlink()
    assert "ended with status 1" in runner("store", "restore", kept, str(tmp_path / "none"), "--get", get, status=1).stderr


def test_a_command_that_is_not_quoted_right_is_wrong_usage(runner: Run, tmp_path: Path) -> None:
    """It is found before anything is written, or read."""
    kept = tmp_path / "kept"
    refused = runner("store", "backup", str(tmp_path), str(kept), "--put", "aws 's3 {}", status=2).stderr
    assert "--put cannot be read as a command: No closing quotation" in refused
    assert not kept.exists()

    refused = runner("store", "verify-backup", str(tmp_path), "--get", 'aws "s3 {}', status=2).stderr
    assert "--get cannot be read as a command: No closing quotation" in refused


def test_what_cannot_be_backed_up_or_restored_is_named(runner: Run, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()

    refused = runner("store", "backup", str(empty), str(tmp_path / "kept"), status=1).stderr
    assert f"{empty} has no log, so it is no store; no point was added" in refused
    assert not (tmp_path / "kept").exists()
    assert "has no point" in runner("store", "verify-backup", str(empty), status=1).stdout
    assert "has no point; nothing was restored" in runner("store", "restore", str(empty), str(tmp_path / "t"), status=1).stderr


def test_a_moment_before_the_first_entry_of_a_ledger_is_one_of_a_classic_store(runner: Run, tmp_path: Path) -> None:
    """DLedger was switched on behind it, so what is restored has no ledger that could be reset."""
    disk, root, kept, target = RealDisk(), str(tmp_path / "store"), str(tmp_path / "kept"), str(tmp_path / "classic")
    store = Store(cast("MemoryDisk", disk), root)
    store.put(12)
    store.fill()
    store.commit()
    first = json.loads(runner("store", "backup", root, kept, "--json").stdout)
    ledger = open_ledger(disk, LedgerFiles(f"{root}/dledger-n0", SIZE, 32 * 16, first_position=2 * SIZE))
    store.now_ms = first["taken"] + 1000
    ledger.append(1, [store.encoded(0)])
    ledger.close()
    runner("store", "backup", root, kept)

    restore = ("store", "restore", kept, target, "--address", "127.0.0.1:40999", "--until", str(first["taken"] + 1))
    said = runner(*restore).stdout

    assert f"start a broker with storePathRootDir={target}" in said
    assert [bytes(each.bytes) for each in read_log(log_files(disk, target))] == store.records
    assert not list(Path(target).glob("dledger-*"))


def test_a_node_of_a_group_is_restored_as_its_only_voter(start: Start, runner: Run, tmp_path: Path) -> None:
    """The address is needed, and the restored store is a ledger that reset-peers has given to this node alone."""
    cluster = start("up", "--port", "0", "--broker-port", "0", "--mode", "dledger", "--store", str(tmp_path / "store"))
    address = cluster.wait_for(r"name server +(\S+:\d+)\n")[1]
    runner("topic", "create", "T", "--queues", "1", namesrv=address)
    runner("send", "T", "one", "two", namesrv=address)
    status = json.loads(runner("dledger", "status", "--json", status=None, namesrv=address).stdout)
    # A follower learns a moment later what is committed, and backs up no more than that.
    (leader,) = (row["self_id"] for row in status if row["role"] == "leader")
    store = next(path for path in sorted((tmp_path / "store").iterdir()) if any(path.glob(f"dledger-{leader}")))

    runner("store", "backup", str(store), str(tmp_path / "kept"))

    target = str(tmp_path / "fork")
    assert "--address is needed" in runner("store", "restore", str(tmp_path / "kept"), target, status=2).stderr
    runner("store", "restore", str(tmp_path / "kept"), target, "--address", "127.0.0.1:40999")
    assert bodies(runner, tmp_path / "fork") == ["one", "two"]
    shown = runner("store", "reset-peers", target, "--address", "127.0.0.1:40999", "--yes").stdout
    assert f"voters by its log: {leader}\n" in shown
