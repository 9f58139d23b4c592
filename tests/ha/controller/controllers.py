"""Controllers and replicas in one process: simulated machines, virtual time, and replicas that only talk to the controllers."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio

from ledgermq.ha.controller.config import ControllerConfig
from ledgermq.ha.controller.protocol import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    Body,
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
from ledgermq.ha.controller.server import Controller, open_controller
from ledgermq.ha.controller.state import BrokerSet
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RemotingError
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import Machine
from ledgermq.world.address import Address

PORT, GROUP_PORT = 19876, 9877
CLUSTER, NAME = "c1", "b1"
SHARED_BY_ALL = "s3cret"
HEARTBEAT_SECONDS, TIMEOUT_SECONDS = 0.2, 1.0


@attrs.define(eq=False)
class Node:
    """One machine with the controller that runs on it, if one does."""

    group: Group
    number: int
    machine: Machine
    controller: Controller | None = None
    failure: BaseException | None = None
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def up(self) -> Controller:
        assert self.controller is not None
        return self.controller

    @property
    def address(self) -> Address:
        return Address(self.machine.host, PORT)

    @property
    def set(self) -> BrokerSet:
        return self.up.node.state.sets[NAME]

    async def start(self) -> None:
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        started = trio.Event()
        self.group.nursery.start_soon(self._run, started)
        await started.wait()

    async def _run(self, started: trio.Event) -> None:
        config = attrs.evolve(self.group.config, self_id=f"n{self.number}", bind_address=self.machine.host)
        try:
            with self._scope:
                async with open_controller(config, self.machine.world()) as self.controller:
                    started.set()
                    await trio.sleep_forever()
        finally:
            self.controller = None
            started.set()
            self._ended.set()

    async def kill(self) -> None:
        self.machine.kill()
        await self._end()

    async def power_cut(self) -> None:
        self.machine.power_cut()
        await self._end()

    async def _end(self) -> None:
        self._scope.cancel()
        await self._ended.wait()


@attrs.define(eq=False)
class Group:
    """The machines of the controllers, and one more for replicas and administrators."""

    nursery: trio.Nursery
    fabric: SimFabric
    config: ControllerConfig
    outside: Machine
    nodes: list[Node] = attrs.field(factory=list[Node])

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.controller is not None]

    async def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        with trio.fail_after(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time, and any condition
                await trio.sleep(0.01)

    async def leader(self, among: list[Node] | None = None) -> Node:
        """The one leader, once it decides."""

        def found() -> list[Node]:
            return [node for node in among or self.running if node.controller and node.up.node.replica.is_leader]

        await self.until(found)
        return max(found(), key=lambda node: node.up.node.replica.leading.term)

    async def ask(
        self, node: Node, code: RequestCode, header: Header | None = None, body: Body | bytes = b""
    ) -> RemotingCommand:
        """Send a request to one controller, and return the answer, whatever its code is."""
        content = body.body() if isinstance(body, Body) else body
        request = RemotingCommand(code, header.ext() if header is not None else {}, content)
        async with connected(node.address, network=self.outside.world().network) as channel:
            return await channel.call(request, 5.0)

    async def asked(self, code: RequestCode, header: Header, body: Body | bytes = b"") -> RemotingCommand:
        """As a broker does: ask the leader, and look for another one until one answers."""
        while True:
            for node in self.running:
                try:
                    answer = await self.ask(node, code, header, body)
                except RemotingError:
                    continue
                if answer.code not in (ResponseCode.CONTROLLER_NOT_LEADER, ResponseCode.SYSTEM_BUSY):
                    return answer
            await trio.sleep(0.05)

    def isolate(self, node: Node) -> None:
        """Cut a controller off from the others and from the replicas."""
        others = [other.machine.host for other in self.nodes if other is not node]
        self.fabric.part([node.machine.host], [*others, self.outside.host])

    async def replica(self, broker_id: int) -> Replica:
        """A new replica, with its id, that is registered and sends heartbeats."""
        replica = Replica(self, broker_id)
        await replica.get_id()
        await replica.register()
        replica.live()
        return replica

    async def metadata(self, node: Node) -> GetMetadataResponse:
        return GetMetadataResponse.of(await self.ask(node, RequestCode.CONTROLLER_GET_METADATA_INFO))


@attrs.define(eq=False)
class Replica:
    """A replica, as far as controllers see it."""

    group: Group
    broker_id: int
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def address(self) -> str:
        return f"{self.group.outside.host}:{10911 + self.broker_id}"

    async def get_id(self) -> None:
        group = self.group
        asked = NextBrokerIdRequest(cluster_name=CLUSTER, broker_name=NAME)
        answer = NextBrokerIdResponse.of(await group.asked(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, asked))
        assert answer.next_broker_id == self.broker_id
        request = ApplyBrokerIdRequest(
            cluster_name=CLUSTER,
            broker_name=NAME,
            applied_broker_id=self.broker_id,
            register_check_code=f"{self.address};1",
        )
        assert (await group.asked(RequestCode.CONTROLLER_APPLY_BROKER_ID, request)).code == ResponseCode.SUCCESS

    async def register(self) -> RemotingCommand:
        """Register as a process that may have lost messages."""
        request = RegisterBrokerRequest(
            cluster_name=CLUSTER,
            broker_name=NAME,
            broker_id=self.broker_id,
            broker_address=self.address,
            max_offset=100,
            epoch=0,
        )
        answer = await self.group.asked(RequestCode.CONTROLLER_REGISTER_BROKER, request)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    def live(self) -> None:
        """Send heartbeats to all controllers from now on."""
        self._scope = trio.CancelScope()
        self.group.nursery.start_soon(self._beat)

    def die(self) -> None:
        self._scope.cancel()

    async def _beat(self) -> None:
        with self._scope:
            while True:
                async with trio.open_nursery() as nursery:
                    for node in self.group.running:
                        nursery.start_soon(self._beat_at, node)
                    await trio.sleep(HEARTBEAT_SECONDS)
                    nursery.cancel_scope.cancel()

    async def _beat_at(self, node: Node) -> None:
        heartbeat = BrokerHeartbeat(
            cluster_name=CLUSTER,
            broker_name=NAME,
            broker_addr=self.address,
            broker_id=self.broker_id,
            epoch=0,
            max_offset=100,
            heartbeat_timeout_mills=round(TIMEOUT_SECONDS * 1000),
        )
        with suppress(RemotingError):
            await self.group.ask(node, RequestCode.BROKER_HEARTBEAT, heartbeat)

    async def elect(self) -> RemotingCommand:
        request = ElectMasterRequest(cluster_name=CLUSTER, broker_name=NAME, broker_id=self.broker_id)
        return await self.group.asked(RequestCode.CONTROLLER_ELECT_MASTER, request)

    async def info(self) -> tuple[Mastership, SyncStateSet]:
        answer = await self.group.asked(RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequest(broker_name=NAME))
        return Mastership.of(answer), SyncStateSet.of(answer.body)

    async def alter(self, *members: int) -> RemotingCommand:
        """As the master, replace the set."""
        master, known = await self.info()
        assert master.master_epoch is not None
        request = AlterSyncStateSetRequest(broker_name=NAME, master_broker_id=self.broker_id, master_epoch=master.master_epoch)
        body = SyncStateSet(sync_state_set=frozenset(members), sync_state_set_epoch=known.sync_state_set_epoch)
        return await self.group.asked(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, request, body)


async def serving(group: Group, count: int = 2) -> list[Replica]:
    """Replicas that are alive and in sync, the first of them being the master."""
    replicas = [await group.replica(broker_id) for broker_id in range(1, count + 1)]
    assert Mastership.of(await replicas[0].elect()).master_broker_id == 1
    assert (await replicas[0].alter(*range(1, count + 1))).code == ResponseCode.SUCCESS
    return replicas


class CallsInTurns(trio.abc.Instrument):
    """Counts how often each turn of a task calls a function or a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.turns = [0]
        original = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            self.turns[-1] += 1
            return original(*arguments)

        monkeypatch.setattr(owner, name, counted)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.turns[-1]:
            self.turns.append(0)


def scenario(story: Callable[[Group], Awaitable[None]], *, nodes: int = 3, seed: int = 1, **config: Any) -> None:
    """Run a story on a group of controllers, in virtual time."""

    async def run() -> None:
        rng = random.Random(seed)
        fabric = SimFabric(random.Random(rng.getrandbits(64)))
        machines = [
            Machine.of(f"10.0.0.{number}", fabric, random.Random(rng.getrandbits(64))) for number in range(1, nodes + 2)
        ]
        peers = ";".join(f"n{number}-{machine.host}:{GROUP_PORT}" for number, machine in enumerate(machines[:-1]))
        settings = ControllerConfig(listen_port=PORT, peers=peers, store_path="controller", ha_secret=SHARED_BY_ALL, **config)
        async with trio.open_nursery() as nursery:
            group = Group(nursery, fabric, settings, machines[-1])
            for number, machine in enumerate(machines[:-1]):
                group.nodes.append(Node(group, number, machine))
                await group.nodes[-1].start()
            await story(group)
            nursery.cancel_scope.cancel()

    seeded_run(run, seed=seed)
