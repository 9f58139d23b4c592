"""The random choices for the simulator of whole nodes in the classic mode."""

from __future__ import annotations

import random

import attrs

from ledgermq.testing.history import End
from ledgermq.testing.sim.network import SEND_BUFFER_BYTES

from .nodes import NodesDraw
from .surroundings import Surroundings
from .workloads.registry import ALWAYS_DRAWN, CLASSIC_WORKLOADS, DRAWN_WIDELY

WORKLOAD_SHARE = 0.4
"""The probability with which each workload is drawn."""
WIDE_SALT = 0x19D
WIDE_SHARE, WIDE_WORKLOAD_SHARE = 0.6, 0.5
"""The share of seeds with failing surroundings, and the probability of each further workload in these."""


@attrs.frozen(kw_only=True)
class ClusterDraw(NodesDraw):
    """What was drawn from the seed; several nodes are a master and its slaves."""

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

    @property
    def may_lose(self) -> bool:
        """Whether a power cut may lose what the master has acknowledged, or what a slave must assume to be acknowledged."""
        return not (self.sync_flush and self.slaves_sync_flush)

    @classmethod
    def of(cls, seed: int) -> ClusterDraw:
        lots = random.Random(seed ^ 0xC1)  # noqa: S311 - never secrets
        lives, nodes = lots.randint(1, 4), lots.choice((1, 1, 2, 2, 4))
        sync_master = nodes > 1 and lots.random() < 0.7
        draw = cls(
            seed=seed,
            nodes=nodes,
            sync_master=sync_master,
            in_sync_replicas=lots.randint(2, 3) if nodes > 2 else 2,
            sync_flush=lots.random() < 0.6,
            slaves_sync_flush=lots.random() < 0.3,
            segment_size=lots.choice((8192, 65536, 1 << 20)),
            lives=lives,
            life_seconds=lots.choice((2.0, 10.0, 40.0)),
            ends=tuple(lots.choice((End.CLEAN, End.KILL, End.POWER)) for _ in range(lives)),
            outage_seconds=tuple(lots.choice((0.0, 0.5, 5.0, 40.0)) for _ in range(lives)),
            delay_seconds=lots.choice(((0.0001, 0.001), (0.001, 0.05))),
            send_buffer_bytes=lots.choice((1024, SEND_BUFFER_BYTES)),
            sync_seconds_max=lots.choice((0.0, 0.01, 0.2, 1.0)),
            connection_losses=lots.random() < 0.4,
            half_open=lots.random() < 0.3,
            partitions=lots.random() < 0.3,
            one_way_cuts=lots.random() < 0.3,
            slave_fails=lots.random() < 0.5,
            disk_errors=lots.random() < 0.2,
            clock_jumps=lots.random() < 0.2,
            clock_drift=lots.choice((-0.01, -0.0001, 0.0001, 0.01)) if lots.random() < 0.2 else 0.0,
            commit_seconds=lots.choice((1, 5)),
            retries_max=lots.randint(1, 2),
            workloads=tuple(name for name in CLASSIC_WORKLOADS if name in ALWAYS_DRAWN or lots.random() < WORKLOAD_SHARE),
            promotes=sync_master and lots.random() < 0.5,
            accepts_loss=(accepts_loss := lots.random() < 0.5),
            restores=sync_master and lots.random() < 0.3 and not accepts_loss,
        )
        # The losses of tables by a promotion or a restore are judged without further faults.
        wide = not (draw.restores or draw.promotes) and random.Random(seed ^ WIDE_SALT).random() < WIDE_SHARE  # noqa: S311 - never secrets
        return draw.widened() if wide else draw

    def widened(self) -> ClusterDraw:
        """The same draw with failing surroundings and with more workloads."""
        lots = random.Random(self.seed ^ 0xA2)  # noqa: S311 - never secrets
        more = tuple(name for name in DRAWN_WIDELY if lots.random() < WIDE_WORKLOAD_SHARE)
        return attrs.evolve(self, around=Surroundings.of(lots), workloads=(*self.workloads, *more))
