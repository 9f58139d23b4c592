"""Servers of ours as processes, started through the command line, and what the outside may do to a process.

A server is up once it has said so on its standard output; what it writes to standard error is kept in a file. Whatever still
runs at the end of `running` is killed: a harness leaves no server behind.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from ledgermq.world.network import Address

from .network import Place

BOOT_SECONDS = 60.0
"""Far more than a start takes: the machine may be busy."""
STOP_SECONDS = 30.0
BROKER_NAME = "faulty"
SEGMENT_SIZE = 1 << 24

_UP = re.compile(r"boot success")
_ADDRESS = re.compile(r"(\d+\.\d+\.\d+\.\d+):(\d+)")
_ROOT = str(Path(__file__).resolve().parents[2])
_SOURCES = f"{_ROOT}/src"


class NotUp(Exception):
    """A server ended, or stayed silent, before it was up; `status` is None while it still runs."""

    def __init__(self, status: int | None, errors: str) -> None:
        super().__init__(f"the server did not come up (exit status {status}):\n{errors}")
        self.status = status
        self.errors = errors


@attrs.define(eq=False)
class ServerProcess:
    """One started process."""

    process: trio.Process
    errors_path: Path
    host: str = "127.0.0.1"
    address: Address = attrs.field(factory=lambda: Address("127.0.0.1", 0))
    """Where it listens, once it is up."""

    @property
    def errors(self) -> str:
        """All that was written to standard error so far."""
        return self.errors_path.read_text(errors="replace")

    async def up(self) -> None:
        """Wait until it says that it is up.

        Raises:
            NotUp: it ended or said nothing in time.
        """
        assert self.process.stdout is not None
        output = ""
        with trio.move_on_after(BOOT_SECONDS):
            while not _UP.search(output) or not output.endswith("\n"):
                received = await self.process.stdout.receive_some()
                if not received:
                    raise NotUp(await self.process.wait(), self.errors)
                output += received.decode()
        found = _ADDRESS.search(output)
        if found is None:
            raise NotUp(self.process.returncode, self.errors)
        self.address = Address(self.host, int(found[2]))

    async def kill(self) -> None:
        """End it with SIGKILL: it gets to do nothing more."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        """Ask it to stop; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        with trio.fail_after(STOP_SECONDS):
            return await self.process.wait()

    async def pause(self, seconds: float, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Let it stand still: peers see open connections on which nothing moves. Has started when it does."""
        self.process.send_signal(signal.SIGSTOP)
        task_status.started()
        try:
            await trio.sleep(seconds)
        finally:
            self.process.send_signal(signal.SIGCONT)

    @property
    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM and its own: mapped files are not counted, the log is one."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None, "a kernel that does not tell RssAnon"
        return int(found[1]) * 1024


def _errors_path(directory: Path, command: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{command}.err"


@asynccontextmanager
async def running(
    directory: Path, *arguments: str, place: Place | None = None, turns: Path | None = None
) -> AsyncGenerator[ServerProcess]:
    """Start `ledgermq` with arguments, here or on a machine of a virtual network; on leaving it is killed if it still runs.

    Args:
        turns: a file that receives the long turns of its event loop, as `watched` measures them.
    """
    errors_path = _errors_path(directory, arguments[0])
    environment = {**os.environ, "PYTHONPATH": f"{_SOURCES}{os.pathsep}{_ROOT}", "HOME": str(directory)}
    command = ("ledgermq.cli.main",) if turns is None else ("harness.processes.watched", str(turns))
    environment.pop("LEDGERMQ_NAMESRV", None)
    with errors_path.open("ab") as errors:
        process = await trio.lowlevel.open_process(
            [*(place.entering if place else ()), sys.executable, "-m", *command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        )
    server = ServerProcess(process, errors_path, place.host if place else "127.0.0.1")
    try:
        yield server
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                await server.kill()
            assert process.stdout is not None
            await process.stdout.aclose()


def broker_arguments(store: Path, settings: Mapping[str, object] | None = None) -> list[str]:
    """The command line of a broker on `store`; `settings` are keys of broker.conf."""
    keys: dict[str, object] = {
        "brokerName": BROKER_NAME,
        "brokerIP1": "127.0.0.1",
        "listenPort": 0,
        "storePathRootDir": store,
        "mappedFileSizeCommitLog": SEGMENT_SIZE,
        "mappedFileSizeConsumeQueue": 60_000,
        "maxHashSlotNum": 5000,
        "maxIndexNum": 20_000,
        **(settings or {}),
    }
    return ["broker", "--log-level", "warning", *(text for key, value in keys.items() for text in (f"--{key}", str(value)))]


@asynccontextmanager
async def running_broker(
    store: Path, settings: Mapping[str, object] | None = None, turns: Path | None = None
) -> AsyncGenerator[ServerProcess]:
    """A broker on `store` that is up."""
    async with running(store.parent, *broker_arguments(store, settings), turns=turns) as broker:
        await broker.up()
        yield broker


@asynccontextmanager
async def running_namesrv(directory: Path, turns: Path | None = None) -> AsyncGenerator[ServerProcess]:
    """A name server that is up."""
    arguments = ("namesrv", "--log-level", "warning", "--host", "127.0.0.1", "--port", "0")
    async with running(directory, *arguments, turns=turns) as namesrv:
        await namesrv.up()
        yield namesrv
