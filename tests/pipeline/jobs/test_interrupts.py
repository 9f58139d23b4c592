"""Ctrl-C during a command: its exit status, what it says, and that nothing of it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ledgermq.cli.pipeline import INTERRUPTED
from ledgermq.pipeline.jobs.places import sole_user

from ..stores import StoreFiles, interleaved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_MAX = 240


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def store(tmp_path: Path) -> str:
    files = StoreFiles(tmp_path / "store", segment_size=8192)
    files.append(interleaved(30))
    return str(files.root)


def test_ctrl_c_ends_an_archive_that_waits_for_messages(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline_command: Callable[..., Any]
) -> None:
    """What it has written is complete, so the next run finds nothing new."""
    arguments = ("archive", "T", "--store", store, "--to", str(tmp_path / "archive"))
    with monkeypatch.context() as patched:
        patched.setattr("ledgermq.pipeline.jobs.archive.time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
        ended = pipeline_command(*arguments, "--watch", status=INTERRUPTED)

    assert ended.stderr == "Error: archive was interrupted\n"
    assert pipeline_command(*arguments).stdout == "nothing is new\n"


def test_ctrl_c_stops_the_query_of_a_stream(
    spark: SparkSession, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline_command: Callable[..., Any]
) -> None:
    """Its checkpoint can be used again at once."""
    monkeypatch.setattr("pyspark.sql.streaming.query.StreamingQuery.awaitTermination", interrupt)
    checkpoint = str(tmp_path / "checkpoint")

    ended = pipeline_command("stream", "T", "--store", store, "--sink", "noop", "--checkpoint", checkpoint, status=INTERRUPTED)

    assert ended.stderr == "Error: stream was interrupted\n"
    assert spark.streams.active == []
    with sole_user(checkpoint):
        pass


def in_session(session_id: int) -> list[int]:
    """The processes of a session that have not ended."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session_id:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                found += [] if state == "Z" else [int(entry.name)]
        except OSError:
            continue
    return found


@pytest.fixture
def heeded() -> Generator[None]:
    """Programs that are started take Ctrl-C, although a shell that runs the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("running", [False, True])
def test_ctrl_c_leaves_no_process(store: str, tmp_path: Path, running: bool) -> None:
    """Neither while Spark starts nor while its workers run; a terminal sends the signal to the JVM too."""
    checkpoint = tmp_path / "checkpoint"
    options = ("--store", store, "--sink", "noop", "--option", "startingOffsets=earliest", "--checkpoint", str(checkpoint))
    command = [sys.executable, "-m", "ledgermq.cli.main", "pipeline", "stream", "T", *options]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + SECONDS_MAX
            while not (checkpoint / "commits" / "1").exists() if running else len(in_session(process.pid)) < 2:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            _, said = process.communicate(timeout=SECONDS_MAX)
            while left := in_session(process.pid):
                assert time.monotonic() < deadline + SECONDS_MAX, left
                time.sleep(0.05)
        finally:
            for each in in_session(process.pid):
                os.kill(each, signal.SIGKILL)

    assert process.returncode == INTERRUPTED
    assert said in (
        "Error: stream was interrupted\n",
        "Error: interrupted before Spark had started. Nothing was read or written\n",
    )
