"""One node of a classic broker group, as the broker starts it: the log around the local one, then the HA service or the client.

Order: `open_commit_log` while the store is being opened; `run` once it is open, for an epoch begins at the recovered end of the
log.
"""

from __future__ import annotations

import attrs
import trio

from ...store.commitlog import CommitLog
from ...store.config import StoreConfig
from ...store.local_commitlog import LocalCommitLog, open_local_commit_log
from ...store.message_store import MessageStore
from ...world.network import Address
from ...world.real import World
from .commitlog import ClassicCommitLog, classic_log
from .files import EpochFile, load_node
from .layout import NodeIdentity
from .master import HAService
from .settings import OURS, HaSettings
from .slave import HAClient


@attrs.define(eq=False)
class StoreFollower:
    """A message store behind the `Follower` interface."""

    store: MessageStore
    log: LocalCommitLog

    def log_grew(self, *, more: bool) -> None:
        self.store.dispatcher.wake(more_coming=more)

    def may_show(self, readable: int) -> None:
        # Only of what is here: behind it, a master that has lost power may send other bytes than those it spoke of.
        readable = min(readable, self.log.max_offset)
        if readable != self.log.readable_limit:
            self.log.readable_limit = readable
            self.store.dispatcher.wake()

    async def cut(self, offset: int) -> None:
        self._lower_limit(offset)
        await self.store.cut(offset)

    async def clear(self) -> None:
        self._lower_limit(0)
        await self.store.clear()

    def _lower_limit(self, end: int) -> None:
        if self.log.readable_limit is not None:
            self.log.readable_limit = min(self.log.readable_limit, end)


@attrs.define(eq=False)
class ClassicNode:
    """A master or a slave."""

    world: World
    settings: HaSettings
    cluster: str
    broker_name: str
    broker_id: int
    slave: bool
    service: HAService | None = None
    """On a master that runs."""
    client: HAClient | None = None
    """On a slave that runs."""
    _log: ClassicCommitLog | None = None
    _local: LocalCommitLog | None = None
    _master: Address | None = None

    def open_commit_log(self, world: World, config: StoreConfig) -> CommitLog:
        """Open the log that the store is to use: a slave's own, or a master's that waits for slaves."""
        self._local = local = open_local_commit_log(world, config)
        if self.slave:
            if self.settings.protocol == OURS:
                local.readable_limit = 0  # a bare master says nothing of the kind
            return local
        self._log = classic_log(local, self.settings, self.world.clock)
        return self._log

    def follow(self, master: Address | None) -> None:
        """Tell a slave its master's HA address, as a name server has answered; may come before `run`."""
        self._master = master
        if self.client is not None:
            self.client.follow(master)

    async def run(self, store: MessageStore, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve slaves, or follow the master, until cancelled.

        Raises:
            OSError: the HA port is taken, or a file beside the log cannot be read or written.
            CorruptEpochs: see there.
        """
        world, root = self.world, store.config.store_path_root_dir
        node = await world.workers.run(load_node, world.disk, root, world.secrets)
        identity = NodeIdentity(self.cluster, self.broker_name, self.broker_id, node)
        epoch_file = EpochFile(world.disk, root)
        if self.slave:
            await self._run_slave(store, identity, epoch_file, task_status)
        else:
            await self._run_master(identity, epoch_file, task_status)

    async def _run_master(self, identity: NodeIdentity, epoch_file: EpochFile, task_status: trio.TaskStatus[None]) -> None:
        world, log, local = self.world, self._log, self._local
        assert log is not None, "open_commit_log comes first"
        assert local is not None
        self.service = service = HAService(
            log, world.network, world.clock, world.workers, world.secrets, self.settings, identity, epoch_file, log.acks
        )
        log.on_appended, log.on_awaited = service.log_grew, service.transfer_now
        local.on_readable.append(service.log_grew)
        await self.service.run(task_status=task_status)

    async def _run_slave(
        self, store: MessageStore, identity: NodeIdentity, epoch_file: EpochFile, task_status: trio.TaskStatus[None]
    ) -> None:
        world, local = self.world, self._local
        assert local is not None, "open_commit_log comes first"
        self.client = HAClient(
            StoreFollower(store, local),
            world.network,
            world.clock,
            world.workers,
            world.secrets,
            self.settings,
            identity,
            epoch_file,
        )
        self.client.follow(self._master)
        await self.client.run(task_status=task_status)
