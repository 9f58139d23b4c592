"""The timers of a node, counted in ticks: SOFA-JRaft's election, vote and step-down timer, and four more."""

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
    """At a follower: when it expires, no leader has sent a message in time, and the node starts a pre-vote."""
    vote: Countdown = attrs.field(factory=Countdown)
    """At a pre-candidate or candidate: when it expires, the vote is undecided, and the node starts again with a pre-vote."""
    step_down: Countdown = attrs.field(factory=Countdown)
    """At a leader: when it expires, the node checks whether a majority has answered recently."""
    heartbeat: Countdown = attrs.field(factory=Countdown)
    """At a leader: when it expires, the next round of heartbeats is sent."""
    commit: Countdown = attrs.field(factory=Countdown)
    """At a leader: when it expires, followers are sent a commit index that no entries have carried meanwhile."""
    transfer: Countdown = attrs.field(factory=Countdown)
    """At a leader: when it expires, a transfer of leadership is aborted."""
    preferred: Countdown = attrs.field(factory=Countdown)
    """At a leader: when it expires, the node looks for a preferred leader."""
    _all: tuple[Countdown, ...] = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._all = (
            *(self.election, self.vote, self.step_down),
            *(self.heartbeat, self.commit, self.transfer, self.preferred),
        )

    @property
    def ticks_until_due(self) -> int:
        """How many ticks are left of the timer that expires first; 0 if no timer runs."""
        nearest = 0
        for timer in self._all:
            left = timer.ticks_left
            if left and (left < nearest or not nearest):
                nearest = left
        return nearest

    def skip(self, ticks: int) -> None:
        """Count ticks in which no timer expires."""
        for timer in self._all:
            if timer.ticks_left:
                timer.ticks_left -= ticks
