"""A broker whose role a controller gives, with two brokers on simulated machines and a controller that the test scripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from ledgermq.broker.access.control import OPEN_CODES
from ledgermq.broker.access.demands import ASKED
from ledgermq.broker.broker import Broker
from ledgermq.broker.role import Role
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.ha.controller.node import ElectedNode
from ledgermq.message.message import Message
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import OpenEmbedded, open_virtual
from ledgermq.world.network import Address

from ...ha.controller.scripted import NAME, PORT, ScriptedController, scripted_controller
from ..access.scene import ADMIN, BOOTSTRAP

pytestmark = pytest.mark.usefixtures("autojump_clock")

SECURED = {"authenticationEnabled": "true", "authorizationEnabled": "true", "initAuthenticationUser": BOOTSTRAP}
SETTINGS = {"brokerName": NAME, "enableControllerMode": "true", "controllerAddr": f"10.0.0.1:{PORT}"}


@attrs.define
class Group:
    """Two brokers and their controller."""

    cluster: OpenEmbedded
    controller: ScriptedController

    def broker(self, broker_id: int) -> Broker:
        """The running broker that has this id for the controller."""
        return next(broker for broker in self.cluster.brokers if self.node(broker).own_id == broker_id)

    @staticmethod
    def node(broker: Broker) -> ElectedNode:
        node = broker.node
        assert isinstance(node, ElectedNode)
        return node

    def address(self, broker_id: int) -> str:
        return self.controller.addresses[broker_id]


async def until(condition: Callable[[], object]) -> None:
    """Wait on virtual time until something holds."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.01)


@asynccontextmanager
async def group(**settings: str) -> AsyncGenerator[Group]:
    async with (
        open_virtual(nodes=2, settings=SETTINGS | settings) as cluster,
        scripted_controller(cluster.world, "10.0.0.1") as controller,
    ):
        await until(lambda: len(controller.addresses) == 2)
        yield Group(cluster, controller)


@asynccontextmanager
async def pair(**settings: str) -> AsyncGenerator[tuple[Group, Producer]]:
    """A group whose broker 1 is master, and both are in sync; and a producer."""
    async with group(**settings) as two:
        two.controller.elect(1)
        await until(lambda: two.controller.members == frozenset({1, 2}))
        async with open_producer(two.cluster.namesrv, "producers", world=two.cluster.world) as producer:
            yield two, producer


async def send(producer: Producer, text: str) -> None:
    """Send until it is acknowledged."""
    with trio.fail_after(60):
        while True:
            try:
                result = await producer.send(Message("orders", text.encode()))
            except ClientError:
                await trio.sleep(0.05)
                continue
            if result.status.name == "SEND_OK":
                return


async def test_each_broker_gets_an_id_of_its_own_and_none_is_master_before_an_election() -> None:
    async with group() as two:
        assert sorted(two.controller.taken) == [1, 2]
        assert [broker.role.state.role for broker in two.cluster.brokers] == [Role.CANDIDATE, Role.CANDIDATE]
        assert all(not broker.registration.registered_with for broker in two.cluster.brokers)
        assert all(registration.clean_stop for registration in two.controller.registrations)


async def test_the_elected_broker_becomes_master_and_the_other_one_follows_and_joins_the_set() -> None:
    async with pair() as (two, producer):
        await send(producer, "first")

        assert two.broker(1).role.takes_puts
        assert two.broker(2).role.state.role is Role.FOLLOWER
        assert two.broker(2).store.log.max_offset == two.broker(1).store.log.max_offset


async def test_between_changes_a_broker_asks_for_a_decision_every_five_seconds() -> None:
    """Each costs the controllers a round of messages among them, for which all of them wake."""
    async with pair() as (two, _):
        await trio.sleep(5)
        since = trio.current_time()
        await trio.sleep(20)

        asked = [code for at, code in two.controller.asked if at >= since and code != RequestCode.BROKER_HEARTBEAT]
        assert asked == [RequestCode.CONTROLLER_GET_REPLICA_INFO] * 8


async def test_a_message_waits_for_the_other_replica_and_is_not_seen_before() -> None:
    async with pair(slaveTimeout="1000") as (two, producer):
        await send(producer, "first")
        two.controller.agrees = False
        seen = two.broker(1).store.log.readable_offset
        await two.cluster.kill(two.address(2))

        result = await producer.send(Message("orders", b"second"))

        assert result.status.name == "FLUSH_SLAVE_TIMEOUT"
        assert two.broker(1).store.log.readable_offset == seen < two.broker(1).store.log.max_offset


async def test_with_sync_flush_a_replica_acknowledges_only_what_it_has_synced() -> None:
    """Either of them may be elected after a power cut of both."""
    async with pair(flushDiskType="SYNC_FLUSH", slaveTimeout="1000") as (two, producer):
        await send(producer, "first")
        slaves_log = two.node(two.broker(2))._local  # pyright: ignore[reportPrivateUsage]
        async with slaves_log._sync_lock:  # pyright: ignore[reportPrivateUsage]
            result = await producer.send(Message("orders", b"second"))

        assert result.status.name == "FLUSH_SLAVE_TIMEOUT"
        await send(producer, "third")


async def test_a_master_goes_on_alone_once_the_controller_has_taken_the_other_one_out() -> None:
    async with pair() as (two, producer):
        await two.cluster.kill(two.address(2))
        begun = trio.current_time()

        await send(producer, "second")

        assert two.controller.members == {1}
        assert trio.current_time() - begun < 1.0


async def test_the_other_replica_takes_over_and_has_whatever_was_acknowledged() -> None:
    async with pair() as (two, producer):
        for number in range(20):
            await send(producer, f"message {number}")
        await two.cluster.kill(two.address(1))
        two.controller.elect(2)
        begun = trio.current_time()

        await send(producer, "after")

        assert trio.current_time() - begun < 2.0
        assert two.broker(2).store.queues.table["orders", 0] is not None
        assert (
            sum(queue.max_offset for (topic, _), queue in two.broker(2).store.queues.table.items() if topic == "orders") == 21
        )


async def test_a_deposed_master_follows_the_new_one_and_drops_what_nobody_was_told() -> None:
    async with pair(slaveTimeout="1000") as (two, producer):
        await send(producer, "first")
        two.controller.agrees = False
        old, new = two.broker(1), two.broker(2)
        await new.node.stop()  # it acknowledges nothing any more
        result = await producer.send(Message("orders", b"unacknowledged"))
        assert result.status.name == "FLUSH_SLAVE_TIMEOUT"

        two.controller.agrees = True
        two.controller.elect(2)
        await send(producer, "after")
        await until(lambda: two.controller.members == frozenset({1, 2}))

        assert old.role.state.role is Role.FOLLOWER
        assert old.store.log.max_offset == new.store.log.max_offset
        assert [entry.number for entry in two.node(old).epochs] == [entry.number for entry in two.node(new).epochs]


async def test_a_broker_keeps_its_id_over_restarts_and_says_how_it_ended() -> None:
    async with pair() as (two, producer):
        await send(producer, "first")
        address = two.address(2)
        await two.cluster.kill(address)
        await two.cluster.start(address)
        await until(lambda: len(two.controller.registrations) == 3)

        again = two.controller.registrations[-1]
        assert (again.broker_id, again.clean_stop) == (2, False)
        assert again.max_offset is not None
        assert again.max_offset > 0


async def test_an_ordered_stop_hides_no_crash_that_no_controller_has_heard_of() -> None:
    """Else the broker would stay in the set without what it had acknowledged and lost."""
    async with pair() as (two, producer):
        await send(producer, "first")
        address = two.address(2)
        await two.cluster.kill(address)
        two.controller.leads = False
        await two.cluster.start(address)
        await two.cluster.stop(address)
        two.controller.leads = True
        await two.cluster.start(address)
        await until(lambda: len(two.controller.registrations) == 3)
        assert not two.controller.registrations[-1].clean_stop

        await until(lambda: two.controller.members == frozenset({1, 2}))
        await two.cluster.stop(address)
        await two.cluster.start(address)
        await until(lambda: len(two.controller.registrations) == 4)
        assert two.controller.registrations[-1].clean_stop


async def test_a_master_whose_identity_another_broker_has_taken_is_master_no_more() -> None:
    """Its directory was copied, and the copy was started while it reached no controller."""
    async with pair() as (two, _):
        master = two.broker(1)
        two.controller.addresses[1] = "10.0.0.99:10911"
        two.controller.elect(1)

        await until(lambda: not master.role.takes_puts)
        await trio.sleep(3)

        assert not master.role.takes_puts
        assert master.role.state.reason == "another broker with the id 1, at 10.0.0.99:10911, is master of epoch 2"


async def test_a_master_that_the_controller_has_forgotten_is_master_no_more() -> None:
    """Another replica may be elected, which it could not find out from an epoch: the controller may have lost its own."""
    async with pair() as (two, _):
        master = two.broker(1)
        two.controller.forgotten, two.controller.master = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, None

        await until(lambda: not master.role.takes_puts)
        await until(lambda: len(two.controller.registrations) == 4)
        assert not master.role.takes_puts

        two.controller.epoch = 0
        two.controller.elect(2)
        await until(lambda: two.broker(2).role.takes_puts and master.role.state.role is Role.FOLLOWER)


async def test_without_a_controller_a_master_goes_on_as_long_as_its_set_does() -> None:
    async with pair() as (two, producer):
        two.controller.leads = False
        await trio.sleep(5)

        await send(producer, "still")

        assert two.broker(1).role.takes_puts


async def test_users_are_known_to_the_master_that_is_elected_next() -> None:
    """With access control the replica signs what it asks the master, and nobody signs the controller's notices."""
    async with group(**SECURED, haSecret="s") as two:
        two.controller.elect(1)
        await until(lambda: two.controller.members == frozenset({1, 2}))
        assert two.broker(1).dispatcher.codes - ASKED.keys() - OPEN_CODES == {RequestCode.GET_ALL_ACCESS}
        request = RemotingCommand(RequestCode.AUTH_CREATE_USER, {"username": "alice"}, b'{"password":"hush"}')
        address = Address.parse(two.address(1))
        async with connected(address, network=two.cluster.world.network, credentials=ADMIN) as channel:
            assert (await channel.call(request, 5)).code == ResponseCode.SUCCESS
        two.controller.elect(2)
        await until(lambda: two.broker(2).role.takes_puts)

        assert two.broker(2).tables.access.users.keys() == {"alice"}


async def test_a_master_with_too_few_in_sync_stores_nothing() -> None:
    """With minInSyncReplicas=2 one copy is not enough."""
    async with pair(minInSyncReplicas="2") as (two, producer):
        await send(producer, "first")
        await two.cluster.kill(two.address(2))
        in_sync = two.node(two.broker(1)).in_sync
        assert in_sync is not None
        await until(lambda: in_sync.members == frozenset({1}))
        end = two.broker(1).store.log.max_offset

        with pytest.raises(ClientError, match="minInSyncReplicas asks for 2"):
            await producer.send(Message("orders", b"second"))

        assert two.broker(1).store.log.max_offset == end
