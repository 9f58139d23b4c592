"""The controller mode: a controller elects the master of a group of classic brokers, and confirms which replicas are in sync.

A broker takes part once the controller has given it an id. It becomes master when the controller has elected it for an epoch
and everything in its log has been derived, and follows whichever replica was elected instead. Without a controller it keeps the
role that it has; one that does not know the broker takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

import attrs
import trio

from ...ha.classic.settings import BARE
from ...ha.classic.table_proofs import node_credentials
from ...ha.controller.identity import Identity, IdentityFiles
from ...ha.controller.node import ElectedNode
from ...ha.controller.protocol import EpochEntry, EpochEntryCache
from ...ha.controller.session import ControllerSession, ElectedMaster, LogState, SessionSettings
from ...ha.errors import HaError
from ...message.numbers import LONG_MAX
from ...message.units import MASTER_ID
from ...remoting.channel import connected
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import AnswerPolicy, Dispatcher, Service
from ...remoting.errors import RemotingError
from ...remoting.server import ServerConnection
from ...store.errors import StoreError
from ...store.message_store import MessageStore
from ...world.address import Address, bare_host
from ...world.events import get_logger
from ...world.network import Network
from ...world.real import World
from ...world.supervision import keep_running
from ..config import BrokerConfig, parse_addresses
from ..requests.answer_policies import Decided
from ..role import Role, RoleState
from .classic import ClassicReplication, ha_settings
from .replication import A_SEGMENT, RETRY_SECONDS, ReplicationParts

log = get_logger(__name__)

ASK_MASTER_SECONDS = 1.0
"""How long the master may take to say where it serves its slaves."""
ASK_MASTER_PAUSE_SECONDS = 0.1
"""The pause before it is asked again."""


@attrs.define(eq=False, kw_only=True, repr=False)
class ControllerReplication(ClassicReplication[ElectedNode]):
    """The replication of a broker whose role a controller gives."""

    session: ControllerSession
    _wanted: ElectedMaster | None = None
    """The last one for which the role had to change."""

    @property
    def decides(self) -> AnswerPolicy:
        """Only the master takes commits and locks."""
        return Decided(self.table_log)

    async def _begin(self) -> None:
        self.session.on_identity = self._identified
        self.session.on_elected = self._elected
        await self.role.change(Role.CANDIDATE, self.node.own_id, "no controller has been asked yet", master="")
        self._nursery.start_soon(keep_running, "conversation with the controller", self.session.run)

    def _identified(self, broker_id: int) -> None:
        if broker_id != self.node.own_id:
            self.node.own_id, self._wanted = broker_id, None  # a role that was taken with another id is taken again

    def _elected(self, elected: ElectedMaster) -> None:
        """Take over the set, or change the role if the controller has elected again."""
        node = self.node
        node.members, node.set_epoch = elected.members, elected.set_epoch
        if self._wanted is not None and elected.role == self._wanted.role:
            if node.in_sync is not None:
                node.in_sync.confirm(elected.members, elected.set_epoch)
            return
        self._wanted = elected
        self._nursery.start_soon(self._take_role, elected)

    async def _take_role(self, elected: ElectedMaster) -> None:
        """Change to the role that the controller gives; a failed change is tried again until it gives another one."""
        role, own_id, epoch = self.role, self.node.own_id, elected.epoch
        own = elected.master_id == own_id
        leads = own and elected.master_address == self.session.settings.address
        master = f"another broker with the id {own_id}, at {elected.master_address}," if own else f"broker {elected.master_id}"
        while self._wanted is elected:
            try:
                if elected.master_id is None:
                    await role.change(Role.CANDIDATE, own_id, "the controller does not know it", master="")
                elif leads:
                    await role.change(Role.MASTER, MASTER_ID, f"elected for epoch {epoch}", synchronous=True, term=epoch)
                else:
                    reason = f"{master} is master of epoch {epoch}"
                    await role.change(Role.FOLLOWER, own_id, reason, term=epoch, master=elected.master_address)
                    await self._find_master(elected)
            except (OSError, StoreError, HaError) as error:
                log.warning("elected_role_not_taken", term=epoch, reason=str(error))
                if leads:  # until another replica leads, nothing is stored
                    await self.session.hand_over()
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    async def _find_master(self, elected: ElectedMaster) -> None:
        """Ask the master where it serves its slaves, until it answers or another one is elected."""
        while self._wanted is elected:
            try:
                with trio.move_on_after(ASK_MASTER_SECONDS):
                    address, credentials = Address.parse(elected.master_address), self.config.node_credentials
                    async with connected(address, network=self.network, credentials=credentials) as channel:
                        answer = await channel.call(RemotingCommand(RequestCode.EXCHANGE_BROKER_HA_INFO), ASK_MASTER_SECONDS)
                    if answer.code == ResponseCode.SUCCESS and (found := answer.ext.get("masterHaAddress")):
                        if self._wanted is elected:
                            self.node.set_master(Address.parse(found))
                        return
            except (RemotingError, ValueError) as error:
                log.debug("master_not_asked", master=elected.master_address, reason=str(error))
            await trio.sleep(ASK_MASTER_PAUSE_SECONDS)

    def status(self) -> dict[str, Any]:
        """As of a classic broker, with what the controller has said."""
        elected, session, node = self.session.elected, self.session, self.node
        in_sync = node.in_sync
        return super().status() | {
            "controller": {
                "brokerId": node.own_id,
                "controllerAddress": str(session.controller) if session.controller is not None else None,
                "trouble": session.trouble if session.controller is None else None,
                "masterId": elected.master_id if elected is not None else None,
                "masterAddress": elected.master_address if elected is not None else None,
                "masterEpoch": elected.epoch if elected is not None else None,
                "syncStateSet": sorted(in_sync.members if in_sync is not None else node.members),
                "syncStateSetEpoch": in_sync.set_epoch if in_sync is not None else node.set_epoch,
                "asyncLearner": node.settings.async_learner,
                "minInSyncReplicas": node.settings.min_in_sync_replicas,
                "waitsFor": sorted(in_sync.required) if in_sync is not None else [],
                "confirmOffset": self.store.log.readable_offset,
            }
        }


@attrs.define(eq=False, kw_only=True, repr=False)
class ControllerRequests:
    """What controllers, replicas and administrators ask a broker in this mode."""

    config: BrokerConfig
    node: ElectedNode
    session: ControllerSession
    store: MessageStore
    ha_address: Callable[[], str]
    """Where slaves fetch the log, `host:port`."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.register(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, self.role_changed)
        dispatcher.register(RequestCode.GET_BROKER_EPOCH_CACHE, self.epochs)
        dispatcher.register(RequestCode.EXCHANGE_BROKER_HA_INFO, self.ha_info)

    def role_changed(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """1008: the controller has elected a master. Anybody can send this, so the broker asks the controller itself."""
        self.session.look_now()
        return request.response()

    def epochs(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """1007: the epochs of this broker's log."""
        entries = self.node.epochs.entries
        starts = [entry.start for entry in entries]
        cache = EpochEntryCache(
            cluster_name=self.config.broker_cluster_name,
            broker_name=self.config.broker_name,
            broker_id=self.node.own_id,
            epoch_list=[
                EpochEntry(epoch=entry.number, start_offset=entry.start, end_offset=end)
                for entry, end in zip(entries, [*starts[1:], LONG_MAX], strict=False)
            ],
            max_offset=self.store.log.max_offset,
        )
        return request.response(body=cache.body())

    def ha_info(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """906: where this master serves its slaves; nothing is changed by what the request says of others."""
        if self.node.service is None or self.node.service.port == 0:
            return request.response()
        return request.response(
            ext={
                "masterHaAddress": self.ha_address(),
                "masterFlushOffset": str(self.store.log.flushed_offset),
                "masterAddress": self.session.settings.address,
            }
        )


@attrs.define(eq=False)
class ControllerMode:
    """Implements `Mode`."""

    config: BrokerConfig
    world: World
    address: Address
    """At which clients are served."""
    node: ElectedNode = attrs.field(init=False)
    _identity: Identity | None = attrs.field(init=False)
    _services: list[Service] = attrs.field(factory=list[Service])

    def __attrs_post_init__(self) -> None:
        config = self.config
        settings = attrs.evolve(
            ha_settings(config, self.address.port),
            elected=True,
            autoswitch=config.ha_protocol == BARE,
            all_acknowledge=config.all_ack_in_sync_state_set,
            lag_seconds_max=config.ha_max_time_slave_not_catchup / 1000,
            from_first=not config.sync_from_last_file,
            async_learner=config.async_learner,
        )
        self._identity = self._files.load(config.broker_cluster_name, config.broker_name)
        self.node = ElectedNode(self.world, settings, config.broker_cluster_name, config.broker_name)

    @property
    def _files(self) -> IdentityFiles:
        return IdentityFiles(self.world.disk, self.config.store_path_root_dir)

    @property
    def record_max(self) -> tuple[int, str]:
        return self.config.mapped_file_size_commit_log, A_SEGMENT

    @property
    def first_role(self) -> RoleState:
        return RoleState(Role.CANDIDATE, self.node.own_id, "it is starting")

    def replication(self, **parts: Unpack[ReplicationParts]) -> ControllerReplication:
        store = parts["store"]
        session = self._session(store, parts["network"])
        self._services.append(
            ControllerRequests(config=self.config, node=self.node, session=session, store=store, ha_address=self._ha_address)
        )
        return ControllerReplication(node=self.node, session=session, **parts)

    def _ha_address(self) -> str:
        return str(Address(bare_host(self.config.broker_ip2) or self.address.host, self.node.port))

    def _session(self, store: MessageStore, network: Network) -> ControllerSession:
        config, node = self.config, self.node

        def log_state() -> LogState:
            last = node.epochs.last
            return LogState(store.log.max_offset, last.number if last is not None else 0, store.log.readable_offset)

        session = ControllerSession(
            settings=SessionSettings(
                controllers=parse_addresses(config.controller_addr),
                cluster=config.broker_cluster_name,
                broker_name=config.broker_name,
                address=str(self.address),
                heartbeat_seconds=config.broker_heartbeat_interval / 1000,
                expiry_millis=config.controller_heart_beat_timeout_mills,
                poll_seconds=config.sync_broker_metadata_period / 1000,
                priority=config.broker_election_priority,
            ),
            network=network,
            credentials=node_credentials(config.ha_secret.encode()),
            clock=self.world.clock,
            randomness=self.world.randomness,
            workers=self.world.workers,
            files=self._files,
            identity=self._identity,
            clean_stop=node.clean_stop,
            log_state=log_state,
            in_sync=lambda: node.in_sync if node.has_begun else None,
        )
        node.ask_for_another = session.hand_over
        return session

    def services(self) -> Iterable[Service]:
        return self._services
