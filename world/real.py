"""The world that every part is handed: one value with all the interfaces, and the real one."""

from __future__ import annotations

import random

import attrs

from .clock import Clock, SystemClock
from .disk import Disk, RealDisk
from .memory import ASSUMED_MEMORY_BYTES, physical_memory
from .network import Network, TcpNetwork
from .randomness import Randomness
from .workers import ThreadWorkers, Workers


@attrs.frozen
class World:
    """All that is outside."""

    disk: Disk
    network: Network
    clock: Clock
    randomness: Randomness
    workers: Workers
    secrets: Randomness = attrs.field(factory=random.SystemRandom)
    """Unpredictable to others, for nonces and identities; a simulation hands in seeded lots here too."""
    memory_bytes: int = ASSUMED_MEMORY_BYTES
    """What the machine has: a part of it counts as the page cache of the log's end."""


def real_world() -> World:
    """The machine this process runs on."""
    lots = random.Random()  # noqa: S311 - never secrets
    return World(RealDisk(), TcpNetwork(), SystemClock(), lots, ThreadWorkers(), memory_bytes=physical_memory())
