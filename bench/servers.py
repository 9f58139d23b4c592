"""The two sides of every comparison: name servers, controllers and brokers of Apache RocketMQ, and of LedgerMQ.

Apache's jars come from Maven Central into a cache outside the repository (`$LEDGERMQ_PEERS`, by default
`~/.cache/ledgermq-peers`) and are fetched once. Stores are below `$LEDGERMQ_BENCH_STORE` (by default
`~/.cache/ledgermq-bench`) rather than in /tmp, which is in memory on many machines, where a flush costs nothing.
Each side has its own ports, so both can run while only one is loaded.
"""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import attrs
from processes import Process
from wire import Connection

Side = Literal["apache", "ours"]

APACHE_VERSION = "5.5.0"
TOPIC = "Bench"
QUEUES = 8
BROKER_NAME = "bench-broker"

_REPOSITORY = Path(__file__).resolve().parent.parent
_APACHE_ARTIFACTS = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-tools", "rocketmq-example")
# The packages that JDK 17 must open for Netty and RocketMQ's buffer cleaner.
_JDK_FLAGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
_APACHE_SMALL_MEMORY = ("-Xms512m", "-Xmx512m")
_APACHE_BROKER_MEMORY = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g")
_READY = "boot success"
_READY_SECONDS_MAX = 300
"""A server that is not ready after this time has failed; on a busy machine a JVM may take minutes to start."""


def apache_jars() -> Path:
    """Return the folder of Apache's jars; they are fetched from Maven Central if the folder does not exist yet."""
    cache = Path(os.environ.get("LEDGERMQ_PEERS", Path.home() / ".cache" / "ledgermq-peers"))
    jars = cache / f"rocketmq-{APACHE_VERSION}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    dependencies = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{APACHE_VERSION}</version></dependency>"
        for artifact in _APACHE_ARTIFACTS
    )
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        pom = Path(folder) / "pom.xml"
        pom.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>ledgermq.bench</groupId><artifactId>peers</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        print(f"fetching Apache RocketMQ {APACHE_VERSION} from Maven Central into {jars}", file=sys.stderr)
        subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"],
            check=True,
        )
        # A rename is atomic, so an interrupted download never looks like a complete one.
        (Path(folder) / "jars").rename(jars)
    return jars


def apache_java(main_class: str, arguments: Sequence[str], home: Path, flags: Sequence[str] = ()) -> list[str]:
    """Return the command that runs one of Apache's main classes, with its logs and offsets below `home`."""
    home.mkdir(parents=True, exist_ok=True)
    class_path = f"{apache_jars()}/*"
    return ["java", *_JDK_FLAGS, *flags, f"-Duser.home={home}", "-cp", class_path, main_class, *arguments]


def apache_env(home: Path) -> dict[str, str]:
    return {"ROCKETMQ_HOME": str(home)}


def ours_env() -> dict[str, str]:
    """Return the variables that make our sources importable and keep their bytecode, as for an installed package."""
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{_REPOSITORY / 'src'}{os.pathsep + path if path else ''}", "PYTHONDONTWRITEBYTECODE": ""}


def start_server(
    side: Side, kind: str, folder: Path, entries: Mapping[str, object], apache_memory: Sequence[str] = _APACHE_SMALL_MEMORY
) -> Process:
    """Start a name server (`namesrv`), controller or broker without waiting for it; its file has these entries."""
    config = folder / f"{kind}.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in entries.items()))
    if side == "apache":
        main, home = f"org.apache.rocketmq.{kind}.{kind.capitalize()}Startup", folder / kind
        command, env = apache_java(main, ["-c", str(config)], home, apache_memory), apache_env(home)
    else:
        command, env = [sys.executable, "-m", "ledgermq.cli.main", kind, "-c", str(config)], ours_env()
    return Process.start(f"{side} {kind}", command, folder / f"{kind}.log", env)


@contextlib.contextmanager
def started_controllers(side: Side, count: int) -> Generator[dict[str, Process]]:
    """Run a group of controllers; yields the process of each by the address that brokers ask."""
    folder, first = new_store(), free_port(2 * count)
    addresses, others = ([f"127.0.0.1:{port + number}" for number in range(count)] for port in (first, first + count))
    voting = addresses if side == "apache" else others  # Apache's serve brokers where they vote
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        started: dict[str, Process] = {}
        for number, address in enumerate(addresses):
            own = folder / f"n{number}"
            own.mkdir()
            entries = {
                "listenPort": first + number,
                "bindAddress": "127.0.0.1",
                "controllerDLegerGroup": "bench",
                "controllerDLegerPeers": ";".join(f"n{at}-{peer}" for at, peer in enumerate(voting)),
                "controllerDLegerSelfId": f"n{number}",
                "controllerStorePath": own / "store",
            }
            started[address] = start_server(side, "controller", own, entries)
            stack.callback(started[address].kill)
        for controller in started.values():
            controller.wait_for_output(_READY, _READY_SECONDS_MAX)
        yield started


def new_store() -> Path:
    """Return a fresh folder for stores and logs, on a real disk."""
    root = Path(os.environ.get("LEDGERMQ_BENCH_STORE", Path.home() / ".cache" / "ledgermq-bench"))
    root.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=root))


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive free ports below the range of ephemeral ports."""
    while True:
        first = random.randrange(20_000, 30_000)  # noqa: S311 - draws a port
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@attrs.define
class Cluster:
    """One name server and one broker of one side, started and stopped together."""

    side: Side
    folder: Path
    namesrv_port: int
    broker_port: int
    settings: dict[str, str]
    namesrv: Process | None = None
    broker: Process | None = None
    apache_memory: tuple[str, ...] = _APACHE_BROKER_MEMORY

    @classmethod
    def prepare(cls, side: Side, settings: Mapping[str, str] | None = None) -> "Cluster":
        """Choose ports and an empty store; `settings` are keys of broker.conf beyond the usual ones."""
        # A RocketMQ broker listens on three ports: listenPort, the fast port two below it, and the HA port one above it.
        return cls(side, new_store(), free_port(), free_port(4) + 2, dict(settings or {}))

    @property
    def namesrv_address(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def broker_address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.broker_port)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def running_broker(self) -> Process:
        if self.broker is None:
            raise RuntimeError("the broker has not been started")
        return self.broker

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def start(self) -> None:
        self.start_namesrv()
        self.start_broker()

    def start_namesrv(self) -> float:
        """Start the name server and return the seconds until it was ready."""
        self.namesrv = start_server(self.side, "namesrv", self.folder, {"listenPort": self.namesrv_port})
        return self.namesrv.wait_for_output(_READY, _READY_SECONDS_MAX)

    def launch_broker(self) -> Process:
        """Start the broker on its store, new or old, without waiting for it."""
        self.broker = start_server(self.side, "broker", self.folder, self._broker_settings(), self.apache_memory)
        return self.broker

    def start_broker(self) -> float:
        """Start the broker and return the seconds until it reported that it was ready."""
        return self.launch_broker().wait_for_output(_READY, _READY_SECONDS_MAX)

    def _broker_settings(self) -> dict[str, str]:
        return {
            "brokerClusterName": "bench-cluster",
            "brokerName": BROKER_NAME,
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "listenPort": str(self.broker_port),
            "haListenPort": str(self.broker_port + 1),
            "namesrvAddr": self.namesrv_address,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "autoCreateTopicEnable": "true",
            "flushDiskType": "ASYNC_FLUSH",
            **self.settings,
        }

    def connect(self) -> Connection:
        return Connection(self.broker_address)

    def create_topic(self, topic: str = TOPIC, queues: int = QUEUES) -> None:
        with self.connect() as connection:
            connection.create_topic(topic, queues)

    def stop(self) -> None:
        for process in (self.broker, self.namesrv):
            if process is not None:
                process.stop()

    def discard(self) -> None:
        """Kill the running servers and remove the store."""
        for process in (self.broker, self.namesrv):
            if process is not None:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
