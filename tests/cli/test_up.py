"""`ledgermq up` as a process."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import attrs
import pytest

from ledgermq.cli.up import Plan, Ports, announcement, open_cluster
from ledgermq.world.disk import DiskUsage, RealDisk
from ledgermq.world.real import real_world

from .processes import Run, Start


def test_messages_outlive_the_cluster_that_kept_them(start: Start, runner: Run, tmp_path: Path) -> None:
    """`up --store` finds again what an earlier one has stored."""
    arguments = ("up", "--port", "0", "--broker-port", "0", "--store", str(tmp_path / "store"))
    first = start(*arguments)
    runner("send", "hello", "kept", namesrv=first.wait_for(r"name server +(\S+:\d+)\n")[1])
    assert first.stop(signal.SIGINT) == 0, first.output

    second = start(*arguments)
    address = second.wait_for(r"name server +(\S+:\d+)\n")[1]

    assert runner("consume", "hello", "--from-beginning", namesrv=address).stdout == "kept\n"


def test_a_cluster_clears_away_what_a_killed_one_has_left(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one that runs is left alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    arguments = ("up", "--port", "0", "--broker-port", "0")
    killed, running = start(*arguments), start(*arguments)
    killed.wait_for("Ctrl-C stops")
    running.wait_for("Ctrl-C stops")
    assert len(list(tmp_path.glob("ledgermq-up-*"))) == 2
    killed.stop(signal.SIGKILL)

    third = start(*arguments)
    third.wait_for("Ctrl-C stops")

    assert len(list(tmp_path.glob("ledgermq-up-*"))) == 2
    assert (running.stop(), third.stop()) == (0, 0)
    assert list(tmp_path.glob("ledgermq-up-*")) == []


def test_several_masters_have_slaves_each(start: Start, runner: Run) -> None:
    """`up --mode ha --masters 2` is two broker names of a master and a slave."""
    up = start("up", "--mode", "ha", "--masters", "2", "--port", "0", "--broker-port", "0")
    address = up.wait_for(r"name server +(\S+:\d+)\n")[1]

    listed = json.loads(runner("cluster", "list", "--json", namesrv=address).stdout)

    assert [(row["broker"], row["role"]) for row in listed] == [
        ("broker-a", "master"), ("broker-a", "slave"), ("broker-b", "master"), ("broker-b", "slave"),
    ]  # fmt: skip


def test_several_brokers_are_processes_of_one_cluster(start: Start, runner: Run, tmp_path: Path) -> None:
    """`up --brokers 2`: each has a core, and what one held is there when it has been killed and started again."""
    up = start("up", "--brokers", "2", "--port", "0", "--broker-port", "0", "--store", str(tmp_path / "store"))
    address = up.wait_for(r"name server +(\S+:\d+)\n")[1]
    processes = [int(up.wait_for(rf"broker-{name} +master +\S+ +(\d+)\n")[1]) for name in "ab"]
    up.wait_for(r"Kill a broker \(kill -9 PROCESS\): it is started again")
    runner("topic", "create", "spread", "--queues", "1", namesrv=address)
    for number in range(4):
        runner("send", "spread", str(number), namesrv=address)

    os.kill(processes[0], signal.SIGKILL)
    runner("send", "spread", "meanwhile", namesrv=address)
    up.wait_for("broker_process_started")

    got = runner("consume", "spread", "--from-beginning", namesrv=address).stdout
    assert sorted(got.split()) == ["0", "1", "2", "3", "meanwhile"]
    listed = json.loads(runner("cluster", "list", "--json", namesrv=address).stdout)
    assert [(row["broker"], row["role"]) for row in listed] == [("broker-a", "master"), ("broker-b", "master")]
    assert up.stop(signal.SIGINT) == 0, up.output


def test_a_terminal_that_is_closed_stops_a_cluster_in_order(start: Start, tmp_path: Path) -> None:
    """SIGHUP leaves a store that was closed, as Ctrl-C does."""
    up = start("up", "--port", "0", "--broker-port", "0", "--store", str(tmp_path / "store"))
    up.wait_for("Ctrl-C stops")

    assert up.stop(signal.SIGHUP) == 0, up.output
    assert not (tmp_path / "store" / "broker-a" / "abort").exists()


@pytest.mark.parametrize(
    ("kept", "arguments", "words"),
    [
        (["broker-a"], ("--mode", "dledger"), "this cluster with --mode dledger does not open: broker-a."),
        (
            ["broker-a-0", "broker-a-1"],
            (),
            "this cluster with --mode local does not open: broker-a-0, broker-a-1.",
        ),
        (["broker-a", "broker-b"], (), "does not open: broker-b."),
        (["broker-a-0", "broker-a-1"], ("--mode", "dledger"), "broker-a-2 would lack those of broker-a-0."),
    ],
    ids=["local to dledger", "ha to local", "fewer brokers", "ha to a larger group"],
)
def test_stores_of_another_mode_are_not_passed_over(
    runner: Run, tmp_path: Path, kept: list[str], arguments: tuple[str, ...], words: str
) -> None:
    """A cluster beside them would look as if all messages were lost; nothing is started or changed."""
    for name in kept:
        (tmp_path / name / "commitlog").mkdir(parents=True)
        (tmp_path / name / "commitlog" / "00000000000000000000").touch()
    before = sorted(tmp_path.rglob("*"))

    refused = runner("up", "--store", str(tmp_path), *arguments, status=2)

    assert words in " ".join(refused.stderr.split())
    assert "Nothing was started or changed" in " ".join(refused.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_cluster_gives_clients_no_address_of_every_interface(runner: Run, host: str) -> None:
    """A broker would register with an address that only its own machine can use."""
    assert "choose one that they can reach" in runner("up", "--host", host, status=2).stderr


def test_the_nodes_of_a_cluster_share_its_secret() -> None:
    """Nobody who can reach their ports on this machine takes part; the secret is made anew for each cluster."""
    plan = Plan("dledger", 3, 1, "127.0.0.1", 0, 0, "store", secret="s3cret", kept=False)  # noqa: S106

    configs = plan.brokers("127.0.0.1:9876", Ports([1, 2, 3], [4, 5, 6]))

    assert [config.ha_secret for config in configs] == ["s3cret"] * 3


def test_a_controller_elects_another_master_when_one_is_killed(start: Start, runner: Run, tmp_path: Path) -> None:
    """`up --mode controller`: two copies, and the controller beside the name server; the store is found again."""
    arguments = ("up", "--mode", "controller", "--port", "0", "--broker-port", "0", "--store", str(tmp_path / "store"))
    up = start(*arguments)
    address = up.wait_for(r"name server +(\S+:\d+)\n")[1]
    controller = up.wait_for(r"controller +(\S+:\d+)\n")[1]
    assert "in sync" in runner("controller", "status", "--controller", controller).stdout
    process_id = int(up.wait_for(r"broker-a +master +\S+ +(\d+)\n")[1])
    runner("send", "hello", "kept", namesrv=address)
    assert re.search(
        r"replica [12] in epoch 1; in sync 1 2; \S+ 0 bytes behind", runner("cluster", "status", namesrv=address).stdout
    )

    os.kill(process_id, signal.SIGKILL)
    runner("send", "hello", "sent again", namesrv=address)
    assert up.stop(signal.SIGINT) == 0, up.output

    again = start(*arguments)
    address = again.wait_for(r"name server +(\S+:\d+)\n")[1]
    got = runner("consume", "hello", "--from-beginning", namesrv=address).stdout
    assert sorted(got.splitlines()) == ["kept", "sent again"]


@attrs.frozen
class FullDisk(RealDisk):
    """A disk on which a millionth is free."""

    def usage(self, path: str) -> DiskUsage:
        total = super().usage(path).total
        return DiskUsage(total, total - total // 1_000_000, total // 1_000_000)


async def test_a_cluster_on_a_full_disk_says_at_once_that_it_will_refuse_sends(tmp_path: Path) -> None:
    """Otherwise the first thing that a newcomer sees is the failure of the send that the announcement proposes."""
    plan = Plan("local", 1, 1, "127.0.0.1", 0, 0, str(tmp_path), secret="s3cret", kept=True)  # noqa: S106
    announced: list[str] = []
    for disk in (RealDisk(), FullDisk()):
        async with open_cluster(plan, (), attrs.evolve(real_world(), disk=disk)) as cluster:
            announced.append(announcement(cluster))

    used = RealDisk().usage(str(tmp_path)).ratio
    assert used < 0.9, "this machine's disk is full"
    assert "refuse" not in announced[0]
    assert f"Sends will be refused: the disk of {tmp_path} is 100.0% full" in announced[1]
    assert "--store" in announced[1]
