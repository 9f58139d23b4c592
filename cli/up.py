"""`ledgermq up`: run a name server and brokers on one machine, for development and trials.

They run in one process, except brokers that elect their masters, so that one can be killed and the others elect the next
master, and several masters without slaves, so that each has a core.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from math import inf
from pathlib import Path

import attrs
import click
import trio

from ..broker.broker import Broker
from ..broker.config import BrokerConfig, config_of
from ..broker.errors import BrokerError
from ..broker.opening import open_broker
from ..client.admin import Admin, open_admin
from ..client.errors import ClientError
from ..ha.controller.config import ControllerConfig
from ..ha.controller.server import open_controller
from ..ha.errors import HaError
from ..message.errors import JsonError
from ..message.units import MASTER_ID
from ..namesrv.config import NamesrvConfig
from ..namesrv.server import Namesrv, open_namesrv
from ..remoting.errors import BadTlsSetting
from ..store.errors import StoreError
from ..store.keeping.retention import RetentionRules, disk_full
from ..testing.embedded import dledger_keys
from ..testing.ports import BROKER_PORTS, reserved_ports
from ..world.address import Address
from ..world.disk import DiskUsage
from ..world.events import get_logger
from ..world.real import World, real_world
from .logs import LogFormat, log_options, log_to_stderr
from .output import table
from .processes import BrokerProcess
from .serving import serve

log = get_logger(__name__)

PORTS_PER_BROKER = 10
"""The distance of brokers' ports: a broker uses its port, the next one for slaves, and the one 2 below for the VIP channel."""

RAFT_PORT_DISTANCE = 30_000
CONTROLLER_PORT_DISTANCE = 10_000
"""From the name server's port to that of the controller, so that the defaults of `--namesrv` and `--controller` find both."""
PORT_MAX = 65_535
TEMPORARY_PREFIX = "ledgermq-up-"
STORES = "broker-*"
"""The names of the brokers' directories in that of the cluster."""
WAIT_SECONDS = 0.05
"""The interval in seconds at which the name server is asked whether new groups have elected a master."""
ELECTION_SECONDS = 10.0
"""After this time without a master a warning names the command that shows the reason; the wait continues."""
EVERYWHERE = ("", "0.0.0.0", "::")


@attrs.frozen
class Ports:
    """The ports of the brokers of a cluster."""

    clients: Sequence[int]
    raft: Sequence[int]
    """With mode `dledger`, the ports at which the nodes listen for each other."""
    controller: tuple[int, int] = (0, 0)
    """With mode `controller`, the ports of the controller for brokers, and for other controllers."""


@attrs.frozen
class Plan:
    """The servers to run, their ports and their store."""

    mode: str
    nodes: int
    """How many brokers to run; except with the mode `local` for each broker name, including its master."""
    masters: int
    """How many broker names there are, except with the mode `local`."""
    host: str
    port: int
    broker_port: int
    store: str
    secret: str = attrs.field(repr=False)
    """The secret by which the nodes of this cluster authenticate each other."""
    kept: bool
    """Whether the store is kept when the cluster ends."""

    @property
    def divided(self) -> bool:
        """Whether each broker is a process of its own, which may be killed."""
        return self.mode in ("dledger", "controller") or (self.mode == "local" and self.nodes > 1)

    @property
    def members(self) -> list[tuple[int, int]]:
        """For each broker, the number of its name and its number under that name."""
        names, members = (self.nodes, 1) if self.mode == "local" else (self.masters, self.nodes)
        return list(itertools.product(range(names), range(members)))

    def brokers(self, namesrv: str, ports: Ports) -> list[BrokerConfig]:
        """The configuration of each broker."""
        return [self._broker(group, number, at, namesrv, ports) for at, (group, number) in enumerate(self.members)]

    def stores(self) -> dict[str, list[Path]]:
        """The directory of each broker's store, by broker name."""
        found: dict[str, list[Path]] = {}
        for group, number in self.members:
            found.setdefault(_name(group), []).append(Path(self._store(group, number)))
        return found

    def _store(self, group: int, number: int) -> str:
        return f"{self.store}/{_name(group)}{'' if self.mode == 'local' else f'-{number}'}"

    def _broker(self, group: int, number: int, at: int, namesrv: str, ports: Ports) -> BrokerConfig:
        first = group * self.nodes
        peers = [str(Address(self.host, port)) for port in ports.raft[first : first + self.nodes]]
        role = "ASYNC_MASTER" if self.mode != "ha" else "SLAVE" if number else "SYNC_MASTER"
        return config_of(
            {
                "brokerName": _name(group),
                "brokerId": str(number if self.mode == "ha" else 0),
                "brokerRole": role,
                "brokerIP1": self.host,
                "bindAddress": self.host,
                "listenPort": str(ports.clients[at]),
                "namesrvAddr": namesrv,
                "haSecret": self.secret,
                "storePathRootDir": self._store(group, number),
                # The disk of a laptop is often fuller than that of a server.
                "diskMaxUsedSpaceRatio": "95",
                **(dledger_keys(number, peers) if self.mode == "dledger" else {}),
                **(self._controller_keys(ports) if self.mode == "controller" else {}),
            }
        )

    def _controller_keys(self, ports: Ports) -> dict[str, str]:
        return {"enableControllerMode": "true", "controllerAddr": str(Address(self.host, ports.controller[0]))}

    def controller(self, ports: Ports) -> ControllerConfig:
        """The configuration of the only controller."""
        port, raft_port = ports.controller
        return ControllerConfig(
            listen_port=port,
            bind_address=self.host,
            peers=f"n0-{Address(self.host, raft_port)}",
            store_path=f"{self.store}/controller",
            ha_secret=self.secret,
        )


def _name(group: int) -> str:
    return f"broker-{chr(ord('a') + group)}"


@attrs.frozen
class Shown:
    """A broker in the announcement that the cluster is ready."""

    name: str
    role: str
    address: str
    process_id: int | None = None
    """The process id of a broker that is a separate process."""


@attrs.frozen
class Cluster:
    """A running cluster."""

    plan: Plan
    namesrv: Namesrv
    brokers: tuple[Shown, ...]
    disk: DiskUsage
    """That of the stores, when the brokers had started."""
    controller: str = ""
    """Its address, with mode `controller`."""

    def __repr__(self) -> str:
        return f"<Cluster of {len(self.brokers)} brokers at {self.namesrv.address}>"


@click.command("up")
@click.option(
    "--mode",
    type=click.Choice(("local", "ha", "dledger", "controller")),
    default="local",
    show_default=True,
    help="ha: a master with slaves. dledger: nodes that elect their master. controller: copies whose master one elects.",
)
@click.option(
    "--nodes",
    "--brokers",
    "nodes",
    type=click.IntRange(1, 26),
    help="Brokers; 1 by default, with --mode ha and controller 2, with dledger 3. Several of --mode local are processes.",
)
@click.option(
    "--masters",
    type=click.IntRange(1, 26),
    default=1,
    show_default=True,
    help="With other modes than local: how many such groups of nodes.",
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
        nodes = {"local": 1, "ha": 2, "dledger": 3, "controller": 2}[mode]
    if mode == "ha" and nodes < 2:
        raise click.BadParameter("a master and at least one slave make 2", param_hint="--nodes")
    if mode == "local" and masters > 1:
        raise click.BadParameter("every node is a master with the mode local: say --nodes", param_hint="--masters")
    if host in EVERYWHERE:
        raise click.BadParameter(
            f"clients are given this address: choose one that they can reach (got {host!r})", param_hint="--host"
        )
    log_to_stderr(log_level, log_format)
    with _temporary_folder() if store is None else nullcontext(str(store.absolute())) as folder:
        secret = secrets.token_hex()
        plan = Plan(mode, nodes, masters, host, port, broker_port, folder, secret, store is not None)
        check_store(plan)
        expected = (BrokerError, StoreError, HaError, JsonError, BadTlsSetting)
        options = ("--log-level", log_level, *(("--log-format", log_format) if log_format else ()))
        serve(open_cluster(plan, options, real_world()), announcement, *expected, port_options="--port or --broker-port")


def check_store(plan: Plan) -> None:
    """Refuse a directory whose stores this cluster would not open, or which could not become one group.

    Raises:
        click.UsageError: the stores were begun with another mode or number of brokers. Nothing was started or changed.
    """
    folder, stores = Path(plan.store), plan.stores()
    used = {store for members in stores.values() for store in members}
    left_out = sorted(found.name for found in folder.glob(STORES) if found.is_dir() and found not in used)
    if left_out:
        raise click.UsageError(
            f"{folder} has stores that this cluster with --mode {plan.mode} does not open: {', '.join(left_out)}. Nothing was "
            "started or changed. Give the --mode, --nodes and --masters that they were begun with, or another --store"
        )
    for members in stores.values() if plan.mode == "dledger" else ():
        classic = [store for store in members if _has_files(store / "commitlog")]
        without = [store.name for store in members if store not in classic]
        if classic and without and not any(_has_files(store, "dledger-*") for store in members):
            raise click.UsageError(
                f"every node of a DLedger group needs the messages from before: {', '.join(without)} would lack those of "
                f"{classic[0].name}. Nothing was started or changed. Give the --mode and --nodes that the stores were "
                f"begun with, copy the directories commitlog and config of {classic[0]} to each node, or give another --store"
            )


def _has_files(folder: Path, pattern: str = "*") -> bool:
    return any(folder.glob(pattern))


@contextmanager
def _ports(plan: Plan) -> Generator[Ports]:
    """The ports of the brokers, of nodes 30000 above them as in RocketMQ's examples, and of the controller.

    Where these are not given or too high, free ports are reserved for the length of the `with` block: a node that ended starts
    again on the same ports.
    """
    count, first = len(plan.members), plan.broker_port
    clients: Sequence[int] = range(first, first + PORTS_PER_BROKER * count, PORTS_PER_BROKER)
    raft: Sequence[int] = [port + RAFT_PORT_DISTANCE for port in clients]
    with ExitStack() as stack:
        if not first:
            clients = stack.enter_context(reserved_ports(plan.host, count, BROKER_PORTS))
        if plan.mode == "dledger" and (not first or raft[-1] > PORT_MAX):
            raft = stack.enter_context(reserved_ports(plan.host, count))
        controller, group = stack.enter_context(reserved_ports(plan.host, 2))
        if plan.port and plan.port + CONTROLLER_PORT_DISTANCE <= PORT_MAX:
            controller = plan.port + CONTROLLER_PORT_DISTANCE
        yield Ports(clients, raft, (controller, group))


@contextmanager
def _temporary_folder() -> Generator[str]:
    """A folder that is removed with the cluster; folders that killed clusters of this user left behind are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as folder, _locked(Path(folder)):
        yield folder


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the lock of a cluster's folder, which the system releases when the process ends.

    Raises:
        BlockingIOError: a running cluster holds it. PermissionError: it belongs to another user.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@asynccontextmanager
async def open_cluster(plan: Plan, options: Sequence[str], world: World) -> AsyncGenerator[Cluster]:
    """Run the name server and the brokers.

    Args:
        options: the options of the command `ledgermq broker`, for brokers that are separate processes.
    """
    kept = f"{plan.store}/namesrv/kvConfig.json"
    config = NamesrvConfig(listen_port=plan.port, bind_address=plan.host, kv_config_path=kept)
    async with open_namesrv(config, world) as namesrv:
        with _ports(plan) as ports:
            configs = plan.brokers(str(namesrv.address), ports)
            if plan.divided:
                processes = [BrokerProcess(config, Path(plan.store), options) for config in configs]
                electing = open_controller(plan.controller(ports), world) if plan.mode == "controller" else nullcontext()
                async with electing, trio.open_nursery() as nursery:
                    async with trio.open_nursery() as starting:
                        for process in processes:
                            starting.start_soon(nursery.start, process.run)
                    masters = await _with_masters(str(namesrv.address), processes, plan)
                    yield Cluster(plan, namesrv, masters, world.disk.usage(plan.store), configs[0].controller_addr)
                    nursery.cancel_scope.cancel()
            else:
                async with AsyncExitStack() as stack:
                    brokers = [await stack.enter_async_context(open_broker(config, world)) for config in configs]
                    yield Cluster(plan, namesrv, tuple(map(_shown, brokers)), world.disk.usage(plan.store))


def _shown(broker: Broker) -> Shown:
    """A broker of this process. Its role is the configured one; puts of an asynchronous master do not wait for slaves."""
    config = broker.config
    return Shown(config.broker_name, config.broker_role.replace("_", " ").lower(), broker.address)


async def _with_masters(namesrv: str, processes: Sequence[BrokerProcess], plan: Plan) -> tuple[Shown, ...]:
    """The brokers that are processes, once each broker name has a master that the name server knows."""
    names = {process.config.broker_name for process in processes}
    warn_at = trio.current_time() + ELECTION_SECONDS
    async with open_admin(namesrv) as admin:
        while (masters := await _masters(admin, plan)).keys() != names:
            if trio.current_time() >= warn_at:
                missing = ", ".join(sorted(names - masters.keys()))
                log.warning("group_without_master", brokers=missing, reason=f"ledgermq cluster status -n {namesrv} says more")
                warn_at = inf
            await trio.sleep(WAIT_SECONDS)
    return tuple(
        Shown(
            process.config.broker_name,
            "master" if masters[process.config.broker_name] == process.address else "follower",
            process.address,
            process.process_id,
        )
        for process in processes
    )


async def _masters(admin: Admin, plan: Plan) -> dict[str, str]:
    """The master of each broker name that has one, and with a controller all replicas in sync, so that any may be killed."""
    try:
        brokers = (await admin.cluster()).brokers
        masters = {broker.name: str(broker.addresses[MASTER_ID]) for broker in brokers if MASTER_ID in broker.addresses}
        if plan.mode == "controller":
            for name, address in list(masters.items()):
                controlled = (await admin.ha_status(address)).get("controller", {})
                if len(controlled.get("syncStateSet", ())) < plan.nodes:
                    del masters[name]
    except ClientError:
        return {}
    return masters


def _refusal(cluster: Cluster) -> tuple[str, ...]:
    """What a full disk means for those who are about to send."""
    allowed, full = RetentionRules().warning_ratio, cluster.disk.ratio
    return (
        f"Sends will be refused: the disk of {cluster.plan.store} is {full:.1%} full; over {allowed:.0%} nothing is stored.",
        "Free some space, and they are taken within ten seconds; or stop, and start with --store DIR on another disk.",
    )


def announcement(cluster: Cluster) -> str:
    plan = cluster.plan
    servers: list[tuple[object, ...]] = [("name server", "", str(cluster.namesrv.address), "")]
    servers += [("controller", "", cluster.controller, "")] if cluster.controller else []
    servers += [(broker.name, broker.role, broker.address, broker.process_id) for broker in cluster.brokers]
    led_on = "" if plan.mode == "local" else "another one leads, and "
    killable = plan.divided
    columns = ("what", "role", "address", *(("process",) if killable else ()))
    rows: list[dict[str, object]] = [dict(zip(columns, server, strict=False)) for server in servers]
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
            *(_refusal(cluster) if disk_full(cluster.disk.ratio, RetentionRules()) else ()),
            *((f"Kill a broker (kill -9 PROCESS): {led_on}it is started again.",) if killable else ()),
            "Ctrl-C stops.",
        )
    )
