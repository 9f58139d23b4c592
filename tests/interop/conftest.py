"""What the interop tests share: one running cluster, one driver per foreign client, topics and groups of their own.

Whose cluster it is, ``$LEDGERMQ_INTEROP_TARGET`` says: ``ours`` (the default) or ``apache``, which checks the tests themselves.
A peer that cannot be had skips its tests; where ``CI`` is ``true`` it fails them.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import attrs
import pytest

from . import peers, servers
from .driver import Driver
from .servers import Cluster, Maker

T = TypeVar("T")

TARGETS = {"ours": Maker.OURS, "apache": Maker.APACHE_55, "apache-4.9": Maker.APACHE_49}
CLIENTS = {"4.9.8": peers.APACHE_49_CLIENTS, "5.5.0": peers.APACHE_55}


def target_name() -> str:
    return os.environ.get("LEDGERMQ_INTEROP_TARGET", "ours")


def obtain(fetch: Callable[[], T]) -> T:
    """What ``fetch`` gets; a peer that cannot be had ends the test."""
    try:
        return fetch()
    except peers.MissingPeerError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"needed in CI: {missing}")
        pytest.skip(str(missing))


@attrs.define
class Names:
    """Topics and groups that no other test uses."""

    test: str
    admin: Driver
    broker: str

    def topic(self, suffix: str = "topic", queues: int = 4) -> str:
        """A topic made by an administrator, in the route of the name server before this returns."""
        name = f"{self.test}_{suffix}"
        self.admin.run("create_topic", topic=name, broker=self.broker, queues=queues)
        return name

    def fresh_topic(self, suffix: str = "fresh") -> str:
        """A topic that nobody made yet."""
        return f"{self.test}_{suffix}"

    def group(self, suffix: str = "group") -> str:
        return f"{self.test}_{suffix}"


def mqadmin(driver: Driver, *words: str) -> str:
    """What the mqadmin command printed."""
    return "".join(event["text"] for event in driver.run("admin", words="\x01".join(words)))


def start_java(version: str, namesrv: str, folder: Path, **properties: object) -> Driver:
    """A driver on the Java client of this version; properties have ``_`` for their dots."""
    jars = obtain(lambda: peers.apache_jars(CLIENTS[version]))
    class_path = obtain(lambda: peers.java_driver(jars))
    home = folder / "home"
    flags = (
        "-Xmx256m",
        f"-Drocketmq.client.localOffsetStoreDir={home}/offsets",
        # A group settles within seconds instead of at the next round of 20 s.
        "-Drocketmq.client.rebalance.waitInterval=1000",
        *servers.java_properties({name.replace("_", "."): value for name, value in properties.items()}),
    )
    command = [*servers.java_command(class_path, home, *flags), "PeerDriver", namesrv]
    return Driver.start(f"Java client {version}", command, folder, servers.java_environment(home))


@pytest.fixture(scope="session", autouse=True)
def reserved() -> Iterator[None]:
    """Releases the ports of all servers at the end."""
    with servers.reservations:
        yield


@pytest.fixture(scope="session")
def target() -> Maker:
    return TARGETS[target_name()]


@pytest.fixture(scope="session")
def cluster(target: Maker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    obtain(lambda: servers.jars_of(target))
    with servers.running(target, tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session", params=sorted(CLIENTS))
def java(request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The Java client, once in each version."""
    driver = start_java(request.param, cluster.namesrv, tmp_path_factory.mktemp("java"))
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def admin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A Java client beside the one under test: it makes topics and reads stores."""
    driver = start_java("5.5.0", cluster.namesrv, tmp_path_factory.mktemp("admin"))
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def go(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    program = obtain(peers.go_driver)
    folder = tmp_path_factory.mktemp("go")
    # Offsets of broadcasting consumers are kept below HOME.
    environment = {**os.environ, "ROCKETMQ_GO_LOG_LEVEL": "warn", "HOME": str(folder)}
    driver = Driver.start("Go client", [str(program), cluster.namesrv], folder, environment)
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def node(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    modules = obtain(peers.node_modules)
    folder = tmp_path_factory.mktemp("node")
    environment = {**os.environ, "NODE_PATH": str(modules / "node_modules"), "HOME": str(folder)}
    script = peers.SOURCES / "node" / "driver.js"
    driver = Driver.start("Node client", [peers.tool("node"), str(script), cluster.namesrv], folder, environment)
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def cpp(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    library = obtain(peers.cpp_library)
    folder = tmp_path_factory.mktemp("cpp")
    environment = {**os.environ, "HOME": str(folder)}
    script = peers.SOURCES / "cpp" / "librocketmq_driver.py"
    command = [sys.executable, str(script), cluster.namesrv, str(library)]
    driver = Driver.start("C++ client", command, folder, environment)
    yield driver
    driver.close()


@pytest.fixture
def names(request: pytest.FixtureRequest, cluster: Cluster, admin: Driver) -> Names:
    # Tests of different clients have equal names, and all share one broker.
    words = f"{request.path.stem.removeprefix('test_')}_{request.node.name.removeprefix('test_')}"
    test = "".join(letter if letter.isalnum() else "_" for letter in words)
    # With prefix and suffix a group name must stay below 120 characters.
    return Names(test[:90].strip("_"), admin, cluster.broker)
