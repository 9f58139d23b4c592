"""Faults around brokers and clients: of name servers, of hosts that hang or drop packets, of middleboxes that lose state.

One path may be without faults: a broker with another broker name, a name server and a client.
"""

from __future__ import annotations

import random

import attrs
import trio

from ledgermq.broker.config import BrokerConfig
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.history import End

from .scene import BROKER_PORT, NAMESRV, Node, Scene

SPARE_HOST, SPARE_NAME = "10.0.3.1", "spare"
NAME_SERVERS_MAX = 3


@attrs.frozen(kw_only=True)
class Surroundings:
    """What was drawn from the seed for the surroundings; the defaults are one name server and no faults."""

    name_servers: int = 1
    name_servers_die: bool = False
    """Whether name servers are killed; they start again without routes."""
    name_servers_hang: bool = False
    brokers_hang: bool = False
    swallowing: bool = False
    """Whether hosts of brokers and name servers drop packets silently."""
    forgetting: bool = False
    """Whether middleboxes lose the state of connections."""
    spare: bool = False
    """Whether there is a path without faults."""

    @classmethod
    def of(cls, rng: random.Random) -> Surroundings:
        """Draw all fields."""
        spare = rng.random() < 0.6
        return cls(
            name_servers=rng.randint(2 if spare else 1, NAME_SERVERS_MAX),
            name_servers_die=rng.random() < 0.5,
            name_servers_hang=rng.random() < 0.5,
            brokers_hang=rng.random() < 0.4,
            swallowing=rng.random() < 0.5,
            forgetting=rng.random() < 0.5,
            spare=spare,
        )


NO_TROUBLE = Surroundings()


@attrs.define(eq=False)
class Troubles:
    """Injects faults of the surroundings, each for a while, until `mended` is set."""

    drawn: Surroundings
    scene: Scene
    rng: random.Random

    async def start(self, nursery: trio.Nursery) -> None:
        """Start all name servers."""
        scene = self.scene
        first = NAMESRV.host.rpartition(".")[0]
        scene.name_servers += [scene.name_server(f"{first}.{at + 1}") for at in range(self.drawn.name_servers)]
        for process in scene.name_servers:
            await nursery.start(process.run)

    async def start_spare(self, nursery: trio.Nursery) -> None:
        """Start the broker of the path without faults, if there is one."""
        scene = self.scene
        if not self.drawn.spare:
            return
        machine = scene.machine(SPARE_HOST)
        machine.worker_seconds_max = 0.0
        scene.spare = Node(machine, _spare_config(scene.namesrv), lambda _node, _broker: None)
        await nursery.start(scene.spare.process.run)
        scene.fabric.safe |= {SPARE_HOST, scene.name_servers[-1].host}

    async def run(self, nursery: trio.Nursery) -> None:
        """Inject faults, each for a part of a life, until `mended` is set."""
        scene, rng = self.scene, self.rng
        kinds = [
            kind
            for kind, drawn in (
                ("die", self.drawn.name_servers_die),
                ("hang", self.drawn.name_servers_hang),
                ("broker hangs", self.drawn.brokers_hang),
                ("swallow", self.drawn.swallowing),
                ("forget", self.drawn.forgetting),
            )
            if drawn
        ]
        while kinds and not scene.mended.is_set():
            await self._until_mended(scene.life_seconds * rng.random() * 0.5)
            if not scene.mended.is_set():
                await self._strike(nursery, rng.choice(kinds), scene.life_seconds * rng.random())

    async def must_end(self) -> None:
        """Wait until every name server serves again."""
        while any(process.server is None for process in self.scene.name_servers):  # noqa: ASYNC110 - no event is set for this
            await trio.sleep(0.1)

    async def _until_mended(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.scene.mended.wait()

    async def _strike(self, nursery: trio.Nursery, kind: str, seconds: float) -> None:
        scene, fabric = self.scene, self.scene.fabric
        name_servers = [process for process in scene.name_servers if process.host not in fabric.safe]
        if kind == "forget":
            fabric.forget_connection()
        elif kind == "die" and name_servers:
            victim = self.rng.choice(name_servers)
            if victim.server is not None:  # one that is just starting would end before it has started
                scene.note(f"the name server {victim.host} dies")
                fabric.count("name_server_killed")
                await victim.end(self.rng.choice((End.CLEAN, End.KILL, End.POWER)))
                nursery.start_soon(self._start_again, nursery, victim.host, seconds)
        elif kind != "die":
            nodes = [node.host for node in scene.nodes]
            hosts = {"hang": [process.host for process in name_servers], "broker hangs": nodes}.get(
                kind, [*nodes, *(process.host for process in name_servers)]
            )
            if hosts:
                host = self.rng.choice(hosts)
                scene.note(f"{host}: {kind} for {seconds:.1f} s")
                (fabric.swallow if kind == "swallow" else fabric.hang)(host)
                await self._until_mended(seconds)
                fabric.spare(host)

    async def _start_again(self, nursery: trio.Nursery, host: str, seconds: float) -> None:
        await self._until_mended(seconds)
        process = next(each for each in self.scene.name_servers if each.host == host)
        await nursery.start(process.run)
        self.scene.note(f"the name server {host} is back, and knows nothing")


def _spare_config(namesrv: str) -> BrokerConfig:
    settings = {
        "brokerName": SPARE_NAME,
        "brokerIP1": SPARE_HOST,
        "bindAddress": SPARE_HOST,
        "listenPort": str(BROKER_PORT),
        "namesrvAddr": namesrv,
        "autoCreateTopicEnable": "false",
        "flushDiskType": "ASYNC_FLUSH",
        "maxHashSlotNum": "10",
        "maxIndexNum": "1000",
    }
    (config,) = broker_configs("store", SPARE_HOST, settings=settings)
    return config
