"""Where the strangers come from: foreign clients and brokers, fetched from their registries into a cache.

Invariant: nothing of theirs is ever inside the repository; a cache entry appears complete (by one rename) or not at all.
The cache is ``~/.cache/ledgermq-peers`` unless ``$LEDGERMQ_PEERS`` names another folder; our own small programs that drive
the peers are compiled once per content and kept there too.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

SOURCES = Path(__file__).parent

MAVEN_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
APACHE_55 = ("broker:5.5.0", "namesrv:5.5.0", "tools:5.5.0", "client:5.5.0")
APACHE_49_SERVERS = ("broker:4.9.7", "namesrv:4.9.7")
APACHE_49_CLIENTS = ("client:4.9.8", "tools:4.9.8")
DLEDGER = "io.openmessaging.storage:dledger"
CPP_WHEEL = "rocketmq==0.4.4"
SPARK_CONNECT = ("grpcio>=1.76", "grpcio-status>=1.76", "googleapis-common-protos>=1.71", "zstandard>=0.25", "pandas>=2.2,<3")
"""What `pyspark[connect]` needs besides what we need; NumPy is installed already."""
NODE_PACKAGE = "ali-ons@3.12.0"

BUILD_SECONDS = 600
FETCH_SECONDS = 600
"""How long all attempts of one download may take."""
FETCH_PAUSES_SECONDS = (5, 20, 60)
"""The pauses before further attempts of a download that failed, as a registry that fails is often back within a minute."""


class MissingPeerError(Exception):
    """A tool or a registry that a peer needs is not there."""


class BuildError(Exception):
    """Our own source for a peer did not compile: a bug here, never a reason to skip."""


def cache() -> Path:
    """The folder that keeps fetched peers and compiled drivers between runs."""
    folder = Path(os.environ.get("LEDGERMQ_PEERS", "~/.cache/ledgermq-peers")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tool(name: str) -> str:
    """The path of a program that must be on PATH."""
    path = shutil.which(name)
    if path is None:
        raise MissingPeerError(f"{name} is not installed")
    return path


def apache_jars(artifacts: tuple[str, ...]) -> Path:
    """The folder with the named RocketMQ artifacts and everything they need at run time."""
    maven = tool("mvn")

    def fetch(target: Path) -> None:
        (target / "pom.xml").write_text(_pom(artifacts))
        # -U asks again for what an earlier attempt did not find.
        command = [maven, "-B", "-q", "-U", MAVEN_PLUGIN, "-DincludeScope=runtime", f"-DoutputDirectory={target / 'lib'}"]
        _fetch(command, target)

    return _once("maven", artifacts, fetch) / "lib"


def ledger_peer(version: str) -> str:
    """The class path of a DLedger node without a broker; 0.3.1.2 is inside RocketMQ 4.9.7, 0.3.2 inside 5.5.0."""
    compiler = tool("javac")
    jars = apache_jars((f"{DLEDGER}:{version}",))
    source = SOURCES / "java" / "LedgerPeer.java"

    def build(target: Path) -> None:
        _build([compiler, "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(target), str(source)], target)

    return f"{_once('java', (str(jars), source), build)}:{jars}/*"


def java_driver(jars: Path) -> str:
    """The class path of the Java driver, compiled against these jars."""
    compiler = tool("javac")
    source = SOURCES / "java" / "PeerDriver.java"

    def build(target: Path) -> None:
        # The client marks much of what an ordinary application still uses as deprecated.
        command = [compiler, "-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(target)]
        _build([*command, str(source)], target)

    return f"{_once('java', (str(jars), source), build)}:{jars}/*"


def go_driver() -> Path:
    """The Go driver, linked with rocketmq-client-go."""
    go = tool("go")
    files = [SOURCES / "go" / name for name in ("go.mod", "go.sum", "main.go")]

    def build(target: Path) -> None:
        for file in files:
            shutil.copy(file, target)
        _fetch([go, "list", "-deps", "."], target)
        _build([go, "build", "-o", "driver", "."], target)

    return _once("go", files, build) / "driver"


def node_modules() -> Path:
    """A folder whose ``node_modules`` holds ali-ons."""
    tool("node")
    npm = tool("npm")

    def fetch(target: Path) -> None:
        (target / "package.json").write_text('{"name": "peers", "version": "1.0.0", "private": true}\n')
        _fetch([npm, "install", NODE_PACKAGE, "--ignore-scripts", "--no-audit", "--no-fund"], target)

    return _once("node", (NODE_PACKAGE,), fetch)


def cpp_library() -> Path:
    """The librocketmq.so that a wheel carries."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise MissingPeerError("the wheel with librocketmq exists for Linux on x86_64 only")

    def fetch(target: Path) -> None:
        _fetch([sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(target), CPP_WHEEL], target)
        for wheel in target.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)

    return _once("pypi", (CPP_WHEEL,), fetch) / "rocketmq" / "librocketmq.so"


def spark_connect() -> Path:
    """The folder with the packages that Spark Connect imports, to be named in `PYTHONPATH`."""

    def fetch(target: Path) -> None:
        _fetch([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *SPARK_CONNECT], target)
        for installed in target.glob("numpy*"):
            shutil.rmtree(installed)

    return _once("pypi", (*SPARK_CONNECT, platform.python_version()), fetch)


def _pom(artifacts: Iterable[str]) -> str:
    """A project that depends on these; an artifact of RocketMQ is named without group and prefix."""
    parts = [artifact.split(":") for artifact in artifacts]
    named = [part if len(part) == 3 else ["org.apache.rocketmq", f"rocketmq-{part[0]}", part[1]] for part in parts]
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in named
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>peers</groupId><artifactId>peers</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


_missing: dict[Path, MissingPeerError] = {}
"""Entries that could not be fetched, so that the next test that needs one does not try for minutes as well."""


def _once(kind: str, ingredients: Iterable[str | Path], make: Callable[[Path], None]) -> Path:
    """The cache entry made from these ingredients (a path counts by its content), made now if it is not there."""
    digest = hashlib.sha256()
    for ingredient in ingredients:
        digest.update(ingredient.read_bytes() if isinstance(ingredient, Path) else ingredient.encode())
        digest.update(b"\0")
    entry = cache() / f"{kind}-{digest.hexdigest()[:16]}"
    if entry.exists():
        return entry
    if entry in _missing:
        raise _missing[entry]
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Maven's repository bears no two processes that write to it
        if entry.exists():
            return entry
        making = Path(tempfile.mkdtemp(prefix=f"{kind}-making-", dir=cache()))
        try:
            make(making)
            making.rename(entry)
        except MissingPeerError as missing:
            _missing[entry] = missing
            raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return entry


def _fetch(command: list[str], directory: Path) -> None:
    """Run a command that downloads, and run it again if it fails."""
    deadline = time.monotonic() + FETCH_SECONDS
    failed = _run(command, directory, FETCH_SECONDS)
    for pause in FETCH_PAUSES_SECONDS:
        if failed and time.monotonic() + pause < deadline:
            time.sleep(pause)
            failed = _run(command, directory, deadline - time.monotonic())
    if failed:
        raise MissingPeerError(failed)


def _build(command: list[str], directory: Path) -> None:
    failed = _run(command, directory, BUILD_SECONDS)
    if failed:
        raise BuildError(failed)


def _run(command: list[str], directory: Path, seconds: float) -> str:
    """Run to the end; returns the reason of a failure, or nothing."""
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)} took more than {seconds:.0f} s"
    if done.returncode == 0:
        return ""
    return f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
