"""The conversation of a broker with the controller: its id and registration, its heartbeats, who is master, who is in sync.

One connection to the controller that leads is kept. Whatever the controller says of masters goes to `on_elected`; whatever
changes in the set of replicas is proposed to it. A broker without a controller keeps the role that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import attrs
import trio

from ...remoting.channel import Channel, connected
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.errors import CallTimeout, RemotingError
from ...remoting.signature import Credentials
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.network import Address, Network
from ...world.randomness import Randomness
from ...world.workers import Workers
from ..classic.in_sync import InSyncAcknowledgements, Proposal
from .identity import Identity, IdentityFiles
from .member import DECISION_SECONDS
from .protocol import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    BrokerHeartbeat,
    ElectMasterRequest,
    GetMetadataResponse,
    GetReplicaInfoRequest,
    Header,
    Mastership,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterBrokerRequest,
    SyncStateSet,
)

log = get_logger(__name__)

CALL_SECONDS = 1.0
"""How long a controller may take to answer a heartbeat and whether it leads; then another one may have become their leader."""
DECIDED_SECONDS = DECISION_SECONDS + CALL_SECONDS
"""How long it may take to answer what a majority decides; it gives up earlier, and says whether that may still happen."""
FIND_PAUSE_SECONDS = 0.1
"""The pause before the controllers are asked again which of them leads."""
SET_SECONDS = 0.05
"""How often the master checks whether its set should change."""
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.2, 2.0
"""The bounds of the pause before the controller is asked again for a decision that it has refused or did not make in time."""
_REMOVED = frozenset({ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED})
"""The controller knows the broker's name, and not this replica: it was removed, or its identity was taken."""
_UNKNOWN_HERE = _REMOVED | {ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST}
"""The controller does not know this broker, and perhaps not its name: then nobody else can have been elected there, either."""
_ANY_OF_THE_LEADER = frozenset(ResponseCode) - {ResponseCode.CONTROLLER_NOT_LEADER}
"""Whatever the controller that leads may answer."""
_MAY_NOT_LEAD = frozenset({ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED})
"""The controller does not elect the named replica, and may elect another one."""


@attrs.frozen(kw_only=True)
class SessionSettings:
    """What a broker tells the controller, and how often."""

    controllers: Sequence[Address]
    cluster: str
    broker_name: str
    address: str
    """At which clients reach the broker, `host:port`."""
    heartbeat_seconds: float
    expiry_millis: int
    """The controller takes the broker for dead when it has heard nothing for so long (controllerHeartBeatTimeoutMills)."""
    poll_seconds: float
    """How often the controller is asked for the master when nothing says that it has changed (syncBrokerMetadataPeriod)."""
    priority: int
    """Among equals the controller elects the replica with the lowest number (brokerElectionPriority)."""


@attrs.frozen
class LogState:
    """The log of a broker, as its heartbeats tell it."""

    end: int
    epoch: int
    """The last epoch of the log; 0 if it has none."""
    confirmed: int


@attrs.frozen
class ElectedMaster:
    """The master that the controller has elected, and the replicas that are in sync with it."""

    master_id: int | None
    """None if the controller does not know this broker."""
    master_address: str
    epoch: int
    members: frozenset[int]
    """The replicas in sync that the controller has confirmed."""
    set_epoch: int

    @property
    def role(self) -> tuple[int, int | None, str]:
        """What a change of role depends on."""
        return self.epoch, self.master_id, self.master_address


_UNKNOWN = ElectedMaster(None, "", 0, frozenset(), 0)
"""That this broker has no role, because the controller does not know it."""


class _Refused(Exception):
    """The controller has answered with a code other than success."""

    def __init__(self, answer: RemotingCommand) -> None:
        super().__init__(f"code {answer.code}: {answer.remark}")
        self.code = answer.code


@attrs.define(eq=False)
class _Pauses:
    """Pauses each of which is about twice as long as the one before; random, so that not all brokers ask again together."""

    randomness: Randomness
    _seconds: float = PAUSE_SECONDS_MIN

    def next_seconds(self) -> float:
        seconds = self._seconds * (0.75 + self.randomness.random() / 2)
        self._seconds = min(2 * self._seconds, PAUSE_SECONDS_MAX)
        return seconds

    def begin_anew(self) -> None:
        self._seconds = PAUSE_SECONDS_MIN


@attrs.define(eq=False, kw_only=True, repr=False)
class ControllerSession:
    """The broker's side of the conversation."""

    settings: SessionSettings
    network: Network
    credentials: Credentials | None
    """With what this node signs its requests; None if it has no secret."""
    clock: Clock
    randomness: Randomness
    workers: Workers
    files: IdentityFiles
    identity: Identity | None
    """The stored identity; None before the first registration."""
    clean_stop: bool
    """Whether no crash is unreported, and the last run stopped in order, so that the log has all that it ever acknowledged."""
    log_state: Callable[[], LogState]
    in_sync: Callable[[], InSyncAcknowledgements | None]
    """The set of replicas while this broker is master and others can join; else None."""
    on_identity: Callable[[int], None] = lambda _: None
    """Called with the broker id once the controller has confirmed it."""
    on_elected: Callable[[ElectedMaster], None] = lambda _: None
    """Called with the master and its set whenever the controller has named them; it must do no I/O."""
    elected: ElectedMaster | None = None
    """The last ones."""
    controller: Address | None = None
    """The controller that has registered this broker, and with which it speaks; None while there is none."""
    trouble: str = "no controller has been asked yet"
    """Why there is none."""
    _channel: Channel | None = None
    """The connection to that controller."""
    _waited_for: frozenset[int] = frozenset()
    """The members of the set that were last logged as not keeping up while there was no controller."""
    _registered: bool = False
    _look: trio.Event = attrs.field(factory=trio.Event)
    _pauses: _Pauses = attrs.field(init=False)
    """Those after answers that a conversation cannot go on with."""

    def __attrs_post_init__(self) -> None:
        self._pauses = _Pauses(self.randomness)

    def look_now(self) -> None:
        """Ask for the master in the next turn of the event loop, because somebody says that it has changed."""
        self._look.set()

    async def hand_over(self) -> None:
        """Ask for the election of another member of the set, if there is one and a controller answers."""
        in_sync, elected, channel = self.in_sync(), self.elected, self._channel
        if channel is None:
            return
        if in_sync is not None:
            others = in_sync.successors
        else:
            others = sorted(elected.members - {elected.master_id}) if elected is not None else []
        with suppress(RemotingError):
            for replica in others:
                request = ElectMasterRequest(
                    cluster_name=self.settings.cluster,
                    broker_name=self.settings.broker_name,
                    broker_id=replica,
                    designate_elect=True,
                )
                command = RemotingCommand(RequestCode.CONTROLLER_ELECT_MASTER, request.ext())
                answer = await channel.call(command, DECIDED_SECONDS)
                log.info("handed_over_to_replica", replica=replica, code=answer.code, remark=answer.remark)
                if answer.code not in _MAY_NOT_LEAD:
                    break
        self.look_now()

    async def run(self) -> NoReturn:
        """Keep up the conversation until cancelled.

        Raises:
            OSError: the file of the identity cannot be written.
        """
        if self.identity is not None and not self.identity.check_code:
            self.on_identity(self.identity.broker_id)
        while True:
            leader, reason = await self._find()
            if leader is not None:
                try:
                    async with connected(leader, network=self.network, credentials=self.credentials) as channel:
                        self._channel = channel
                        await self._converse(channel, leader)
                except* (RemotingError, _Refused) as group:
                    reason = _first_text(group)
            if self.controller is not None or reason != self.trouble:
                log.warning("controller_lost", reason=reason, controllers=[str(one) for one in self.settings.controllers])
            self.controller, self._channel, self.trouble = None, None, reason
            self._say_who_is_waited_for()
            await trio.sleep(FIND_PAUSE_SECONDS)

    def _say_who_is_waited_for(self) -> None:
        """Log which members of the set this master waits for, and cannot let leave it without a controller."""
        in_sync = self.in_sync()
        lacking = in_sync.lacking(self.clock.monotonic()) if in_sync is not None else frozenset[int]()
        if lacking - self._waited_for:
            log.error("sync_state_set_cannot_shrink", lacking=sorted(lacking), reason=self.trouble)
        self._waited_for = lacking

    async def _find(self) -> tuple[Address | None, str]:
        """Ask all controllers which of them leads, each again and again, so that a silent one delays none of the others.

        Returns:
            The one that leads, or None and why there is none.
        """
        found: list[Address] = []
        failures = {address: f"{address} does not answer" for address in self.settings.controllers}
        with trio.move_on_after(CALL_SECONDS):
            async with trio.open_nursery() as nursery:
                for address in self.settings.controllers:
                    nursery.start_soon(self._ask, address, found, failures, nursery.cancel_scope)
        return (found[0] if found else None), f"no controller that leads has answered: {'; '.join(failures.values())}"

    async def _ask(self, address: Address, found: list[Address], failures: dict[Address, str], scope: trio.CancelScope) -> None:
        while True:
            try:
                async with connected(address, network=self.network, credentials=self.credentials) as channel:
                    answer = await channel.call(RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO), CALL_SECONDS)
                if answer.code != ResponseCode.SUCCESS:  # of another server
                    is_refused = answer.code == ResponseCode.NO_PERMISSION
                    failures[address] = f"{address}: {answer.remark}" if is_refused else f"{address} is no controller"
                    break
                metadata, named = GetMetadataResponse.of(answer), None
                failures[address] = f"{address} does not lead"
                if metadata.controller_leader_address:
                    named = Address.parse(metadata.controller_leader_address)
                if metadata.is_leader:
                    found.insert(0, address)
                    scope.cancel()
                elif named is not None and named not in self.settings.controllers:  # else it is asked itself, if it still lives
                    found.append(named)
            except (RemotingError, ValueError) as error:
                failures[address] = str(error)
                log.debug("controller_not_asked", controller=str(address), reason=str(error))
            await trio.sleep(FIND_PAUSE_SECONDS)

    async def _converse(self, channel: Channel, leader: Address) -> None:
        if self.identity is None or self.identity.check_code:
            await self._get_id(channel)
        if not self._registered:
            await self._register(channel)
        self.controller = leader
        log.info("controller_found", controller=str(leader))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, channel)
            nursery.start_soon(self._follow_master, channel)
            nursery.start_soon(self._keep_set, channel)

    async def _call(
        self, channel: Channel, code: RequestCode, header: Header, body: bytes = b"", *, one_of: frozenset[int] = frozenset()
    ) -> RemotingCommand:
        """Ask for a decision, and return the answer if it is a success or has one of the given codes.

        Raises:
            RemotingError: there was no answer; what was asked for may have been done.
            _Refused: any other answer. Before this or a time-out ends the conversation, a pause lets heartbeats go on.
        """
        try:
            answer = await channel.call(RemotingCommand(code, header.ext(), body), DECIDED_SECONDS)
        except CallTimeout:
            await trio.sleep(self._pauses.next_seconds())
            raise
        if answer.code == ResponseCode.SUCCESS:
            self._pauses.begin_anew()
        elif answer.code not in one_of:
            if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                await trio.sleep(self._pauses.next_seconds())
            raise _Refused(answer)
        return answer

    async def _get_id(self, channel: Channel) -> None:
        """Get an id, in steps that may be interrupted anywhere: the check code says that it is the same broker that asks."""
        cluster, name = self.settings.cluster, self.settings.broker_name
        identity = self.identity
        while identity is None or identity.check_code:
            if identity is None:
                answer = await self._call(
                    channel,
                    RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
                    NextBrokerIdRequest(cluster_name=cluster, broker_name=name),
                )
                identity = await self._keep(self._application(NextBrokerIdResponse.of(answer).next_broker_id))
            answer = await self._call(
                channel,
                RequestCode.CONTROLLER_APPLY_BROKER_ID,
                ApplyBrokerIdRequest(
                    cluster_name=cluster,
                    broker_name=name,
                    applied_broker_id=identity.broker_id,
                    register_check_code=identity.check_code,
                ),
                one_of=frozenset({ResponseCode.CONTROLLER_BROKER_ID_INVALID}),
            )
            if answer.code == ResponseCode.SUCCESS:
                identity = await self._keep(attrs.evolve(identity, check_code=""))
            else:  # another broker was quicker
                await self.workers.run(self.files.drop_application)
                identity = self.identity = None
        self.on_identity(identity.broker_id)

    def _application(self, broker_id: int) -> Identity:
        settings = self.settings
        return Identity(settings.cluster, settings.broker_name, broker_id, f"{settings.address};{self.clock.wall_ms()}")

    async def _keep(self, identity: Identity) -> Identity:
        await self.workers.run(self.files.save, identity)
        self.identity = identity
        return identity

    async def _register(self, channel: Channel) -> None:
        """Say that this process begins, and with which log; the controller may elect anew because of it.

        A replica that was removed gets an id again. Where its whole name is unknown it gets none: as the first of the name it
        would be elected, whatever it lacks, and beside the master that other controllers may have.
        """
        assert self.identity is not None
        self._registered = False
        answer = await self._call(channel, RequestCode.CONTROLLER_REGISTER_BROKER, self._registration(), one_of=_REMOVED)
        if answer.code != ResponseCode.SUCCESS:
            self._give_up_role()
            self.identity = self._application(self.identity.broker_id)
            await self._get_id(channel)
            answer = await self._call(channel, RequestCode.CONTROLLER_REGISTER_BROKER, self._registration())
        with suppress(OSError):  # then it registers once more as after a crash
            await self.workers.run(self.files.forget_crash)
        self._registered = self.clean_stop = True  # if it has to register again, no crash is between
        self._learn(answer)

    def _registration(self) -> RegisterBrokerRequest:
        assert self.identity is not None
        state = self.log_state()
        return RegisterBrokerRequest(
            cluster_name=self.settings.cluster,
            broker_name=self.settings.broker_name,
            broker_id=self.identity.broker_id,
            broker_address=self.settings.address,
            max_offset=state.end,
            epoch=state.epoch,
            clean_stop=self.clean_stop,
        )

    def _give_up_role(self) -> None:
        """Be neither master nor follower until a controller that knows this broker says who is master, in whatever epoch.

        Another broker may have its identity now, or the controller may have forgotten which epochs it has given.
        """
        if self.elected is not None:
            self.elected = None
            self.on_elected(_UNKNOWN)

    async def _beat(self, channel: Channel) -> NoReturn:
        settings = self.settings
        while True:
            assert self.identity is not None
            state = self.log_state()
            heartbeat = BrokerHeartbeat(
                cluster_name=settings.cluster,
                broker_name=settings.broker_name,
                broker_addr=settings.address,
                broker_id=self.identity.broker_id,
                epoch=state.epoch,
                max_offset=state.end,
                confirm_offset=state.confirmed,
                heartbeat_timeout_mills=settings.expiry_millis,
                election_priority=settings.priority,
            )
            answer = await channel.call(RemotingCommand(RequestCode.BROKER_HEARTBEAT, heartbeat.ext()), CALL_SECONDS)
            if answer.code in _UNKNOWN_HERE:
                self._registered = False  # the next conversation begins with a registration, and a new id if it must be
            if answer.code in _REMOVED:
                self._give_up_role()
            if answer.code != ResponseCode.SUCCESS:
                raise _Refused(answer)
            newest, known = Mastership.of(answer), self.elected
            if known is not None and (newest.master_epoch or 0, newest.sync_state_set_epoch or 0) > (
                known.epoch,
                known.set_epoch,
            ):
                self.look_now()
            await trio.sleep(settings.heartbeat_seconds)

    async def _follow_master(self, channel: Channel) -> NoReturn:
        name = self.settings.broker_name
        while True:
            self._look = trio.Event()
            request = GetReplicaInfoRequest(broker_name=name)
            answer = await self._call(channel, RequestCode.CONTROLLER_GET_REPLICA_INFO, request, one_of=_UNKNOWN_HERE)
            if answer.code != ResponseCode.SUCCESS:
                await self._register(channel)
            elif not self._learn(answer):
                await self._ask_for_election(channel)
            with trio.move_on_after(self.settings.poll_seconds):
                await self._look.wait()

    async def _ask_for_election(self, channel: Channel) -> None:
        """Ask for an election, because there is no master."""
        assert self.identity is not None
        request = ElectMasterRequest(
            cluster_name=self.settings.cluster, broker_name=self.settings.broker_name, broker_id=self.identity.broker_id
        )
        answer = await self._call(channel, RequestCode.CONTROLLER_ELECT_MASTER, request, one_of=_ANY_OF_THE_LEADER)
        log.debug("election_asked_for", code=answer.code, remark=answer.remark)
        if answer.code == ResponseCode.SUCCESS:
            self.look_now()

    def _learn(self, answer: RemotingCommand) -> bool:
        """Take over the master and the set that an answer names, unless newer ones are known; return whether it names any."""
        mastership = Mastership.of(answer)
        if mastership.master_broker_id is None or not mastership.master_address or mastership.master_epoch is None:
            return False
        replicas = SyncStateSet.of(answer.body)
        elected = ElectedMaster(
            mastership.master_broker_id,
            mastership.master_address,
            mastership.master_epoch,
            replicas.sync_state_set,
            replicas.sync_state_set_epoch,
        )
        known = self.elected
        if known is None or (elected.epoch, elected.set_epoch) >= (known.epoch, known.set_epoch):
            self.elected = elected
            self.on_elected(elected)
        return True

    async def _keep_set(self, channel: Channel) -> NoReturn:
        """Propose to the controller whatever changes in the set, while this broker is master."""
        refused: dict[Proposal, float] = {}
        """When each proposal that was refused for the present set may be made again."""
        pauses = _Pauses(self.randomness)
        while True:
            await trio.sleep(SET_SECONDS)
            in_sync, elected, now = self.in_sync(), self.elected, self.clock.monotonic()
            if in_sync is None or elected is None:
                continue
            if (proposal := in_sync.proposal(now, [one for one, again_at in refused.items() if now < again_at])) is None:
                continue
            request = AlterSyncStateSetRequest(
                broker_name=self.settings.broker_name, master_broker_id=in_sync.own_id, master_epoch=elected.epoch
            )
            body = SyncStateSet(sync_state_set=proposal.members, sync_state_set_epoch=proposal.epoch).body()
            code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
            answer = await self._call(channel, code, request, body, one_of=_ANY_OF_THE_LEADER)
            confirmed = SyncStateSet.of(answer.body) if answer.code == ResponseCode.SUCCESS else None
            # Controllers of an earlier version leave an equal set its epoch, and RocketMQ's refuse it.
            if confirmed is not None and confirmed.sync_state_set_epoch > proposal.epoch:
                in_sync.confirm(confirmed.sync_state_set, confirmed.sync_state_set_epoch)
                refused.clear()
                log.info(
                    "sync_state_set_changed",
                    members=sorted(confirmed.sync_state_set),
                    set_epoch=confirmed.sync_state_set_epoch,
                )
            else:
                if proposal not in refused:
                    reason = answer.remark or "the set keeps its epoch"
                    log.warning("sync_state_set_not_changed", members=sorted(proposal.members), reason=reason)
                    pauses.begin_anew()
                refused[proposal] = self.clock.monotonic() + pauses.next_seconds()
                self.look_now()


def _first_text(group: BaseExceptionGroup[Exception]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)
