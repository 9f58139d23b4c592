"""Groups of DLedger 0.3.1.2 and 0.3.2 with nodes of ours among them: leaders of either make, kills, the same entries.

Each group goes through ``$LEDGERMQ_DLEDGER_ENTRIES`` entries (10,000 unless set).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import pytest

from . import ledger_node, peers
from .conftest import obtain
from .ledgers import entries_of
from .servers import REPOSITORY, free_port

pytestmark = pytest.mark.interop

ENTRIES = int(os.environ.get("LEDGERMQ_DLEDGER_ENTRIES", "10000"))
BODY_SIZE = 200
FILE_SIZE = 256 * 1024
OURS, JAVA, JAVA_032 = "ours", "0.3.1.2", "0.3.2"
"""Whose node: ours, or of which version of DLedger."""
IN_BATCHES = " in batches"
"""Behind a version of DLedger: a leader of it sends several entries in one push (`enableBatchPush`)."""
PATIENCE_SECONDS = 240.0
ACCESS = ("--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/jdk.internal.ref=ALL-UNNAMED")


@attrs.frozen
class Status:
    """What a node says of itself."""

    role: str
    term: int
    leader: str
    begin: int
    end: int
    committed: int
    position: int


@attrs.define(eq=False)
class Node:
    """One node of a group, killed and started again on its store."""

    name: str
    maker: str
    peers: str
    base: Path
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        arguments = ["g", self.name, self.peers, str(self.base), str(FILE_SIZE)]
        if self.maker == OURS:
            command = [sys.executable, "-m", "tests.interop.ledger_node", *arguments]
        else:
            version, batches, _ = self.maker.partition(IN_BATCHES)
            java = [peers.tool("java"), "-Xmx256m", *ACCESS, "-cp", peers.ledger_peer(version), "LedgerPeer"]
            command = [*java, *arguments, "true" if batches else "false"]
        self.base.mkdir(parents=True, exist_ok=True)
        with (self.base / f"{self.name}.log").open("ab") as errors:
            environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"}
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
                cwd=REPOSITORY,
            )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} has ended: {(self.base / f'{self.name}.log').read_text()[-3000:]}"
        return line.strip()

    def ask(self, command: str) -> str:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self._line()

    def status(self) -> Status:
        role, term, leader, *numbers = self.ask("status").split()
        return Status(role, int(term), leader, *map(int, numbers))

    def append(self, count: int) -> int:
        """Append entries; how many were acknowledged."""
        return int(self.ask(f"append {count} {BODY_SIZE}").split()[0])

    def entries(self, copy: Path) -> tuple[int, str]:
        """What its ledger holds; see `entries_of`."""
        return entries_of(self.base / f"dledger-{self.name}", copy, FILE_SIZE, ledger_node.INDEX_FILE_SIZE)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._forget()

    def _forget(self) -> None:
        assert self.process is not None
        self.process.communicate(timeout=PATIENCE_SECONDS)
        self.process = None

    def stop(self) -> None:
        assert self.process is not None
        assert self.ask("stop") == "stopped"
        self._forget()


@contextmanager
def group_of(makers: Sequence[str], folder: Path) -> Generator[list[Node]]:
    """A group with one node of each make named."""
    for maker in set(makers) - {OURS}:
        obtain(lambda maker=maker: peers.ledger_peer(maker.removesuffix(IN_BATCHES)))  # type: ignore[misc]
    text = ";".join(f"n{number}-127.0.0.1:{free_port()}" for number in range(len(makers)))
    nodes = [Node(f"n{number}", maker, text, folder / f"n{number}") for number, maker in enumerate(makers)]
    try:
        for node in nodes:
            node.start()
        yield nodes
    finally:
        for node in nodes:
            with suppress(OSError):
                node.kill()


def leader_of(nodes: Sequence[Node]) -> Node:
    """The node that leads, once one does and has nothing left to commit."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for node in nodes:
            if node.process is not None:
                found = node.status()
                if found.role == "LEADER" and found.end == found.committed:
                    return node
        time.sleep(0.1)
    raise AssertionError([(node.name, node.maker, node.status()) for node in nodes if node.process is not None])


def await_equal(nodes: Sequence[Node]) -> None:
    """Wait until all nodes end alike and know that all is committed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: set[tuple[int, int, int]] = set()
    while time.monotonic() < deadline:
        found = {(status.end, status.committed, status.position) for status in (node.status() for node in nodes)}
        if len(found) == 1 and all(end == committed for end, committed, _ in found):
            return
        time.sleep(0.1)
    raise AssertionError([(node.name, node.maker, node.status()) for node in nodes])


@pytest.mark.parametrize(
    "makers",
    [(OURS, JAVA, JAVA), (OURS, OURS, JAVA), (OURS, JAVA_032, JAVA_032), (OURS, OURS, JAVA + IN_BATCHES)],
    ids=["one of ours", "two of ours", "one of ours beside 0.3.2", "two of ours, batches of the third"],
)
def test_a_mixed_group_holds_the_same_entries_through_kills_of_leaders_of_either_make(
    makers: tuple[str, ...], tmp_path: Path
) -> None:
    """Nothing acknowledged is lost, and at the end all three stores hold the same, each opened by us."""
    with group_of(makers, tmp_path) as nodes:
        acknowledged, led = 0, set[str]()
        for _ in range(12):
            leader = leader_of(nodes)
            led.add(leader.maker)
            acknowledged += leader.append(ENTRIES // 4)
            if led == set(makers) and acknowledged >= ENTRIES:
                break
            leader.kill()
            others = [node for node in nodes if node is not leader]
            acknowledged += leader_of(others).append(ENTRIES // 8)
            leader.start()
        assert led == set(makers)
        await_equal(nodes)
        for node in nodes:
            node.stop()
        found = [node.entries(tmp_path / f"copy-{node.name}") for node in nodes]
        assert found[0] == found[1] == found[2]
        assert found[0][0] >= acknowledged >= ENTRIES


@pytest.mark.parametrize("maker", [OURS, JAVA])
def test_each_make_opens_the_files_of_the_other(maker: str, tmp_path: Path) -> None:
    """And goes on in them; then the first one opens them again."""
    other = OURS if maker == JAVA else JAVA
    with group_of((maker,), tmp_path / "first") as (node,):
        leader_of([node])
        assert node.append(3000) == 3000
        before = node.status()
        node.stop()
        for number, make in enumerate((other, maker)):
            successor = Node(node.name, make, node.peers, node.base)
            try:
                successor.start()
                leader_of([successor])
                status = successor.status()
                assert (status.begin, status.end) >= (before.begin, before.end), number
                assert status.term >= before.term
                assert successor.append(1000) == 1000
                before = successor.status()
                successor.stop()
            finally:
                successor.kill()
        count, _ = node.entries(tmp_path / "copy")
        assert count == before.end + 1 >= 5000
