"""The measurement of a server's turns."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import weakref
from pathlib import Path

import pytest
import trio

from harness.processes import census
from harness.processes.watched import NOTED_SECONDS, PLACED_SECONDS, TurnWatch


def _use_cpu(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("own_seconds", [0.0, 2 * NOTED_SECONDS])
def test_a_census_does_not_count_as_time_of_the_step_in_which_it_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_seconds: float
) -> None:
    """What the step itself has used before and after it does count."""

    def slow_census() -> list[str]:
        _use_cpu(1.0)
        return ["described"]

    monkeypatch.setattr(census, "census", slow_census)
    before = signal.getsignal(signal.SIGUSR2)
    watch = TurnWatch(tmp_path / "turns")
    census.take_on_signal(tmp_path / "memory", watch.leave_out)

    async def step() -> None:
        await trio.lowlevel.checkpoint()
        os.kill(os.getpid(), signal.SIGUSR2)
        _use_cpu(own_seconds)
        await trio.lowlevel.checkpoint()

    try:
        trio.run(step, instruments=[watch])
    finally:
        signal.signal(signal.SIGUSR2, before)

    assert "described" in (tmp_path / "memory").read_text()
    noted = [json.loads(line) for line in _lines(tmp_path / "turns")]
    assert {turn["what"] for turn in noted} == ({"step", "pass"} if own_seconds else set())
    assert all(turn["cpu_ms"] < 500 for turn in noted)


def test_naming_the_place_of_a_long_step_keeps_nothing_of_it_alive(tmp_path: Path) -> None:
    """The thread that samples runs as long as the server, and what a census has listed is large."""

    class Large:
        pass

    watch = TurnWatch(tmp_path / "turns")
    threading.Thread(target=watch.sample, daemon=True).start()
    found: list[weakref.ref[Large]] = []

    def long_step() -> None:
        large = Large()
        found.append(weakref.ref(large))
        while not watch.requests:
            _use_cpu(PLACED_SECONDS)

    async def step() -> None:
        await trio.lowlevel.checkpoint()
        long_step()
        await trio.lowlevel.checkpoint()

    trio.run(step, instruments=[watch])
    deadline = time.monotonic() + 10
    while found[0]() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    alive = found[0]() is not None  # as long as the thread runs
    watch.ended.set()

    assert not alive
