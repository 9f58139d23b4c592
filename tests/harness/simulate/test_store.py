"""The store in the simulated world: a few seeds at every run, and seeds that once failed.

`make sim SIM_SEEDS=N` runs more.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest

from harness.simulate.__main__ import main
from harness.simulate.store import simulate_store
from harness.simulate.store_draw import StoreDraw
from ledgermq.testing.logs import logs_silenced

ONCE_FAILED = {
    5: "units below the recovery mark were rewritten while only the index was lost, and a power cut took them",
    10: "a refused put was found again after a crash",
    12: "a hole in a queue lay before its last three files",
    13: "a clock set back before a restart gave store timestamps that decrease along the log",
    19: "a queue's write failed once, and nobody was notified of the message when it was written",
    23: "a queue's sync failed once, and the next one was believed",
    41: "a power cut between cutting a file short and making it long again left it with the wrong size",
    53: "a killed process's unsynced bytes were called flushed, and a power cut later the log called damaged",
    56: "a new index file was to have the name of one that had been left alone",
    240: "a header of the index of which a failed write had stored a part hid records from it after a kill",
    3612: "a power cut brought back the filler of a refused batch, and with it a gap in a queue",
    30437: "a power cut took the abort file with it, and the next start believed in a clean stop",
    20044: "the recovery mark was looked up among units that were still in memory",
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with logs_silenced():
        yield


def _without_what_came_later(draw: StoreDraw) -> StoreDraw:
    return attrs.evolve(draw, properties_bytes_max=0, bare=False, cuts_at_edges=False, expiry=False)


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    """As it failed: without what has come to be drawn since."""
    assert simulate_store(seed, _without_what_came_later).violations == [], ONCE_FAILED[seed]


@pytest.mark.slow
@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_once_failed_holds_with_what_is_drawn_now(seed: int) -> None:
    assert simulate_store(seed).violations == [], ONCE_FAILED[seed]


def test_new_seeds_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--floor", "store", "--from", "100", "--seeds", "5"]) == 0

    assert "5 runs, 0 failed" in capsys.readouterr().out


def test_one_seed_gives_one_trace_in_another_process_too() -> None:
    here = simulate_store(9).digest
    command = [sys.executable, "-m", "harness.simulate", "--floor", "store", "--seed", "9", "--trace"]
    env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "123"}

    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env)

    assert f"trace {here}" in out.stdout
