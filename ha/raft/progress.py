"""What a leader knows about each follower, and how much it may send (SOFA-JRaft `Replicator`, etcd's tracker).

Invariant: match < next. A follower is probed with one Append until it is known where the logs agree, then its Appends are
pipelined within the limits of `Settings`; one that lacks entries which the leader no longer holds gets a snapshot.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator

import attrs

from .settings import Settings
from .units import NO_INDEX, LogIndex, PeerId


class Mode(enum.Enum):
    """How a follower is being fed."""

    PROBE = "probe"
    PIPELINE = "pipeline"
    SNAPSHOT = "snapshot"
    REGRESSED = "regressed"
    """The follower lost entries that it had acknowledged as durable. It gets no entries and counts for nothing until it is
    removed from the group and added again, because it may have forgotten its votes too."""

    __hash__ = object.__hash__


@attrs.define
class Replicator:
    """One follower or learner, as its leader sees it."""

    peer: PeerId
    next_index: LogIndex
    """The first entry that the next Append carries."""
    match_index: LogIndex = NO_INDEX
    """The follower has durably stored the leader's log up to here; the only number that counts for a majority."""
    mode: Mode = Mode.PROBE
    probe_sent: bool = False
    """A probe is on the way; the next one is sent when it is answered, or when a heartbeat that was sent later is."""
    probe_round: int = 0
    """The newest round of heartbeats when the probe was sent."""
    inflight: deque[tuple[LogIndex, int]] = attrs.field(factory=deque[tuple[LogIndex, int]])
    """Last index and size of each batch that is on the way."""
    inflight_bytes: int = 0
    commit_sent: LogIndex = NO_INDEX
    """The commit index that the last Append carried."""
    contact_tick: int = 0
    """When the follower was last heard, in ticks of the leader; a new one counts as heard when it is added."""
    confirmed_round: int = 0
    """The newest round of heartbeats that the follower answered."""
    confirmed_tick: int = -1
    """When that round was sent: from then on the follower is bound to this leader for an election time-out (the lease)."""
    match_round: int = 0
    """The newest round that had been sent when `match_index` last grew: answers to later rounds must show at least as much."""
    stalled_match: LogIndex = NO_INDEX
    """`match_index` at the last heartbeat response: without growth since, something on the way was lost."""
    snapshot_index: LogIndex = NO_INDEX
    """What the snapshot on the way contains."""
    snapshot_ticks_left: int = 0
    """After so many ticks without an answer the snapshot is sent again."""

    def may_send(self, settings: Settings) -> bool:
        """Whether another batch may be sent now."""
        if self.mode is Mode.PIPELINE:
            return self.inflight_bytes < settings.inflight_bytes_max and len(self.inflight) < settings.inflight_batches_max
        return self.mode is Mode.PROBE and not self.probe_sent

    def sent(self, last_index: LogIndex, size_bytes: int) -> None:
        """A batch was sent in the pipeline."""
        self.inflight.append((last_index, size_bytes))
        self.inflight_bytes += size_bytes
        self.next_index = last_index + 1

    def received(self, received_index: LogIndex) -> None:
        """The follower has everything up to here, so it is no longer on the way."""
        inflight = self.inflight
        while inflight and inflight[0][0] <= received_index:
            self.inflight_bytes -= inflight.popleft()[1]

    def probe_from(self, next_index: LogIndex) -> None:
        """Forget what is on the way and find out anew where the logs agree."""
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
        """Have one replicator for each member; those who are leaving keep theirs until the change is committed."""
        for peer in sorted(members - self.replicators.keys() - {own}):
            self.replicators[peer] = Replicator(peer, next_index, contact_tick=tick)
        for peer in sorted(self.replicators.keys() - members - leaving):
            del self.replicators[peer]
