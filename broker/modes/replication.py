"""Replication of a broker with the other nodes of its group: its node, and on a replica the copying of the master's tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypedDict, TypeVar

import attrs
import trio

from ...ha.classic.settings import OURS
from ...ha.classic.sync import ConfigSync, Offsets
from ...ha.node import ReplicationNode
from ...remoting.dispatcher import AnswerPolicy
from ...store.errors import NotWritable
from ...store.message_store import MessageStore
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.network import Address, Network
from ...world.randomness import Randomness
from ...world.slices import ROWS_PER_SLICE, in_slices, rows_of
from ...world.supervision import keep_running
from ..config import BrokerConfig
from ..role import LiveRole, Role, RoleState
from ..tables.adoption import adopt_stored
from ..tables.persistence import Persistence
from ..tables.table_log import TableLog
from ..tables.tables import Tables

log = get_logger(__name__)

RETRY_SECONDS = 1.0
"""The pause before a failed change of role or append of tables is tried again."""

A_SEGMENT = "a segment of the log"

Node = TypeVar("Node", bound=ReplicationNode)


@attrs.define(eq=False, kw_only=True, repr=False)
class CopiedTables:
    """The tables of a replica as `ConfigSync` copies them from a master that has not all of its tables in its log.

    A copy may be older than what has been derived when it arrives. So the events that were derived since it was requested are
    applied again.
    """

    store: MessageStore
    tables: Tables
    table_log: TableLog
    takes_commits: bool
    """Whether consumers may commit at a replica."""
    _asked_at: int = 0
    """What was derived when a table was last requested."""
    _deleted_topics: set[str] = attrs.field(factory=set[str])
    """Topics that the master has deleted; their queues are still in the store."""

    @property
    def in_log(self) -> bool:
        tables = self.tables
        if tables.copied_end is not None and self.store.dispatcher.dispatched_offset >= tables.copied_end:
            tables.in_log, tables.copied_end = True, None
        return tables.in_log

    def heard_of_master(self, *, appends: bool) -> None:
        self.tables.master_appends = appends

    def asking(self) -> None:
        self._asked_at = self.store.dispatcher.dispatched_offset

    def copied(self, end: int) -> None:
        self.tables.copied_end = end

    def _changed(self) -> None:
        self.tables.differ_from_log()
        self.table_log.apply_again(self._asked_at)

    def topics_version(self) -> Mapping[str, int]:
        return self.tables.topics.version.to_json()

    def groups_version(self) -> Mapping[str, int]:
        return self.tables.groups.version.to_json()

    async def take_topics(self, stored: Mapping[str, Any]) -> None:
        topics = self.tables.topics
        before = set(topics.topics)
        await topics.load_in_slices(stored)
        self._deleted_topics = (self._deleted_topics | before) - topics.topics.keys()
        self._changed()

    async def adopt_topics(self) -> None:
        if not self.tables.in_log:
            await adopt_stored(self.tables.topics, self.store, but=self._deleted_topics)

    async def take_groups(self, stored: Mapping[str, Any]) -> None:
        await self.tables.groups.load_in_slices(stored)
        self._changed()

    def take_delay_offsets(self, stored: Mapping[str, Any]) -> None:
        self.tables.delay.load(stored)

    def take_access(self, stored: Mapping[str, Any]) -> None:
        self.tables.access.load(stored)
        self._changed()

    def consumer_offsets(self) -> Mapping[tuple[str, str], dict[int, int]]:
        return self.tables.offsets.table if self.takes_commits else {}

    async def take_logged_offsets(self, offsets: Offsets) -> None:
        own = self.tables.offsets
        async for keys in in_slices(own.entries(), ROWS_PER_SLICE):
            for topic, group, queue_id in keys:
                if queue_id not in offsets.get((topic, group), {}):
                    own.apply(topic, group, queue_id, None, own=False)
        async for piece in in_slices(offsets.items(), ROWS_PER_SLICE, rows_of):
            for (topic, group), queues in piece:
                for queue_id, offset in queues.items():
                    own.apply(topic, group, queue_id, offset, own=False)
        self._changed()

    def put_consumer_offsets(self, offsets: Offsets) -> None:
        own, changed = self.tables.offsets, False
        for (topic, group), queues in offsets.items():
            for queue_id, offset in queues.items():
                if own.query(group, topic, queue_id) != offset:
                    own.take(group, topic, queue_id, offset)
                    changed = True
        if changed:
            self._changed()

    def commits_here(self, masters_end: float) -> list[tuple[str, str, int, int]]:
        if self.store.dispatcher.dispatched_offset >= masters_end:  # what was handed in an earlier round is derived
            self.tables.offsets.drop_handed()
        return self.tables.offsets.unlogged()

    def handed(self, topic: str, group: str, queue_id: int) -> None:
        self.tables.offsets.handed(topic, group, queue_id)


class ReplicationParts(TypedDict):
    """What every mode's replication gets from its broker; the fields of `Replication` say what they are."""

    config: BrokerConfig
    store: MessageStore
    role: LiveRole
    tables: Tables
    table_log: TableLog
    persistence: Persistence
    network: Network
    clock: Clock
    secrets: Randomness


@attrs.define(eq=False, kw_only=True)
class Replication(Generic[Node]):
    """The replication of one broker, as far as all modes have it in common."""

    config: BrokerConfig
    """The configuration at the start; the settings of replication do not change while the broker runs."""
    node: Node
    store: MessageStore
    role: LiveRole
    tables: Tables
    table_log: TableLog
    persistence: Persistence
    network: Network
    clock: Clock
    secrets: Randomness
    sync: ConfigSync | None = None
    """Copies the master's tables while the broker is a replica; None otherwise."""
    _nursery: trio.Nursery = attrs.field(init=False)
    _sync_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _appending: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Cancels the tasks that append a master's changes of tables."""

    def __attrs_post_init__(self) -> None:
        self.tables.is_copied = self._copies_tables
        self.role.on_master.append(self._learn_master)

    @property
    def _copies_tables(self) -> bool:
        """Whether a replica copies its master's tables."""
        return True

    @property
    def decides(self) -> AnswerPolicy | None:
        """Who takes commits and locks; None if every node does."""
        return None

    async def start(self, nursery: trio.Nursery) -> None:
        """Run the node in `nursery`, and give the broker its first role; what follows from it is already known.

        Raises:
            OSError: a port is in use, or a file beside the log cannot be read.
        """
        self._nursery = nursery
        self.store.queue_ends.restate.append(self.table_log.state)
        if self.store.cleaner is not None:
            self.store.cleaner.may_remove = self.persistence.write_until
        # A file that is not what the log says tells so from now on, whatever the log that grows again will contain.
        await self.persistence.write_all(always=not self.tables.in_log)
        await nursery.start(self.node.run, self.store)

    def stop_taking(self) -> None:
        """Stop appending changes of tables, and drop what is not in the log."""
        self.table_log.stop_leading()
        self._appending.cancel()

    async def end_role(self, old: RoleState, new: RoleState) -> None:
        """End the node's work in its old role."""
        if old.role.takes_puts and new.role is Role.READ_ONLY:
            return  # its slaves may still lack a part of the log
        self._sync_scope.cancel()
        self.sync = None
        await self.node.stop()

    async def begin_role(self, new: RoleState) -> None:
        """Lead or follow the other nodes; a future master derives its whole log in between."""
        if new.role.takes_puts:
            await self.node.prepare_to_lead(new.broker_id, synchronous=new.synchronous, term=new.term)
            await self.store.become_writable()
            await self.node.lead(new.broker_id, synchronous=new.synchronous, term=new.term)
        elif new.role.is_replica:
            self.sync, self._sync_scope = self._new_sync(), trio.CancelScope()
            if not self.config.ha_master_address:
                self.node.set_master(None)
            self._learn_master(self.role.master_address, self.role.master_ha_address)
            if self._copies_tables:
                self._nursery.start_soon(self._keep_tables, self.sync, self._sync_scope)
            await self.node.follow(new.broker_id, term=new.term)

    def serve(self, new: RoleState) -> None:
        """Append changes of tables while this node is master."""
        if new.role.takes_puts:
            self.table_log.lead()
            self._appending = trio.CancelScope()
            self._nursery.start_soon(self._append_tables, self._appending)

    async def _append_tables(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_running, "appending of changes of tables", self.table_log.run)
                nursery.start_soon(keep_running, "appending of the ends of queues and the tables", self._append_missing)

    async def _append_missing(self) -> None:
        """Append the ends of queues and the tables, until a node that begins with this log's first entry has all of them."""
        ends = self.store.queue_ends
        while ends.pending or not self.tables.in_log:
            await ends.append_pending()
            if not self.tables.in_log:
                try:
                    await self.table_log.state(0)
                except NotWritable as error:
                    log.warning("tables_not_in_log", reason=str(error))
            if ends.pending or not self.tables.in_log:
                await trio.sleep(RETRY_SECONDS)

    @property
    def _secret(self) -> bytes:
        """The secret by which master and slave authenticate each other when tables are copied; empty if they do not."""
        return self.config.ha_secret.encode() if self.config.ha_protocol == OURS else b""

    def _new_sync(self) -> ConfigSync:
        """Make the task that copies the master's tables from now on."""
        copied = CopiedTables(
            store=self.store, tables=self.tables, table_log=self.table_log, takes_commits=self.decides is None
        )
        return ConfigSync(
            copied, self.network, secret=self._secret, secrets=self.secrets, credentials=self.config.node_credentials
        )

    async def _keep_tables(self, sync: ConfigSync, scope: trio.CancelScope) -> None:
        with scope:
            await keep_running("copying of the master's tables", sync.run)

    def _learn_master(self, address: str, ha_address: str) -> None:
        """Use the addresses of the master; a configured `haMasterAddress` has priority over `ha_address`."""
        if address and self.sync is not None:
            self.sync.follow(Address.parse(address))
        if ha_address and not self.config.ha_master_address:
            self.node.set_master(Address.parse(ha_address))

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """The state of replication as JSON (RocketMQ HARuntimeInfo)."""
