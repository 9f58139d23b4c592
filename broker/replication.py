"""Replication of a broker with the other nodes of its group: its node, and on a replica the copying of the master's tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import attrs
import trio

from ..ha.classic.node import ClassicNode
from ..ha.classic.protocol import TransferLimits
from ..ha.classic.settings import OURS, HaSettings
from ..ha.classic.sync import ConfigSync, Offsets
from ..ha.node import ReplicationNode
from ..store.message_store import MessageStore
from ..world.clock import Clock
from ..world.network import Address, Network
from ..world.randomness import Randomness
from ..world.real import World
from ..world.supervision import keep_running
from .adoption import adopt_stored
from .config import SYNC_FLUSH, SYNC_MASTER, BrokerConfig
from .delay import DelayDelivery
from .groups import GroupTable
from .offsets import ConsumerOffsets
from .role import LiveRole, Role, RoleState
from .topics import TopicTable

Node = TypeVar("Node", bound=ReplicationNode)


def ha_settings(config: BrokerConfig, port: int) -> HaSettings:
    """The settings of replication from RocketMQ's keys; clients are served on `port`."""
    return HaSettings(
        protocol=config.ha_protocol,
        secret=config.ha_secret.encode(),
        accept_loss=config.ha_accept_loss,
        sync_flush=config.flush_disk_type == SYNC_FLUSH,
        listen_host=config.bind_address,
        listen_port=config.ha_listen_port or (port + 1 if config.listen_port else 0),
        limits=TransferLimits(
            heartbeat_seconds=config.ha_send_heartbeat_interval / 1000,
            housekeeping_seconds=config.ha_housekeeping_interval / 1000,
            batch_size=config.ha_transfer_batch_size,
            segment_size=config.mapped_file_size_commit_log,
        ),
        sync_master=config.broker_role == SYNC_MASTER,
        slave=config.is_slave,
        in_sync_replicas=config.in_sync_replicas,
        min_in_sync_replicas=config.min_in_sync_replicas,
        gap_max=config.ha_max_gap_not_in_sync,
        slave_timeout_seconds=config.slave_timeout / 1000,
        from_first=config.sync_from == "first",
    )


def first_role(config: BrokerConfig) -> RoleState:
    """The role of a classic broker until replication has started."""
    return RoleState(Role.READ_ONLY, config.broker_id, "it is starting")


def classic_node(config: BrokerConfig, world: World, port: int) -> ClassicNode:
    """The node that RocketMQ's keys describe; clients are served on `port`."""
    node = ClassicNode(world, ha_settings(config, port), config.broker_cluster_name, config.broker_name)
    if config.ha_master_address:
        node.set_master(Address.parse(config.ha_master_address))
    return node


@attrs.define(eq=False, kw_only=True, repr=False)
class SlavesTables:
    """The tables of a slave, which are updated from its master's."""

    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    delay: DelayDelivery
    _deleted_topics: set[str] = attrs.field(factory=set[str])
    """Topics that the master has deleted; their queues are still in the store."""

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

    def consumer_offsets(self) -> Offsets:
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
    network: Network
    clock: Clock
    secrets: Randomness
    sync: ConfigSync | None = None
    """Copies the master's tables while the broker is a replica; None otherwise."""
    _nursery: trio.Nursery = attrs.field(init=False)
    _sync_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        self.role.on_master.append(self._learn_master)

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


@attrs.define(eq=False, kw_only=True, repr=False)
class ClassicReplication(Replication[ClassicNode]):
    """The replication of a classic master or slave."""

    def _new_sync(self) -> ConfigSync:
        sync = super()._new_sync()
        sync.may_take = lambda: self.node.is_following
        self.node.on_following = sync.ask_now
        return sync

    async def start(self, nursery: trio.Nursery) -> None:
        await super().start(nursery)
        config, role = self.config, Role.SLAVE if self.config.is_slave else Role.MASTER
        synchronous = config.broker_role == SYNC_MASTER
        await self.role.change(role, config.broker_id, "brokerRole", synchronous=synchronous)

    def status(self) -> dict[str, Any]:
        """The state of replication (RocketMQ HARuntimeInfo); keys such as `brokerId` and `flushed` are our own.

        A slave's `masterFlushOffset` is -1, which means unknown in RocketMQ, because no master sends its flushed offset on
        the HA port. Our masters send the end of their log, and `diff` is the number of bytes up to it.
        """
        service, end = self.node.service, self.store.log.max_offset
        slaves = service.slaves() if service is not None else []
        return {
            "master": self.role.takes_puts,
            "masterCommitLogMaxOffset": end,
            "inSyncSlaveNums": sum(slave.in_sync for slave in slaves),
            "haConnectionInfo": [
                {
                    "addr": str(slave.address),
                    "slaveAckOffset": slave.appended,
                    "diff": slave.lag_bytes,
                    "inSync": slave.in_sync,
                    "transferredByteInSecond": slave.sent_per_second,
                    "transferFromWhere": slave.sent,
                    "brokerId": slave.broker_id,
                    "flushed": slave.flushed,
                    "lastAckMillis": round(slave.last_ack_seconds * 1000),
                }
                for slave in slaves
            ],
            "haClientRuntimeInfo": self._client_status(),
        }

    def _client_status(self) -> dict[str, Any]:
        client, clock = self.node.client, self.clock
        if client is None:
            return {"lastReadTimestamp": 0, "lastWriteTimestamp": 0, "masterFlushOffset": 0, "maxOffset": 0}
        return {
            "masterAddr": str(client.master) if client.master is not None else None,
            "transferredByteInSecond": client.received.per_second,
            "maxOffset": self.store.log.max_offset,
            "lastReadTimestamp": clock.wall_ms() - round((clock.monotonic() - client.last_read) * 1000),
            "lastWriteTimestamp": clock.wall_ms() - round((clock.monotonic() - client.last_write) * 1000),
            "masterFlushOffset": -1,
            "activated": client.joined_at is not None,
            "diff": client.lag_bytes,
            "refusal": client.refusal,
            "droppedBytes": client.losses.dropped,
            "droppedPromisedBytes": client.losses.promised,
        }
