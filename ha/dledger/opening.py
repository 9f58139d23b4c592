"""Opening a node of a DLedger group: first its files are read, then it takes part in the group."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import trio

from ...world.real import World
from ..classic.files import load_node
from ..errors import UNDER_WHICH_NAME, CorruptHardState
from ..raft.core import Raft
from ..raft.log import RaftLog
from ..raft.quorum import Configuration
from ..raft.ready import HardState
from ..raft.units import FORGOTTEN, TERM_MAX, PeerId
from .java.core import JavaCore
from .java.dialect import JavaDialect
from .ledger.hard_state import HardStateFile, TermAndVote
from .ledger.ledger import Ledger
from .ledger.recovery import open_ledger
from .log_reader import JavaEntryReader, LedgerReader
from .native.dialect import NativeDialect
from .native.group_records import GroupConfiguration
from .replica import Replica
from .settings import JAVA, ReplicaSettings


def load_replica(world: World, settings: ReplicaSettings) -> Replica:
    """Load the node from its files; it sends no messages yet. Blocks.

    Raises:
        WrongSegmentSize, CorruptLedger, CorruptHardState: see these classes. Nothing was changed.
        OSError: the disk failed.
    """
    ledger = open_ledger(world.disk, settings.files)
    try:
        directory = settings.files.directory
        hard_state_file = HardStateFile(world.disk, directory)
        kept = hard_state_file.load()
        if kept is None and not ledger.empty:
            raise _lost_hard_state(hard_state_file)  # noqa: TRY301 - the ledger is closed below
        if (term := max(kept.term if kept is not None else 0, ledger.end_term)) > TERM_MAX:
            raise _impossible_term(hard_state_file, term)  # noqa: TRY301
        node = load_node(world.disk, directory, world.secrets)
        initial = GroupConfiguration(Configuration(tuple(settings.peers)), dict(settings.peers))
        reader = LedgerReader(ledger, initial, world.clock.wall_ms)
        if kept is not None:
            state = HardState(kept.term, PeerId(kept.vote) if kept.vote else None)
        elif settings.dialect == JAVA:
            # Its group may have a leader in term 0, for which it need not vote; its entries without this file would be refused.
            hard_state_file.save(TermAndVote())
            state = HardState()
        else:
            # Either the group starts for the first time or this node has lost its disk; the core finds out which.
            state = HardState(0, FORGOTTEN)
        if settings.dialect == JAVA:
            java = JavaDialect(_java_core(world, settings, ledger, reader, state))
            return Replica(world, settings, ledger, java, java.connect, reader, node, hard_state_file)
        raft = Raft.start(
            settings.self_id,
            settings=attrs.evolve(settings.raft, trust_regressed=not settings.sync),
            reader=reader,
            draw=lambda low, high: low + world.randomness.randrange(high - low + 1),
            log=reader.state(),
            hard_state=state,
            commit_index=ledger.committed_index,
            applied_index=ledger.committed_index,
        )
        native = NativeDialect(raft, settings.tick_seconds)
        return Replica(world, settings, ledger, native, native.connect, reader, node, hard_state_file)
    except BaseException:
        ledger.close()
        raise


def _java_core(world: World, settings: ReplicaSettings, ledger: Ledger, reader: LedgerReader, state: HardState) -> JavaCore:
    log = RaftLog.of(reader.state())
    core = JavaCore(
        settings.self_id,
        reader.initial.configuration,
        settings.java,
        JavaEntryReader(ledger),
        lambda low, high: low + world.randomness.randrange(high - low + 1),
        log,
        max(state.term, log.last_term, 0),
        state.vote if state.term >= log.last_term else None,
        ledger.committed_index,
        ledger.committed_index,
    )
    core.start(state)
    return core


@asynccontextmanager
async def open_replica(world: World, settings: ReplicaSettings) -> AsyncGenerator[Replica]:
    """Run a node of its group inside the block; when the block ends, a leader first transfers its leadership.

    Raises:
        WrongSegmentSize, CorruptLedger, CorruptHardState: see these classes. Nothing was changed.
        OSError: the disk failed, or the port is in use.
    """
    replica = await world.workers.run(load_replica, world, settings)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(replica.run)
            yield replica
            await replica.resign()
            nursery.cancel_scope.cancel()
    finally:
        await replica.close()


def _lost_hard_state(file: HardStateFile) -> CorruptHardState:
    return CorruptHardState(
        f"{file.path} is not there although the node has entries, so it might vote twice in one term. Nothing was changed. "
        f"Put a copy of the file back, or move the whole directory {file.directory} away and let the leader fill the node again"
        f"{UNDER_WHICH_NAME}"
    )


def _impossible_term(file: HardStateFile, term: int) -> CorruptHardState:
    return CorruptHardState(
        f"{file.directory} is in term {term}, to which no number of elections can have led: a forged message or a damaged file "
        "did. Nothing was changed. While the other nodes of the group are a majority, move the whole directory away and let "
        f"the leader fill this node again{UNDER_WHICH_NAME}. If all nodes have such a term, take the one whose log ends last, "
        "run `ledgermq store reset-peers` on it, and start the others with empty stores"
    )
