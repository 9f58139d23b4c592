"""Time-outs and limits of a node. Time is counted in ticks; the shell decides how long a tick is."""

from __future__ import annotations

import attrs

from .units import PeerId


@attrs.frozen(kw_only=True)
class Settings:
    """Defaults fit a tick of 20 ms: heartbeats every 100 ms, elections after 300 to 600 ms."""

    heartbeat_ticks: int = 5
    """Interval between two rounds of heartbeats of a leader."""
    commit_ticks: int = 1
    """For how long a leader that has no entries to send may keep a new commit index from its followers. Most often the next
    entries carry it, which saves a message to each follower. 0 means that it is sent at once."""
    election_ticks_min: int = 15
    """A node that heard from a leader less than this long ago grants no vote to another node (leader stickiness)."""
    election_ticks_max: int = 30
    """Election and vote time-outs are random numbers in [min, max]. A leader without a majority for this long steps down."""
    turn_ticks: int = 3
    """When the connection from the leader has ended, the voters campaign one after another, this many ticks apart."""
    transfer_ticks: int = 30
    """A transfer of leadership that has not succeeded after this long is aborted."""
    preferred_check_ticks: int = 50
    """Interval at which a leader that is not preferred looks for a preferred node to transfer its leadership to."""
    preferred_retry_ticks: int = 1500
    """After such a transfer a leader that still leads waits this long before the next, because each one refuses proposals. The
    wait doubles each time, up to `preferred_retry_ticks_max`."""
    preferred_retry_ticks_max: int = 180_000
    snapshot_retry_ticks: int = 500
    """A snapshot that is not acknowledged after this long is sent again."""
    append_bytes_max: int = 1 << 20
    """The most bytes of one batch. A larger entry is sent alone, as a batch of its own."""
    probe_bytes_max: int = 16 << 10
    """The most bytes of a batch in a probe; it is small because the follower may reject it. A larger entry is sent alone."""
    inflight_bytes_max: int = 32 << 20
    """How many bytes may be in flight to one follower; from there on the leader waits for acknowledgements."""
    inflight_batches_max: int = 256
    """How many batches may be in flight to one follower; from there on the leader waits for acknowledgements."""
    caught_up_entries: int = 1000
    """A learner or transfer target that lacks at most this many entries counts as caught up."""
    pending_reads_max: int = 10_000
    """How many reads may wait for the leader to be confirmed; further ones get no index and must be tried again."""
    trust_regressed: bool = False
    """Whether a follower that lost acknowledged entries is sent them again; only for groups that do not sync. In other groups
    it has lost its disk and perhaps its votes, and does not vote until it has caught up and every other voter has answered."""
    preferred: frozenset[PeerId] = frozenset()
    """Nodes that should lead if they can (RocketMQ `preferredLeaderId`)."""

    def __attrs_post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks_min <= self.election_ticks_max:
            raise ValueError(
                "time-outs must grow: 0 < heartbeat_ticks < election_ticks_min <= election_ticks_max "
                f"(got {self.heartbeat_ticks}, {self.election_ticks_min}, {self.election_ticks_max})"
            )
