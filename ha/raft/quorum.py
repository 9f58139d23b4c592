"""Configurations of a group and the majorities that they require (Raft §6, SOFA-JRaft `Ballot` and `Configuration`).

Invariant: every decision of a joint configuration has a majority of the old voters and a majority of the new ones. Learners
receive the log and count in no majority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from .units import NO_INDEX, LogIndex, PeerId


def _sorted(peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    return tuple(sorted(set(peers)))


@attrs.frozen
class Configuration:
    """The members of the group. A configuration takes effect when it is appended, committed or not (Raft §6)."""

    voters: tuple[PeerId, ...] = attrs.field(default=(), converter=_sorted)
    """The voters; in a joint configuration the new ones."""
    outgoing: tuple[PeerId, ...] = attrs.field(default=(), converter=_sorted)
    """The old voters of a joint configuration; empty otherwise."""
    learners: tuple[PeerId, ...] = attrs.field(default=(), converter=_sorted)
    """Members without a vote. A learner that is also in `outgoing` still votes until the joint configuration is left."""

    def __attrs_post_init__(self) -> None:
        both = set(self.voters) & set(self.learners)
        if both:
            raise ValueError(f"a peer cannot be voter and learner of one configuration: {', '.join(sorted(both))}")
        if self.outgoing and not self.voters:
            raise ValueError("a joint configuration needs new voters, not only old ones")

    @property
    def joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def members(self) -> frozenset[PeerId]:
        """All nodes that receive the log."""
        return frozenset((*self.voters, *self.outgoing, *self.learners))

    @property
    def majorities(self) -> tuple[tuple[PeerId, ...], ...]:
        """The sets of voters; a decision needs a majority of each."""
        return (self.voters, self.outgoing) if self.outgoing else (self.voters,)

    def votes(self, peer: PeerId) -> bool:
        """Whether the vote of `peer` counts."""
        return peer in self.voters or peer in self.outgoing

    def left(self) -> Configuration:
        """The configuration that follows this joint one, with only the new voters."""
        return Configuration(self.voters, (), self.learners)


def majority(count: int) -> int:
    """How many of `count` voters are a majority."""
    return count // 2 + 1


def quorum_value(values: Mapping[PeerId, int], configuration: Configuration, missing: int = NO_INDEX) -> int:
    """The largest number that a majority of every set of voters has reached; a voter without a value counts as `missing`.

    For match indexes this is the index that a quorum has; for contact times, the time since which a quorum has answered.
    """
    reached: int | None = None
    for voters in configuration.majorities:
        if not voters:
            return missing
        ordered = sorted((values.get(voter, missing) for voter in voters), reverse=True)
        value = ordered[majority(len(voters)) - 1]
        reached = value if reached is None else min(reached, value)
    return missing if reached is None else reached


def committed_index(match: Mapping[PeerId, LogIndex], configuration: Configuration) -> LogIndex:
    """The largest index that is stored by a majority of every set of voters."""
    return quorum_value(match, configuration)


@attrs.define
class Ballot:
    """The count of one vote, in which only the first answer of each peer counts."""

    configuration: Configuration
    granted: set[PeerId] = attrs.field(factory=set[PeerId])
    refused: set[PeerId] = attrs.field(factory=set[PeerId])

    def record(self, peer: PeerId, granted: bool) -> None:
        """Record the first answer of `peer`. The answer of a peer without a vote is recorded but never counted."""
        if peer not in self.granted and peer not in self.refused:
            (self.granted if granted else self.refused).add(peer)

    @property
    def won(self) -> bool:
        """Whether a majority of every set of voters has granted."""
        return all(
            voters and sum(voter in self.granted for voter in voters) >= majority(len(voters))
            for voters in self.configuration.majorities
        )

    @property
    def lost(self) -> bool:
        """Whether a majority can no longer be reached in some set of voters."""
        return any(
            len(voters) - sum(voter in self.refused for voter in voters) < majority(len(voters))
            for voters in self.configuration.majorities
        )
