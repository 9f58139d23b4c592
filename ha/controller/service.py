"""Answers the requests of brokers and administrators (RocketMQ ControllerRequestProcessor).

Every controller takes note of heartbeats and says which of them leads, at once. Everything else is answered by the leader, once
a majority has confirmed it. Whether a request may be carried out is decided in `decisions.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import attrs
import trio

from ...message.json import dumps_strict
from ...remoting.changed_settings import KeptFile, requested_changes
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import FRAME_SIZE_MAX, RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.java_properties import PROPERTIES_BYTES_MAX, write_properties
from ...remoting.server import ServerConnection
from ...world.events import get_logger
from ...world.real import World
from ...world.slices import in_slices
from .config import CHANGEABLE, KEYS, ControllerConfig
from .decisions import (
    Decision,
    Situation,
    decide_alteration,
    decide_cleaning,
    decide_election,
    decide_id,
    decide_next_id,
    decide_registration,
    replica_info,
    replicas_info,
)
from .errors import BadControllerConfig
from .member import ControllerMember, Judge
from .protocol import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    BrokerHeartbeat,
    CleanBrokerDataRequest,
    ElectMasterRequest,
    GetReplicaInfoRequest,
    Header,
    Mastership,
    NextBrokerIdRequest,
    RegisterBrokerRequest,
    SyncStateSet,
    read_broker_names,
)

log = get_logger(__name__)

H = TypeVar("H", bound=Header)

REPLICAS_PER_TURN = 1024
"""How many replicas one turn of the event loop writes into an answer."""
ANSWER_BYTES_MAX = FRAME_SIZE_MAX - 64 * 1024
"""The most bytes of replicas in one answer; a larger answer is refused."""


@attrs.define(eq=False, repr=False)
class ControllerService:
    """The request handlers of one controller."""

    node: ControllerMember
    config: ControllerConfig
    world: World
    file: KeptFile
    """That of `configStorePath`."""
    changes: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """The settings that administrators changed, which is the content of `file`; it is read at the start."""
    refused: Counter[int] = attrs.field(factory=Counter[int])
    """How many requests for a decision were refused, by the code of the answer."""
    # Two administrators may change the same file concurrently; the second write has both changes.
    _saving: trio.Lock = attrs.field(factory=trio.Lock)

    def register(self, dispatcher: Dispatcher) -> None:
        """Register all handlers at a dispatcher."""
        judges: dict[RequestCode, Callable[[RemotingCommand], Judge]] = {
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: _alteration,
            RequestCode.CONTROLLER_ELECT_MASTER: _judged_by(decide_election, ElectMasterRequest),
            RequestCode.CONTROLLER_REGISTER_BROKER: _judged_by(decide_registration, RegisterBrokerRequest),
            RequestCode.CONTROLLER_GET_REPLICA_INFO: _judged_by(replica_info, GetReplicaInfoRequest),
            RequestCode.CLEAN_BROKER_DATA: _judged_by(decide_cleaning, CleanBrokerDataRequest),
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: _judged_by(decide_next_id, NextBrokerIdRequest),
            RequestCode.CONTROLLER_APPLY_BROKER_ID: _judged_by(decide_id, ApplyBrokerIdRequest),
        }
        for code, judge_of in judges.items():
            dispatcher.register_waiting(code, self._decided_by(judge_of))
        dispatcher.register_long({RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self.sync_state_data})
        dispatcher.register(RequestCode.BROKER_HEARTBEAT, self.heartbeat)
        dispatcher.register(RequestCode.CONTROLLER_GET_METADATA_INFO, self.metadata)
        dispatcher.register(RequestCode.GET_CONTROLLER_CONFIG, self.get_config)
        dispatcher.register_waiting(
            RequestCode.UPDATE_CONTROLLER_CONFIG, self.update_config, body_bytes_max=PROPERTIES_BYTES_MAX
        )

    def _decided_by(
        self, judge_of: Callable[[RemotingCommand], Judge]
    ) -> Callable[[ServerConnection, RemotingCommand], Awaitable[RemotingCommand]]:
        async def answer(_: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            # The master that alters its set knows of it from the answer, and its slaves need not know.
            quietly = request.code == RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
            try:
                decision = await self.node.decide(judge_of(request), quietly=quietly)
            except RequestRefused as error:
                self.refused[error.code] += 1
                raise
            return request.response(
                decision.code,
                decision.header.ext() if decision.header is not None else None,
                decision.body.body() if decision.body is not None else b"",
                decision.remark,
            )

        return answer

    async def sync_state_data(self, _: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """1006: all replicas of broker names, of all names if none is given; those that are not registered are left out."""
        names = read_broker_names(request.body)
        await self.node.decide(lambda _: Decision())  # what follows is no older than what a majority has confirmed
        situation = self.node.situation
        known = situation.state.sets
        sets = [known[name] for name in sorted({*names} or known) if name in known and known[name].replicas]
        entries: list[bytes] = []
        room = ANSWER_BYTES_MAX
        async for some in in_slices(sets, REPLICAS_PER_TURN, lambda one: len(one.replicas)):
            entries += [b"%b:%b" % (dumps_strict(one.name), replicas_info(one, situation).body()) for one in some]
            room -= sum(len(entry) + 1 for entry in entries[-len(some) :])
            if room < 0:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"the replicas of {len(sets)} broker names take more than {ANSWER_BYTES_MAX} bytes; ask for fewer names",
                )
        return request.response(body=b'{"replicasInfoTable":{%b}}' % b",".join(entries))

    def heartbeat(self, _: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """904: a sign of life; a replica that learns from the answer of a newer epoch asks for it, if no notice has reached it.

        A controller that no longer leads must say so: its brokers keep their connections as long as its process lives, and the
        next leader takes them for dead if they come later than their time-out. One that does not know all replicas yet calls
        none of them unknown: it would register like a new process, which may have lost something.
        """
        beat = BrokerHeartbeat.of(request)
        if self.node.knows_all:
            self.node.hear(beat)
            one = self.node.state.sets[beat.broker_name]
            newest = Mastership(master_epoch=one.master_epoch, sync_state_set_epoch=one.in_sync_epoch)
            return request.response(ext=newest.ext() if one.master_id is not None else None)
        with suppress(RequestRefused):  # this node may not know the replica yet
            self.node.hear(beat)
        reason = "has not read its log yet" if self.node.replica.is_leader else "does not lead"
        return request.response(ResponseCode.CONTROLLER_NOT_LEADER, remark=f"this controller {reason}")

    def metadata(self, _: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        return request.response(ext=self.node.metadata().ext())

    def get_config(self, _: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=self.config.to_properties().encode())

    async def update_config(self, _: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        entries = requested_changes(request, "controller", KEYS, CHANGEABLE, self.config.config_black_list)
        async with self._saving:
            try:
                changed = self.config.with_entries(entries)
            except BadControllerConfig as error:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{error}; nothing was changed") from error
            changes = {**self.changes, **entries}
            await self.file.save(self.world, write_properties(changes).encode())
            self.use(changed)
            self.changes = changes
        log.info("controller_config_changed", entries=entries)
        return request.response()

    def use(self, config: ControllerConfig) -> None:
        """Use a changed configuration from now on."""
        self.config = config
        self.node.unclean = config.enable_elect_unclean_master
        self.node.look_seconds = config.scan_not_active_broker_interval / 1000


def _alteration(request: RemotingCommand) -> Judge:
    header, body = AlterSyncStateSetRequest.of(request), SyncStateSet.of(request.body)
    return lambda situation: decide_alteration(header, body, situation)


def _judged_by(decide: Callable[[H, Situation], Decision], kind: type[H]) -> Callable[[RemotingCommand], Judge]:
    """Make the function that reads a request with a header of this kind, for `decide` to judge."""

    def judge_of(request: RemotingCommand) -> Judge:
        header = kind.of(request)
        return lambda situation: decide(header, situation)

    return judge_of
