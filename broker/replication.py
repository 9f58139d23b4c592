"""Replication of a broker with the other nodes of its group: its node, and on a replica the copying of the master's tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

import attrs
import trio

from ..ha.classic.settings import OURS
from ..ha.classic.sync import ConfigSync, Offsets
from ..ha.node import ReplicationNode
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.dispatcher import Dispatcher
from ..remoting.errors import RequestRefused
from ..store.message_store import MessageStore
from ..world.clock import Clock
from ..world.network import Address, Network
from ..world.randomness import Randomness
from ..world.supervision import keep_running
from .adoption import adopt_stored
from .config import BrokerConfig
from .delay import DelayDelivery
from .groups import GroupTable
from .offsets import ConsumerOffsets
from .persistence import Persistence
from .replicated_tables import ReplicatedTables
from .role import LiveRole, Role, RoleState
from .tables import Tables
from .topics import TopicTable

A_SEGMENT = "a segment of the log"
CHANGES_OF_TABLES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
)
"""Requests that are answered when their change is as safe as the mode promises; deletions wait for that themselves."""

Node = TypeVar("Node", bound=ReplicationNode)


@attrs.define(eq=False, kw_only=True, repr=False)
class SlavesTables:
    """The tables of a slave, which are updated from its master's."""

    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    delay: DelayDelivery
    apply_again: Callable[[int], None] = attrs.field(init=False)
    """Applies the derived events from a physical offset on again (`Deletions.apply_again`)."""
    _deleted_topics: set[str] = attrs.field(factory=set[str])
    """Topics that the master has deleted; their queues are still in the store."""

    @classmethod
    def of(cls, store: MessageStore, tables: Tables, **more: Any) -> Self:
        """The tables of a bundle; a subclass takes `more`."""
        topics, groups, offsets, delay = tables.topics, tables.groups, tables.offsets, tables.delay
        return cls(store=store, topics=topics, groups=groups, offsets=offsets, delay=delay, **more)

    def topics_version(self) -> Mapping[str, int]:
        return self.topics.version.to_json()

    def groups_version(self) -> Mapping[str, int]:
        return self.groups.version.to_json()

    def asking(self) -> None:
        """Do nothing; `CopiedTables` overrides this."""

    async def take_topics(self, stored: Mapping[str, Any]) -> None:
        before = set(self.topics.topics)
        await self.topics.load_in_slices(stored)
        self._deleted_topics = (self._deleted_topics | before) - self.topics.topics.keys()

    async def adopt_topics(self) -> None:
        await adopt_stored(self.topics, self.store, but=self._deleted_topics)

    async def take_groups(self, stored: Mapping[str, Any]) -> None:
        await self.groups.load_in_slices(stored)

    def take_delay_offsets(self, stored: Mapping[str, Any]) -> None:
        self.delay.load(stored)

    def consumer_offsets(self) -> Mapping[tuple[str, str], dict[int, int]]:
        return self.offsets.table

    def put_consumer_offsets(self, offsets: Offsets) -> None:
        for (topic, group), queues in offsets.items():
            for queue_id, offset in queues.items():
                self.offsets.commit(group, topic, queue_id, offset)


@attrs.define(eq=False, kw_only=True)
class Replication(Generic[Node]):
    """The replication of one broker, as far as all modes have it in common."""

    config: BrokerConfig
    """The configuration at the start; the settings of replication do not change while the broker runs."""
    node: Node
    store: MessageStore
    role: LiveRole
    tables: SlavesTables
    persistence: Persistence
    network: Network
    clock: Clock
    secrets: Randomness
    sync: ConfigSync | None = None
    """Copies the master's tables while the broker is a replica; None otherwise."""
    _nursery: trio.Nursery = attrs.field(init=False)
    _sync_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self.role.on_master.append(self._learn_master)

    @property
    def replicated(self) -> ReplicatedTables | None:
        """The tables that are replicated through the log; None where replicas copy their master's."""
        return None

    def guard(self, dispatcher: Dispatcher) -> None:
        """Let the mode refuse changes of tables, and hold their answers; all handlers are registered."""
        dispatcher.check_first(CHANGES_OF_TABLES, self._check_tables_writable)

    def _check_tables_writable(self) -> None:
        """Refuse a change of a table on a disk that is full or fails; commits are taken, so that groups go on."""
        if (refusal := self.store.writability.disk_refusal) is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"nothing was changed: {refusal}")
        self.persistence.check_writable()

    async def start(self, nursery: trio.Nursery) -> None:
        """Run the node in `nursery`, and give the broker its first role; the steps of the role are already registered.

        Raises:
            OSError: a port is in use, or a file beside the log cannot be read.
        """
        self._nursery = nursery
        await nursery.start(self.node.run, self.store)

    async def stop_taking(self, _old: RoleState, _new: RoleState) -> None:
        """Do nothing in `Phase.STOP_TAKING`; modes may override this."""

    async def end_role(self, old: RoleState, new: RoleState) -> None:
        """End the node's work in its old role; called in `Phase.SETTLE`."""
        if old.role.takes_puts and new.role is Role.READ_ONLY:
            return  # its slaves may still lack a part of the log
        self._sync_scope.cancel()
        self.sync = None
        await self.node.stop()

    async def begin_role(self, _old: RoleState, new: RoleState) -> None:
        """Lead or follow the other nodes; called in `Phase.REBUILD`."""
        if new.role.takes_puts:
            await self.node.prepare_to_lead()
            await self.store.become_writable()
            await self.node.lead(new.broker_id, synchronous=new.synchronous)
        elif new.role.is_replica:
            self.sync, self._sync_scope = self._new_sync(), trio.CancelScope()
            if not self.config.ha_master_address:
                self.node.set_master(None)
            self._learn_master(self.role.master_address, self.role.master_ha_address)
            self._nursery.start_soon(self._keep_tables, self.sync, self._sync_scope)
            await self.node.follow(new.broker_id)

    async def serve(self, _old: RoleState, _new: RoleState) -> None:
        """Do nothing in `Phase.SERVE`; modes may override this."""

    @property
    def _secret(self) -> bytes:
        """The secret by which master and slave authenticate each other when tables are copied; empty if they do not."""
        return self.config.ha_secret.encode() if self.config.ha_protocol == OURS else b""

    def _new_sync(self) -> ConfigSync:
        """Make the task that copies the master's tables from now on."""
        return ConfigSync(self.tables, self.network, secret=self._secret, secrets=self.secrets)

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
