"""What must hold in every group at every moment, checked from outside the nodes.

Each method is one property of the Raft paper (Figure 3) or one promise of ours, and appends a sentence to `violations` when it
does not hold. The checker sees all disks, all logs and every answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from ledgermq.ha.raft.core import Raft
from ledgermq.ha.raft.quorum import Configuration, majority
from ledgermq.ha.raft.units import LogIndex, PeerId, Term

from .node import Node
from .storage import Entry


@attrs.define(eq=False)
class Checker:
    """What is known of one group from outside, and the violations found."""

    violations: list[str] = attrs.field(factory=list[str])
    leaders: dict[Term, PeerId] = attrs.field(factory=dict[Term, PeerId])
    committed: list[Entry] = attrs.field(factory=list[Entry])
    """Every committed entry, by index."""
    commit_terms: list[Term] = attrs.field(factory=list[Term])
    """The term of the leader that committed each entry of `committed`."""
    written: dict[tuple[LogIndex, Term], tuple[Entry, Term]] = attrs.field(
        factory=dict[tuple[LogIndex, Term], tuple[Entry, Term]]
    )
    """Every entry that was ever in a log, with the term of the entry before it."""
    acknowledged_index: LogIndex = -1
    """Everything up to this index was acknowledged to a client or returned to a reader."""

    def expect(self, holds: bool, claim: str) -> None:
        if not holds:
            self.violations.append(claim)

    # ---------------------------------------------------------------- claims

    def election_safety(self, node: Node) -> None:
        """At most one leader can be elected in a given term, and it has all entries that were committed in earlier terms."""
        raft = node.raft
        if raft.leadership is None or self.leaders.get(raft.term) == node.id:
            return
        other = self.leaders.setdefault(raft.term, node.id)
        self.expect(other == node.id, f"{other} and {node.id} both lead term {raft.term}")
        self.leader_completeness(node)

    def leader_completeness(self, node: Node) -> None:
        """If an entry is committed in a term, it is present in the logs of the leaders of all later terms."""
        raft = node.raft
        for index in range(raft.log.boundary_index + 1, len(self.committed)):
            if self.commit_terms[index] < raft.term:
                term = raft.log.term_at(index)
                expected = self.committed[index][0]
                self.expect(
                    term == expected,
                    f"{node.id} leads term {raft.term} without entry {index} of term {expected}, which was committed in term "
                    f"{self.commit_terms[index]} (it has term {term} there)",
                )

    def log_matching(self, node: Node, first_index: LogIndex) -> None:
        """Entries of the same index and term are the same, and so are the entries before them."""
        storage = node.storage
        for index in range(max(first_index, storage.boundary[0] + 1), storage.last_index + 1):
            entry = storage.entry(index)
            previous = storage.boundary[1] if index == storage.boundary[0] + 1 else storage.entry(index - 1)[0]
            known = self.written.setdefault((index, entry[0]), (entry, previous))
            self.expect(
                known == (entry, previous),
                f"{node.id} has {entry} behind term {previous} at index {index}, elsewhere {known[0]} behind {known[1]}",
            )

    def state_machine_safety(self, node: Node, first_index: LogIndex, last_index: LogIndex, expected: LogIndex) -> None:
        """Nodes apply the same entry at the same index, each entry once and in order."""
        self.expect(
            first_index == expected, f"{node.id} applies {first_index} to {last_index}, but {expected} would be the next entry"
        )
        for index in range(first_index, last_index + 1):
            entry = node.storage.entry(index)
            if index < len(self.committed):
                self.expect(
                    self.committed[index] == entry,
                    f"{node.id} applies {entry} at index {index}, but {self.committed[index]} is committed there",
                )
            elif index == len(self.committed):
                self.committed.append(entry)
                self.commit_terms.append(node.raft.term)
            else:
                self.expect(
                    False, f"{node.id} applies index {index}, but only {len(self.committed)} entries were ever committed"
                )
                return

    def snapshot_safety(self, node: Node, last_index: LogIndex, last_term: Term) -> None:
        """A snapshot replaces committed entries only."""
        self.expect(
            last_index < len(self.committed) and (last_index < 0 or self.committed[last_index][0] == last_term),
            f"{node.id} installs a snapshot of entry {last_index} of term {last_term}, which is not committed",
        )

    def majority_stores(
        self, nodes: Mapping[PeerId, Node], configuration: Configuration, index: LogIndex, term: Term, who: PeerId
    ) -> None:
        """An acknowledged entry is synced on the disks of a majority, in a joint configuration of both majorities."""
        for voters in filter(None, (configuration.voters, configuration.outgoing)):
            holders = [voter for voter in voters if _stores(nodes[voter], index, term)]
            self.expect(
                len(holders) >= majority(len(voters)),
                f"{who} acknowledges entry {index} of term {term}, which only {holders} of {list(voters)} have synced",
            )
        self.acknowledged_index = max(self.acknowledged_index, index)

    def read_is_linearizable(self, node: Node, floor: LogIndex, index: LogIndex) -> None:
        """A read sees everything that was acknowledged or returned to any reader before it began, and nothing uncommitted."""
        self.expect(
            index >= floor, f"{node.id} answers a read with index {index}, but {floor} was acknowledged before it began"
        )
        self.expect(index < len(self.committed), f"{node.id} answers a read with index {index}, which is not committed")
        self.acknowledged_index = max(self.acknowledged_index, index)

    def invariants(self, node: Node) -> None:
        """The inequalities that always hold between the fields of the core."""
        raft: Raft = node.raft
        log = raft.log
        self.expect(
            log.boundary_index <= log.durable_index <= log.written_index <= log.handed_index <= log.last_index,
            f"{node.id}: boundary {log.boundary_index}, durable {log.durable_index}, written {log.written_index}, "
            f"handed out {log.handed_index}, last {log.last_index}",
        )
        if raft.snapshot is None and log.durable_index > log.boundary_index:
            found, expected = node.storage.synced_entry(log.durable_index), log.term_at(log.durable_index)
            self.expect(
                found is not None and found[0] == expected,
                f"{node.id} takes index {log.durable_index} of term {expected} for durable, but its disk has {found}",
            )
        self.expect(
            raft.applied_index <= raft.commit_index <= raft.verified_index <= log.last_index,
            f"{node.id}: applied {raft.applied_index}, committed {raft.commit_index}, verified {raft.verified_index}, "
            f"last {log.last_index}",
        )

    def nothing_is_lost(self, nodes: Iterable[Node]) -> None:
        """After all faults have ended, every member has applied everything that was acknowledged."""
        for node in nodes:
            applied = node.last_applied
            self.expect(
                applied >= self.acknowledged_index,
                f"{node.id} has applied {applied} after healing, but {self.acknowledged_index} was acknowledged",
            )


def _stores(node: Node, index: LogIndex, term: Term) -> bool:
    """Whether the disk of a node has the entry, or a disk that it has lost had it."""
    return any(
        index <= storage.boundary[0] or ((entry := storage.synced_entry(index)) is not None and entry[0] == term)
        for storage in (node.storage, *node.lost)
    )
