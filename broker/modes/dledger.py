"""A broker whose log is replicated by a DLedger group: its node, and the role that the group gives it.

The group elects its leader. The broker becomes master when its node has been elected and has derived everything committed. It
is a replica with its own id while another node leads or no leader is known (RocketMQ DLedgerRoleChangeHandler).
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any, Unpack

import attrs
import trio

from ...ha.dledger.ledger.layout import ENTRY_SIZE_MAX
from ...ha.dledger.ledger.recovery import LedgerFiles
from ...ha.dledger.node import DLedgerNode
from ...ha.dledger.settings import JAVA, ReplicaSettings, parse_peers
from ...ha.dledger.status import Leading
from ...ha.errors import WrongHaSetting
from ...ha.raft.roles import Role as RaftRole
from ...ha.raft.settings import Settings
from ...ha.raft.units import PeerId
from ...message.numbers import LONG_MAX
from ...message.units import MASTER_ID
from ...remoting.dispatcher import AnswerPolicy, Service
from ...store.errors import StoreError
from ...world.address import Address, is_loopback_host
from ...world.events import get_logger
from ...world.real import World
from ...world.supervision import keep_running
from ...world.ticks import next_tick
from ..admin.dledger_group import DLedgerAdministration
from ..config import BrokerConfig
from ..requests.answer_policies import Decided
from ..role import Role, RoleState
from .replication import A_SEGMENT, RETRY_SECONDS, Replication, ReplicationParts

log = get_logger(__name__)

DISK_LOOK_SECONDS = 1.0
"""How often a leader checks whether its disk refuses messages."""
DISK_REFUSES_SECONDS_MAX = 3.0
"""A leader whose disk has refused messages for this long hands leadership over."""
HAND_OVER_PAUSE_SECONDS = 30.0
"""The pause before a leader whose disk still refuses hands over again, because the disks of all nodes may be full."""


def replica_settings(config: BrokerConfig, address: str = "") -> ReplicaSettings:
    """The settings of a DLedger node, from RocketMQ's keys.

    Args:
        address: the address at which this broker serves clients.

    Raises:
        WrongHaSetting: a key has a value that cannot work.
    """
    self_id = PeerId(config.dleger_self_id)
    peers = parse_peers(config.dleger_peers)
    preferred = frozenset(PeerId(peer.strip()) for peer in config.preferred_leader_id.split(";") if peer.strip())
    if unknown := preferred - peers.keys():  # a node of that name may be added later
        log.warning("preferred_leader_unknown", preferred_leader_id=", ".join(sorted(unknown)), peers=", ".join(peers))
    _check_secret(config)
    return ReplicaSettings(
        group=config.dleger_group or config.broker_name,
        self_id=self_id,
        peers=peers,
        files=LedgerFiles(
            f"{config.store_path_root_dir}/dledger-{self_id}",
            config.mapped_file_size_commit_log,
            data_directory=config.store_path_dledger_commit_log or "",
        ),
        secret=config.ha_secret.encode(),
        serves=address,
        listen_host=config.bind_address,
        sync=config.raft_flush == "sync",
        dialect=config.raft_dialect,
        raft=Settings(preferred=preferred),
    )


def _check_secret(config: BrokerConfig) -> None:
    """Refuse to listen beyond this machine where anybody could vote, unless that is asked for.

    Raises:
        WrongHaSetting: the group has no secret, and could have one.
    """
    if config.ha_secret or is_loopback_host(config.bind_address):
        return
    if config.raft_dialect == JAVA:
        log.warning(
            "raft_port_unprotected",
            bind_address=config.bind_address,
            reason="raftDialect=java has no secret, so whoever reaches the port may vote and append: shield it by the network",
        )
    elif not config.allow_empty_ha_secret:
        raise WrongHaSetting(
            f"haSecret is empty, and this node listens beyond its machine (bindAddress={config.bind_address}): whoever reaches "
            "its Raft port could vote, append and truncate. Set one haSecret on all nodes, or allowEmptyHaSecret=true where "
            "the network keeps strangers away. Nothing was started"
        )


@attrs.define(eq=False, kw_only=True, repr=False)
class DLedgerReplication(Replication[DLedgerNode]):
    """The replication of a node of a DLedger group."""

    @property
    def decides(self) -> AnswerPolicy:
        """Only the leader takes commits and locks."""
        return Decided(self.table_log)

    @property
    def _copies_tables(self) -> bool:
        """Only in a group that may have an Apache leader, which appends no changes of its tables to the log."""
        return self.config.raft_dialect == JAVA

    async def _forget_tables(self) -> None:
        """Empty the tables and their files before the log is cleared; the leader's tables are in its log behind its beginning.

        Raises:
            OSError: a file could not be written; the call may be repeated.
        """
        self.tables.clear()
        self.persistence.kept_end = 0
        self.persistence.log_offsets.clear()
        if not await self.persistence.write_all():
            raise OSError(errno.EIO, "the files of the tables could not be written")

    def _log_cleared(self) -> None:
        self.persistence.kept_end = LONG_MAX

    async def start(self, nursery: trio.Nursery) -> None:
        self.node.replica.before_clearing.append(self._forget_tables)
        self.node.replica.on_cleared.append(self._log_cleared)
        self.node.on_leading = self._follow_group
        await super().start(nursery)
        nursery.start_soon(keep_running, "watching of the disk", self._watch_disk)

    async def _watch_disk(self) -> None:
        """Hand leadership over while the disk of this node refuses messages or queues; the node then follows if it can."""
        clock = self.clock
        refused_since = clock.monotonic()
        while True:
            await next_tick(DISK_LOOK_SECONDS)
            refusal = self.store.writability.disk_refusal
            if refusal is None or not self.node.is_leader:
                refused_since = clock.monotonic()
            elif clock.monotonic() - refused_since >= DISK_REFUSES_SECONDS_MAX and self.node.replica.hand_over(refusal):
                refused_since = clock.monotonic() + HAND_OVER_PAUSE_SECONDS

    async def _follow_group(self, leading: Leading) -> None:
        """Change to the role that the group gives; a failed change is tried again until the group gives another role."""
        role, own_id = self.role, self.config.replica_id
        while True:
            try:
                if leading.role is RaftRole.LEADER:
                    # An older Java node registers no term, and name servers would refuse it in the place of one that does.
                    term = leading.term if self.config.raft_dialect != JAVA else 0
                    reason = f"elected in term {leading.term}"
                    await role.change(Role.MASTER, MASTER_ID, reason, synchronous=True, term=term)
                elif leading.leader is not None:
                    master = self.node.replica.served_at(leading.leader)
                    await role.change(Role.FOLLOWER, own_id, f"{leading.leader} leads in term {leading.term}", master=master)
                else:
                    await role.change(Role.CANDIDATE, own_id, f"no leader is known in term {leading.term}", master="")
            except (OSError, StoreError) as error:
                log.warning("role_not_taken", term=leading.term, reason=str(error))
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    def status(self) -> dict[str, Any]:
        """The state of the group as this node sees it, under the keys of RocketMQ's HARuntimeInfo and our own."""
        status = self.node.replica.status()
        return {
            "master": self.role.takes_puts,
            "masterCommitLogMaxOffset": self.store.log.max_offset,
            "inSyncSlaveNums": sum(peer.connected for peer in status.peers),
            "haConnectionInfo": [],
            "haClientRuntimeInfo": {"maxOffset": self.store.log.max_offset, "activated": self.node.is_following},
            "dledger": {
                "group": self.node.settings.group,
                "selfId": status.self_id,
                "role": status.leading.role.name.lower(),
                "term": status.leading.term,
                "leaderId": status.leading.leader,
                "beginIndex": status.begin_index,
                "endIndex": status.end_index,
                "syncedIndex": status.synced_index,
                "committedIndex": status.committed_index,
                "voters": list(status.configuration.voters),
                "learners": list(status.configuration.learners),
                "raftFlush": self.config.raft_flush,
                "failure": status.failure or self.store.writability.disk_refusal,
                "waitsFor": list(status.waits_for),
                "mayVote": self.node.may_vote,
                "turnedAway": list(status.turned_away),
                "peers": [
                    {
                        "id": peer.peer,
                        "address": str(peer.address),
                        "learner": peer.learner,
                        "connected": peer.connected,
                        "matchIndex": peer.match_index,
                        "lagEntries": None if peer.match_index is None else max(status.end_index - peer.match_index, 0),
                        "refusal": peer.refusal,
                    }
                    for peer in status.peers
                ],
            },
        }


@attrs.define(eq=False)
class DLedgerMode:
    """Implements `Mode`."""

    config: BrokerConfig
    world: World
    address: Address
    """At which clients are served."""
    node: DLedgerNode = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.node = DLedgerNode(replica_settings(self.config, str(self.address)))

    @property
    def record_max(self) -> tuple[int, str]:
        segment = self.config.mapped_file_size_commit_log
        return (segment, A_SEGMENT) if segment <= ENTRY_SIZE_MAX else (ENTRY_SIZE_MAX, "an entry of a DLedger group")

    @property
    def first_role(self) -> RoleState:
        return RoleState(Role.CANDIDATE, self.config.replica_id, "it is starting")

    def replication(self, **parts: Unpack[ReplicationParts]) -> DLedgerReplication:
        return DLedgerReplication(node=self.node, **parts)

    def services(self) -> Iterable[Service]:
        yield DLedgerAdministration(self.node)
