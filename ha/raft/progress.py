"""A leader's state for each follower, and its flow control (SOFA-JRaft `Replicator`, etcd's tracker).

Invariant: match < next. A follower is sent one Append at a time until it is known where the logs agree. Then its Appends are
pipelined within the limits of `Settings`. A follower that lacks entries which the leader no longer has gets a snapshot.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator

import attrs

from .settings import Settings
from .units import NO_INDEX, LogIndex, PeerId


class Mode(enum.Enum):
    """The way in which the leader replicates to a follower."""

    PROBE = "probe"
    PIPELINE = "pipeline"
    SNAPSHOT = "snapshot"
    REGRESSED = "regressed"
    """The follower lost entries that it had acknowledged as durable. It gets no entries and counts for nothing until it knows
    that it may have forgotten its votes too (`Regressed`), and asks for the terms of all voters."""

    __hash__ = object.__hash__


@attrs.define
class Replicator:
    """The leader's state for one follower or learner."""

    peer: PeerId
    next_index: LogIndex
    """The index of the first entry of the next Append."""
    match_index: LogIndex = NO_INDEX
    """The last entry up to which the follower has durably stored the leader's log; only this counts for a majority."""
    mode: Mode = Mode.PROBE
    probe_sent: bool = False
    """Whether a probe is in flight; the next one is sent after the answer to it or to a heartbeat that was sent later."""
    probe_round: int = 0
    """The number of the newest round of heartbeats when the probe was sent."""
    inflight: deque[tuple[LogIndex, int]] = attrs.field(factory=deque[tuple[LogIndex, int]])
    """The last index and the size in bytes of each batch in flight."""
    inflight_bytes: int = 0
    commit_sent: LogIndex = NO_INDEX
    """The commit index that the last Append carried."""
    contact_tick: int = 0
    """The leader's tick when the follower last answered; a new follower begins with the tick at which it was added."""
    confirmed_round: int = 0
    """The number of the newest round of heartbeats that the follower answered."""
    match_round: int = 0
    """The newest round when `match_index` last grew; in answers to later rounds `durable_index` must be at least as high."""
    stalled_match: LogIndex = NO_INDEX
    """`match_index` at the last heartbeat response; if it has not grown until the next one, a message may be lost."""
    snapshot_index: LogIndex = NO_INDEX
    """The last index of the snapshot in flight."""
    snapshot_ticks_left: int = 0
    """How many ticks remain until an unanswered snapshot is sent again."""

    def may_send(self, settings: Settings) -> bool:
        """Whether another batch may be sent now."""
        if self.mode is Mode.PIPELINE:
            return self.inflight_bytes < settings.inflight_bytes_max and len(self.inflight) < settings.inflight_batches_max
        return self.mode is Mode.PROBE and not self.probe_sent

    def sent(self, last_index: LogIndex, size_bytes: int) -> None:
        """Record a batch that was sent in the pipeline."""
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes
        self.next_index = last_index + 1

    def received(self, received_index: LogIndex) -> None:
        """Remove the batches up to `received_index` from those in flight, because the follower has received them."""
        inflight = self.inflight
        while inflight and inflight[0][0] <= received_index:
            self.inflight_bytes -= inflight.popleft()[1]

    def probe_from(self, next_index: LogIndex) -> None:
        """Discard the batches in flight and probe again where the logs agree, at `next_index` or after what matches."""
        self.mode = Mode.PROBE
        self.probe_sent = False
        self.inflight.clear()
        self.inflight_bytes = 0
        self.next_index = max(next_index, self.match_index + 1)


@attrs.define
class ReplicatorGroup:
    """The replicators of one leadership, one for each other member (SOFA-JRaft `ReplicatorGroup`)."""

    replicators: dict[PeerId, Replicator] = attrs.field(factory=dict[PeerId, Replicator])

    def __iter__(self) -> Iterator[Replicator]:
        return iter(self.replicators.values())

    def get(self, peer: PeerId) -> Replicator | None:
        return self.replicators.get(peer)

    def follow(
        self, members: frozenset[PeerId], own: PeerId, next_index: LogIndex, tick: int, leaving: frozenset[PeerId]
    ) -> None:
        """Keep one replicator for each member; leaving members keep theirs until the change is committed."""
        for peer in sorted(members - self.replicators.keys() - {own}):
            self.replicators[peer] = Replicator(peer, next_index, contact_tick=tick)
        for peer in sorted(self.replicators.keys() - members - leaving):
            del self.replicators[peer]
