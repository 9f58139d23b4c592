"""The random choices for the simulator of one store."""

from __future__ import annotations

import random

import attrs

from ledgermq.testing.history import End


@attrs.frozen(kw_only=True)
class StoreDraw:
    """The conditions of one run, drawn from its seed; a failure prints them."""

    seed: int
    sync_flush: bool
    segment_size: int
    queue_file_size: int
    index_slots: int
    index_entries: int
    lives: int
    index_interval_ms: int
    """The interval between syncs of the index file that is being filled, in milliseconds."""
    life_seconds: float
    ends: tuple[End, ...]
    sync_seconds_max: float
    write_error: float
    sync_error: float
    read_error: float
    create_error: float
    full_disk: bool
    clock_jumps: bool
    body_bytes_max: int
    failing_start: bool
    open_error: float
    clock_drift: float
    bit_rot: bool
    properties_bytes_max: int
    """The largest size of a property that only fills space; 0 if there is none."""
    bare: bool
    """Whether messages without a key have no properties at all."""
    cuts_at_edges: bool
    deletions: bool
    """Whether topics are deleted while they are used."""
    expiry: bool
    """Whether the wall clock jumps ahead so that segments expire while they are read, and an operator has them deleted."""

    @classmethod
    def of(cls, seed: int) -> StoreDraw:
        rng, later = random.Random(seed), random.Random(seed ^ 0x1A7E)  # noqa: S311 - never secrets
        lives = rng.randint(2, 6)

        def rarely(value: float) -> float:
            return value * rng.random() if rng.random() < 0.3 else 0.0

        return cls(
            seed=seed,
            sync_flush=rng.random() < 0.6,
            segment_size=rng.choice((4096, 8192, 16384, 65536)),
            queue_file_size=20 * rng.choice((5, 16, 64, 1000)),
            index_slots=rng.choice((1, 10, 100)),
            index_entries=rng.choice((8, 64, 1000)),
            lives=lives,
            life_seconds=rng.choice((0.05, 0.5, 2.0, 6.0)),
            ends=tuple(rng.choice((End.CLEAN, End.KILL, End.POWER, End.POWER)) for _ in range(lives)),
            sync_seconds_max=rng.choice((0.0, 0.005, 0.1, 1.5)),
            write_error=rarely(0.05),
            sync_error=rarely(0.2),
            read_error=rarely(0.02),
            create_error=rarely(0.1),
            full_disk=rng.random() < 0.15,
            clock_jumps=rng.random() < 0.3,
            body_bytes_max=rng.choice((20, 300, 1500)),
            failing_start=rng.random() < 0.2,
            open_error=0.5 * later.random() if later.random() < 0.2 else 0.0,
            clock_drift=later.choice((-0.01, -0.0001, 0.0001, 0.01)) if later.random() < 0.2 else 0.0,
            bit_rot=later.random() < 0.3,
            properties_bytes_max=later.choice((0, 3000)),
            bare=later.random() < 0.3,
            cuts_at_edges=later.random() < 0.5,
            deletions=later.random() < 0.4,
            index_interval_ms=later.choice((1, 1000, 10_000)),
            expiry=later.random() < 0.3,
        )
