"""Simulated machines, each with its disk, clocks, network and workers, all random by one seed."""

from __future__ import annotations

import random

import attrs

from ...world.memory import ASSUMED_MEMORY_BYTES
from ...world.real import World
from .clock import SimClock
from .disk import DiskBackup, SimDisk
from .network import SimFabric
from .processor import SimProcessor
from .workers import SimWorkers

EDGES_SALT, EDGES_SHARE = 0xED6E, 0.5
"""The share of power cuts by which files lose only a part of one write, drawn apart from everything else."""


@attrs.define(eq=False)
class Machine:
    """One machine, which survives the processes that run on it, and power cuts."""

    host: str
    fabric: SimFabric
    rng: random.Random
    clock: SimClock
    disk: SimDisk
    processor: SimProcessor
    worker_seconds_max: float = 0.0
    """The longest delay of blocking work in the next process; `slow_down` changes it for the present one too."""
    memory_bytes: int = ASSUMED_MEMORY_BYTES
    """The machine's memory, from which a broker concludes which messages are in the page cache."""
    workers: SimWorkers = attrs.field(factory=SimWorkers)
    """The workers of the process that was started last."""

    @classmethod
    def of(cls, host: str, fabric: SimFabric, rng: random.Random) -> Machine:
        """A new machine whose randomness comes from `rng`."""
        processor = fabric.processors[host] = SimProcessor()
        clock = SimClock(processor.time)
        return cls(host, fabric, rng, clock, SimDisk(_split(rng), clock.wall_ms), processor)

    def world(self) -> World:
        """The world of a process that starts on this machine now."""
        self.processor.restart()
        self.workers = SimWorkers(_split(self.rng), self.worker_seconds_max, self.disk.faults.injected)
        network, randomness = self.fabric.machine(self.host), _split(self.rng)
        return World(
            self.disk,
            network,
            self.clock,
            randomness,
            self.workers,
            # Derived and not drawn, so that seeds that were kept before secrets were seeded give the same runs.
            random.Random(repr(self.rng.getstate())),  # noqa: S311 - secret from nobody in a simulation
            processor=self.processor,
            memory_bytes=self.memory_bytes,
        )

    def slow_down(self, worker_seconds_max: float) -> None:
        """Let each piece of blocking work take up to this long from now on, in the present process and in later ones."""
        self.worker_seconds_max = self.workers.delay_seconds_max = worker_seconds_max

    def kill(self) -> None:
        """End the process: connections close, the disk keeps every byte written."""
        self.fabric.end_process(self.host)
        self.disk = self.disk.kill()

    def power_cut(self) -> None:
        """End the machine: connections stay half-open, the disk keeps what was synced and some of the rest.

        In half of the cases files lose only a part of one write.
        """
        self.fabric.power_off(self.host)
        seed = self.rng.getrandbits(32)
        at_edges = random.Random(seed ^ EDGES_SALT).random() < EDGES_SHARE  # noqa: S311 - never secrets
        self.disk = self.disk.power_cut(seed, at_edges=at_edges)

    def restore(self, backup: DiskBackup) -> None:
        """End the machine, and switch it on again with the disk as it was when the backup was made."""
        self.fabric.power_off(self.host)
        self.disk = self.disk.restored(backup)


def _split(rng: random.Random) -> random.Random:
    return random.Random(rng.getrandbits(64))  # noqa: S311 - never secrets


def sim_world(seed: int) -> World:
    """The world of a lone machine without faults."""
    rng = random.Random(seed)  # noqa: S311 - never secrets
    return Machine.of("10.0.0.1", SimFabric(_split(rng)), rng).world()


def sim_machines(seed: int, count: int) -> list[Machine]:
    """Machines on one network without faults."""
    rng = random.Random(seed)  # noqa: S311 - never secrets
    fabric = SimFabric(_split(rng))
    return [Machine.of(f"10.0.0.{number}", fabric, _split(rng)) for number in range(1, count + 1)]
