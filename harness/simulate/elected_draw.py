"""The random choices for the simulator of whole nodes in controller mode."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

from ledgermq.testing.history import End
from ledgermq.testing.sim.network import SEND_BUFFER_BYTES

from .nodes import NodesDraw
from .workloads.membership import Membership
from .workloads.plain import Plain
from .workloads.pulls import Pulls
from .workloads.registry import DLEDGER_WORKLOADS

WORKLOAD_SHARE = 0.15
"""The probability with which each workload is drawn that is not in `ALWAYS`."""
ALWAYS = (Plain.name, Pulls.name)

ENDS = (
    "end",
    "end master",
    "end master",
    "end controller",
    "end leading controller",
    "end brokers",
    "end controllers",
    "end masters",
)
PARTS = ("isolate master", "isolate", "part", "part", "one way", "one way")
STALLS = ("pause", "pause master", "pause controller", "slow", "slow master")
DISKS = ("sync fails", "master's sync fails", "full disk")
BLOWS = (*ENDS, *PARTS, *STALLS, *DISKS)
"""Kinds of faults of the group in one life; one that is listed twice happens twice as often."""
MUTE = "end master, mute controller"
"""The kind of a failure in which the disk of the leading controller takes no write when the master ends."""
CONTROLLER_BLOWS = ("slow controller", "leading controller's sync fails", "leading controller's full disk")
"""Kinds of faults in a further life of some seeds."""
RESTORES = ("restore", "restore master")
"""Kinds of faults in which a node comes back with an older copy of its disk, in a further life of some seeds."""
ORDERS = ("elect", "forget", "configure")
"""What administrators ask of controllers in further lives of some seeds: another master, to forget a replica, a setting."""
UNSYNCED = "end master, unsynced other"
"""The kind of a fault in which the master hands over to a replica whose disk has just failed to sync the end of its log."""
UNSYNCED_SHARE = 0.5
"""The probability with which that happens in a further life, with SYNC_FLUSH."""
SYNC_SECONDS_FAST = 0.01
"""Where syncs take longer, more than a few of RocketMQ's shortest frames must be under way at a time: a replica syncs once for
all that have come, and would otherwise copy less in a second than clients send."""
FURTHER_SALT = 0xC6DC
"""Most seeds draw nothing further, and so find what they found before it was drawn."""


@attrs.frozen
class Blow:
    """One fault of the group, at the end of a life."""

    kind: str
    """One of `BLOWS`, `CONTROLLER_BLOWS`, `RESTORES` and `ORDERS`, or `MUTE`, or `UNSYNCED`."""
    end: End = End.KILL
    """How nodes end, if the fault ends nodes."""
    seconds: float = 1.0
    """How long the nodes are down, or how long the fault lasts."""

    @classmethod
    def of(cls, rng: random.Random, kinds: Sequence[str]) -> Blow:
        end = rng.choice((End.CLEAN, End.KILL, End.POWER, End.POWER))
        return cls(rng.choice(kinds), end, rng.choice((0.05, 0.5, 2.0, 5.0)))


@attrs.frozen(kw_only=True)
class ElectedDraw(NodesDraw):
    """The conditions of one run, drawn from its seed."""

    controllers: int
    sync_flush: bool
    blows: tuple[Blow, ...]
    failures: tuple[Blow, ...]
    """Failures of one node each, without any other fault, after the others."""
    restarts: bool
    """Whether all nodes lose power at the end of the run, and are read after they have started again."""
    transfer_batch: int
    """The most log bytes of one of the first frames; shorter than many records, so that a copy may end inside one."""
    twice: bool
    """Whether each node that comes back is stopped in order at once and started again, before a broker has registered."""
    members_min: int = 1
    """While fewer replicas are in sync, nothing is acknowledged (minInSyncReplicas)."""
    copies: int | None = None
    """How many copies acknowledge a message (inSyncReplicas); None if all replicas in sync do (allAckInSyncStateSet)."""
    autoswitch: bool = False
    """Whether brokers replicate by RocketMQ's frames of controller mode (haProtocol = rocketmq)."""

    @classmethod
    def of(cls, seed: int) -> ElectedDraw:
        rng = random.Random(seed ^ 0xE1EC)  # noqa: S311 - never secrets
        more = random.Random(seed ^ 0xD15C)  # noqa: S311 - never secrets; most seeds draw nothing more, and find what they found
        drawn = (name for name in DLEDGER_WORKLOADS if name in ALWAYS or rng.random() < WORKLOAD_SHARE)
        single = ("end", "end master", "end master", "end leading controller")
        draw = cls(
            seed=seed,
            nodes=rng.choice((2, 2, 3)),
            controllers=rng.choice((1, 3, 3)),
            sync_flush=rng.random() < 0.5,
            segment_size=rng.choice((16384, 65536)),
            life_seconds=rng.choice((1.0, 2.5, 5.0)),
            delay_seconds=rng.choice(((0.0001, 0.001), (0.001, 0.05))),
            send_buffer_bytes=rng.choice((1024, SEND_BUFFER_BYTES, SEND_BUFFER_BYTES)),
            sync_seconds_max=rng.choice((0.0, 0.01, 0.2)),
            connection_losses=rng.random() < 0.3,
            half_open=rng.random() < 0.2,
            partitions=rng.random() < 0.2,
            one_way_cuts=rng.random() < 0.3,
            disk_errors=rng.random() < 0.2,
            clock_jumps=rng.random() < 0.2,
            clock_drift=rng.choice((-0.05, -0.0001, 0.0001, 0.05)) if rng.random() < 0.2 else 0.0,
            retries_max=rng.randint(1, 2),
            workloads=tuple(name for name in drawn if name != Membership.name),
            failures=(
                *(Blow.of(rng, single) for _ in range(rng.randint(0, 2))),
                *(Blow.of(more, (MUTE,)) for _ in range(more.random() < 0.15)),
            ),
            blows=(
                *(Blow.of(rng, BLOWS) for _ in range(rng.randint(1, 3))),
                *(Blow.of(more, CONTROLLER_BLOWS) for _ in range(more.random() < 0.25)),
            ),
            restarts=rng.random() < 0.4,
            transfer_batch=rng.choice((200, 32_768)),
            twice=more.random() < 0.15,
        )
        return draw.with_more(random.Random(seed ^ FURTHER_SALT))  # noqa: S311 - never secrets

    def with_more(self, rng: random.Random) -> ElectedDraw:
        """The same draw with settings and faults that were drawn later than the others."""
        drawn = attrs.evolve(
            self,
            members_min=2 if rng.random() < 0.15 else 1,
            copies=rng.randint(2, self.nodes) if rng.random() < 0.15 else None,
            autoswitch=rng.random() < 0.15,
            blows=(*self.blows, *(Blow.of(rng, RESTORES) for _ in range(rng.random() < 0.15))),
            failures=(*self.failures, *(Blow.of(rng, RESTORES) for _ in range(rng.random() < 0.1))),
        )
        if drawn.may_lose:  # of the messages of other workloads nobody knows whether a deposed master has acknowledged them
            drawn = attrs.evolve(drawn, workloads=ALWAYS)
        if drawn.autoswitch and drawn.sync_flush and drawn.sync_seconds_max > SYNC_SECONDS_FAST:
            drawn = attrs.evolve(drawn, send_buffer_bytes=SEND_BUFFER_BYTES)
        return drawn.with_orders(rng)

    def with_orders(self, rng: random.Random) -> ElectedDraw:
        """The same draw with orders of administrators, which were drawn last.

        One that is forgotten has two ids until its connection ends. Fewer copies than that may answer before all see a message.
        """
        orders = (Blow.of(rng, ORDERS) for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 3)) if self.copies is None else 0))
        return attrs.evolve(self, blows=(*self.blows, *orders)).with_unsynced(rng)

    def with_unsynced(self, rng: random.Random) -> ElectedDraw:
        """The same draw, in some seeds with a master whose log is not synced to its end, which matters with SYNC_FLUSH only."""
        unsynced = (Blow.of(rng, (UNSYNCED,)) for _ in range(self.sync_flush and rng.random() < UNSYNCED_SHARE))
        return attrs.evolve(self, blows=(*self.blows, *unsynced))

    @property
    def may_lose(self) -> bool:
        """Whether a failover may lose acknowledged messages, because replicas in sync need not have them."""
        return self.copies is not None and self.copies < self.nodes

    @property
    def only_ends(self) -> bool:
        """Whether nodes fail only as a whole, so that no master accepts commits without those in sync for long."""
        network = self.connection_losses or self.half_open or self.partitions or self.one_way_cuts
        return not (network or self.disk_errors or self.clock_drift) and all(
            blow.kind in (*ENDS, *RESTORES) for blow in self.blows
        )
