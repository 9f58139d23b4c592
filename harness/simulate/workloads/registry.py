"""All workloads, by their names."""

from __future__ import annotations

from collections.abc import Mapping

from .delayed import Delayed
from .failing import Failing
from .files import Files
from .groups import Groups
from .members import Concurrent, Ordered
from .offsets import Offsets
from .plain import Plain
from .sends import Sends
from .settings import Settings
from .topics import Deletions, Topics
from .workload import Workload

_ALL: tuple[type[Workload], ...] = (
    Plain,
    Delayed,
    Failing,
    Topics,
    Deletions,
    Groups,
    Offsets,
    Settings,
    Sends,
    Files,
    Concurrent,
    Ordered,
)
WORKLOADS: Mapping[str, type[Workload]] = {workload.name: workload for workload in _ALL}
ALWAYS_DRAWN = frozenset({Plain.name, Delayed.name, Failing.name})
"""Workloads of every seed."""
