"""Stages that real executors of Spark repeat; some minutes of it is `make stages`."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.processes.spark import DELETED, PAUSED, ROWS, Fault, Rounds, verdicts

ROOT = Path(__file__).resolve().parents[3]
LIMIT_SECONDS = 900


def rounds(**found: Any) -> Rounds:
    made = Rounds(*[None] * 6)  # type: ignore[arg-type]
    for name, value in found.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("found", "fault", "unfenced", "said"),
    [
        ({"repeated_stages": 1}, DELETED, False, []),
        ({"repeated_stages": 1, "violations": ["a row"]}, DELETED, False, ["a row"]),
        ({"repeated_stages": 0}, DELETED, False, ["Spark has repeated no stage that writes"]),
        ({"repeated_stages": 0}, PAUSED, False, []),
        ({"repeated_stages": 1, "repeated_rows": 7, "violations": ["a row"]}, DELETED, True, []),
        (
            {"repeated_stages": 1},
            DELETED,
            True,
            ["without fences no row was found twice, so these rounds would find no fault"],
        ),
    ],
)
def test_a_run_that_has_tried_nothing_is_no_proof(found: dict[str, Any], fault: Fault, unfenced: bool, said: list[str]) -> None:
    """A stage must have been repeated, and without fences rows must have been written twice."""
    assert verdicts(rounds(**found), [fault], unfenced=unfenced) == said


def test_a_row_that_was_never_written_takes_the_place_of_none() -> None:
    run = rounds(violations=[])
    run.judge(Counter(range(ROWS)), "round 1")
    assert run.violations == []

    run.judge(Counter([*range(1, ROWS), ROWS, ROWS]), "round 2")
    assert run.violations == ["round 2: 1 rows lost, 1 repeated, 1 never written"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--rounds", "2"], ["--rounds", "1", "--unfenced"]])
def test_a_stage_that_is_repeated_writes_nothing_twice(options: list[str]) -> None:
    """In a batch job and in a stream. Without fences its rows are found twice, which shows that they would be found."""
    command = [sys.executable, "-m", "harness.processes.spark", "--seed", "1", "--faults", "delete", *options]

    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
