"""A broker's node of a group whose master a controller elects: a classic node that counts the acknowledgements of a set."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import attrs
import trio

from ...store.config import StoreConfig
from ...store.log.commitlog import CommitLog
from ...world.real import World
from ..classic.acks import Acknowledgements
from ..classic.epochs import EpochList
from ..classic.in_sync import InSyncAcknowledgements
from ..classic.layout import NodeIdentity
from ..classic.node import ClassicNode
from ..classic.settings import HaSettings
from .identity import IdentityFiles

HAND_OVER_SECONDS = 0.5
"""How long a stop waits for the election of another replica."""


@attrs.define(eq=False, repr=False)
class ElectedNode(ClassicNode):
    """Implements `ReplicationNode`; `broker.controller` sets the id, the members and their epoch before it changes the role."""

    own_id: int = 0
    """The broker id that the controller has given this node; 0 until it has."""
    members: frozenset[int] = frozenset()
    """The replicas in sync that the controller confirmed last, the master included."""
    set_epoch: int = 0
    """The epoch of that set."""
    in_sync: InSyncAcknowledgements | None = None
    """The set and its acknowledgements, while this node is master."""
    ask_for_another: Callable[[], Awaitable[None]] | None = None
    """Asks the controller to elect another replica in sync."""
    _settled: bool = False
    """Whether the controller has given this process a role."""
    _moved: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    """Where changes of role wait until more is confirmed, or this node is master no more."""
    clean_stop: bool = False
    """Whether the last run in this store stopped in order, and the controller knows of each crash before it."""

    @property
    def epochs(self) -> EpochList:
        """The epochs of this node's log; empty until it has a role."""
        if self.service is not None:
            return self.service.epochs
        return (self.client.epochs if self.client is not None else None) or EpochList()

    def open_commit_log(self, world: World, config: StoreConfig) -> CommitLog:
        self.clean_stop = not IdentityFiles(world.disk, config.store_path_root_dir).note_crash()
        return super().open_commit_log(world, config)

    @property
    def has_begun(self) -> bool:
        """Whether this node is master and its epoch is written down; no other replica can join before that."""
        last = self.service.epochs.last if self.service is not None else None
        return self.service is not None and last is not None and last.number == self.service.epoch

    @property
    def is_removed(self) -> bool:
        """Whether the controller has given this process no role yet; until then it registers with no name server."""
        return not self._settled

    @property
    def _first_limit(self) -> int | None:
        return 0

    def _acknowledgements(self, settings: HaSettings) -> Acknowledgements:
        self.in_sync = InSyncAcknowledgements(
            replicas=settings.in_sync_replicas,
            gap_max=settings.gap_max,
            own_id=self.own_id,
            members=self.members,
            set_epoch=self.set_epoch,
            log_end=lambda: self._local.max_offset,
            confirmed=self._local.readable_offset,
            limit_readable=self._limit_readable,
            lag_seconds_max=settings.lag_seconds_max,
            all_acknowledge=settings.all_acknowledge,
            members_min=settings.min_in_sync_replicas,
        )
        return self.in_sync

    def _limit_readable(self, limit: int | None) -> None:
        local, checkpoints = self._local, self._store.checkpoints
        if limit == local.readable_limit:
            return
        local.readable_limit = limit
        if checkpoints is not None and limit is not None:
            checkpoints.note_readable()
        for listener in local.on_readable:
            listener()
        self._moved.unpark_all()

    async def prepare_to_lead(self, broker_id: int, *, synchronous: bool, term: int) -> None:
        """Serve the other replicas, and wait until those in sync hold the whole log: only then all of it may be derived.

        One that does not connect leaves the set. Cancellation: the next election cancels it.

        Raises:
            OSError: the epoch cannot be written down, and another replica in sync may lead.
        """
        self._settled = True
        # Before the epoch begins, which has to begin where records do: the others count what they hold by it.
        await self._store.drop_incomplete_record()
        if self._local.readable_limit is not None:
            self._local.readable_limit = min(self._local.readable_limit, self._local.max_offset)
        await super().lead(broker_id, synchronous=synchronous, term=term)
        if not self.has_begun and self._has_successor:
            raise OSError(errno.EIO, f"epoch {term} cannot be written down, and another replica may lead")
        while self.in_sync is not None and not self.in_sync.settled:
            await self._moved.park()

    async def lead(self, broker_id: int, *, synchronous: bool, term: int) -> None:
        """Do nothing: the replicas are served already."""

    async def follow(self, broker_id: int, *, term: int) -> None:
        self._settled = self._settled or term > 0
        await super().follow(broker_id, term=term)

    async def hand_over(self) -> None:
        """Let the controller elect another replica in sync, if there is one, and wait until this node is master no more."""
        if self._has_successor and self.ask_for_another is not None:
            with trio.move_on_after(HAND_OVER_SECONDS):
                await self.ask_for_another()
                while self._has_successor:
                    await self._moved.park()

    @property
    def _has_successor(self) -> bool:
        """Whether this node is master, and another replica may be elected."""
        return self.in_sync is not None and len(self.in_sync.members) > 1

    async def stop(self) -> None:
        self.in_sync = None
        await super().stop()
        self._moved.unpark_all()

    def _identity(self, broker_id: int) -> NodeIdentity:  # noqa: ARG002 - clients know a master by 0, its slaves by its own id
        return super()._identity(self.own_id)
