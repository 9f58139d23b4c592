"""The world that every part is handed: one value with all the interfaces, and the real one."""

from __future__ import annotations

import random

import attrs

from .clock import Clock, SystemClock
from .disk import Disk, RealDisk
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


def real_world() -> World:
    """The machine this process runs on."""
    return World(RealDisk(), TcpNetwork(), SystemClock(), random.Random(), ThreadWorkers())  # noqa: S311
