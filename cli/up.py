"""`ledgermq up`: a name server and brokers in one process, for a laptop and for trying things out."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path

import attrs
import click

from ..broker.broker import Broker, open_broker
from ..broker.config import BrokerConfig, config_of
from ..broker.errors import BrokerError
from ..ha.errors import HaError
from ..message.errors import JsonError
from ..namesrv.config import NamesrvConfig
from ..namesrv.server import Namesrv, open_namesrv
from ..remoting.errors import BadTlsSetting
from ..store.errors import StoreError
from ..testing.embedded import dledger_keys, free_ports, wait_for_master
from ..world.real import World, real_world
from .logs import LogFormat, log_options, log_to_stderr
from .output import table
from .serving import serve

PORTS_PER_BROKER = 10
"""A broker takes its port, the next one for slaves, and the last but one before it for clients of the VIP channel."""

RAFT_PORT_DISTANCE = 30_000
PORT_MAX = 65_535
TEMPORARY_PREFIX = "ledgermq-up-"
EVERYWHERE = ("", "0.0.0.0", "::")


@attrs.frozen
class Plan:
    """What is to run, and where."""

    mode: str
    nodes: int
    """Brokers; with the modes `ha` and `dledger` those of each broker name, its master among them."""
    masters: int
    """Broker names with the modes `ha` and `dledger`."""
    host: str
    port: int
    broker_port: int
    store: str
    secret: str = attrs.field(repr=False)
    """What the nodes of this cluster, and nobody else, know."""
    kept: bool
    """Whether the store outlives the cluster."""
    raft_ports: tuple[int, ...] = ()
    """With mode `dledger`, where the nodes listen for each other."""

    def brokers(self, namesrv: str) -> list[BrokerConfig]:
        """The configuration of each broker."""
        names, members = (self.nodes, 1) if self.mode == "local" else (self.masters, self.nodes)
        return [
            self._broker(name, number, name * members + number, namesrv) for name in range(names) for number in range(members)
        ]

    def _broker(self, group: int, number: int, at: int, namesrv: str) -> BrokerConfig:
        replicated = self.mode != "local"
        name = f"broker-{chr(ord('a') + group)}"
        role = "ASYNC_MASTER" if self.mode != "ha" else "SLAVE" if number else "SYNC_MASTER"
        return config_of(
            {
                "brokerName": name,
                "brokerId": str(number if self.mode == "ha" else 0),
                "brokerRole": role,
                "brokerIP1": self.host,
                "bindAddress": self.host,
                "listenPort": str(self.broker_port and self.broker_port + PORTS_PER_BROKER * at),
                "namesrvAddr": namesrv,
                "haSecret": self.secret,
                "storePathRootDir": f"{self.store}/{name}{f'-{number}' if replicated else ''}",
                # A laptop's disk is often fuller than a server's.
                "diskMaxUsedSpaceRatio": "95",
                **self._group(group, number),
            }
        )

    def _group(self, group: int, number: int) -> dict[str, str]:
        """The keys of a node of a DLedger group."""
        if self.mode != "dledger":
            return {}
        first = group * self.nodes
        ports = self.raft_ports[first : first + self.nodes]
        return dledger_keys(number, [f"{self.host}:{port}" for port in ports])


@attrs.frozen
class Cluster:
    """What runs."""

    plan: Plan
    namesrv: Namesrv
    brokers: tuple[Broker, ...]

    def __repr__(self) -> str:
        return f"<Cluster of {len(self.brokers)} brokers at {self.namesrv.address}>"


@click.command("up")
@click.option(
    "--mode",
    type=click.Choice(("local", "ha", "dledger")),
    default="local",
    show_default=True,
    help="ha: a master with slaves. dledger: nodes that elect their master.",
)
@click.option(
    "--nodes", type=click.IntRange(1, 26), help="Brokers; 1 by default, with --mode ha a master and one slave, with dledger 3."
)
@click.option(
    "--masters",
    type=click.IntRange(1, 26),
    default=1,
    show_default=True,
    help="With ha and dledger: how many such groups of nodes.",
)
@click.option(
    "--store", type=click.Path(file_okay=False, path_type=Path), help="Where messages are kept; else they go with the cluster."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="An address of this machine, as clients are to reach it.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9876, show_default=True, help="Of the name server; 0 takes a free one."
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65000),
    default=10911,
    show_default=True,
    help="Of the first broker, the others every 10 above it; 0 takes free ones.",
)
@log_options("warning")
def command(
    mode: str,
    nodes: int | None,
    masters: int,
    store: Path | None,
    host: str,
    port: int,
    broker_port: int,
    log_level: str,
    log_format: LogFormat | None,
) -> None:
    """Run a name server and brokers until Ctrl-C.

    Then, in another terminal: ledgermq send hello "my first message"; ledgermq consume hello --from-beginning
    """
    if nodes is None:
        nodes = {"local": 1, "ha": 2, "dledger": 3}[mode]
    if mode == "ha" and nodes < 2:
        raise click.BadParameter("a master and at least one slave make 2", param_hint="--nodes")
    if mode == "local" and masters > 1:
        raise click.BadParameter("every node is a master unless the mode is ha or dledger: say --nodes", param_hint="--masters")
    if host in EVERYWHERE:
        raise click.BadParameter(
            f"clients are told this address: give one that they can reach (got {host!r})", param_hint="--host"
        )
    log_to_stderr(log_level, log_format)
    with _temporary_folder() if store is None else nullcontext(str(store.absolute())) as folder:
        raft_ports = _raft_ports(host, broker_port, nodes * masters) if mode == "dledger" else ()
        secret = secrets.token_hex()
        plan = Plan(mode, nodes, masters, host, port, broker_port, folder, secret, store is not None, raft_ports)
        expected = (BrokerError, StoreError, HaError, JsonError, BadTlsSetting)
        serve(_open_cluster(plan, real_world()), _announce, *expected, port_options="--port or --broker-port")


def _raft_ports(host: str, broker_port: int, count: int) -> tuple[int, ...]:
    """Where the nodes of DLedger groups listen for each other: 30000 above their brokers, as RocketMQ's examples have it."""
    if broker_port and broker_port + RAFT_PORT_DISTANCE + PORTS_PER_BROKER * count <= PORT_MAX:
        return tuple(broker_port + RAFT_PORT_DISTANCE + PORTS_PER_BROKER * at for at in range(count))
    return tuple(free_ports(host, count))


@contextmanager
def _temporary_folder() -> Generator[str]:
    """A folder that goes with the cluster; those that killed clusters of this user have left go first."""
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as folder, _locked(Path(folder)):
        yield folder


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the lock of a cluster's folder, which ends with its process.

    Raises:
        BlockingIOError: a running cluster holds it. PermissionError: it is somebody else's.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@asynccontextmanager
async def _open_cluster(plan: Plan, world: World) -> AsyncGenerator[Cluster]:
    async with AsyncExitStack() as stack:
        kept = f"{plan.store}/namesrv/kvConfig.json"
        config = NamesrvConfig(listen_port=plan.port, bind_address=plan.host, kv_config_path=kept)
        namesrv = await stack.enter_async_context(open_namesrv(config, world))
        brokers = [await stack.enter_async_context(open_broker(config, world)) for config in plan.brokers(str(namesrv.address))]
        if plan.mode == "dledger":
            for first in range(0, len(brokers), plan.nodes):
                group = brokers[first : first + plan.nodes]
                await wait_for_master(lambda group=group: group)  # type: ignore[misc]
        yield Cluster(plan, namesrv, tuple(brokers))


def _role_of(broker: Broker) -> str:
    """What a broker is; with classic replication as configured, for puts of an async master wait for nobody."""
    config = broker.config
    return broker.role.state.role.value if config.enable_dleger_commit_log else config.broker_role.replace("_", " ").lower()


def _announce(cluster: Cluster) -> str:
    plan = cluster.plan
    rows = [{"what": "name server", "role": "", "address": str(cluster.namesrv.address)}]
    rows += [
        {
            "what": broker.config.broker_name,
            "role": _role_of(broker),
            "address": broker.address,
        }
        for broker in cluster.brokers
    ]
    elsewhere = f" --namesrv {cluster.namesrv.address}" if cluster.namesrv.port != NamesrvConfig().listen_port else ""
    return "\n".join(
        (
            "LedgerMQ: boot success",
            "",
            table(rows),
            "",
            f"Messages are kept in {plan.store}." if plan.kept else "Messages go with the cluster; --store DIR keeps them.",
            "Try, in another terminal:",
            f'  ledgermq send hello "my first message"{elsewhere}',
            f"  ledgermq consume hello --from-beginning{elsewhere}",
            "Ctrl-C stops.",
        )
    )
