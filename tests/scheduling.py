"""In which order the processes of pytest-xdist run the tests, and which tests share a process.

Tests of one file stay together, because they share what the file starts; tests of all files that need a session of Spark run in
one process, which starts one. The files that take longest begin first, so that no process is left with one of them in the end.
"""

from __future__ import annotations

import os

from xdist.scheduler import LoadScopeScheduling  # pyright: ignore[reportMissingTypeStubs]

SPARK = "a session of Spark"
NEED_SPARK = frozenset(
    f"tests/pipeline/{name}.py"
    for name in (
        "jobs/test_compaction",
        "jobs/test_interrupts",
        "jobs/test_jobs",
        "jobs/test_picture",
        "test_examples",
        "test_registration",
        "test_sink",
        "test_source",
    )
)
LONGEST_FIRST = (
    SPARK,
    "tests/harness/processes/test_damaged_stores.py",
    "tests/harness/simulate/test_cluster.py",
    "tests/client/test_failover.py",
    "tests/broker/test_older_logs.py",
    "tests/broker/modes/test_dledger.py",
    "tests/ha/dledger/test_random_faults.py",
    "tests/ha/dledger/test_node.py",
    "tests/harness/simulate/test_store.py",
    "tests/cli/test_store.py",
    "tests/cli/test_commands.py",
    "tests/docs/test_manual.py",
    "tests/cli/dashboard/test_browser.py",
    "tests/harness/raft/test_simulate.py",
)
"""Files in the order in which they begin. All others follow as they are collected."""


def processes() -> int:
    """Twice as many processes as there are cores, because tests wait for servers and disks for a third of their time."""
    return 2 * (os.cpu_count() or 1)


def scope_of(nodeid: str) -> str:
    """What a test shares its process with: its file, or a session of Spark."""
    file = nodeid.partition("::")[0]
    return SPARK if file in NEED_SPARK else file


def rank_of(nodeid: str) -> int:
    """The place of a test's file in `LONGEST_FIRST`."""
    scope = scope_of(nodeid)
    return LONGEST_FIRST.index(scope) if scope in LONGEST_FIRST else len(LONGEST_FIRST)


class FileScheduling(LoadScopeScheduling):
    """Hands the next file to whichever process is free."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
