"""The classic mode: a configured master and slaves that copy its log, and derive its tables from it."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any, TypeVar, Unpack

import attrs
import trio

from ...ha.classic.node import ClassicNode
from ...ha.classic.protocol import TransferLimits
from ...ha.classic.settings import HaSettings
from ...ha.classic.sync import ConfigSync
from ...message.numbers import LONG_MAX
from ...remoting.dispatcher import Service
from ...world.network import Address
from ...world.real import World
from ..config import SYNC_FLUSH, SYNC_MASTER, BrokerConfig
from ..role import Role, RoleState
from .replication import A_SEGMENT, Replication, ReplicationParts


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


Node = TypeVar("Node", bound=ClassicNode)


@attrs.define(eq=False, kw_only=True, repr=False)
class ClassicReplication(Replication[Node]):
    """The replication of a classic master or slave."""

    def _new_sync(self) -> ConfigSync:
        sync = super()._new_sync()
        sync.may_take = lambda: self.node.is_following
        self.node.on_following = sync.ask_now
        return sync

    async def _before_cut(self, offset: int) -> None:
        """Copy the tables of the master again, because the log will lack what this slave has derived behind `offset`.

        The files say so before the log is cut: once it has grown again, a start could not find that out from their log offsets.

        The master has lost these events. What groups have committed in them is handed back to it. Leases in them stay here:
        one too many ends a minute after this node became master, and one too few would let two consumers read one queue.

        Raises:
            OSError: a file could not be written. The log must not be cut; the call may be repeated.
        """
        files = self.persistence.log_offsets
        stored = (table.log_offset for table in self.persistence.tables.values())
        derived = max(self.store.dispatcher.dispatched_offset, *stored, 0)  # one that has just started has derived nothing yet
        if offset < derived:
            self.tables.differ_from_log()
            for _, control in self.table_log.events_between(offset, min(derived, self.store.log.max_offset)) if offset else ():
                self.tables.keep_commits(control)
            files.update({name: min(end, offset) for name, end in files.items()})
            self.persistence.kept_end = offset
            if not await self.persistence.write_all(always=True):
                raise OSError(errno.EIO, "the files of the tables could not be written")

    def _cut(self, _offset: int) -> None:
        self.persistence.kept_end = LONG_MAX

    async def start(self, nursery: trio.Nursery) -> None:
        self.node.before_cut = self._before_cut
        self.store.dispatcher.on_cut.append(self._cut)
        if (
            self.node.settings.slave or self.node.settings.elected
        ) and self.store.log.empty:  # it may begin in the middle of the master's
            self.tables.in_log = False
        await super().start(nursery)
        await self._begin()

    async def _begin(self) -> None:
        """Take the first role."""
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


@attrs.define(eq=False)
class ClassicMode:
    """Implements `Mode`."""

    config: BrokerConfig
    world: World
    address: Address
    """At which clients are served."""
    node: ClassicNode = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        config = self.config
        settings = ha_settings(config, self.address.port)
        self.node = ClassicNode(self.world, settings, config.broker_cluster_name, config.broker_name)
        if config.ha_master_address:
            self.node.set_master(Address.parse(config.ha_master_address))

    @property
    def record_max(self) -> tuple[int, str]:
        return self.config.mapped_file_size_commit_log, A_SEGMENT

    @property
    def first_role(self) -> RoleState:
        return RoleState(Role.READ_ONLY, self.config.broker_id, "it is starting")

    def replication(self, **parts: Unpack[ReplicationParts]) -> ClassicReplication[ClassicNode]:
        return ClassicReplication(node=self.node, **parts)

    def services(self) -> Iterable[Service]:
        return ()
