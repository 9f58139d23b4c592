"""One node of a classic broker group: a master with its HA service or a slave with its client, as its role changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from ...store.config import StoreConfig
from ...store.errors import LogOfOtherMode
from ...store.keeping.scrub import CLASSIC, Framing
from ...store.log.commitlog import CommitLog
from ...store.log.local_commitlog import LocalCommitLog, open_local_commit_log
from ...store.message_store import MessageStore
from ...world.network import Address
from ...world.real import World
from .acks import Acknowledgements
from .commitlog import ClassicCommitLog, classic_log
from .files import EpochFile, load_node
from .layout import NodeIdentity
from .master import HAService
from .settings import HaSettings
from .slave import HAClient

ENDS_RETRY_SECONDS = 1.0
"""The pause before a master whose log has refused the ends of queues tries to append them again."""


async def _nothing_to_write(_offset: int) -> None:
    await trio.lowlevel.checkpoint()


@attrs.define(eq=False, repr=False)
class StoreFollower:
    """A message store behind the `Follower` interface."""

    store: MessageStore
    log: LocalCommitLog
    before_cut: Callable[[int], Awaitable[None]]

    def log_grew(self, *, more: bool) -> None:
        self.store.dispatcher.wake(more_coming=more)

    def tail_seconds(self, start: int) -> float:
        first = next((parts[5] for _, parts in self.log.records(start, self.log.max_offset) if parts is not None), None)
        # If deriving is behind, the last timestamp is older than the last record, and the tail seems shorter than it is.
        return max(self.store.dispatcher.last_store_timestamp - first, 0) / 1000 if first is not None else 0.0

    def limit_readable(self, readable: int) -> None:
        # The limit is at most the end of our log: behind it, a master that lost power may send other bytes than it announced.
        readable = min(readable, self.log.max_offset)
        if readable != self.log.readable_limit:
            self.log.readable_limit = readable
            if self.store.checkpoints is not None:
                self.store.checkpoints.note_readable()
            self.store.dispatcher.wake()

    async def cut(self, offset: int) -> None:
        await self.before_cut(offset)
        self._lower_limit(offset)
        await self.store.cut(offset)

    async def clear(self) -> None:
        await self.before_cut(0)
        self._lower_limit(0)
        await self.store.clear()

    def _lower_limit(self, end: int) -> None:
        if self.log.readable_limit is not None:
            self.log.readable_limit = min(self.log.readable_limit, end)


@attrs.define(eq=False, repr=False)
class ClassicNode:
    """A node of a classic group; implements `ReplicationNode`."""

    world: World
    settings: HaSettings
    cluster: str
    broker_name: str
    service: HAService | None = None
    """The HA service, while the node is a running master."""
    client: HAClient | None = None
    """The HA client, while the node is a running slave."""
    on_following: Callable[[], None] = lambda: None
    """Called when the node begins to follow a master's log. Must do no I/O."""
    before_cut: Callable[[int], Awaitable[None]] = _nothing_to_write
    """Called with the physical offset from which on a slave's log is about to be cut; it may read the log."""
    _log: ClassicCommitLog = attrs.field(init=False)
    _local: LocalCommitLog = attrs.field(init=False)
    _store: MessageStore = attrs.field(init=False)
    _epoch_file: EpochFile = attrs.field(init=False)
    _node: bytes = b""
    """The identity of this node."""
    _nursery: trio.Nursery = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _ended: trio.Event | None = None
    """Set when the active role has ended; None while no role is active."""
    _master: Address | None = None
    _ends_wanted_from: int = -1
    """The last offset from which on a slave was sent the log while that may not have the ends of all queues; -1 if none was."""

    @property
    def is_removed(self) -> bool:
        """False: a classic group has no list of members."""
        return False

    @property
    def leads(self) -> None:
        """None: a classic group has no elections."""
        return None

    @property
    def log_directory(self) -> str:
        """Empty: the log is a local one."""
        return ""

    def framing_at(self, offset: int) -> Framing:  # noqa: ARG002 - see `ReplicationNode`
        return CLASSIC

    def mend(self, offset: int) -> bool:  # noqa: ARG002 - see `ReplicationNode`
        """Replace nothing: a slave's copy proves no more than the master's own, and neither protocol asks for one."""
        return False

    @property
    def port(self) -> int:
        return self.service.port if self.service is not None else self.settings.listen_port

    @property
    def lag_bytes(self) -> int:
        """How many bytes a slave's log is behind the last known end of its master's; 0 on a master."""
        return self.client.lag_bytes if self.client is not None else 0

    @property
    def is_following(self) -> bool:
        return self.client is not None and self.client.joined_at is not None

    def open_commit_log(self, world: World, config: StoreConfig) -> CommitLog:
        root = config.store_path_root_dir
        for name in world.disk.list_directory(root):
            if name.startswith("dledger-") and world.disk.list_directory(f"{root}/{name}/data"):
                raise LogOfOtherMode(f"{root}/{name}/data", dledger=True)
        self._local = open_local_commit_log(world, config)
        self._local.readable_limit = self._first_limit
        self._log = classic_log(self._local, self.settings, self.world.clock)
        return self._log

    @property
    def _first_limit(self) -> int | None:
        """The readable limit of a log that is being opened: 0 for a slave, whose master sets it, and none for a master."""
        return 0 if self.settings.slave and not self.settings.bare else None

    def set_master(self, master: Address | None) -> None:
        self._master = master
        if self.client is not None:
            self.client.follow(master)

    async def run(self, store: MessageStore, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `ReplicationNode.run`.

        Raises:
            OSError: the HA port is taken, or a file beside the log cannot be read or written.
            CorruptEpochs: see there.
        """
        world, root = self.world, store.config.store_path_root_dir
        self._node = await world.workers.run(load_node, world.disk, root, world.secrets)
        self._epoch_file, self._store = EpochFile(world.disk, root, rocketmq=self.settings.autoswitch), store
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def prepare_to_lead(self, broker_id: int, *, synchronous: bool, term: int) -> None:  # noqa: ARG002 - see the interface
        """Let consumers read the whole log, because no master limits it any more."""
        self._local.readable_limit = None

    async def hand_over(self) -> None:
        """Do nothing: a classic group has no elections."""

    def _acknowledgements(self, settings: HaSettings) -> Acknowledgements:
        """The acknowledgements of a master that begins under these settings."""
        return Acknowledgements(settings.replicas, settings.gap_max)

    async def lead(self, broker_id: int, *, synchronous: bool, term: int) -> None:
        world, log = self.world, self._log
        settings = attrs.evolve(self.settings, sync_master=synchronous, slave=False)
        log.lead(settings, self._acknowledgements(settings))
        self.service = service = HAService(
            log,
            world.disk,
            world.network,
            world.clock,
            world.workers,
            world.secrets,
            settings,
            self._identity(broker_id),
            self._epoch_file,
            log.acks,
            epoch=term or None,
        )
        log.on_appended, log.on_awaited = service.log_grew, service.transfer_now
        service.on_fresh_slave, service.on_refusal = self._append_queue_ends, log.refuse
        self._local.on_readable.append(service.log_grew)
        await self._begin(service.run)

    def _append_queue_ends(self, start: int) -> None:
        """Report the ends of queues whose messages are all before `start`, for a slave that gets the log from there on.

        Without them it would give their offsets out again as master. So they are appended as soon as the log takes them.
        """
        idle = self._ends_wanted_from < 0
        self._ends_wanted_from = max(self._ends_wanted_from, start)  # a log that begins earlier lacks no others
        if idle:
            self._nursery.start_soon(self._append_wanted_ends)

    async def _append_wanted_ends(self) -> None:
        while (start := self._ends_wanted_from) >= 0:
            if not await self._store.queue_ends.append(start):
                await trio.sleep(ENDS_RETRY_SECONDS)
            elif self._ends_wanted_from == start:
                self._ends_wanted_from = -1

    async def follow(self, broker_id: int, *, term: int) -> None:
        world = self.world
        if not self.settings.bare and self._local.readable_limit is None:  # a bare master sends no limit
            self._local.readable_limit = self._local.readable_offset
        self.client = HAClient(
            StoreFollower(self._store, self._local, self.before_cut),
            world.network,
            world.clock,
            world.workers,
            world.secrets,
            self.settings,
            self._identity(broker_id),
            self._epoch_file,
            epoch_min=term,
            on_joined=self.on_following,
        )
        self.client.follow(self._master)
        await self._begin(self.client.run)

    async def stop(self) -> None:
        self._scope.cancel()
        if self._ended is not None:
            await self._ended.wait()
        self._log.stop_leading()
        if self.service is not None:
            self._local.on_readable.remove(self.service.log_grew)
        self.service, self.client, self._ended, self._ends_wanted_from = None, None, None, -1

    async def _begin(self, run: Callable[..., Awaitable[None]]) -> None:
        """Start a role.

        Cancellation: nothing was started. A stop of the broker may have ended the nursery while a change of role was under way.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._nursery.start(self._run_role, run)

    async def _run_role(
        self, run: Callable[..., Awaitable[None]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        try:
            with self._scope:
                await run(task_status=task_status)
        finally:
            self._ended.set()

    def _identity(self, broker_id: int) -> NodeIdentity:
        return NodeIdentity(self.cluster, self.broker_name, broker_id, self._node)
