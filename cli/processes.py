"""Brokers of `ledgermq up` as separate processes: one that is killed is started again after `RESTART_SECONDS`.

They end when the process that started them ends, even if that is killed (on Linux).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import click
import trio

from ..broker.config import BrokerConfig
from ..remoting.java_properties import write_properties
from ..world.events import get_logger

log = get_logger(__name__)

RESTART_SECONDS = 3.0
"""The pause before a broker that has ended is started again: long enough for the election of another node."""
STOP_SECONDS = 10.0
"""How long a stop waits for a broker to end before it is killed."""
_ANNOUNCEMENT_MAX = 4096
"""The longest line by which a broker announces that it is ready; no more bytes are read."""
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h

_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def announced_address(line: str) -> str:
    """The address in the line by which the command `ledgermq broker` announces that its broker is ready."""
    return line.rpartition("] boot success")[0].rpartition(" ")[2]


@attrs.define(eq=False)
class BrokerProcess:
    """One broker, across restarts of its process."""

    config: BrokerConfig
    directory: Path
    """The directory of its configuration file, which only this user may read."""
    options: Sequence[str]
    """Further options of the command `ledgermq broker`."""
    address: str = ""
    """The address for clients, set when it is first ready."""
    _process: subprocess.Popen[bytes] | None = None
    _stopping: bool = False

    @property
    def process_id(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the broker running, until cancelled; reports when it is ready for the first time.

        Raises:
            click.ClickException: it did not start; its standard error contains the reason.
        """
        try:
            if not await self._start():
                await self._ended()
                raise click.ClickException(f"the broker {self.config.broker_name} did not start; it says why above")
            task_status.started()
            while True:
                process = self._process
                assert process is not None
                status = await self._ended()
                log.warning(
                    "broker_process_ended",
                    address=self.address,
                    process_id=process.pid,
                    how=signal.Signals(-status).name if status < 0 else f"exit status {status}",
                    started_again_in_seconds=RESTART_SECONDS,
                )
                await trio.sleep(RESTART_SECONDS)
                if await self._start():
                    log.warning("broker_process_started", address=self.address, process_id=self.process_id)
        finally:
            with trio.CancelScope(shield=True):
                await self._stop()

    async def _start(self) -> bool:
        """Start a process and wait until it is ready; returns False if it ended before."""
        file = self.directory / f"{Path(self.config.store_path_root_dir).name}.conf"  # which no other broker here has
        _write_privately(file, {**self.config.entries(), "haSecret": self.config.ha_secret})
        self._process = _spawn(["-m", "ledgermq.cli.main", "broker", "-c", str(file), *self.options])
        assert self._process.stdout is not None
        announcement = b""
        async with trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno())) as output:
            while b"\n" not in announcement and len(announcement) < _ANNOUNCEMENT_MAX:
                received = await output.receive_some(_ANNOUNCEMENT_MAX)
                if not received:
                    return False
                announcement += received
        self.address = announced_address(announcement.decode())
        return True

    async def _ended(self) -> int:
        """Wait for the process to end; returns its exit status, or the negative number of the signal that killed it."""
        assert self._process is not None
        descriptor = os.pidfd_open(self._process.pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        return self._reap()

    def _reap(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        if process.stdout is not None:
            process.stdout.close()
        return process.wait()

    async def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        with trio.move_on_after(STOP_SECONDS):
            await self._ended()
        if self.process_id is not None:
            log.error("broker_process_killed", address=self.address, process_id=self.process_id)
            self._process.kill()
            self._reap()


def _spawn(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a Python process in a session of its own, so that Ctrl-C reaches only its parent, which stops all brokers."""
    return subprocess.Popen(  # noqa: S603 - this interpreter, with arguments of ours
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - it makes one system call
    )


def _write_privately(file: Path, entries: Mapping[str, str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(write_properties(entries))
