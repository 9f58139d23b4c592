"""The replicas in sync with a master that a controller has elected, and what their acknowledgements confirm (SyncStateSet).

The controller elects the next master among the members of the set that it has confirmed. So the invariant is: whatever this
master calls confirmed is held by every member of that set. The master may wait for more replicas than the controller knows, and
never for fewer: one that is to join is waited for before the controller is asked, and one that is to leave until it has agreed.
A master that cannot reach the controller therefore goes on as long as its set does, and otherwise confirms nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable
from typing import cast

import attrs

from ...store.statuses import PutStatus
from .acks import Acknowledgements

ABSENT_SECONDS = 0.3
"""A member that is not connected for so long is to leave. All connect anew when a master has been elected."""
NEAR_BYTES = 1024 * 1024
"""A replica that is at most this far behind is waited for, so that it catches up under a steady stream of puts too."""


@attrs.frozen
class Proposal:
    """A change of the set that the controller is to confirm."""

    members: frozenset[int]
    """The broker ids of the wanted set, the master's included."""
    epoch: int
    """The epoch of the set that it replaces."""


@attrs.define(eq=False, kw_only=True)
class InSyncAcknowledgements(Acknowledgements):
    """The acknowledgements of the slaves of an elected master; a slave's key is its broker id."""

    own_id: int
    """The broker id that the controller has given the master."""
    members: frozenset[int]
    """The set that the controller has confirmed, the master included."""
    set_epoch: int
    log_end: Callable[[], int]
    confirmed: int = 0
    """What was confirmed before this node became master, at first: consumers may have seen it."""
    limit_readable: Callable[[int | None], None] = lambda _: None
    """Lets consumers see what is before a physical offset; None lets them see everything."""
    lag_seconds_max: float = 2.0
    """A member that has not reached for so long what the log was then is to leave (haMaxTimeSlaveNotCatchup)."""
    all_acknowledge: bool = True
    """Whether a put waits for all members (allAckInSyncStateSet), or for `replicas` copies of them."""
    members_min: int = 1
    """While the confirmed set has fewer members, no put is acknowledged (minInSyncReplicas): one that was stored when there
    were enough waits until there are enough again, or times out."""
    _joining: set[int] = attrs.field(factory=set[int])
    """Replicas that are waited for and not in the confirmed set."""
    _proposed: frozenset[int] = frozenset()
    """Members of all proposals for the present epoch; the controller may have confirmed them already."""
    _staying: frozenset[int] = attrs.field(init=False)
    """Those of the confirmed set whom every proposal for its epoch keeps, and so whichever set the controller has now."""
    _marks: dict[int, tuple[int, float]] = attrs.field(factory=dict[int, tuple[int, float]])
    """For each member the end of the log at some time, which it has not been seen to reach since."""
    _absent: dict[int, float] = attrs.field(factory=dict[int, float])
    """Since when a member is seen to be not connected."""
    _alone: bool = attrs.field(init=False)
    """Whether no other replica is waited for, so that everything in the log is confirmed."""

    def __attrs_post_init__(self) -> None:
        self._staying = self.members
        self._alone = not self.required
        self.limit_readable(None if self._alone else self.confirmed)

    @property
    def settled(self) -> bool:
        """Whether everything in the log is confirmed."""
        return self._alone or self.confirmed >= self.log_end()

    @property
    def required(self) -> frozenset[int]:
        """The other replicas that must hold whatever is confirmed."""
        return (self.members | self._proposed | self._joining) - {self.own_id}

    @property
    def successors(self) -> list[int]:
        """The other members of the confirmed set, beginning with the one that holds most; those not connected come last."""
        return sorted(self.members - {self.own_id}, key=lambda broker_id: (-self._held.get(broker_id, -1), broker_id))

    def claim(self, slave: Hashable, offset: int) -> None:
        """Count a claim like a report: in this mode both ends compare epochs before the first one."""
        self.hold(slave, offset)

    def hold(self, slave: Hashable, offset: int) -> None:
        broker_id = cast("int", slave)
        self._held[broker_id] = offset
        if broker_id not in self.members and self.log_end() - offset <= NEAR_BYTES and broker_id not in self._joining:
            self._joining.add(broker_id)
            self._required_changed()
        self._advance()

    def leave(self, slave: Hashable) -> None:
        broker_id = cast("int", slave)
        self._held.pop(broker_id, None)
        self._marks.pop(broker_id, None)
        if broker_id in self._joining:
            self._joining.discard(broker_id)
            self._required_changed()
            self._advance()

    def _required_changed(self) -> None:
        """Hold back what consumers see from now on, or no longer, as others are waited for."""
        alone = not self.required
        if self._alone and not alone:
            self.confirmed = max(self.confirmed, self.log_end())
            self.limit_readable(self.confirmed)
        elif alone:
            self.limit_readable(None)
        self._alone = alone

    def _advance(self) -> None:
        """Confirm what all required replicas hold, and answer the puts that they, or enough copies, have acknowledged."""
        required = self.required
        reached = min((self._held.get(broker_id, -1) for broker_id in required), default=self.log_end())
        if reached > self.confirmed:
            self.confirmed = reached
            if required:
                self.limit_readable(reached)
        answered = self.confirmed
        if not self.all_acknowledge and required:
            copies = min(self.replicas, len(required) + 1)
            others = sorted((self._held.get(broker_id, -1) for broker_id in self._staying - {self.own_id}), reverse=True)
            if copies <= len(others) + 1:
                answered = others[copies - 2] if copies > 1 else self.log_end()
        if len(self.members) >= self.members_min:
            self._pending.reach(max(answered, self.confirmed))

    def _is_acknowledged(self, end: int) -> bool:
        return super()._is_acknowledged(end) and len(self.members) >= self.members_min

    def is_slave_ok(self, end: int) -> bool:
        """Whether a put may wait: always, because a member that is lost leaves the set soon, or the put times out."""
        return end - self.confirmed < self.gap_max

    def in_sync_replicas(self, end: int) -> int:  # noqa: ARG002 - see `Acknowledgements`
        """The size of the confirmed set (RocketMQ inSyncReplicasNums)."""
        return len(self.members)

    def wait(self, end: int, deadline: float, done: Callable[[PutStatus], None]) -> None:
        if self._alone:
            self._advance()
        super().wait(end, deadline, done)
        if not self.all_acknowledge:
            self._advance()

    # ---------------------------------------------------------------- changes of the set

    def proposal(self, now: float, refused: Container[Proposal] = ()) -> Proposal | None:
        """The change that the controller should confirm now, or None; the caller asks for it and reports the answer.

        Until then the replicas that join are waited for as if it had been confirmed. If one of them has gone before the
        controller has confirmed or ruled out that it is a member, the confirmed set is proposed again: under the next epoch the
        controller takes in nobody who was proposed for this one. The same is done if copies are counted, and one that was to
        leave keeps up again.

        The controller does not take in a replica that it does not hear, or does not know any more. If it has refused the whole
        change, those who leave do so without anybody joining, or with one replica alone.

        Args:
            now: by the monotonic clock.
            refused: what the controller has refused lately.
        """
        stay = frozenset(broker_id for broker_id in self.members if broker_id == self.own_id or self._keeps_up(broker_id, now))
        for broker_id in {joining for joining in self._joining if not self._keeps_up(joining, now)}:
            self._joining.discard(broker_id)
            self._required_changed()
            self._advance()
        join = sorted(broker_id for broker_id in self._joining if self._held[broker_id] >= self.confirmed)
        gone = self._proposed - self.members - self._joining
        doubted = frozenset[int]() if self.all_acknowledge else self.members - self._staying
        for wanted in (stay.union(join), stay, *(stay | {broker_id} for broker_id in join)):
            proposal = Proposal(wanted, self.set_epoch)
            if (wanted != self.members or gone or doubted) and proposal not in refused:
                self._proposed |= wanted
                self._staying &= wanted
                return proposal
        return None

    def lacking(self, now: float) -> frozenset[int]:
        """The other members that do not keep up: until they do, or have left the set, nothing more is confirmed."""
        return frozenset(one for one in self.members - {self.own_id} if not self._keeps_up(one, now))

    def _keeps_up(self, broker_id: int, now: float) -> bool:
        held = self._held.get(broker_id)
        if held is None:
            return now - self._absent.setdefault(broker_id, now) < ABSENT_SECONDS
        self._absent.pop(broker_id, None)
        mark = self._marks.get(broker_id)
        if mark is None or held >= mark[0]:
            self._marks[broker_id] = (self.log_end(), now)
            return True
        return now - mark[1] <= self.lag_seconds_max

    def confirm(self, members: frozenset[int], epoch: int) -> None:
        """Take over the set that the controller has confirmed; an older one than the known one changes nothing.

        What was proposed for an older epoch can no longer be confirmed.
        """
        if epoch <= self.set_epoch:
            return
        self.members, self.set_epoch, self._proposed = members, epoch, frozenset()
        self._staying = members
        self._joining -= members
        self._required_changed()
        self._advance()
