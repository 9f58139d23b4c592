"""Habits that no other tool checks: where tests are, how long files are, which names occur once, what nobody asks.

The lists of exceptions in `tests/tidy` say why they are needed, and may only get shorter.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .scheduling import LONGEST_FIRST, NEED_SPARK, SPARK

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "world",
    "message",
    "remoting",
    "store",
    "ha",
    "client",
    "broker",
    "namesrv",
    "pipeline",
    "cli",
    "testing",
    "harness",
)
LINES_MAX = 600
TESTED_LINES = 60
"""A longer file has a test file of its own name in the folder of `tests` that mirrors its own."""


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def nodes(path: Path) -> tuple[ast.Call | ast.Attribute, ...]:
    """All calls and attributes of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Attribute))


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in nodes(path) if isinstance(node, ast.Call))


def exceptions(name: str) -> set[str]:
    """The lines of a file beside this one, without the reasons, which begin with `#`."""
    lines = Path(__file__).with_name("tidy").joinpath(f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def test_no_file_is_far_beyond_500_lines() -> None:
    """Those that are have to be cut into pieces that a reader can hold in mind."""
    everything = sources() + sorted((ROOT / "tests").rglob("*.py"))

    assert not {named(path) for path in everything if lines_of(path) > LINES_MAX}


def test_every_file_has_a_test_file_of_its_name() -> None:
    """So a test is where one looks for it: `store/x.py` is tested in `tests/store/test_x.py`."""
    untested = {
        named(path)
        for path in sources()
        if lines_of(path) > TESTED_LINES
        and not (ROOT / "tests" / path.relative_to(ROOT).with_name(f"test_{path.name}")).exists()
    }

    assert untested == exceptions("untested_files")


def test_files_with_a_place_in_the_order_of_tests_exist() -> None:
    """A file that was renamed would begin last, and run alone in the end."""
    assert [name for name in (*NEED_SPARK, *LONGEST_FIRST) if name != SPARK and not (ROOT / name).exists()] == []


def test_no_program_of_the_benchmarks_hides_a_module_from_the_others() -> None:
    """Python looks for a module beside the program first."""
    found = {path.stem for path in (ROOT / "bench").glob("*.py")}

    assert len(found) > 30
    assert not found & {"ledgermq", "harness", *sys.stdlib_module_names}


def test_every_event_is_logged_in_one_place() -> None:
    """Whoever reads an event finds where it came from."""
    events: Counter[str] = Counter()
    for path in sources():
        for call in calls(path):
            function = call.func
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "log":
                names = [node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)] if call.args else []
                events.update(name for name in names if isinstance(name, str))

    assert {name for name, count in events.items() if count > 1} <= exceptions("repeated_events")


def test_nobody_asks_what_kind_a_stream_is() -> None:
    """The fast path of streams is an interface, so that the simulator runs what production runs."""
    asking = {
        named(path)
        for path in sources()
        for call in calls(path)
        if isinstance(call.func, ast.Name) and call.func.id == "isinstance" and "Stream" in ast.unparse(call.args[1])
    }

    assert asking == set()


def test_only_the_start_of_a_broker_asks_its_configuration_for_its_role() -> None:
    """The role may change while it runs: `broker/role.py` is where it is known."""
    asking = {
        named(path) for path in sources() for node in nodes(path) if isinstance(node, ast.Attribute) and node.attr == "is_slave"
    }

    assert asking <= {"broker/modes/classic.py", "cli/broker.py"}


def test_only_the_choice_of_a_mode_asks_which_mode_a_broker_has() -> None:
    """Everything else asks the mode or its node for what differs (`broker/modes/mode.py`, `ha/node.py`)."""
    modes = ("Mode", "Node", "Replication", "ReplicatedTables")
    asking = {
        named(path)
        for path in sources()
        if named(path).startswith("broker/")
        for call in calls(path)
        if isinstance(call.func, ast.Name) and call.func.id == "isinstance" and ast.unparse(call.args[1]).endswith(modes)
    }
    chosen = {
        named(path)
        for path in sources()
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr == "enable_dleger_commit_log"
    }

    assert asking == set()
    assert chosen <= {"broker/modes/mode.py", "broker/config.py", "testing/embedded.py"}
