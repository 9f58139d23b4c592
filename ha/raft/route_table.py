"""The leaders of groups as a client knows them, from the answers and refusals of nodes (SOFA-JRaft `RouteTable`)."""

from __future__ import annotations

import attrs

from .quorum import Configuration
from .units import PeerId, Term


@attrs.frozen
class Route:
    """The known members and leader of one group."""

    configuration: Configuration
    leader: PeerId | None = None
    term: Term = 0
    """The term in which `leader` was the leader; reports about earlier terms are ignored."""


@attrs.define
class RouteTable:
    """Routes by group name. Several groups may have the same nodes."""

    routes: dict[str, Route] = attrs.field(factory=dict[str, Route])

    def update_configuration(self, group: str, configuration: Configuration) -> None:
        """Store the members of a group as a node reported them."""
        known = self.routes.get(group)
        leader = known.leader if known is not None and known.leader in configuration.members else None
        self.routes[group] = Route(configuration, leader, known.term if known is not None else 0)

    def update_leader(self, group: str, leader: PeerId | None, term: Term) -> None:
        """Store the leader of a term as a node reported it; None if the node knows none."""
        known = self.routes[group]
        if term > known.term or (term == known.term and leader is not None):
            self.routes[group] = attrs.evolve(known, leader=leader, term=term)

    def leader(self, group: str) -> PeerId | None:
        """The leader to ask; None if it is unknown. Any member may then be asked, and its refusal names the leader."""
        route = self.routes.get(group)
        return route.leader if route is not None else None

    def next_peer(self, group: str, after: PeerId | None) -> PeerId | None:
        """The next voter to ask after `after` did not answer, in turn; None if the group is unknown."""
        route = self.routes.get(group)
        if route is None or not route.configuration.voters:
            return None
        voters = route.configuration.voters
        return voters[(voters.index(after) + 1) % len(voters)] if after in voters else voters[0]
