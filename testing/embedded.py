"""A name server and brokers inside a test: on real sockets in a thread of their own, or on virtual time in the test's own loop.

The real kind serves any client, ours or foreign, from trio, asyncio or plain code. The virtual kind lives in a trio test with a
mock clock, on simulated machines: there a delay of two hours passes at once.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext

import attrs
import trio

from ..broker.broker import Broker, open_broker
from ..broker.config import ASYNC_MASTER, SLAVE, SYNC_MASTER, BrokerConfig, config_of
from ..namesrv.config import NamesrvConfig
from ..namesrv.server import open_namesrv
from ..world.real import World, real_world
from ..world.threads import opened_in_thread
from .sim.world import sim_world

HOST = "127.0.0.1"
WAIT_SECONDS = 0.01
"""How often the brokers of a new group are asked whether one is master."""
MODES = ("local", "ha", "dledger")
RAFT_PORT = 40911
"""Of the first node of a DLedger group on simulated machines, the others above it."""

SMALL_FILES = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "maxMessageSize": str(4 * 1024 * 1024),
    "diskMaxUsedSpaceRatio": "95",  # a developer's disk is often fuller than a server's
    "cleanFileForciblyEnable": "false",
}
"""Sizes for stores that live for a few seconds; RocketMQ's keys, which a test may override."""


@attrs.frozen
class Embedded:
    """What runs, and where clients reach it."""

    namesrv: str
    """`host:port`, to be given to clients as their name server."""
    addresses: tuple[str, ...]
    """Each broker's own `host:port`."""
    world: World
    """What a client must be given to reach brokers on virtual time; real ones need nothing."""
    brokers: tuple[Broker, ...]
    """The brokers themselves: only to be touched in the loop that they live in."""

    def __repr__(self) -> str:
        return f"<Embedded namesrv={self.namesrv} brokers={','.join(self.addresses)}>"


def broker_configs(
    store: str,
    host: str,
    *,
    mode: str = "local",
    nodes: int = 1,
    settings: Mapping[str, str] | None = None,
    raft_ports: Sequence[int] = (),
) -> list[BrokerConfig]:
    """The configuration of each broker of a cluster.

    Args:
        store: a directory that each gets a part of.
        host: the address to listen on and to be reached at.
        mode: `local`: independent masters; `ha`: one master, that waits for its slaves, and the slaves; `dledger`: a group
            that elects its master.
        nodes: how many brokers.
        raft_ports: with mode `dledger`, where the nodes listen for each other.
        settings: RocketMQ's keys, over `SMALL_FILES`.

    Raises:
        ValueError: no such mode.
        BadConfig: a setting is not allowed.
    """
    if mode not in MODES:
        raise ValueError(f"mode is one of {', '.join(MODES)} (got {mode!r})")
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
            "listenPort": "0",
            "storePathRootDir": f"{store}/{at}",
        }
        if mode == "dledger":
            own |= dledger_keys(at, [f"{host}:{port}" for port in raft_ports])
        configs.append(config_of({**SMALL_FILES, **own, **(settings or {})}))
    return configs


def dledger_keys(at: int, addresses: Sequence[str]) -> dict[str, str]:
    """RocketMQ's keys of the node `at` of a DLedger group whose nodes listen for each other at `addresses`."""
    return {
        "enableDLegerCommitLog": "true",
        "dLegerSelfId": f"n{at}",
        "dLegerPeers": ";".join(f"n{number}-{address}" for number, address in enumerate(addresses)),
    }


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nothing listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


@asynccontextmanager
async def open_embedded(
    *,
    mode: str = "local",
    nodes: int = 1,
    store: str | None = None,
    settings: Mapping[str, str] | None = None,
    world: World | None = None,
) -> AsyncGenerator[Embedded]:
    """Run a cluster in the current trio loop for the length of an `async with` block.

    Args:
        mode: see `broker_configs`.
        nodes: see there.
        store: a directory that outlives the cluster; a temporary one if None.
        settings: see there.
        world: simulated machines instead of the real one.
    """
    host = HOST if world is None else world.network.own_host()
    temporary = tempfile.TemporaryDirectory(prefix="ledgermq-") if store is None and world is None else nullcontext("store")
    with temporary as folder:
        raft_ports = range(RAFT_PORT, RAFT_PORT + nodes) if world is not None else free_ports(host, nodes)
        configs = broker_configs(store or folder, host, mode=mode, nodes=nodes, settings=settings, raft_ports=raft_ports)
        async with AsyncExitStack() as stack:
            used = world or real_world()
            name_server = NamesrvConfig(listen_port=0, bind_address=host)
            namesrv = str((await stack.enter_async_context(open_namesrv(name_server, used))).address)
            known = [attrs.evolve(config, namesrv_addr=namesrv) for config in configs]
            brokers = tuple([await stack.enter_async_context(open_broker(config, used)) for config in known])
            if mode == "dledger":
                await wait_for_master(brokers)
            yield Embedded(namesrv, tuple(broker.address for broker in brokers), used, brokers)


async def wait_for_master(brokers: Sequence[Broker]) -> Broker:
    """Return the broker that its group has elected, once name servers know it."""
    while True:
        for broker in brokers:
            if broker.role.takes_puts and len(broker.registration.registered_with) == len(broker.config.name_servers):
                return broker
        await trio.sleep(WAIT_SECONDS)


@asynccontextmanager
async def open_virtual(
    *, seed: int = 0, mode: str = "local", nodes: int = 1, settings: Mapping[str, str] | None = None
) -> AsyncGenerator[Embedded]:
    """Run a cluster on one simulated machine, for a trio test with an autojump clock.

    Give `world=embedded.world` to the clients that are to reach it.
    """
    world = sim_world(seed)
    async with open_embedded(mode=mode, nodes=nodes, store="store", settings=settings, world=world) as embedded:
        yield embedded


@contextmanager
def start_embedded(
    *, mode: str = "local", nodes: int = 1, store: str | None = None, settings: Mapping[str, str] | None = None
) -> Generator[Embedded]:
    """Run a cluster in a thread of its own for the length of a `with` block, for code of any kind."""
    with opened_in_thread(
        lambda: open_embedded(mode=mode, nodes=nodes, store=store, settings=settings), "ledgermq-embedded"
    ) as (embedded, _):
        yield embedded
