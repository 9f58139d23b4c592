"""A DLedger group of whole brokers, observed from outside: which node leads, what is committed, what is on the media.

The watch sends no requests: it compares what each node commits with what any node has committed at the same position before
(Raft: election safety, log matching, leader completeness, state-machine safety), also after restarts.
"""

from __future__ import annotations

from math import inf

import attrs

from ledgermq.broker.broker import Broker
from ledgermq.broker.modes.dledger import DLedgerReplication, replica_settings
from ledgermq.ha.dledger.replica import Replica
from ledgermq.ha.dledger.status import Leading
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.units import PeerId
from ledgermq.testing.history import Put

from .elections import ElectingScene, ElectionWatch
from .scene import Node

HEAD_BYTES = 200
"""The number of a message is within this many first bytes of its record."""


def replica_of(broker: Broker) -> Replica:
    """The Raft node of a broker."""
    assert isinstance(broker.replication, DLedgerReplication)
    return broker.replication.node.replica


def peer_of(node: Node) -> PeerId:
    """The name of a node in its group."""
    return replica_settings(node.config).self_id


@attrs.define(eq=False)
class GroupWatch(ElectionWatch):
    """What has been observed of one group, and the violations of Raft's properties found in it."""

    def follow(self, host: str, replica: Replica) -> None:
        """Watch a node that has just started, beginning with what it has committed already."""
        view = _View(self, host, replica)
        replica.on_role.append(view.role_changed)
        replica.on_committed.append(view.committed)
        replica.on_cleared.append(view.cleared)
        view.compare(replica.ledger.committed_position)
        if replica.is_leader:  # it may have been elected while its broker started
            view.role_changed(replica.leading)


@attrs.define(eq=False)
class _View:
    """The observation of one life of one node."""

    watch: GroupWatch
    host: str
    replica: Replica
    led: bool = False
    position: int = 0
    """The position up to which its committed bytes have been compared."""

    def role_changed(self, leading: Leading) -> None:
        leads = leading.role is Role.LEADER
        if leads:
            self.watch.elected(self.host, leading.term)
        if leads or self.led:
            for notify in self.watch.on_change:
                notify()
        self.led = leads

    def committed(self, _index: int, position: int) -> None:
        self.compare(position)

    def cleared(self) -> None:
        self.position = self.replica.ledger.begin_position

    def compare(self, position: int) -> None:
        ledger = self.replica.ledger
        start = max(self.position, ledger.begin_position)
        for segment in ledger.data.files:
            first, end = max(start, segment.start), min(position, segment.start + segment.wrote)
            if first < end:
                self.watch.compare(self.host, first, segment.view[first - segment.start : end - segment.start])
        self.position = position


@attrs.define(eq=False)
class GroupScene(ElectingScene):
    """The machines of one DLedger group and of its clients."""

    watch: GroupWatch = attrs.field(kw_only=True)
    voters_min: int = attrs.field(kw_only=True)
    """The number of nodes with which the group begins; it never has fewer voters."""
    disk_lost_at: float = -inf
    """When a node last lost its disk for good."""

    def find_leader(self) -> Node | None:
        for node in self.nodes:
            broker = node.broker
            if broker is not None and broker.role.takes_puts and replica_of(broker).leading.term == self.watch.newest_term:
                return node
        return None

    @property
    def members(self) -> list[Node]:
        """The nodes that are members of the group in its leader's configuration; empty while there is no leader."""
        leader = self.leader
        if leader is None or leader.broker is None:
            return []
        members = replica_of(leader.broker).core.configuration.members
        return [node for node in self.nodes if peer_of(node) in members]

    def dispensable(self) -> list[Node]:
        """The voters, if any one of them may be lost for good now: all run and have synced what is committed. Else empty."""
        leader = self.leader
        if leader is None or leader.broker is None:
            return []
        replica = replica_of(leader.broker)
        configuration, committed = replica.core.configuration, replica.ledger.committed_index
        voters = [node for node in self.nodes if configuration.votes(peer_of(node))]
        brokers = [node.broker for node in voters if node.broker is not None]
        whole = len(brokers) == len(configuration.voters) and not configuration.joint
        return voters if whole and all(replica_of(one).ledger.synced_index >= committed for one in brokers) else []

    def copies(self, put: Put) -> int | None:
        """How many disks durably have the message, including those without power; None if one was lost meanwhile."""
        if self.disk_lost_at >= put.sent_at:
            return None
        return sum(self._is_on_medium(node, put) for node in self.nodes)

    def _is_on_medium(self, node: Node, put: Put) -> bool:
        files = replica_settings(node.config).files
        disk, start = node.machine.disk, put.physical_offset - put.physical_offset % files.data_file_size
        path, at = f"{files.data}/{start:020d}", put.physical_offset - start
        with disk.no_faults():
            if not disk.exists(path):  # it may have expired, as only what was synced does
                return min(disk.list_directory(files.data), default="") > path.rpartition("/")[2]
            head = disk.open(path, read_only=True).read(at, HEAD_BYTES)
        return b"%d;" % put.number in head and disk.is_durable(path, at, int.from_bytes(head[:4], "big"))
