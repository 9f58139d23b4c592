"""All workloads by name, and those that each simulator of whole nodes may draw."""

from __future__ import annotations

from collections.abc import Mapping

from .access import Access
from .beginnings import Beginnings
from .blocking import Blocking
from .broadcasting import Broadcasting
from .closing import Closing
from .delayed import Delayed
from .failing import Failing
from .failover import Failover
from .files import Files
from .groups import Groups
from .kinds import Kinds, OrderedKinds
from .members import Concurrent, Ordered
from .membership import Membership
from .moving import Moving, MovingTasks, MovingThreads
from .numbered import Numbered
from .offsets import Offsets
from .plain import Plain
from .polling import Polling
from .pulls import Pulls
from .sends import Sends
from .settings import Settings
from .topics import Deletions, Topics
from .workload import Workload

_CLASSIC: tuple[type[Workload], ...] = (
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
_DLEDGER: tuple[type[Workload], ...] = (*_CLASSIC, Pulls, Membership)

_OF_WIDE_SEEDS: tuple[type[Workload], ...] = (
    Failover,
    Kinds,
    OrderedKinds,
    Broadcasting,
    Closing,
    Blocking,
    Beginnings,
    Numbered,
    Access,
    Moving,
    MovingThreads,
    MovingTasks,
    Polling,
)
WORKLOADS: Mapping[str, type[Workload]] = {workload.name: workload for workload in (*_DLEDGER, *_OF_WIDE_SEEDS)}
CLASSIC_WORKLOADS = tuple(workload.name for workload in _CLASSIC)
"""Workloads of a single broker, or of a master with its slaves."""
DLEDGER_WORKLOADS = tuple(workload.name for workload in _DLEDGER)
"""Workloads of a DLedger group."""
DRAWN_WIDELY = tuple(workload.name for workload in _OF_WIDE_SEEDS)
"""Workloads of clients that are drawn together with faults of the surroundings."""
ALWAYS_DRAWN = frozenset({Plain.name, Delayed.name, Failing.name})
"""Workloads that every seed of the classic mode has."""
