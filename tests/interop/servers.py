"""Name servers and brokers as operating-system processes: ours and Apache's, started alike from the same broker.conf.

Invariant: a server handed out has said ``boot success``; when its owner is done, no process of it is left.
Names of keys and flags: RocketMQ's ``broker.conf``, ``namesrv.conf`` and start scripts.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Self

import attrs

from ledgermq.blocking import open_admin
from ledgermq.client.errors import NoRoute
from ledgermq.client.route import AUTO_CREATE_TOPIC
from ledgermq.testing.ports import BROKER_PORTS, reserved_ports

from . import peers

REPOSITORY = Path(__file__).parents[2]
READY_SECONDS = 240.0
"""How long a server may take to start; a JVM takes seconds, and more than a minute on a machine with much else to do."""
STOP_SECONDS = 120.0

JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)


NO_TLS: Mapping[str, object] = {}


class Maker(Enum):
    """Whose servers."""

    OURS = "ours"
    APACHE_55 = "apache-5.5.0"
    APACHE_49 = "apache-4.9.7"


class ServerDiedError(Exception):
    """A server ended, or never became ready."""


@attrs.define
class Server:
    """One running process with its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait_ready(self) -> Self:
        deadline = time.monotonic() + READY_SECONDS
        while "boot success" not in self.output():
            if self.process.poll() is not None:
                raise ServerDiedError(f"{self.name} ended with {self.process.returncode}:\n{self.output()[-4000:]}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerDiedError(f"{self.name} not ready in {READY_SECONDS:.0f} s:\n{self.output()[-4000:]}")
            time.sleep(0.02)
        return self

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self) -> int:
        """Ask politely and wait: the ports stay bound until the process is gone."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                raise ServerDiedError(f"{self.name} did not stop in {STOP_SECONDS:.0f} s:\n{self.output()[-4000:]}") from None
        return self.process.returncode

    def kill(self) -> None:
        """Kill -9."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@attrs.frozen
class Cluster:
    """A name server and one broker that registers with it."""

    maker: Maker
    namesrv: str
    broker: str
    store: Path
    namesrv_server: Server
    broker_server: Server


reservations = ExitStack()
"""The ports of all servers, which stay reserved until the session of tests ends: servers start again on their ports."""


def free_port() -> int:
    """Reserve a port for a server, and the ports that a broker derives from it."""
    (port,) = reservations.enter_context(reserved_ports("127.0.0.1", 1, BROKER_PORTS))
    return port


def start_namesrv(maker: Maker, folder: Path, port: int, tls: Mapping[str, object] = NO_TLS) -> Server:
    """Start a name server of this make."""
    config = _write_config(folder / "namesrv.conf", {"listenPort": port, **(tls if maker is Maker.OURS else {})})
    if maker is Maker.OURS:
        command = [sys.executable, "-m", "ledgermq.cli.main", "namesrv", "-c", str(config)]
        return _spawn(f"{maker.value} namesrv", command, folder, our_environment())
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    return _start_java(maker, main, folder, config, "-Xmx256m", *java_properties(tls))


def start_controller(maker: Maker, folder: Path, config: Mapping[str, object]) -> Server:
    """Start a controller of this make with this configuration."""
    file = _write_config(folder / "controller.conf", config)
    if maker is Maker.OURS:
        command = [sys.executable, "-m", "ledgermq.cli.main", "controller", "-c", str(file)]
        return _spawn(f"{maker.value} controller", command, folder, our_environment())
    return _start_java(maker, "org.apache.rocketmq.controller.ControllerStartup", folder, file, "-Xmx256m")


def controller_config(maker: Maker, port: int, store: Path) -> dict[str, object]:
    """A controller.conf of the only controller of its group; the nodes of Apache's serve brokers where they vote."""
    return {
        "listenPort": port,
        "bindAddress": "127.0.0.1",
        "controllerDLegerPeers": f"n0-127.0.0.1:{free_port() if maker is Maker.OURS else port}",
        "controllerDLegerGroup": "controllers",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": store,
        "configStorePath": store.with_name("changes"),
        **({} if maker is Maker.OURS else {"mappedFileSize": 1024 * 1024}),
    }


def start_broker(maker: Maker, folder: Path, config: Mapping[str, object], tls: Mapping[str, object] = NO_TLS) -> Server:
    """Start a broker of this make with this configuration."""
    file = _write_config(folder / "broker.conf", {**config, **(tls if maker is Maker.OURS else {})})
    if maker is Maker.OURS:
        command = [sys.executable, "-m", "ledgermq.cli.main", "broker", "-c", str(file)]
        return _spawn(f"{maker.value} broker", command, folder, our_environment())
    main = "org.apache.rocketmq.broker.BrokerStartup"
    flags = ("-Xms256m", "-Xmx768m", "-XX:MaxDirectMemorySize=512m")
    return _start_java(maker, main, folder, file, *flags, *java_properties(tls))


def _write_config(file: Path, entries: Mapping[str, object]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{key}={value}\n" for key, value in entries.items()))
    return file


def java_properties(entries: Mapping[str, object]) -> list[str]:
    """Entries as a JVM is given them."""
    return [f"-D{key}={value}" for key, value in entries.items()]


def broker_config(port: int, namesrv: str, store: Path, **more: object) -> dict[str, object]:
    """A broker.conf for tests: small files, any disk, topics on demand."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "listenPort": port,
        "haListenPort": port + 1,
        "namesrvAddr": namesrv,
        "registerNameServerPeriod": 10_000,  # the least; Apache's first registration may miss, on a busy machine
        "storePathRootDir": store,
        "flushDiskType": "ASYNC_FLUSH",
        "brokerRole": "ASYNC_MASTER",
        "autoCreateTopicEnable": "true",
        "autoCreateSubscriptionGroup": "true",
        "mappedFileSizeCommitLog": 16 * 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 2000,
        "diskMaxUsedSpaceRatio": 95,
        # The third level is where consumer retries begin; ten seconds of it would be waited for again and again.
        "messageDelayLevel": "1s 5s 2s 12s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        **more,
    }


@contextmanager
def running(maker: Maker, folder: Path, tls: Mapping[str, object] = NO_TLS, **more: object) -> Generator[Cluster]:
    """A name server and a broker of this make, which know each other, on ``folder/store``; gone at the end in any case."""
    namesrv_port, broker_port = free_port(), free_port()
    namesrv, broker = f"127.0.0.1:{namesrv_port}", f"127.0.0.1:{broker_port}"
    store = folder / "store"
    with ExitStack() as started:
        namesrv_server = start_namesrv(maker, folder / "namesrv", namesrv_port, tls)
        started.callback(namesrv_server.kill)
        namesrv_server.wait_ready()
        config = broker_config(broker_port, namesrv, store, **more)
        broker_server = start_broker(maker, folder / "broker", config, tls)
        started.callback(broker_server.kill)
        broker_server.wait_ready()
        await_registered(namesrv, str(config["brokerName"]), tls=bool(tls))
        yield Cluster(maker, namesrv, broker, store, namesrv_server, broker_server)


def await_registered(namesrv: str, broker_name: str, *, tls: bool = False) -> None:
    """Wait until the name server leads to the broker: Apache's says that it is up before, and tries again after its period."""
    deadline = time.monotonic() + READY_SECONDS
    with open_admin(namesrv, tls=tls) as admin:
        while True:
            # What a client asks for first, to create its topic by sending.
            with suppress(NoRoute):
                route = admin.call(lambda each: each.topic_route(AUTO_CREATE_TOPIC))
                if broker_name in {broker.name for broker in route.brokers}:
                    return
            if time.monotonic() > deadline:
                raise ServerDiedError(f"{broker_name} did not register at {namesrv} in {READY_SECONDS:.0f} s")
            time.sleep(0.1)


def java_command(class_path: str, home: Path, *flags: str) -> list[str]:
    """The start of a command line for a Java peer that keeps its logs and offsets in ``home``."""
    return [peers.tool("java"), *flags, *JVM_FLAGS, f"-Duser.home={home}", "-cp", class_path]


def java_environment(home: Path) -> dict[str, str]:
    """ROCKETMQ_HOME with the logback files that 4.9 insists on."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("namesrv", "broker", "tools"):
        (conf / f"logback_{name}.xml").write_text("<configuration/>\n")
    return {**os.environ, "ROCKETMQ_HOME": str(home)}


def copy_store(source: Path, target: Path) -> Path:
    """A copy of a store directory that keeps the holes of preallocated files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
    return target


def jars_of(maker: Maker) -> Path | None:
    """The class path folder of Apache's servers; ours need none."""
    if maker is Maker.OURS:
        return None
    return peers.apache_jars(peers.APACHE_55 if maker is Maker.APACHE_55 else peers.APACHE_49_SERVERS)


def _start_java(maker: Maker, main: str, folder: Path, config: Path, *flags: str) -> Server:
    jars = jars_of(maker)
    home = folder / "home"
    command = [*java_command(f"{jars}/*", home, *flags), main, "-c", str(config)]
    return _spawn(f"{maker.value} {main.rpartition('.')[2]}", command, folder, java_environment(home))


def our_environment() -> dict[str, str]:
    """The environment in which a process runs our code."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PYTHONUNBUFFERED": "1"}


def _spawn(name: str, command: list[str], folder: Path, environment: dict[str, str]) -> Server:
    log = folder / f"output-{len(list(folder.glob('output-*.log')))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    return Server(name, process, log)
