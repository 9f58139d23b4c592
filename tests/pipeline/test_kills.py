"""Drivers and workers that are killed in the middle of a stream: nothing is lost, and nothing is written twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ledgermq import blocking
from ledgermq.client.admin import Admin
from ledgermq.testing.embedded import Embedded

from .brokers import all_bodies, create_topic, numbered, send

COUNT = 300
SECONDS_MAX = 240
SCRIPT = Path(__file__).with_name("copying.py")


async def stored(admin: Admin, topic: str) -> int:
    """How many messages a topic has."""
    return sum(status.max_offset - status.min_offset for status in (await admin.topic_stats(topic)).values())


def copying(broker: Embedded, checkpoint: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, str(SCRIPT), broker.namesrv, "from", "to", str(checkpoint)]
    return subprocess.Popen(arguments, start_new_session=True, stdout=subprocess.DEVNULL)


def wait_until(broker: Embedded, process: subprocess.Popen[bytes], count: int) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    with blocking.open_admin(broker.namesrv) as admin:
        while admin.call(lambda each: stored(each, "to")) < count:
            assert process.poll() is None, "the driver ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.05)


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
    send(broker.namesrv, "from", COUNT)
    checkpoint = tmp_path / "checkpoint"

    first = copying(broker, checkpoint)
    try:
        wait_until(broker, first, 30)
        for worker in workers(first.pid):
            os.kill(worker, signal.SIGKILL)
        wait_until(broker, first, 120)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    with blocking.open_admin(broker.namesrv) as admin:
        between = admin.call(lambda each: stored(each, "to"))
    second = copying(broker, checkpoint)
    try:
        assert second.wait(SECONDS_MAX) == 0
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)

    assert 120 <= between < COUNT
    assert all_bodies(broker.namesrv, "to") == numbered(range(COUNT))
