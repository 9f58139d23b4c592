"""A DLedger group of whole brokers, observed from outside: which node leads, what is committed, what is on the media.

The watch sends no requests: it compares what each node commits with what any node has committed at the same position before
(Raft: election safety, log matching, leader completeness, state-machine safety), also after restarts.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.dledger import DLedgerReplication, replica_settings
from ledgermq.ha.dledger.replica import Replica
from ledgermq.ha.dledger.status import Leading
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.units import PeerId
from ledgermq.testing.history import Put

from .scene import Node, Scene

HEAD_BYTES = 200
"""The number of a message is within this many first bytes of its record."""
HEALED_PAUSE_SECONDS = 0.5
"""The shortest pause of a client once all faults have ended: the run then only waits, and every operation costs real time."""
ASKED_ELSEWHERE = 0.1
"""The share of requests that an administrator sends to any node instead of the leader."""


def replica_of(broker: Broker) -> Replica:
    """The Raft node of a broker."""
    assert isinstance(broker.replication, DLedgerReplication)
    return broker.replication.node.replica


def peer_of(node: Node) -> PeerId:
    """The name of a node in its group."""
    return replica_settings(node.config).self_id


@attrs.define(eq=False)
class GroupWatch:
    """What has been observed of one group, and the violations of Raft's properties found in it."""

    segment_size: int
    newest_term: int = 0
    """The newest term that a node was elected in."""
    on_change: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    """Functions that are called when a node begins or ceases to lead."""
    elections: int = 0
    violations: list[str] = attrs.field(factory=list[str])
    leaders: dict[int, str] = attrs.field(factory=dict[int, str])
    """The host that was elected in each term."""
    _committed: dict[int, bytearray] = attrs.field(factory=dict[int, bytearray])
    """The committed part of each data file, by the position where the file begins."""

    def follow(self, host: str, replica: Replica) -> None:
        """Watch a node that has just started, beginning with what it has committed already."""
        view = _View(self, host, replica)
        replica.on_role.append(view.role_changed)
        replica.on_committed.append(view.committed)
        replica.on_cleared.append(view.cleared)
        view.compare(replica.ledger.committed_position)
        if replica.is_leader:  # it may have been elected while its broker started
            view.role_changed(replica.leading)

    def elected(self, host: str, term: int) -> None:
        """Record an election; a term has at most one leader."""
        known = self.leaders.setdefault(term, host)
        if known != host:
            self._found(f"{known} and {host} were both elected in term {term}")
        self.newest_term = max(self.newest_term, term)
        self.elections += 1

    def compare(self, host: str, start: int, found: memoryview) -> None:
        """Compare committed bytes of one file with those that were committed there before, and record new ones."""
        base = start - start % self.segment_size
        known = self._committed.setdefault(base, bytearray())
        at = start - base
        both = min(len(known) - at, len(found))
        if both < 0:
            # The bytes between were not observed, as the nodes that committed them are gone. They are compared when another
            # node commits them.
            return
        if bytes(known[at : at + both]) != bytes(found[:both]):
            first = next(n for n in range(both) if known[at + n] != found[n])
            self._found(f"{host} commits other bytes at position {start + first} than were committed there before")
            return
        known += found[both:]

    def _found(self, violation: str) -> None:
        if violation not in self.violations:
            self.violations.append(violation)


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
class GroupScene(Scene):
    """The machines of one group and of its clients. The master is the node that leads, or led last."""

    watch: GroupWatch = attrs.field(kw_only=True)
    voters_min: int = attrs.field(kw_only=True)
    """The number of nodes with which the group begins; it never has fewer voters."""
    _last: Node | None = None

    @property
    def leader(self) -> Node | None:
        """The node that accepts messages and was elected in the newest term with a leader; None while there is none."""
        for node in self.nodes:
            broker = node.broker
            if broker is None or not broker.role.takes_puts:
                continue
            if replica_of(broker).leading.term == self.watch.newest_term:
                self._last = node
                return node
        return None

    @property
    def master(self) -> Node:
        return self.leader or self._last or self.nodes[0]

    @property
    def slaves(self) -> list[Node]:
        leader = self.leader
        return [node for node in self.members if node is not leader]

    @property
    def copying(self) -> list[Node]:
        return []  # offsets come through the log and are not copied at intervals

    @property
    def serving(self) -> Broker | None:
        leader = self.leader
        return leader.broker if leader is not None else None

    def is_master(self, node: Node) -> bool:
        return node is self.leader

    def pause_seconds(self, share: float) -> float:
        pause = super().pause_seconds(share)
        return max(pause, HEALED_PAUSE_SECONDS) if self.healed else pause

    def read_seconds(self) -> float:
        return 5 * super().read_seconds()

    @property
    def asked(self) -> Node:
        return self.rng.choice(self.nodes) if self.rng.random() < ASKED_ELSEWHERE else self.master

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
        """How many disks durably have the message, including those of machines without power."""
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

    async def until_led(self, seconds: float) -> Node:
        """Wait for a leader.

        Raises:
            AssertionError: there was no leader in that time.
        """
        with trio.move_on_after(seconds):
            while self.leader is None:  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.01)
        leader = self.leader
        assert leader is not None, f"no node has led for {seconds} s without faults"
        return leader
