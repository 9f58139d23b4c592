"""Abandoning the lost majority of a group: one remaining node becomes the only voter of its ledger (JRaft `resetPeer`).

No other voter takes part, so this is only for groups whose other voters are lost permanently. Entries that only they had are
lost, and a voter that returned would form a second group of the same name. The node must not run.
"""

from __future__ import annotations

import posixpath
import struct

import attrs

from ...message.numbers import is_digits
from ...world.address import Address
from ...world.disk import Disk
from ...world.randomness import Randomness
from ..errors import NoSuchNode
from ..raft.quorum import Configuration
from ..raft.units import TERM_LEAD_MAX, TERM_MAX, LogIndex, PeerId, Term
from .ledger.checkpoint import CheckpointFile
from .ledger.hard_state import HardStateFile, TermAndVote
from .ledger.layout import CHANNEL_CONFIGURATION, ENTRY, INDEX, INDEX_FILE_SIZE, INDEX_SIZE
from .ledger.ledger import Ledger
from .ledger.recovery import LedgerFiles, open_ledger
from .native.group_records import GroupConfiguration, configuration_record, new_group_id, read_configuration

DIRECTORY_PREFIX = "dledger-"
_TERM = struct.Struct(">q")


@attrs.frozen
class NodeLeft:
    """The state of a remaining node that an operator needs to know."""

    peer: PeerId
    term: Term
    end_index: int
    committed_index: int
    """The last entry known to be committed; later ones may have been committed too."""
    configuration: Configuration | None
    """The newest configuration in the log; None if the group still has the members of `dLegerPeers`."""


def look_at_node(disk: Disk, root: str, peer: str | None = None, data_directory: str = "") -> NodeLeft:
    """Read the state of a node from its files; the node must not run.

    Args:
        root: the store (storePathRootDir).
        peer: the node's id; it may be None if the store has only one ledger.
        data_directory: storePathDLedgerCommitLog, if that is another one than when the node last ran.

    Raises:
        NoSuchNode: the store has no ledger of that node, or several and `peer` is None.
        CorruptLedger, CorruptHardState, WrongSegmentSize, OSError: as when the node starts.
    """
    name = _node_of(disk, root, peer)
    ledger = _open(disk, root, name, data_directory)
    try:
        return _look(ledger, name, HardStateFile(disk, f"{root}/{DIRECTORY_PREFIX}{name}").load())
    finally:
        ledger.close()


def reset_peers(
    disk: Disk,
    root: str,
    left: NodeLeft,
    address: Address,
    wall_ms: int,
    data_directory: str = "",
    *,
    secrets: Randomness,
) -> None:
    """Append a configuration in which the node is the only voter, in a new term, and make it durable. Blocks.

    Args:
        left: the result of `look_at_node`.
        address: the address where the node listens for nodes that will join it.
        wall_ms: the current time by the wall clock.
        secrets: the new id of the group comes from it, by which the former nodes are refused with their old stores.

    Raises:
        OSError: the disk failed; the operation may be repeated.
    """
    directory = f"{root}/{DIRECTORY_PREFIX}{left.peer}"
    ledger = _open(disk, root, left.peer, data_directory)
    try:
        _lower_impossible_terms(ledger)
        term = left.term + 1
        HardStateFile(disk, directory).save(TermAndVote(term, left.peer))
        group = GroupConfiguration(Configuration((left.peer,)), {left.peer: address}, new_group_id(secrets))
        ledger.append(term, [configuration_record(group, wall_ms)], channel=CHANNEL_CONFIGURATION)
        end = ledger.end
        ledger.force(ledger.synced_position, end.position)
        ledger.reached(end)
        ledger.write_checkpoint()
    finally:
        ledger.close()


def _node_of(disk: Disk, root: str, peer: str | None) -> PeerId:
    found = [name.removeprefix(DIRECTORY_PREFIX) for name in disk.list_directory(root) if name.startswith(DIRECTORY_PREFIX)]
    if peer is None and len(found) == 1:
        return PeerId(found[0])
    if peer not in found:
        raise NoSuchNode(
            f"{root} holds ledgers of {', '.join(found)}: say whose with --node"
            if found and peer is None
            else f"{root} holds no ledger of {peer or 'any node'}: is this the storePathRootDir of a node of a DLedger group?"
        )
    return PeerId(peer)


def _open(disk: Disk, root: str, peer: PeerId, data_directory: str) -> Ledger:
    directory = f"{root}/{DIRECTORY_PREFIX}{peer}"
    data_directory = data_directory or CheckpointFile(disk, directory).load().data_directory
    data = data_directory or f"{directory}/data"
    files = [name for name in disk.list_directory(data) if is_digits(name)]
    if not files:
        raise NoSuchNode(f"{data} holds no entries: a node without any can be started with itself alone in dLegerPeers")
    index = [name for name in disk.list_directory(f"{directory}/index") if is_digits(name)]
    index_size = disk.size(f"{directory}/index/{index[0]}") if index else INDEX_FILE_SIZE
    size = disk.size(posixpath.join(data, files[0]))
    return open_ledger(disk, LedgerFiles(directory, size, index_size, data_directory=data_directory))


def _look(ledger: Ledger, peer: PeerId, kept: TermAndVote | None) -> NodeLeft:
    newest = ledger.configurations[-1:]
    possible, _ = _possible_end_term(ledger)
    kept_term = kept.term if kept is not None else 0
    return NodeLeft(
        peer,
        max(kept_term if kept_term <= possible + TERM_LEAD_MAX else 0, possible),
        ledger.end_index,
        ledger.committed_index,
        read_configuration(newest[0][1]).configuration if newest else None,
    )


def _possible_end_term(ledger: Ledger) -> tuple[Term, LogIndex | None]:
    """The term of the last entry, and the first entry whose term no number of elections can have led to, if there is one.

    The entries from there on get the term that follows those before them.
    """
    last = max(ledger.terms.before, 0) if ledger.terms.before <= TERM_MAX else 0
    for index, term in ledger.terms.runs(ledger.begin_index, ledger.end_index):
        if term > TERM_MAX:
            return last + 1, index
        last = term
    return last, None


def _lower_impossible_terms(ledger: Ledger) -> None:
    """Replace the terms above `TERM_MAX`, behind which no further term would fit. Terms ascend while this goes on, too."""
    term, first = _possible_end_term(ledger)
    if first is None:
        return
    for index in range(first, ledger.end_index + 1):
        position, _ = ledger.place_of(index)
        for files, at in (
            (ledger.data, position + ENTRY.offsets["term"]),
            (ledger.index, index * INDEX_SIZE + INDEX.offsets["term"]),
        ):
            segment = files.find(at)
            assert segment is not None
            files.own(segment)
            segment.file.write(_TERM.pack(term), at - segment.start)
    ledger.data.sync(ledger.place_of(first)[0], ledger.end_position)
    ledger.index.sync(first * INDEX_SIZE, (ledger.end_index + 1) * INDEX_SIZE)
    ledger.terms.truncate(first)
    ledger.terms.add(first, term)
    ledger.write_checkpoint()
