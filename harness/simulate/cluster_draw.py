"""The random choices for the simulator of whole nodes in the classic mode."""

from __future__ import annotations

import random

import attrs

from ledgermq.testing.history import End
from ledgermq.testing.sim.network import SEND_BUFFER_BYTES
from ledgermq.world.memory import ASSUMED_MEMORY_BYTES

from .nodes import NodesDraw
from .surroundings import Surroundings
from .workloads.registry import ALWAYS_DRAWN, CLASSIC_WORKLOADS, DRAWN_WIDELY

WORKLOAD_SHARE = 0.4
"""The probability with which each workload is drawn."""
MEMORY_SALT = 0x3E3
LITTLE_MEMORY_BYTES = 20_000
"""With so little memory, brokers count all but their newest messages as evicted from the page cache: a group without an offset
does not begin at 0 there, and slow members are sent to slaves."""
WIDE_SALT = 0x19D
WIDE_SHARE, WIDE_WORKLOAD_SHARE = 0.6, 0.5
"""The share of seeds with failing surroundings, and the probability of each further workload in these."""


@attrs.frozen(kw_only=True)
class ClusterDraw(NodesDraw):
    """The conditions of one run, drawn from its seed; several nodes are a master and its slaves."""

    sync_master: bool
    in_sync_replicas: int
    sync_flush: bool
    slaves_sync_flush: bool
    lives: int
    ends: tuple[End, ...]
    outage_seconds: tuple[float, ...]
    slave_fails: bool
    commit_seconds: int
    promotes: bool
    """Whether a slave may be started as the master."""
    accepts_loss: bool
    """Whether slaves are configured to accept losses; otherwise an operator accepts each loss."""
    restores: bool
    """Whether the master's store may be replaced by an older copy of it."""
    memory_bytes: int

    @property
    def may_lose(self) -> bool:
        """Whether a power cut may lose what the master has acknowledged, or what a slave must assume to be acknowledged."""
        return not (self.sync_flush and self.slaves_sync_flush)

    @classmethod
    def of(cls, seed: int) -> ClusterDraw:
        rng = random.Random(seed ^ 0xC1)  # noqa: S311 - never secrets
        lives, nodes = rng.randint(1, 4), rng.choice((1, 1, 2, 2, 4))
        sync_master = nodes > 1 and rng.random() < 0.7
        draw = cls(
            seed=seed,
            nodes=nodes,
            sync_master=sync_master,
            in_sync_replicas=rng.randint(2, 3) if nodes > 2 else 2,
            sync_flush=rng.random() < 0.6,
            slaves_sync_flush=rng.random() < 0.3,
            segment_size=rng.choice((8192, 65536, 1 << 20)),
            lives=lives,
            life_seconds=rng.choice((2.0, 10.0, 40.0)),
            ends=tuple(rng.choice((End.CLEAN, End.KILL, End.POWER)) for _ in range(lives)),
            outage_seconds=tuple(rng.choice((0.0, 0.5, 5.0, 40.0)) for _ in range(lives)),
            delay_seconds=rng.choice(((0.0001, 0.001), (0.001, 0.05))),
            send_buffer_bytes=rng.choice((1024, SEND_BUFFER_BYTES)),
            sync_seconds_max=rng.choice((0.0, 0.01, 0.2, 1.0)),
            connection_losses=rng.random() < 0.4,
            half_open=rng.random() < 0.3,
            partitions=rng.random() < 0.3,
            one_way_cuts=rng.random() < 0.3,
            slave_fails=rng.random() < 0.5,
            disk_errors=rng.random() < 0.2,
            clock_jumps=rng.random() < 0.2,
            clock_drift=rng.choice((-0.01, -0.0001, 0.0001, 0.01)) if rng.random() < 0.2 else 0.0,
            commit_seconds=rng.choice((1, 5)),
            retries_max=rng.randint(1, 2),
            workloads=tuple(name for name in CLASSIC_WORKLOADS if name in ALWAYS_DRAWN or rng.random() < WORKLOAD_SHARE),
            promotes=sync_master and rng.random() < 0.5,
            accepts_loss=(accepts_loss := rng.random() < 0.5),
            restores=sync_master and rng.random() < 0.3 and not accepts_loss,
            memory_bytes=random.Random(seed ^ MEMORY_SALT).choice((ASSUMED_MEMORY_BYTES, LITTLE_MEMORY_BYTES)),  # noqa: S311
        )
        # The losses of tables by a promotion or a restore are judged without further faults.
        wide = not (draw.restores or draw.promotes) and random.Random(seed ^ WIDE_SALT).random() < WIDE_SHARE  # noqa: S311 - never secrets
        return draw.widened() if wide else draw

    def widened(self) -> ClusterDraw:
        """The same draw with failing surroundings and with more workloads."""
        rng = random.Random(self.seed ^ 0xA2)  # noqa: S311 - never secrets
        more = tuple(name for name in DRAWN_WIDELY if rng.random() < WIDE_WORKLOAD_SHARE)
        return attrs.evolve(self, around=Surroundings.of(rng), workloads=(*self.workloads, *more))
