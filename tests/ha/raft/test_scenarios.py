"""Each text in `scenarios` gives exactly the trace that it shows. `pytest --rewrite` writes the traces anew.

Rewrite only if you understand every line that changes: the traces are the specification.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.raft.scenario import Scenario

SCENARIOS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_trace_is_what_the_text_shows(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text(encoding="utf-8")

    found = Scenario().run(text)

    if request.config.getoption("--rewrite"):
        path.write_text(found, encoding="utf-8")
    else:
        assert found == text


def test_scenarios_are_there() -> None:
    assert len(SCENARIOS) >= 9
