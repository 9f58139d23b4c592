"""Brokers with the same name as one group: who leads, who follows, and how far each follower is behind. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs

from ..dledger import leaders_of

State = Literal["good", "behind", "bad"]
Row = Mapping[str, Any]


@attrs.frozen
class Copy:
    """One broker of a group, or a member that no name server knows."""

    name: str
    """The id of a DLedger node, such as `n0`, or RocketMQ's number of a broker."""
    role: str
    state: State
    lag: str
    """How far it is behind, or what is wrong, in a few words."""
    row: Row | None
    """The broker's row of `ledgermq cluster status`; None for a member that does not answer."""


@attrs.frozen
class BrokerGroup:
    """All brokers with one name."""

    name: str
    kind: str
    term: int | None
    """The newest term that a node knows, or the epoch of the master that a controller elected; None without elections."""
    leader: Copy | None
    followers: Sequence[Copy]

    @property
    def copies(self) -> list[Copy]:
        """The leader, if there is one, and the followers."""
        return [*([self.leader] if self.leader else []), *self.followers]

    @property
    def in_sync(self) -> int:
        """How many copies have everything that the leader has written, or are in its in-sync set."""
        return sum(copy.state == "good" for copy in self.copies)

    @property
    def text(self) -> str:
        """The picture in words, for those who cannot see it."""
        led = f"{self.leader.role} {self.leader.name}: {self.leader.lag}" if self.leader else "nobody leads"
        return f"{self.name}: {'; '.join((led, *(f'{each.role} {each.name}: {each.lag}' for each in self.followers)))}"


def broker_groups(rows: Sequence[Row], nodes: Sequence[dict[str, Any]]) -> list[BrokerGroup]:
    """Make groups of what `state_of` returns."""
    groups: list[BrokerGroup] = []
    for name in sorted({str(row["broker"]) for row in rows}):
        own_rows = [row for row in rows if row["broker"] == name]
        own_nodes = [node for node in nodes if node["broker"] == name]
        groups.append(_elected(name, own_rows, own_nodes) if own_nodes else _configured(name, own_rows))
    return groups


def _elected(name: str, rows: Sequence[Row], nodes: Sequence[dict[str, Any]]) -> BrokerGroup:
    """A DLedger group. Its leader knows the others best; without one, each node speaks for itself."""
    leading = next(iter(leaders_of(list(nodes))), None)
    row_at = {row["address"]: row for row in rows}
    answers = {node["selfId"]: node for node in nodes}
    learners = {learner for node in nodes for learner in node.get("learners") or ()}
    peers = {peer["id"]: peer for peer in (leading or {}).get("peers") or ()}
    members = sorted({*answers, *peers, *(voter for node in nodes for voter in node.get("voters") or ()), *learners})
    copies: dict[str, Copy] = {}
    for member in members:
        node = answers.get(member)
        role = "learner" if member in learners else str(node["role"]) if node else "member"
        state, lag = _state_of_node(node, peers.get(member), leads=node is leading is not None, led=leading is not None)
        copies[member] = Copy(member, role, state, lag, row_at.get(node["address"]) if node else None)
    leader = copies.pop(leading["selfId"]) if leading else None
    return BrokerGroup(name, "DLedger group", max(int(node["term"]) for node in nodes), leader, list(copies.values()))


def _state_of_node(node: Row | None, peer: Row | None, *, leads: bool, led: bool) -> tuple[State, str]:
    if node is not None and node.get("failure"):
        return "bad", "takes no part"
    if leads:
        return "good", f"committed {(node or {}).get('committedIndex', 0):,}"
    if not led:
        return "bad", "no leader" if node else "no answer"
    if peer is None:
        return "bad", "no member"
    if not peer.get("connected"):
        return "bad", "not connected"
    entries = peer.get("lagEntries")
    if entries is None:
        return "behind", "position unknown"
    return ("good", "in sync") if entries == 0 else ("behind", f"{entries:,} entries behind")


def _configured(name: str, rows: Sequence[Row]) -> BrokerGroup:
    """A group whose log is a classic one: the master knows which slaves it feeds, by their ids.

    In controller mode the in-sync set is what the controller has recorded.
    """
    master = next((row for row in rows if row["role"] == "master"), None)
    ha: dict[str, Any] = (master or {}).get("ha") or {}
    fed: list[dict[str, Any]] = ha.get("ha_connection_info") or []
    feeds = {each.get("broker_id"): each for each in fed}
    controller: dict[str, Any] = ha.get("controller") or {}
    in_sync: list[int] | None = controller.get("sync_state_set")
    followers = [Copy(str(row["id"]), "slave", *_state_of_slave(row, feeds, in_sync), row) for row in rows if row is not master]
    leader = None if master is None else Copy(str(master["id"]), "master", *_state_of_master(master), master)
    kind = "controller mode" if controller else "master and slaves" if followers else "one master"
    return BrokerGroup(name, kind, controller.get("master_epoch"), leader, followers)


def _state_of_master(row: Row) -> tuple[State, str]:
    if row["error"]:
        return "bad", "no answer"
    return ("bad", "no slave") if row["waits_in_vain"] else ("good", f"log end {row['log_end']:,}")


def _state_of_slave(row: Row, feeds: Mapping[int | None, Row], in_sync: Sequence[int] | None) -> tuple[State, str]:
    if row["error"]:
        return "bad", "no answer"
    feed = feeds.get(row["id"])
    if feed is None:
        return "bad", "not fed"
    if not (feed.get("in_sync") if in_sync is None else row["id"] in in_sync):
        return "behind", f"{feed.get('diff', 0):,} bytes behind"
    return "good", "in sync" if not feed.get("diff") else f"in sync, {feed['diff']:,} bytes behind"


def nodes_of_group(rows: Sequence[Row], group: BrokerGroup) -> Iterator[tuple[Row, bool]]:
    """The rows of a DLedger group's nodes, each with whether leadership can be handed to it."""
    able = {copy.name for copy in group.followers if copy.role == "follower" and copy.state != "bad"}
    for row in rows:
        if row["broker"] == group.name:
            yield row, group.leader is not None and row["node"] in able
