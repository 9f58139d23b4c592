"""A name server and brokers inside a test: on real sockets in a thread of their own, or on virtual time in the test's own loop.

The real kind serves any client, ours or foreign, from trio, asyncio or plain code. The virtual kind lives in a trio test with a
mock clock, on simulated machines: there a delay of two hours passes at once. In both a broker can be killed, as if by kill -9,
stopped in order, and started again on its store with the same address.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Protocol

import attrs
import trio

from ..broker.broker import Broker
from ..broker.config import ASYNC_MASTER, SLAVE, SYNC_MASTER, BrokerConfig, config_of
from ..broker.opening import open_broker
from ..ha.controller.config import ControllerConfig
from ..ha.controller.node import ElectedNode
from ..ha.controller.server import open_controller
from ..ha.dledger.node import DLedgerNode
from ..namesrv.config import NamesrvConfig
from ..namesrv.server import open_namesrv
from ..remoting.tls import TlsSettings
from ..world.address import Address
from ..world.real import World, real_world
from ..world.threads import ThreadLoop, opened_in_thread
from .mortal import Life, mortal
from .ports import BROKER_PORTS, reserved_ports
from .sim.world import Machine, sim_machines

HOST = "127.0.0.1"
WAIT_SECONDS = 0.01
"""Polling interval for the master of a new group, in seconds."""
START_SECONDS = 60.0
"""How long a new group may take until every broker may elect and be elected; then the start fails."""
MODES = ("local", "ha", "dledger", "controller")
CONTROLLER_PORTS = 19876, 9877
"""The ports of the controller on a simulated machine: for brokers, and for other controllers."""
RAFT_PORT = 40911
"""The port of the nodes of a DLedger group on simulated machines."""

OWN_TLS = {"tls.config.file": ""}
"""Settings of servers in tests, which do not obey the machine's /etc/rocketmq/tls.properties."""

SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "maxMessageSize": str(4 * 1024 * 1024),
}
"""Settings for stores that exist for a few seconds, under RocketMQ's keys; a test may override them."""


class Place(Protocol):
    """The machine on which a broker runs, one process after another."""

    def world(self) -> World:
        """The world of a process that starts now."""
        ...

    async def kill(self) -> None:
        """End the process that runs there, so that it can do nothing more."""
        ...


@attrs.define(eq=False)
class RealPlace:
    """The machine that the test runs on."""

    _life: Life = attrs.field(factory=Life)

    def world(self) -> World:
        self._life = Life()
        return mortal(real_world(), self._life)

    async def kill(self) -> None:
        await self._life.end()


@attrs.define(eq=False)
class SimulatedPlace:
    """A simulated machine."""

    machine: Machine

    def world(self) -> World:
        return self.machine.world()

    async def kill(self) -> None:
        self.machine.kill()
        await trio.lowlevel.checkpoint()


@attrs.define(eq=False, repr=False)
class EmbeddedNode:
    """One broker of a cluster, through all its lives."""

    place: Place
    config: BrokerConfig
    broker: Broker | None = None
    """The broker while it runs, else None."""
    _killed: bool = False
    _leave: trio.Event = attrs.field(factory=trio.Event)
    _ended: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _changing: trio.Lock = attrs.field(factory=trio.Lock)
    """Makes a start wait for the start or stop that is under way."""

    @property
    def address(self) -> str:
        """The address for clients, `host:port`."""
        return str(Address(self.config.bind_address, self.config.listen_port))

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the broker in a nursery; nothing happens if it runs and is not being stopped."""
        async with self._changing:
            if self._killed or self._leave.is_set():
                await self._ended.wait()  # the process that ends still has the store's lock and the port
            if self.broker is None:
                await nursery.start(self._run)

    async def _run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the broker once, until `stop` or `kill`."""
        self._killed = False
        self._leave, self._ended, self._scope = trio.Event(), trio.Event(), trio.CancelScope()
        try:
            with self._scope:
                async with open_broker(self.config, self.place.world()) as self.broker:
                    # The broker keeps the port that was chosen, so that clients find it again after a restart.
                    self.config = attrs.evolve(self.config, listen_port=self.broker.port)
                    task_status.started()
                    await self._leave.wait()
        except Exception:
            if not self._killed:  # errors in the rest of a killed process do not count
                raise
        finally:
            if not self._killed:
                self.broker = None
            self._ended.set()

    async def stop(self) -> None:
        """Stop the broker in order; returns when it has ended. Nothing happens if it does not run."""
        async with self._changing:
            if self.broker is not None:
                self._leave.set()
                await self._ended.wait()

    async def kill(self) -> None:
        """End the broker as kill -9 does, also while it is stopping; its tasks end by themselves.

        Nothing happens if it does not run. Cancellation: the broker is killed all the same.
        """
        if self.broker is None:
            return
        self._killed, self.broker, scope = True, None, self._scope
        try:
            await self.place.kill()
        finally:
            scope.cancel()


@attrs.define(eq=False)
class Embedded:
    """A running cluster, and how clients reach it."""

    namesrv: str
    """The address of the name server for clients, `host:port`."""
    nodes: tuple[EmbeddedNode, ...]
    """The brokers of the cluster; use them only in the event loop in which they run."""
    world: World
    """The world for clients of brokers on virtual time; clients of real ones do not need it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namesrv={self.namesrv} brokers={','.join(self.addresses)}>"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each broker's own `host:port`, whether it runs or not."""
        return tuple(node.address for node in self.nodes)

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """The running brokers; use them only in the event loop in which they run."""
        return tuple(node.broker for node in self.nodes if node.broker is not None)

    def node(self, address: str) -> EmbeddedNode:
        """The broker at an address.

        Raises:
            ValueError: no broker of this cluster has it.
        """
        for node in self.nodes:
            if node.address == address:
                return node
        raise ValueError(f"the brokers of this cluster are {', '.join(self.addresses)} (got {address!r})")

    async def _master(self) -> str:
        broker = await wait_for_master(self._electors)
        return next(node.address for node in self.nodes if node.broker is broker)

    def _electors(self) -> tuple[Broker, ...]:
        """The running brokers, if one of them is the master or may become it while no other is started."""
        brokers, config = self.brokers, self.nodes[0].config
        election = config.enable_dleger_commit_log
        able = [broker for broker in brokers if broker.role.takes_puts or broker.config.broker_role != SLAVE]
        needed = len(self.nodes) // 2 + 1 if election and not any(broker.role.takes_puts for broker in able) else 1
        if len(able) < needed:
            raise RuntimeError(
                f"no broker that runs can become the master: {len(brokers)} of {len(self.nodes)} run, and "
                f"{'an election takes a majority' if election else 'a slave stays a slave'}; start one first"
            )
        return brokers


@attrs.define(eq=False, repr=False)
class OpenEmbedded(Embedded):
    """A cluster in the current trio loop."""

    nursery: trio.Nursery

    async def master(self) -> str:
        """The address of the broker that accepts sends and is known as master; waits until there is one.

        Raises:
            RuntimeError: it would wait for ever, because too few brokers run.
        """
        return await self._master()

    async def kill(self, address: str) -> None:
        """Kill a broker, as kill -9 does; nothing happens if it does not run."""
        await self.node(address).kill()

    async def stop(self, address: str) -> None:
        """Stop a broker in order; nothing happens if it does not run."""
        await self.node(address).stop()

    async def start(self, address: str) -> None:
        """Start a broker that was killed or stopped, on its store; nothing happens if it runs."""
        await self.node(address).start(self.nursery)


@attrs.define(eq=False, repr=False)
class StartedEmbedded(Embedded):
    """A cluster in a thread of its own; the methods may be called from any thread, and block.

    When the cluster has ended, with its block or because a broker has failed, those that block raise `LoopEndedError` of
    `ledgermq.world.threads`, whose cause is the failure, if there is one.
    """

    _open: OpenEmbedded
    _loop: ThreadLoop

    def master(self) -> str:
        """The address of the broker that accepts sends and is known as master; waits until there is one.

        Raises:
            RuntimeError: it would wait for ever, because too few brokers run.
        """
        return self._loop.call(self._open.master)

    def kill(self, address: str) -> None:
        """Kill a broker, as kill -9 does; nothing happens if it does not run."""
        self._loop.call(lambda: self._open.kill(address))

    def stop(self, address: str) -> None:
        """Stop a broker in order; nothing happens if it does not run."""
        self._loop.call(lambda: self._open.stop(address))

    def start(self, address: str) -> None:
        """Start a broker that was killed or stopped, on its store; nothing happens if it runs."""
        self._loop.call(lambda: self._open.start(address))


def broker_configs(
    store: str,
    host: str,
    *,
    mode: str = "local",
    nodes: int = 1,
    settings: Mapping[str, str] | None = None,
    ports: Sequence[int] = (),
    raft_ports: Sequence[int] = (),
    controller: str = "",
) -> list[BrokerConfig]:
    """The configuration of each broker of a cluster.

    Args:
        store: a directory in which each broker gets one of its own.
        host: the address to listen on and to be reached at.
        mode: `local`: independent masters; `ha`: one master, that waits for its slaves, and the slaves; `dledger`: a group
            that elects its master; `controller`: brokers whose master a controller elects.
        nodes: how many brokers.
        ports: the ports on which the brokers listen for clients; if there are none, each broker chooses one when it starts.
        raft_ports: in mode `dledger`, the ports on which the nodes listen for each other.
        controller: in mode `controller`, its address.
        settings: RocketMQ's keys, over `SMALL_FILES`.

    Raises:
        ValueError: no such mode, or no brokers.
        BadConfig: a setting is not allowed.
    """
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)} (got {mode!r})")
    if nodes < 1:
        raise ValueError(f"nodes is at least 1 (got {nodes})")
    configs: list[BrokerConfig] = []
    for at in range(nodes):
        replicated = mode == "ha"
        role = ASYNC_MASTER if not replicated else SYNC_MASTER if at == 0 else SLAVE
        own = {
            "brokerName": f"broker-{chr(ord('a') + at)}" if mode == "local" else "broker-a",
            "brokerId": str(at if replicated else 0),
            "brokerRole": role,
            "brokerIP1": host,
            "bindAddress": host,
            "listenPort": str(ports[at] if ports else 0),
            "storePathRootDir": f"{store}/{at}",
        }
        if mode == "dledger":
            own |= dledger_keys(at, [str(Address(host, port)) for port in raft_ports])
            own["allowEmptyHaSecret"] = "true"  # no other machine reaches a simulated network, nor the loopback address
        if mode == "controller":
            own |= {"enableControllerMode": "true", "controllerAddr": controller}
        configs.append(config_of({**OWN_TLS, **SMALL_FILES, **own, **(settings or {})}))
    return configs


def dledger_keys(at: int, addresses: Sequence[str]) -> dict[str, str]:
    """RocketMQ's keys of the node `at` of a DLedger group whose nodes listen for each other at `addresses`."""
    return {
        "enableDLegerCommitLog": "true",
        "dLegerSelfId": f"n{at}",
        "dLegerPeers": ";".join(f"n{number}-{address}" for number, address in enumerate(addresses)),
    }


@asynccontextmanager
async def open_embedded(
    *,
    mode: str = "local",
    nodes: int = 1,
    store: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncGenerator[OpenEmbedded]:
    """Run a cluster in the current trio loop for the length of an `async with` block.

    The arguments and what is raised are those of `start_embedded`.
    """
    temporary = tempfile.TemporaryDirectory(prefix="ledgermq-") if store is None else nullcontext(store)
    # A broker that is killed and started again finds its ports free.
    broker_ports, raft_ports = reserved_ports(HOST, nodes, BROKER_PORTS), reserved_ports(HOST, max(nodes, 2))
    with temporary as folder, broker_ports as ports, raft_ports as peers:
        configs = broker_configs(
            folder,
            HOST,
            mode=mode,
            nodes=nodes,
            settings=settings,
            ports=ports,
            raft_ports=peers[:nodes],
            controller=str(Address(HOST, peers[0])),
        )
        world, running = real_world(), [EmbeddedNode(RealPlace(), config) for config in configs]
        elected = _controller(f"{folder}/controller", HOST, peers[0], peers[1]) if mode == "controller" else None
        async with _opened(running, world, HOST, elected) as embedded:
            yield embedded


@asynccontextmanager
async def open_virtual(
    *, seed: int = 0, mode: str = "local", nodes: int = 1, settings: Mapping[str, str] | None = None
) -> AsyncGenerator[OpenEmbedded]:
    """Run a cluster on simulated machines, one for each broker, for a trio test with an autojump clock.

    Clients of the cluster need `world=embedded.world`. The arguments are those of `start_embedded`, with a `seed` in place of
    `store`: it determines what the machines draw; the order of tasks is determined by that of `seeded_run`.
    """
    own, *machines = sim_machines(seed, nodes + 1)
    peers = ";".join(f"n{at}-{machine.host}:{RAFT_PORT}" for at, machine in enumerate(machines))
    group = {"dLegerPeers": peers} if mode == "dledger" else {}
    configs = broker_configs(
        "store",
        own.host,
        mode=mode,
        nodes=nodes,
        settings={**group, **(settings or {})},
        controller=str(Address(own.host, CONTROLLER_PORTS[0])),
    )
    running = [
        EmbeddedNode(SimulatedPlace(machine), attrs.evolve(config, broker_ip1=machine.host, bind_address=machine.host))
        for machine, config in zip(machines, configs, strict=True)
    ]
    elected = _controller("controller", own.host, *CONTROLLER_PORTS) if mode == "controller" else None
    async with _opened(running, own.world(), own.host, elected) as embedded:
        yield embedded


def _controller(store: str, host: str, port: int, raft_port: int) -> ControllerConfig:
    return ControllerConfig(
        listen_port=port,
        bind_address=host,
        peers=f"n0-{Address(host, raft_port)}",
        store_path=store,
        tls=TlsSettings(OWN_TLS),
        allow_empty_ha_secret=True,  # no other machine reaches a simulated network, nor the loopback address
    )


@asynccontextmanager
async def _opened(
    nodes: Sequence[EmbeddedNode], world: World, host: str, controller: ControllerConfig | None
) -> AsyncGenerator[OpenEmbedded]:
    """Run a name server, and a controller if there is one, in the world of the clients, and each broker in its place."""
    electing = open_controller(controller, world) if controller is not None else nullcontext()
    failure = None
    async with (
        open_namesrv(NamesrvConfig(listen_port=0, bind_address=host, tls=TlsSettings(OWN_TLS)), world) as server,
        electing,
        trio.open_nursery() as nursery,
    ):
        # Caught inside the nurseries, those of the servers among them, so that it is raised as itself, not as a group.
        try:
            for node in nodes:
                node.config = attrs.evolve(node.config, namesrv_addr=str(server.address))
                await node.start(nursery)
            embedded = OpenEmbedded(str(server.address), tuple(nodes), world, nursery)
            if nodes[0].config.enable_dleger_commit_log or controller is not None:
                await _come_together(embedded)
            yield embedded
        except BaseException as error:  # noqa: BLE001 - raised again outside
            failure = error
        else:
            async with trio.open_nursery() as stopping:
                for node in nodes:
                    stopping.start_soon(node.stop)
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _come_together(embedded: OpenEmbedded) -> None:
    with trio.move_on_after(START_SECONDS) as waiting:
        await embedded.master()
        while not _complete(embedded):  # noqa: ASYNC110 - no event is set for this
            await trio.sleep(WAIT_SECONDS)
    if waiting.cancelled_caught:
        raise RuntimeError(f"the brokers did not elect a master that all follow within {START_SECONDS:.0f} s")


def _complete(embedded: OpenEmbedded) -> bool:
    """Whether every broker may elect and be elected, so that a test may kill any of them."""
    nodes = [broker.node for broker in embedded.brokers]
    sets = [node.in_sync for node in nodes if isinstance(node, ElectedNode) and node.in_sync is not None]
    groups = [node for node in nodes if isinstance(node, DLedgerNode)]
    return any(len(each.members) == len(nodes) for each in sets) or (bool(groups) and all(node.may_vote for node in groups))


async def wait_for_master(brokers: Callable[[], Sequence[Broker]]) -> Broker:
    """Return the broker that its group has elected, once name servers know it."""
    while True:
        for broker in brokers():
            if broker.role.takes_puts and len(broker.registration.registered_with) == len(broker.config.name_servers):
                return broker
        await trio.sleep(WAIT_SECONDS)


@contextmanager
def start_embedded(
    *, mode: str = "local", nodes: int = 1, store: str | None = None, settings: Mapping[str, str] | None = None
) -> Generator[StartedEmbedded]:
    """Run a cluster in a thread of its own for the length of a `with` block, for code of any kind.

    Args:
        mode: `local`: independent masters; `ha`: one master, that waits for its slaves, and the slaves; `dledger`: a group that
            elects its master; `controller`: brokers whose master a controller elects.
        nodes: how many brokers.
        store: a directory that outlives the cluster, with one of each broker; a temporary one if None.
        settings: keys of `broker.conf` for all brokers.

    Raises:
        ValueError: no such mode, or no brokers.
        BadConfig: a setting is not allowed.
        RuntimeError: a group has not come together within a minute.
    """
    with opened_in_thread(
        lambda: open_embedded(mode=mode, nodes=nodes, store=store, settings=settings), "ledgermq-embedded"
    ) as (embedded, loop):
        yield StartedEmbedded(embedded.namesrv, embedded.nodes, embedded.world, embedded, loop)
