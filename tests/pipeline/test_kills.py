"""Drivers, workers and leaders that are killed in the middle of a stream: nothing is lost, and nothing is written twice.

A driver that is killed is a process of its own; what goes on after it, and under a killed leader, is the session of all tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from harness.processes.dledger import open_group
from ledgermq import blocking, open_admin
from ledgermq.client.admin import Admin
from ledgermq.client.errors import ClientError
from ledgermq.testing.embedded import Embedded

from .brokers import all_bodies, create_topic, numbered, send
from .copying import copying, run_to_end
from .test_failover import create_topics, kill_leader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.slow
COUNT = 300
COPIED = 240
BEFORE = 180
"""How many messages there are before the first driver is killed; it waits for more and does not end by itself."""
SECONDS_MAX = 240
DRIVERS_MAX = 4
"""How often a driver is started, as a supervisor does: on a busy machine Spark itself gives up now and then."""
SCRIPT = Path(__file__).with_name("copying.py")


async def stored(admin: Admin, topic: str) -> int:
    """How many messages a topic has."""
    return sum(status.max_offset - status.min_offset for status in (await admin.topic_stats(topic)).values())


def command(namesrv: str, checkpoint: Path) -> list[str]:
    """The command line of a driver that copies for ever."""
    return [sys.executable, str(SCRIPT), namesrv, "from", "to", str(checkpoint)]


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
def started(broker: Embedded, checkpoint: Path) -> Generator[Driver]:
    """A driver that is killed at the end of the block."""
    driver = Driver(command(broker.namesrv, checkpoint))
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


def test_killed_workers_and_drivers_neither_lose_nor_repeat(spark: SparkSession, broker: Embedded, tmp_path: Path) -> None:
    """First all workers die, which Spark starts again; then the driver dies with everything, and another one goes on."""
    create_topic(broker.namesrv, "from", 3)
    create_topic(broker.namesrv, "to", 2)
    send(broker.namesrv, "from", BEFORE)
    checkpoint = tmp_path / "checkpoint"

    with blocking.open_admin(broker.namesrv) as admin:

        def copied() -> int:
            return admin.call(lambda each: stored(each, "to"))

        with started(broker, checkpoint) as driver:
            driver.run_until(lambda: copied() >= 30)
            for worker in workers(driver.process.pid):
                os.kill(worker, signal.SIGKILL)
            driver.run_until(lambda: copied() >= 120)
        assert copied() <= BEFORE
        send(broker.namesrv, "from", COUNT - BEFORE, BEFORE)
        run_to_end(lambda: copying(spark, broker.namesrv, "from", "to", str(checkpoint), to_the_end=True))

    assert all_bodies(broker.namesrv, "to") == numbered(range(COUNT))


async def test_a_leader_killed_under_a_stream_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The stream reads and writes topics of the same group; both topics have the same messages in the end."""
    queries: list[StreamingQuery] = []

    async def reach(admin: Admin, count: int) -> None:
        """Wait for messages; a stream that ended is started again: on a busy machine Spark itself gives up now and then."""
        with trio.fail_after(SECONDS_MAX * 2):
            while True:
                if not queries or not queries[-1].isActive:
                    assert len(queries) < DRIVERS_MAX, "the stream ended too often"
                    queries.append(copying(spark, group.namesrv, "from", "to", str(tmp_path / "checkpoint")))
                with contextlib.suppress(ClientError):  # while the group elects a leader, also one by itself on a busy machine
                    if await stored(admin, "to") >= count:
                        return
                await trio.sleep(0.05)

    async with open_group(tmp_path) as group:
        await create_topics(group.namesrv, "from", "to")
        await trio.to_thread.run_sync(send, group.namesrv, "from", COPIED)
        async with open_admin(group.namesrv) as admin:
            try:
                await reach(admin, 30)
                await kill_leader(group)
                await reach(admin, COPIED)
            finally:
                for query in queries:
                    query.stop()
            await group.leader(admin)
        copied = await trio.to_thread.run_sync(all_bodies, group.namesrv, "to")

    assert copied == numbered(range(COPIED))
