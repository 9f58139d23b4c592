"""Time-outs and limits of a node. Time is counted in ticks; how long a tick lasts is the shell's choice."""

from __future__ import annotations

import attrs

from .units import PeerId


@attrs.frozen(kw_only=True)
class Settings:
    """Defaults fit a tick of 20 ms: heartbeats every 100 ms, elections after 300 to 600 ms."""

    heartbeat_ticks: int = 5
    """A leader sends a round of heartbeats this often."""
    election_ticks_min: int = 15
    """A node that heard a leader less than this long ago grants no vote to anybody else (leader stickiness)."""
    election_ticks_max: int = 30
    """Election and vote time-outs are drawn from [min, max]. A leader that hears no majority for this long steps down."""
    turn_ticks: int = 3
    """When the connection from the leader has ended, one voter after the other campaigns, this long apart."""
    lease_ticks: int = 12
    """A leader that a majority confirmed less than this long ago may serve reads without asking again. The distance to
    `election_ticks_min` is the drift of clocks that we tolerate: here 20 percent. 0 switches lease reads off."""
    transfer_ticks: int = 30
    """A transfer of leadership that has not succeeded after this long is given up."""
    preferred_check_ticks: int = 50
    """How often a leader that is not preferred looks for a preferred one to transfer to."""
    snapshot_ticks: int = 0
    """How often the owner is reminded to save a snapshot; 0 means never."""
    snapshot_retry_ticks: int = 500
    """How long a sent snapshot may remain unanswered before it is sent again."""
    append_bytes_max: int = 1 << 20
    """Size of one batch; a single larger entry still travels."""
    probe_bytes_max: int = 16 << 10
    """Size of the batch in a probe, which may be sent in vain."""
    inflight_bytes_max: int = 8 << 20
    """How much may be on the way to one follower."""
    inflight_batches_max: int = 256
    """How many batches may be on the way to one follower."""
    caught_up_entries: int = 1000
    """A learner or transfer target that lacks at most this many entries counts as caught up."""
    pending_reads_max: int = 10_000
    """How many reads may wait for the confirmation of the leader; further ones are told to ask again."""
    trust_regressed: bool = False
    """Whether a follower that lost entries which it had acknowledged is simply filled again. Only for groups that chose not to
    sync: otherwise it has lost its disk, perhaps its votes, and is left out until it was removed and added again."""
    preferred: frozenset[PeerId] = frozenset()
    """Nodes that should lead if they can (RocketMQ `preferredLeaderId`)."""

    def __attrs_post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks_min <= self.election_ticks_max:
            raise ValueError(
                "time-outs must grow: 0 < heartbeat_ticks < election_ticks_min <= election_ticks_max "
                f"(got {self.heartbeat_ticks}, {self.election_ticks_min}, {self.election_ticks_max})"
            )
        if not 0 <= self.lease_ticks < self.election_ticks_min:
            raise ValueError(f"'lease_ticks' must be 0..{self.election_ticks_min - 1} (got {self.lease_ticks})")
