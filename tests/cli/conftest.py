"""A cluster in a process of its own, and a runner whose logging does not outlive its test."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result

from ledgermq.cli.main import main

READY_SECONDS = 60.0
SOURCES = Path(__file__).parents[2] / "src"


@attrs.define(eq=False)
class Ledgermq:
    """A running `ledgermq` command."""

    process: subprocess.Popen[str]
    output: str = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read its output until it shows `pattern`; a process that is silent for too long is killed."""
        assert self.process.stdout is not None
        silence = threading.Timer(READY_SECONDS, self.process.kill)
        silence.start()
        try:
            while (match := re.search(pattern, self.output)) is None:
                line = self.process.stdout.readline()
                assert line, f"ended, or did not say {pattern!r} in {READY_SECONDS} s:\n{self.output}"
                self.output += line
        finally:
            silence.cancel()
        return match

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to stop; returns its exit status."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=2 * READY_SECONDS)
        self.output += rest
        return self.process.returncode


Start = Callable[..., Ledgermq]
Run = Callable[..., Result]


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCES), "HOME": str(home), "LEDGERMQ_NAMESRV": "127.0.0.1:1"}


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    """Starts `ledgermq` with arguments; whatever still runs at the end is killed."""
    started: list[Ledgermq] = []

    def run(*arguments: str) -> Ledgermq:
        process = subprocess.Popen(
            [sys.executable, "-m", "ledgermq.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env=_environment(tmp_path),
        )
        started.append(Ledgermq(process))
        return started[-1]

    yield run
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The address of the name server of a cluster with one broker."""
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "ledgermq.cli.main", "up", "--port", "0", "--broker-port", "0"]
    with subprocess.Popen(
        [*command, "--store", str(home / "store")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=_environment(home),
    ) as process:
        cluster = Ledgermq(process)
        try:
            yield cluster.wait_for(r"name server +(\S+:\d+)\n")[1]
        finally:
            assert cluster.stop() == 0, cluster.output


@pytest.fixture
def runner() -> Generator[Run]:
    """Runs a command in this process, which must end with `status` if that is given; its output and its errors come apart.

    What is typed is its input.
    """

    def run(*arguments: str, status: int | None = 0, namesrv: str | None = None, typed: str | None = None) -> Result:
        environment = {"LEDGERMQ_NAMESRV": namesrv or "127.0.0.1:1"}
        result = CliRunner().invoke(main, arguments, env=environment, input=typed)
        assert status is None or result.exit_code == status, f"{result.output}\n{result.exception!r}"
        return result

    logger = logging.getLogger("ledgermq")
    level, handlers = logger.level, list(logger.handlers)
    yield run
    logger.setLevel(level)
    logger.handlers[:] = handlers


@pytest.fixture
def ledgermq(runner: Run, namesrv: str) -> Run:
    """Runs a command against the cluster."""

    def run(*arguments: str, status: int = 0) -> Result:
        return runner(*arguments, status=status, namesrv=namesrv)

    return run


@pytest.fixture
def as_json(ledgermq: Run) -> Callable[..., Any]:
    """Runs a command with `--json` and reads what it prints."""
    return lambda *arguments: json.loads(ledgermq(*arguments, "--json").stdout)
