"""What tests of commands share: how a command is run, in this process or in one of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import trio
from click.testing import Result

Run = Callable[..., Result]
SOURCES = Path(__file__).parents[2] / "src"
PATIENCE_SECONDS = 30.0


class Ledgermq(Protocol):
    process: subprocess.Popen[str]
    output: str

    def wait_for(self, pattern: str) -> re.Match[str]: ...
    def stop(self, number: int = signal.SIGTERM) -> int: ...


Start = Callable[..., Ledgermq]


def until(look: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def pipe(namesrv: str, text: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ledgermq.cli.main", *arguments],
        input=text,
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "LEDGERMQ_NAMESRV": namesrv},
    )


async def never(_: object) -> None:
    """Stand in for a method that would end."""
    await trio.sleep_forever()


def lines_of(result: Result) -> list[str]:
    return result.stdout.splitlines()


def consuming_process(
    namesrv: str, *arguments: str, stderr: int | None = None, in_background: bool = False
) -> subprocess.Popen[bytes]:
    """A consumer in a process of its own, whose output is read as it comes.

    Args:
        namesrv: where the cluster is.
        arguments: of the command.
        stderr: as `Popen` takes it.
        in_background: with Ctrl-C ignored, as a script starts what it goes on beside.
    """
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"] if in_background else []
    return subprocess.Popen(
        [*ignoring, sys.executable, "-m", "ledgermq.cli.main", "consume", *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "LEDGERMQ_NAMESRV": namesrv},
    )
