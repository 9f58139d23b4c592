"""The world that every part is given: one value with all interfaces to the outside, and the real implementation."""

from __future__ import annotations

import random

import attrs

from .clock import Clock, SystemClock
from .disk import Disk, RealDisk
from .memory import ASSUMED_MEMORY_BYTES, physical_memory
from .network import Network, TcpNetwork
from .processor import Processor, RealProcessor
from .randomness import Randomness
from .workers import ThreadWorkers, Workers


@attrs.frozen
class World:
    """Every interface to the outside."""

    disk: Disk
    network: Network
    clock: Clock
    randomness: Randomness
    workers: Workers
    secrets: Randomness = attrs.field(factory=random.SystemRandom)
    """Unpredictable to others, for nonces and identities; a simulation passes seeded randomness here too."""
    processor: Processor = attrs.field(factory=RealProcessor)
    memory_bytes: int = ASSUMED_MEMORY_BYTES
    """Memory of the machine in bytes; a part of it is assumed to be the page cache of the log's end."""


def real_world() -> World:
    """The machine this process runs on."""
    randomness = random.Random()  # noqa: S311 - never secrets
    return World(RealDisk(), TcpNetwork(), SystemClock(), randomness, ThreadWorkers(), memory_bytes=physical_memory())
