"""Tests that use processes or sockets: they are marked as they run, and with `--again` those that failed run once more, alone.

A busy machine can delay a process or a connection for longer than a test waits. So a test that fails and has used one is
repeated when nothing else runs; if it passes then, the run passes and prints `FLAKY` with the test's name. A test that used
neither fails for good: simulated disks, networks and clocks give the same verdict each time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator

import pytest

REAL = "uses processes or sockets"
AUDITED = frozenset({"os.fork", "os.posix_spawn", "socket.bind", "socket.connect", "subprocess.Popen"})
AGAIN_FILES_MAX = 5
"""If more files than this have failures, there is another cause than a busy machine, and nothing is repeated."""


class RealWorld:
    """Marks the tests of one process, and in the process that the user started repeats those that failed."""

    def __init__(self) -> None:
        self._running: pytest.Item | None = None
        self._real_fixtures: set[tuple[str, str]] = set()
        """Fixtures whose set-up used processes or sockets, by the node that defines them and their name."""
        self._failed: dict[str, bool] = {}
        """The tests that failed, by their ids, and whether each used processes or sockets."""
        self._flaky: list[str] = []
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _arguments: tuple[object, ...]) -> None:
        if event in AUDITED and self._running is not None:
            self._mark(self._running)

    def _mark(self, item: pytest.Item) -> None:
        if (REAL, True) not in item.user_properties:
            item.user_properties.append((REAL, True))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._running = item
        try:
            return (yield)
        finally:
            self._running = None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """Record that a fixture used sockets, since the other tests that share it share its failure."""
        item = self._running
        if item is None:
            return (yield)
        before, item.user_properties[:] = list(item.user_properties), []
        try:
            return (yield)
        finally:
            if (REAL, True) in item.user_properties:
                self._real_fixtures.add((fixturedef.baseid, fixturedef.argname))
            item.user_properties[:] = dict.fromkeys([*before, *item.user_properties])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if isinstance(item, pytest.Function) and any(
            name in item.fixturenames and item.nodeid.startswith(base) for base, name in self._real_fixtures
        ):
            self._mark(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = False
        if report.nodeid in self._failed and (REAL, True) in report.user_properties:
            self._failed[report.nodeid] = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        config, failed = session.config, self._failed
        if hasattr(config, "workerinput") or not config.getoption("again") or exitstatus != pytest.ExitCode.TESTS_FAILED:
            return
        if len({nodeid.split("::")[0] for nodeid in failed}) <= AGAIN_FILES_MAX and all(failed.values()):
            alone = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *failed]
            if subprocess.run(alone, cwd=config.rootpath, check=False).returncode == pytest.ExitCode.OK:
                self._flaky = sorted(failed)
                session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid in self._flaky:
            terminalreporter.write_line(f"FLAKY {nodeid}")
