"""Drivers and workers that are killed in the middle of a stream: nothing is lost, and nothing is written twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import attrs

from ledgermq import blocking
from ledgermq.client.admin import Admin
from ledgermq.testing.embedded import Embedded

from .brokers import all_bodies, create_topic, numbered, send

COUNT = 300
BEFORE = 180
"""How many messages there are before the first driver is killed; it waits for more and does not end by itself."""
SECONDS_MAX = 240
DRIVERS_MAX = 4
"""How often a driver is started, as a supervisor does: on a busy machine Spark itself gives up now and then."""
SCRIPT = Path(__file__).with_name("copying.py")


async def stored(admin: Admin, topic: str) -> int:
    """How many messages a topic has."""
    return sum(status.max_offset - status.min_offset for status in (await admin.topic_stats(topic)).values())


def command(namesrv: str, checkpoint: Path, how_long: str) -> list[str]:
    """The command line of a driver that copies `to the end`, or `for ever`."""
    return [sys.executable, str(SCRIPT), namesrv, "from", "to", str(checkpoint), how_long]


@attrs.define
class Driver:
    """A driver that is started again when it ends with an error."""

    arguments: list[str]
    process: subprocess.Popen[bytes] = attrs.field(init=False)
    _starts: int = 0

    def start(self) -> None:
        self._starts += 1
        assert self._starts <= DRIVERS_MAX, "no driver came to its end"
        self.process = subprocess.Popen(self.arguments, start_new_session=True, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def run_until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not reached():
            assert time.monotonic() < deadline
            if self.process.poll():
                self.kill()
                self.start()
            time.sleep(0.05)


@contextlib.contextmanager
def started(broker: Embedded, checkpoint: Path, how_long: str) -> Generator[Driver]:
    """A driver that is killed at the end of the block if it still runs."""
    driver = Driver(command(broker.namesrv, checkpoint, how_long))
    driver.start()
    try:
        yield driver
    finally:
        driver.kill()


def workers(session_id: int) -> list[int]:
    """Python processes that run tasks of a driver; its own helpers, which Spark does not start again, are others."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session_id:
                found += [int(entry.name)] if b"pyspark.worker" in (entry / "cmdline").read_bytes() else []
        except (OSError, ProcessLookupError):
            continue
    return found


def test_killed_workers_and_drivers_neither_lose_nor_repeat(broker: Embedded, tmp_path: Path) -> None:
    """First all workers die, which Spark starts again; then the driver dies with everything, and is started again."""
    create_topic(broker.namesrv, "from", 3)
    create_topic(broker.namesrv, "to", 2)
    send(broker.namesrv, "from", BEFORE)
    checkpoint = tmp_path / "checkpoint"

    with blocking.open_admin(broker.namesrv) as admin:

        def copied() -> int:
            return admin.call(lambda each: stored(each, "to"))

        with started(broker, checkpoint, "for ever") as driver:
            driver.run_until(lambda: copied() >= 30)
            for worker in workers(driver.process.pid):
                os.kill(worker, signal.SIGKILL)
            driver.run_until(lambda: copied() >= 120)
        assert copied() <= BEFORE
        send(broker.namesrv, "from", COUNT - BEFORE, BEFORE)
        with started(broker, checkpoint, "to the end") as driver:
            driver.run_until(lambda: driver.process.poll() == 0)

    assert all_bodies(broker.namesrv, "to") == numbered(range(COUNT))
