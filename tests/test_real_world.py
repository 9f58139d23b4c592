"""Which failures are repeated, tried in runs of pytest of their own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CONFTEST = """
import sys
sys.path.insert(0, {root!r})
from tests.real_world import RealWorld

def pytest_addoption(parser):
    parser.addoption("--again", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(RealWorld())
"""

FAILS_ONCE = """
import pathlib, socket

def test_it():
    socket.create_server(("127.0.0.1", 0)).close()
    seen = pathlib.Path("seen")
    again = seen.exists()
    seen.touch()
    assert again
"""

SHARED_FIXTURE_FAILS_ONCE = (
    FAILS_ONCE.replace("def test_it():", '@pytest.fixture(scope="module")\ndef server():').replace("import ", "import pytest, ")
    + """
def test_one(server):
    pass

def test_two(server):
    pass
"""
)


@pytest.fixture
def runs(pytester: pytest.Pytester, pytestconfig: pytest.Config) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.format(root=str(pytestconfig.rootpath)))
    return pytester


def test_a_test_of_sockets_that_fails_once_passes_and_is_named(runs: pytest.Pytester) -> None:
    """The last lines name it, and the status is that of a success."""
    runs.makepyfile(FAILS_ONCE)

    done = runs.runpytest_subprocess("--again")

    assert done.ret == pytest.ExitCode.OK
    assert [line for line in done.outlines if line.startswith("FLAKY")] == [
        "FLAKY test_a_test_of_sockets_that_fails_once_passes_and_is_named.py::test_it"
    ]


def test_all_tests_that_share_a_fixture_of_sockets_are_repeated_with_it(runs: pytest.Pytester) -> None:
    """Its set-up runs in the first of them, and its failure is that of all."""
    runs.makepyfile(test_shared=SHARED_FIXTURE_FAILS_ONCE)

    done = runs.runpytest_subprocess("--again")

    assert done.ret == pytest.ExitCode.OK
    assert [line for line in done.outlines if line.startswith("FLAKY")] == [
        "FLAKY test_shared.py::test_one",
        "FLAKY test_shared.py::test_two",
    ]


@pytest.mark.parametrize(
    ("failing", "options"),
    [
        (FAILS_ONCE, []),
        (FAILS_ONCE.replace('socket.create_server(("127.0.0.1", 0)).close()', "pass"), ["--again"]),
        (FAILS_ONCE.replace("assert again", "assert False"), ["--again"]),
        (FAILS_ONCE + "\ndef test_pure():\n    assert False\n", ["--again"]),
    ],
    ids=["without the option", "without sockets", "twice", "beside a test without sockets"],
)
def test_all_other_failures_count(runs: pytest.Pytester, failing: str, options: list[str]) -> None:
    """Repeating must hide nothing that would fail again, and nothing that no busy machine explains."""
    runs.makepyfile(failing)

    done = runs.runpytest_subprocess(*options)

    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert not [line for line in done.outlines if line.startswith("FLAKY")]
