"""Groups of brokers, ours and Apache's mixed, behind a name server of ours; and foreign clients on them.

Invariant: when the owner of a group is done, no process of it is left.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import attrs
import trio

from ledgermq.client.admin import Admin, open_admin
from ledgermq.client.errors import ClientError
from ledgermq.client.route import AUTO_CREATE_TOPIC
from ledgermq.message.units import MASTER_ID

from . import peers
from .conftest import obtain, start_java
from .driver import Driver
from .servers import (
    Maker,
    Server,
    broker_config,
    controller_config,
    free_port,
    jars_of,
    start_broker,
    start_controller,
    start_namesrv,
)

SEGMENT_SIZE = 4 * 1024 * 1024
DLEDGER: Mapping[str, object] = {
    "enableDLegerCommitLog": "true",
    "mappedFileSizeCommitLog": SEGMENT_SIZE,
    "slaveReadEnable": "true",
}
QUIET_SECONDS = 2.5
"""Longer than the shortest delay level: what is delayed has been delivered."""
MASTER_SECONDS = 240.0
"""How long a group may take to elect a master: some ten seconds among Apache's nodes, on a machine with other work."""


@attrs.define
class Member:
    """One broker of a group: started, killed and started again on its store."""

    maker: Maker
    folder: Path
    config: dict[str, object]
    server: Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.config['listenPort']}"

    @property
    def segments(self) -> Path:
        return self.folder / "store" / "commitlog"

    async def start(self) -> None:
        self.server = server = await trio.to_thread.run_sync(start_broker, self.maker, self.folder, self.config)
        await trio.to_thread.run_sync(server.wait_ready)

    async def stop(self) -> None:
        assert self.server is not None
        await trio.to_thread.run_sync(self.server.stop)

    def kill(self) -> None:
        if self.server is not None:
            self.server.kill()

    @property
    def dledger_id(self) -> str:
        """Of a node of a DLedger group."""
        return str(self.config["dLegerSelfId"])

    @property
    def ledger(self) -> Path:
        """Where such a node keeps its ledger."""
        return self.folder / "store" / f"dledger-{self.dledger_id}"


@attrs.define
class Group:
    """A name server of ours, and brokers that register with it."""

    namesrv: str
    folder: Path
    started: ExitStack

    async def start(
        self, maker: Maker, name: str = "broker-a", number: int = 0, more: Mapping[str, object] | None = None
    ) -> Member:
        """A broker that is ready: a master, or with a number a slave."""
        obtain(lambda: jars_of(maker))
        folder = self.folder / f"{name}-{number}"
        config = broker_config(free_port(), self.namesrv, folder / "store", brokerName=name, brokerId=number)
        role = "SLAVE" if number else "ASYNC_MASTER"
        config |= {"brokerRole": role, "slaveReadEnable": "true", "mappedFileSizeCommitLog": SEGMENT_SIZE, **(more or {})}
        member = Member(maker, folder, config)
        self.started.callback(member.kill)
        await member.start()
        return member

    async def start_controller(self, maker: Maker) -> str:
        """A controller that is ready; returns its address."""
        obtain(lambda: jars_of(maker))
        port, folder = free_port(), self.folder / "controller"
        config = controller_config(maker, port, folder / "store")
        server = await trio.to_thread.run_sync(start_controller, maker, folder, config)
        self.started.callback(server.kill)
        await trio.to_thread.run_sync(server.wait_ready)
        return f"127.0.0.1:{port}"

    async def form(self, makers: Sequence[Maker], more: Mapping[str, object] | None = None) -> list[Member]:
        """A DLedger group with one node of each make named; beside nodes of Apache's, ours speak their dialect."""
        for maker in makers:
            obtain(lambda maker=maker: jars_of(maker))  # type: ignore[misc]
        peers_text = ";".join(f"n{at}-127.0.0.1:{free_port()}" for at in range(len(makers)))
        members: list[Member] = []
        for at, maker in enumerate(makers):
            folder = self.folder / f"n{at}"
            keys = {"dLegerSelfId": f"n{at}", "dLegerPeers": peers_text, "dLegerGroup": "broker-a", **DLEDGER, **(more or {})}
            member = Member(maker, folder, broker_config(free_port(), self.namesrv, folder / "store", **keys))
            if set(makers) != {Maker.OURS}:
                member.config["raftDialect"] = "java"  # Apache's pass over a key that they do not know
            self.started.callback(member.kill)
            members.append(member)
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.start)
        return members

    async def master_of(self, members: Sequence[Member]) -> Member:
        """The node that the name server calls master, once there is one among these."""
        with trio.fail_after(MASTER_SECONDS):
            async with open_admin(self.namesrv) as admin:
                while True:
                    with suppress(ClientError):
                        for broker in (await admin.topic_route(AUTO_CREATE_TOPIC)).brokers:
                            for member in members:
                                if str(broker.addresses.get(MASTER_ID)) == member.address:
                                    return member
                    await trio.sleep(0.05)


@asynccontextmanager
async def open_group(folder: Path) -> AsyncGenerator[Group]:
    port = free_port()
    with ExitStack() as started:
        namesrv = start_namesrv(Maker.OURS, folder / "namesrv", port)
        started.callback(namesrv.kill)
        await trio.to_thread.run_sync(namesrv.wait_ready)
        yield Group(f"127.0.0.1:{port}", folder, started)


async def becomes_equal(admin: Admin, *members: Member, seconds: float) -> int:
    """Wait until the logs end at one place and stay there; return it."""
    ends: list[int] = []
    since = trio.current_time()
    with trio.fail_after(seconds):
        while len(set(ends)) != 1 or trio.current_time() < since + QUIET_SECONDS:
            await trio.sleep(0.1)
            try:
                now = [int((await admin.broker_runtime(member.address))["commitLogMaxOffset"]) for member in members]
            except ClientError:
                continue  # a broker of Apache's that has just been started cannot tell yet
            if now != ends:
                ends, since = now, trio.current_time()
    return ends[0]


def digests(folder: Path, end: int) -> list[str]:
    """The SHA-256 of every segment; one that was not allocated to its full size counts as filled with zeros."""
    found: list[str] = []
    for start in range(0, end, SEGMENT_SIZE):
        content = (folder / f"{start:020d}").read_bytes()
        assert len(content) <= SEGMENT_SIZE
        found.append(hashlib.sha256(content.ljust(SEGMENT_SIZE, b"\0")).hexdigest())
    return found


async def start_foreign(language: str, namesrv: str, folder: Path) -> Driver:
    """A client of another make."""
    if language == "java":
        return await trio.to_thread.run_sync(start_java, "5.5.0", namesrv, folder)
    program = obtain(peers.go_driver)
    environment = {**os.environ, "ROCKETMQ_GO_LOG_LEVEL": "warn", "HOME": str(folder)}
    return Driver.start("Go client", [str(program), namesrv], folder, environment)
