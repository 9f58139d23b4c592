"""A controller that the test scripts: it keeps what brokers say, and answers with the master and the set that it is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from ledgermq.ha.controller.protocol import (
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    ApplyBrokerIdRequest,
    ApplyBrokerIdResponse,
    BrokerHeartbeat,
    ElectMasterRequest,
    GetMetadataResponse,
    Mastership,
    NextBrokerIdResponse,
    RegisterBrokerRequest,
    SyncStateSet,
)
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.dispatcher import Dispatcher, Handler
from ledgermq.remoting.server import RemotingServer, ServerConnection
from ledgermq.world.address import Address
from ledgermq.world.real import World

PORT = 9878
NAME = "broker-a"


@attrs.define(eq=False)
class ScriptedController:
    """The state and the handlers."""

    address: Address
    is_controller: bool = True
    """Whether it is one, and no server of another kind."""
    leads: bool = True
    agrees: bool = True
    """Whether changes of the set are confirmed."""
    takes_in: frozenset[int] | None = None
    """The only replicas that may join the set; None for all."""
    keeps_epoch: bool = False
    """Whether an equal set keeps its epoch, as at controllers of an earlier version."""
    decision_seconds: float = 0.0
    """How long it takes to answer what a majority decides."""
    refusal: ResponseCode | None = None
    """How it answers that, instead of deciding it."""
    asked: list[tuple[float, int]] = attrs.field(factory=list[tuple[float, int]])
    """When each request arrived, and its code."""
    electable: frozenset[int] = frozenset()
    """The brokers that are elected if one asks for them by name."""
    elections: list[int] = attrs.field(factory=list[int])
    """The brokers that were asked for by name."""
    master: int | None = None
    epoch: int = 0
    members: frozenset[int] = frozenset()
    set_epoch: int = 0
    addresses: dict[int, str] = attrs.field(factory=dict[int, str])
    registrations: list[RegisterBrokerRequest] = attrs.field(factory=list[RegisterBrokerRequest])
    beats: dict[int, BrokerHeartbeat] = attrs.field(factory=dict[int, BrokerHeartbeat])
    proposals: list[frozenset[int]] = attrs.field(factory=list[frozenset[int]])
    taken: dict[int, str] = attrs.field(factory=dict[int, str])
    """The check code of each id."""
    offers: list[int] = attrs.field(factory=list[int])
    """The next ids that brokers are offered, instead of a free one."""
    forgotten: ResponseCode | None = None
    """How all brokers are told that they are unknown, until one applies for an id again."""

    def elect(self, broker_id: int) -> None:
        """Make a broker the master of the next epoch, alone in the set."""
        self.master, self.epoch, self.members = broker_id, self.epoch + 1, frozenset({broker_id})
        self.set_epoch += 1

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        for code, handler in {
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._next_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._apply,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._replica_info,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter,
        }.items():
            dispatcher.register_waiting(code, partial(self._decided, handler))
        dispatcher.register(RequestCode.CONTROLLER_GET_METADATA_INFO, self._metadata)
        dispatcher.register(RequestCode.BROKER_HEARTBEAT, self._beat)

    def times_of(self, code: RequestCode) -> list[float]:
        """When requests of one kind arrived."""
        return [at for at, asked in self.asked if asked == code]

    async def _decided(
        self, handler: Handler, connection: ServerConnection, request: RemotingCommand
    ) -> RemotingCommand | None:
        self.asked.append((trio.current_time(), request.code))
        if self.decision_seconds:
            await trio.sleep(self.decision_seconds)
        if not self.leads:
            return request.response(ResponseCode.CONTROLLER_NOT_LEADER)
        if self.refusal is not None:
            return request.response(self.refusal, remark="the test refuses")
        return handler(connection, request)

    def _metadata(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        if not self.is_controller:
            return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return request.response(ext=GetMetadataResponse(group="group", is_leader=self.leads).ext())

    def _next_id(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        offered = self.offers.pop(0) if self.offers else max(self.taken, default=0) + 1
        answer = NextBrokerIdResponse(cluster_name="c", broker_name=NAME, next_broker_id=offered)
        return request.response(ext=answer.ext())

    def _apply(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        asked = ApplyBrokerIdRequest.of(request)
        self.forgotten = None
        if self.taken.setdefault(asked.applied_broker_id, asked.register_check_code) != asked.register_check_code:
            return request.response(ResponseCode.CONTROLLER_BROKER_ID_INVALID)
        return request.response(ext=ApplyBrokerIdResponse(cluster_name="c", broker_name=NAME).ext())

    def _register(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        asked = RegisterBrokerRequest.of(request)
        if self.forgotten is not None:
            return request.response(self.forgotten, remark="the test has forgotten")
        self.registrations.append(asked)
        self.addresses[asked.broker_id] = asked.broker_address
        return self._replica_info(_connection, request)

    def _replica_info(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        if self.forgotten is not None:
            return request.response(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
        if self.master is None:
            return request.response()
        mastership = Mastership(
            master_broker_id=self.master, master_address=self.addresses[self.master], master_epoch=self.epoch
        )
        return request.response(ext=mastership.ext(), body=self._set())

    def _elect(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        asked = ElectMasterRequest.of(request)
        if not asked.designate_elect:
            return request.response(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, remark="the test elects")
        self.elections.append(asked.broker_id)
        if asked.broker_id not in self.electable:
            return request.response(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, remark="the test lets it not be alive")
        self.addresses.setdefault(asked.broker_id, f"10.0.0.{asked.broker_id}:10911")
        self.elect(asked.broker_id)
        return self._replica_info(_connection, request)

    def _set(self) -> bytes:
        return SyncStateSet(sync_state_set=self.members, sync_state_set_epoch=self.set_epoch).body()

    def _alter(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        asked, wanted = AlterSyncStateSetRequest.of(request), SyncStateSet.of(request.body)
        self.proposals.append(wanted.sync_state_set)
        if (asked.master_broker_id, asked.master_epoch, wanted.sync_state_set_epoch) != (
            self.master,
            self.epoch,
            self.set_epoch,
        ) or not (self.agrees and (self.takes_in is None or wanted.sync_state_set - self.members <= self.takes_in)):
            return request.response(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, remark="the test does not agree")
        if not (self.keeps_epoch and wanted.sync_state_set == self.members):
            self.members, self.set_epoch = wanted.sync_state_set, self.set_epoch + 1
        answer = AlterSyncStateSetResponse(new_sync_state_set_epoch=self.set_epoch)
        return request.response(ext=answer.ext(), body=self._set())

    def _beat(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        self.asked.append((trio.current_time(), request.code))
        if not self.leads:
            return request.response(ResponseCode.CONTROLLER_NOT_LEADER)
        beat = BrokerHeartbeat.of(request)
        assert beat.broker_id is not None
        self.beats[beat.broker_id] = beat
        newest = Mastership(master_epoch=self.epoch, sync_state_set_epoch=self.set_epoch)
        return request.response(ext=newest.ext() if self.master is not None else None)


@asynccontextmanager
async def scripted_controller(world: World, host: str) -> AsyncGenerator[ScriptedController]:
    """Serve for the length of the block."""
    controller, dispatcher = ScriptedController(Address(host, PORT)), Dispatcher()
    controller.register(dispatcher)
    server = RemotingServer(dispatcher, world.network, world.clock)
    listeners = list(await world.network.open_listeners(host, PORT))
    async with trio.open_nursery() as nursery:
        dispatcher.nursery = nursery
        await nursery.start(server.serve, listeners)
        yield controller
        nursery.cancel_scope.cancel()
