"""The four timers of a node, counted in ticks (SOFA-JRaft: election, vote, step-down and snapshot timer)."""

from __future__ import annotations

import attrs


@attrs.define
class Countdown:
    """Expires once after a number of ticks; 0 means it is stopped."""

    ticks_left: int = 0

    def start(self, ticks: int) -> None:
        self.ticks_left = ticks

    def stop(self) -> None:
        self.ticks_left = 0

    @property
    def running(self) -> bool:
        return self.ticks_left > 0

    def tick(self) -> bool:
        """Count one tick; returns whether the timer expired with it."""
        if self.ticks_left == 0:
            return False
        self.ticks_left -= 1
        return self.ticks_left == 0


@attrs.define
class Timers:
    """All timers of one node. Which of them run depends on its role."""

    election: Countdown = attrs.field(factory=Countdown)
    """Follower: nothing was heard from a leader; the node starts a pre-vote."""
    vote: Countdown = attrs.field(factory=Countdown)
    """Pre-candidate and candidate: the vote was not decided; the node starts again with a pre-vote."""
    step_down: Countdown = attrs.field(factory=Countdown)
    """Leader: time to check whether a majority was heard lately."""
    snapshot: Countdown = attrs.field(factory=Countdown)
    """Any role: time to save the state machine."""
    heartbeat: Countdown = attrs.field(factory=Countdown)
    """Leader: time for the next round of heartbeats."""
    transfer: Countdown = attrs.field(factory=Countdown)
    """Leader: a transfer of leadership that takes longer is given up."""
    preferred: Countdown = attrs.field(factory=Countdown)
    """Leader: time to look for a preferred leader."""
