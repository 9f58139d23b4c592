"""Our servers as processes that are started by their command line, and the signals that tests send them.

A server is up once it has printed so to its standard output; its standard error goes to a file. A process that still runs at
the end of `running` is killed, so that no server is left behind.
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

from ledgermq.testing.ports import reserved_ports
from ledgermq.world.garbage import private_bytes
from ledgermq.world.network import Address

from .network import Place

BOOT_SECONDS = 300.0
"""A server that is not up after this time raises `NotUp`. A start takes far less, but not on a machine that is overloaded."""
STOP_SECONDS = 30.0
BROKER_NAME = "faulty"
SEGMENT_SIZE = 1 << 24

_UP = re.compile(r"boot success")
_ADDRESS = re.compile(r"(\d+\.\d+\.\d+\.\d+):(\d+)")
_ROOT = str(Path(__file__).resolve().parents[2])
_SOURCES = f"{_ROOT}/src"


class NotUp(Exception):
    """A server ended, or did not report in time that it was up; `status` is None if it still runs."""

    def __init__(self, status: int | None, errors: str) -> None:
        super().__init__(f"the server did not come up (exit status {status}):\n{errors}")
        self.status = status
        self.errors = errors


@attrs.define(eq=False)
class ServerProcess:
    """One started server process."""

    process: trio.Process
    errors_path: Path
    host: str = "127.0.0.1"
    address: Address = attrs.field(factory=lambda: Address("127.0.0.1", 0))
    """The address at which it listens, once it is up."""

    @property
    def errors(self) -> str:
        """Everything that it wrote to standard error so far."""
        return self.errors_path.read_text(errors="replace")

    async def up(self) -> None:
        """Wait until the server reports that it is up.

        Raises:
            NotUp: it ended or reported nothing in time.
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
        """Kill the process with SIGKILL, and wait for its end."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> int:
        """Stop the process with SIGTERM; returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        with trio.fail_after(STOP_SECONDS):
            return await self.process.wait()

    async def pause(self, seconds: float, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Suspend the process, so that peers have open connections without traffic; reports `started` once it is suspended."""
        self.process.send_signal(signal.SIGSTOP)
        task_status.started()
        try:
            await trio.sleep(seconds)
        finally:
            self.process.send_signal(signal.SIGCONT)

    @property
    def resident_bytes(self) -> int:
        """Private resident memory of the process, without mapped files such as the log."""
        return private_bytes(self.process.pid)


def _errors_path(directory: Path, command: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{command}.err"


@asynccontextmanager
async def running(
    directory: Path,
    *arguments: str,
    place: Place | None = None,
    turns: Path | None = None,
    module: str = "ledgermq.cli.main",
) -> AsyncGenerator[ServerProcess]:
    """Start `ledgermq` with arguments, here or on a machine of a virtual network, and kill it at the end of the block.

    Args:
        turns: a file that receives the long turns of its event loop, as `watched` measures them.
        module: what is run as `ledgermq`, if its turns are not measured.
    """
    errors_path = _errors_path(directory, arguments[0])
    environment = {**os.environ, "PYTHONPATH": f"{_SOURCES}{os.pathsep}{_ROOT}", "HOME": str(directory)}
    command = (module,) if turns is None else ("harness.processes.watched", str(turns))
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
    store: Path,
    settings: Mapping[str, object] | None = None,
    turns: Path | None = None,
    module: str = "ledgermq.cli.main",
) -> AsyncGenerator[ServerProcess]:
    """Start a broker on `store` and wait until it is up; the rest as for `running`."""
    async with running(store.parent, *broker_arguments(store, settings), turns=turns, module=module) as broker:
        await broker.up()
        yield broker


@asynccontextmanager
async def running_namesrv(directory: Path, turns: Path | None = None) -> AsyncGenerator[ServerProcess]:
    """Start a name server and wait until it is up."""
    arguments = ("namesrv", "--log-level", "warning", "--host", "127.0.0.1", "--port", "0")
    async with running(directory, *arguments, turns=turns) as namesrv:
        await namesrv.up()
        yield namesrv


def _controller_conf(directory: Path, port: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "controller.conf"
    file.write_text(f"controllerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerStorePath={directory / 'store'}\n")
    return file


@asynccontextmanager
async def running_controller(directory: Path, turns: Path | None = None) -> AsyncGenerator[ServerProcess]:
    """Start a controller that is a group of its own, and wait until it is up."""
    with reserved_ports("127.0.0.1", 1) as (port,):
        file = _controller_conf(directory, port)
        arguments = ("controller", "-c", str(file), "--log-level", "warning", "--host", "127.0.0.1", "--port", "0")
        async with running(directory, *arguments, turns=turns) as controller:
            await controller.up()
            yield controller
