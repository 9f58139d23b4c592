"""All workloads, by their names."""

from __future__ import annotations

from collections.abc import Mapping

from .delayed import Delayed
from .failing import Failing
from .plain import Plain
from .workload import Workload

_ALL: tuple[type[Workload], ...] = (Plain, Delayed, Failing)
WORKLOADS: Mapping[str, type[Workload]] = {workload.name: workload for workload in _ALL}
ALWAYS_DRAWN = frozenset({Plain.name, Delayed.name, Failing.name})
"""Workloads of every seed."""
