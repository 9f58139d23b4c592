"""The script of docs/operate/upgrade.md restarts every broker of a cluster of processes, while clients send and read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import attrs
import pytest
import trio

from harness.processes.servers import broker_arguments, running, running_namesrv
from ledgermq import ConsumeFrom
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.message.message import Message
from ledgermq.testing.embedded import dledger_keys
from ledgermq.testing.ports import BROKER_PORTS, reserved_ports

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "rolling_upgrade.sh"
HOST, TOPIC = "127.0.0.1", "Upgraded"
SENDERS, NODES = 4, 3
SEND_SECONDS = {"pair": 30.0}
"""How long a send may wait for the restart of the only master; with other masters or nodes, the default is enough."""
READY_SECONDS, SCRIPT_SECONDS = 60.0, 300.0
RESTART = """#!/bin/sh
kill "$(cat "$1.pid")"
while [ -e "$1.pid" ]; do sleep 0.05; done
"""
"""Stops a broker as `systemctl restart` does; `keep_running` starts the next one."""
LEDGERMQ = f'#!/bin/sh\nexec {sys.executable} -m ledgermq.cli.main "$@"\n'
LEDGERMQ_WITHOUT_A_SLAVE = """#!/bin/sh
case "$*" in
"cluster list") printf 'CLUSTER BROKER ID ROLE ADDRESS\\nc broker-a 0 master 127.0.0.1:1\\nc broker-a 1 slave 127.0.0.1:2\\n' ;;
*) echo 'missing: broker-a: slave 1 at 127.0.0.1:2'; exit 1 ;;
esac
"""


def commands(directory: Path, **scripts: str) -> Path:
    """Write scripts that are found by their names; returns the directory for the path of commands."""
    bin_path = directory / "bin"
    bin_path.mkdir()
    for name, text in scripts.items():
        (bin_path / name).write_text(text)
        (bin_path / name).chmod(0o755)
    return bin_path


@attrs.define(eq=False)
class Clients:
    """What was acknowledged, refused and read."""

    acknowledged: set[int] = attrs.field(factory=set[int])
    failed: list[ClientError] = attrs.field(factory=list[ClientError])
    read: set[int] = attrs.field(factory=set[int])
    _numbers: count[int] = attrs.field(factory=count)

    async def send_until(self, stop: trio.Event, producer: Producer) -> None:
        while not stop.is_set():
            number = next(self._numbers)
            try:
                await producer.send(Message(TOPIC, b"%d" % number))
            except ClientError as error:
                self.failed.append(error)
            else:
                self.acknowledged.add(number)
            await trio.sleep(0.01)

    async def read_all(self, consumer: Consumer) -> None:
        async for message in consumer:
            self.read.add(int(message.body))

    async def have(self, numbers: set[int]) -> None:
        with trio.fail_after(READY_SECONDS):
            while not numbers <= self.read:  # noqa: ASYNC110 - another task reads
                await trio.sleep(0.05)


@attrs.define(eq=False)
class Brokers:
    """The brokers of a cluster, each as a process that is started again whenever it ends in order."""

    directory: Path
    namesrv: str
    lives: dict[str, int] = attrs.field(factory=dict[str, int])
    """How often the broker of each address was up."""

    async def keep_running(self, port: int, settings: dict[str, object]) -> None:
        address, directory = f"{HOST}:{port}", self.directory / str(port)
        keys = {"namesrvAddr": self.namesrv, "haSecret": "secret", "listenPort": port, **settings}
        mark = self.directory / f"{address}.pid"
        while True:
            async with running(directory, *broker_arguments(directory / "store", keys)) as server:
                await server.up()
                self.lives[address] = self.lives.get(address, 0) + 1
                mark.write_text(str(server.process.pid))
                assert await server.process.wait() == 0, server.errors
            mark.unlink()

    async def upgrade(self) -> str:
        """Run the script to its end; returns what it printed."""
        bin_path = commands(self.directory, ledgermq=LEDGERMQ, restart=RESTART)
        environment = {
            **os.environ,
            "PATH": f"{bin_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "LEDGERMQ_NAMESRV": self.namesrv,
            "WAIT_SECONDS": "60",
        }
        with trio.fail_after(SCRIPT_SECONDS):
            done = await trio.run_process(
                [str(SCRIPT), "restart"],
                env=environment,
                cwd=self.directory,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
        assert done.returncode == 0, done.stdout.decode()
        return done.stdout.decode()


def settings_of(shape: str, raft_ports: list[int]) -> list[dict[str, object]]:
    """The keys in which the brokers of a cluster differ."""
    if shape == "group":
        return [{**dledger_keys(at, [f"{HOST}:{port}" for port in raft_ports])} for at in range(NODES)]
    roles: list[dict[str, object]] = [{"brokerId": 0, "brokerRole": "SYNC_MASTER"}, {"brokerId": 1, "brokerRole": "SLAVE"}]
    names = ("broker-a", "broker-b") if shape == "two pairs" else ("broker-a",)
    return [{"brokerName": name, **role} for name in names for role in roles]


@asynccontextmanager
async def running_cluster(shape: str, directory: Path) -> AsyncGenerator[Brokers]:
    """Run a name server and the brokers of a shape, until nothing of them is missing."""
    with reserved_ports(HOST, NODES) as raft_ports:
        settings = settings_of(shape, raft_ports)
        with reserved_ports(HOST, len(settings), BROKER_PORTS) as ports:
            async with running_namesrv(directory / "namesrv") as namesrv, trio.open_nursery() as nursery:
                brokers = Brokers(directory, str(namesrv.address))
                for port, keys in zip(ports, settings, strict=True):
                    nursery.start_soon(brokers.keep_running, port, keys)
                async with open_admin(brokers.namesrv) as admin:
                    with trio.fail_after(READY_SECONDS):
                        while len(brokers.lives) < len(settings) or (await admin.cluster()).without_master():  # noqa: ASYNC110
                            await trio.sleep(0.05)
                yield brokers
                nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["pair", "two pairs", "group"])
async def test_an_upgrade_loses_nothing_and_fails_no_send(shape: str, tmp_path: Path) -> None:
    """Each broker is restarted once, and what was acknowledged meanwhile is read."""
    clients, stop = Clients(), trio.Event()
    async with running_cluster(shape, tmp_path) as brokers, trio.open_nursery() as nursery:
        async with open_admin(brokers.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=4)
        async with (
            open_consumer(brokers.namesrv, "readers", TOPIC, consume_from=ConsumeFrom.FIRST) as consumer,
            open_producer(brokers.namesrv, send_timeout_seconds=SEND_SECONDS.get(shape)) as producer,
        ):
            nursery.start_soon(clients.read_all, consumer)
            async with trio.open_nursery() as sending:
                for _ in range(SENDERS):
                    sending.start_soon(clients.send_until, stop, producer)
                printed = await brokers.upgrade()
                stop.set()
            await clients.have(clients.acknowledged)
            consumer.stop()

    assert set(brokers.lives.values()) == {2}
    assert [line.split()[0] for line in printed.splitlines() if line.endswith("is done")] == sorted(
        brokers.lives, key=printed.index
    )
    assert printed.count("takes no sends") == {"pair": 0, "two pairs": 2, "group": 1}[shape]
    assert clients.failed == []
    assert len(clients.acknowledged) > 100


@pytest.mark.parametrize(
    ("status", "reason"),
    [(0, "missing: broker-a: slave 1 at 127.0.0.1:2\n127.0.0.1:2 has not caught up"), (3, "no such package")],
)
def test_a_broker_that_does_not_come_back_ends_the_upgrade(tmp_path: Path, status: int, reason: str) -> None:
    """Otherwise its master would be stopped as well."""
    restart = f"#!/bin/sh\necho $1 >> {tmp_path}/restarted\necho no such package >&2\nexit {status}\n"
    bin_path = commands(tmp_path, ledgermq=LEDGERMQ_WITHOUT_A_SLAVE, restart=restart)

    done = subprocess.run(
        [str(SCRIPT), "restart"],
        env={"PATH": f"{bin_path}:{os.environ['PATH']}", "WAIT_SECONDS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == (status or 1)
    assert reason in done.stderr
    assert (tmp_path / "restarted").read_text() == "127.0.0.1:2\n"


@pytest.mark.parametrize(
    ("listing", "reason"),
    [("echo unreachable >&2; exit 1", "unreachable"), ("echo CLUSTER BROKER ID ROLE ADDRESS", "no master is listed")],
)
def test_a_cluster_that_cannot_be_listed_is_not_called_upgraded(tmp_path: Path, listing: str, reason: str) -> None:
    bin_path = commands(tmp_path, ledgermq=f"#!/bin/sh\n{listing}\n", restart="#!/bin/sh\nexit 0\n")

    done = subprocess.run(
        [str(SCRIPT), "restart"],
        env={"PATH": f"{bin_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert reason in done.stderr
    assert "is done" not in done.stdout
