"""A broker's node of a DLedger group: it takes part in elections and reports the broker's role.

Invariant: the broker becomes master only after everything that earlier leaders committed has been derived here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from ...store.config import StoreConfig
from ...store.errors import LogOfOtherMode, MissingSegment
from ...store.json_file import JsonFile
from ...store.keeping.scrub import CLASSIC, Framing
from ...store.log.commitlog import CommitLog
from ...store.log.divided_log import DividedCommitLog
from ...store.log.local_commitlog import open_local_commit_log
from ...store.log.older_log import OlderLog
from ...store.message_store import MessageStore
from ...world.events import get_logger
from ...world.network import Address
from ...world.real import World
from ..errors import LeadershipLost
from ..raft.errors import Refused
from ..raft.roles import Role
from .commitlog import DLedgerCommitLog
from .ledger.ledger import Ledger
from .offline import ENTRIES
from .opening import load_replica
from .replica import Replica
from .settings import ReplicaSettings
from .status import Leading

log = get_logger(__name__)

OnLeading = Callable[[Leading], Awaitable[None]]
"""Makes the broker assume the role that the group has given it; it is cancelled by the next change."""


@attrs.define(eq=False, repr=False)
class DLedgerNode:
    """A node of a DLedger group; implements `ReplicationNode`."""

    settings: ReplicaSettings
    on_leading: OnLeading | None = None
    """Called with each change, one call at a time; a new change cancels the call that is in progress."""
    replica: Replica = attrs.field(init=False)
    _store: MessageStore = attrs.field(init=False)
    _running: trio.Event = attrs.field(factory=trio.Event)
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def port(self) -> int:
        return self.replica.port or self.settings.port

    @property
    def log_directory(self) -> str:
        return self.settings.files.data

    @property
    def lag_bytes(self) -> int:
        """0: a follower acknowledges what it is sent, and how much more the leader has is only known there."""
        return 0

    @property
    def is_following(self) -> bool:
        leading = self.replica.leading
        return leading.leader is not None and leading.leader != self.settings.self_id

    @property
    def may_vote(self) -> bool:
        """Whether it may help to elect a leader; one that began with an empty disk has to follow a leader first."""
        return not self.replica.core.forgetful

    @property
    def is_removed(self) -> bool:
        """Whether the log names the members of the group, and this node is none; one that has not joined yet has no log."""
        replica = self.replica
        return bool(replica.ledger.configurations) and self.settings.self_id not in replica.core.configuration.members

    async def leads(self) -> bool:
        """Whether a majority confirms now that this node leads; one that was deposed while it hung does not know that yet."""
        try:
            await self.replica.read_index()
        except (Refused, LeadershipLost):
            return False
        return self.is_leader

    def open_commit_log(self, world: World, config: StoreConfig) -> CommitLog:
        self.replica = load_replica(world, self.settings)
        try:
            return self._with_older_log(world, config, DLedgerCommitLog(self.replica, config.sync_flush_timeout / 1000))
        except BaseException:
            self.replica.ledger.close()
            raise

    def _with_older_log(self, world: World, config: StoreConfig, newer: DLedgerCommitLog) -> CommitLog:
        """Return the ledger, after the segments of a classic commit log if the store has some (RocketMQ's divided offset)."""
        replica = self.replica
        replica.reader.may_fill = self._may_fill
        replica.before_clearing.append(self._forget_mark)
        replica.on_cleared.append(self._begun_anew)
        local = open_local_commit_log(world, config)
        if local.empty:
            local.close()
            return newer
        ledger = replica.ledger
        older = OlderLog(local, JsonFile(world.disk, f"{config.store_path_root_dir}/dividedLog.json"))
        try:
            older.load()
            sealed = not ledger.empty or ledger.begin_index > 0
            if sealed:
                _check_adjacent(older, ledger, config)
                if older.end is None:
                    older.identify_again()
        except BaseException:
            local.close()
            raise
        replica.older = older
        replica.before_clearing.append(self._drop_older)
        return DividedCommitLog(newer, older, ledger.continue_from, older.files_end, sealed=sealed)

    async def _drop_older(self) -> None:
        """Remove the older log, because the group has expired the entries that follow it."""
        assert self.replica.older is not None
        self.replica.older.drop()

    async def run(self, store: MessageStore, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Report the changes of role until cancelled. The replica itself runs with the store's log."""
        self._store = store
        store.queue_ends.filled_from = lambda: self.replica.ledger.begin_position
        self.replica.on_role.append(self._role_changed)
        self.replica.on_bulk.append(lambda: store.dispatcher.wake(more_coming=True))
        self._running.set()
        task_status.started()
        reported: Leading | None = None
        while True:
            self._changed = trio.Event()
            leading = self.replica.leading
            if leading != reported and self.on_leading is not None:
                with trio.CancelScope() as self._scope:
                    await self.on_leading(leading)
                # An interrupted change of role must be done again, even if the same role has returned already.
                reported = None if self._scope.cancelled_caught else leading
            if reported == self.replica.leading or self.on_leading is None:
                await self._changed.wait()

    def _may_fill(self) -> bool:
        return self._running.is_set() and not self._store.queue_ends.pending

    def _role_changed(self, _leading: Leading) -> None:
        self._store.queue_ends.pending = True  # once it leads, it reports what it expired as a follower
        self._changed.set()
        self._scope.cancel()

    async def _forget_mark(self) -> None:
        """Remove the recovery mark, so that no later start requires the log that is about to be removed."""
        await self._running.wait()  # the log takes part in the group before `run` gets the store
        await self._store.begin_cut(everything=True)

    def _begun_anew(self) -> None:
        """Drop everything derived from the log: after the missing entries it has gaps that cannot be filled."""
        self._store.drop_everything_derived()

    async def prepare_to_lead(self, broker_id: int, *, synchronous: bool, term: int) -> None:  # noqa: ARG002
        """Wait until everything that earlier leaders committed, and what the group itself has appended, is derived here too.

        Cancellation: the next change of the group's leader cancels it.
        """
        while True:
            try:
                index = await self.replica.read_index()
            except (Refused, LeadershipLost) as error:
                log.debug("leader_not_ready", reason=str(error))
                await trio.sleep(self.settings.tick_seconds)
                continue
            ledger = self.replica.ledger
            while ledger.committed_index < index or self._store.dispatch_behind_bytes:
                self._store.dispatcher.catch_up()
                await trio.sleep(self.settings.tick_seconds)
            return

    def framing_at(self, offset: int) -> Framing:
        older = self.replica.older
        return CLASSIC if older is not None and offset < older.files_end else ENTRIES

    def mend(self, offset: int) -> bool:
        return self.framing_at(offset) is ENTRIES and self.replica.mend(offset)

    async def hand_over(self) -> None:
        """Transfer leadership before a stop, if another node can take it."""
        await self.replica.resign()

    async def lead(self, broker_id: int, *, synchronous: bool, term: int) -> None:
        """Do nothing, because the group elects its leader."""

    async def follow(self, broker_id: int, *, term: int) -> None:
        """Do nothing, because the group elects its leader."""

    async def stop(self) -> None:
        """Do nothing, because the node is a member of its group in every role."""

    def set_master(self, master: Address | None) -> None:
        """Do nothing, because the group knows its leader."""

    @property
    def is_leader(self) -> bool:
        return self.replica.leading.role is Role.LEADER


def _check_adjacent(older: OlderLog, ledger: Ledger, config: StoreConfig) -> None:
    """Raise an error if the older log does not end where the ledger begins.

    Raises:
        LogOfOtherMode: both have messages at the same offsets.
        MissingSegment: files are missing between the two.
    """
    begin, end = ledger.begin_position, older.files_end
    if end > begin:
        raise LogOfOtherMode(older.local.segments.files[-1].path, dledger=False)
    if end < begin:
        raise MissingSegment(config.commit_log_directory, end, begin)
