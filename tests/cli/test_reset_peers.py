"""`ledgermq store reset-peers` and `to-classic` on a node whose group is gone."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from ledgermq.testing.ports import reserved_ports
from ledgermq.world.disk import RealDisk

from .processes import Run, Start, until


@pytest.fixture
def address() -> Generator[str]:
    """Where the node listens for peers once it is alone."""
    with reserved_ports("127.0.0.1", 1) as (port,):
        yield f"127.0.0.1:{port}"


@pytest.mark.slow
def test_a_node_whose_group_is_gone_serves_its_messages_alone_and_leaves_the_mode(
    start: Start, runner: Run, tmp_path: Path, address: str
) -> None:
    """The group is not given up while the broker runs, and the store is not copied before it was closed in order."""
    up = start("up", "--mode", "dledger", "--port", "0", "--broker-port", "0", "--store", str(tmp_path))
    namesrv = up.wait_for(r"name server +(\S+:\d+)\n")[1]
    up.wait_for(r"Ctrl-C stops")
    assert "SEND_OK" in runner("send", "hello", "first", "--timeout", "60", namesrv=namesrv).stdout
    store = str(tmp_path / "broker-a-1")
    assert "is in use by another broker" in runner("store", "reset-peers", store, "--address", address, status=1).stderr
    assert up.stop() == 0
    assert "sound" in runner("store", "verify", store).stdout
    assert "hello" in runner("store", "dump", store, "--topic", "hello").stdout
    assert "only its leader truncates" in runner("store", "cut", store, "--at", "0", status=1).stderr

    shown = runner("store", "reset-peers", store, "--address", address, "--yes").stdout

    assert f"start it with dLegerPeers=n1-{address}" in shown
    names = start("namesrv", "--host", "127.0.0.1", "--port", "0")
    namesrv = names.wait_for(r"(127\.0\.0\.1:\d+)")[1]
    keys = {
        "enableDLegerCommitLog": "true",
        "dLegerSelfId": "n1",
        "dLegerPeers": f"n1-{address}",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "storePathRootDir": store,
        "diskMaxUsedSpaceRatio": "95",
    }
    alone = start("broker", "--namesrv", namesrv, *(part for key, value in keys.items() for part in (f"--{key}", value)))
    alone.wait_for("elected in term")
    until(lambda: "hello" in runner("topic", "list", namesrv=namesrv).stdout)  # it may have registered before it was elected
    assert runner("consume", "hello", "--from-beginning", namesrv=namesrv).stdout == "first\n"
    assert "SEND_OK" in runner("send", "hello", "second", "--timeout", "60", namesrv=namesrv).stdout
    assert alone.stop() == 0
    assert not RealDisk().exists(f"{store}/abort")

    classic = str(tmp_path / "classic")
    assert "copied 2 records" in runner("store", "to-classic", store, classic).stdout
    assert "is not empty" in runner("store", "to-classic", store, classic, status=1).stderr
    keys |= {"enableDLegerCommitLog": "false", "storePathRootDir": classic}
    last = start("broker", "--namesrv", namesrv, *(part for key, value in keys.items() for part in (f"--{key}", value)))
    last.wait_for("broker_registered")
    assert sorted(runner("consume", "hello", "--from-beginning", namesrv=namesrv).stdout.split()) == ["first", "second"]
    assert last.stop() == 0
    assert names.stop() == 0
    assert "sound" in runner("store", "verify", classic).stdout
