"""Changes that several brokers make one after the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import attrs
import pytest
from trio.testing import MockClock

from ledgermq.client.admin import open_admin
from ledgermq.client.admin.calls import AdminCalls
from ledgermq.client.errors import BrokerSystemError, ClientError, NoAnswer, NoPermission, Unreachable
from ledgermq.client.producer import open_producer
from ledgermq.client.session import Session
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import open_virtual
from ledgermq.world.network import Address


class Admin(AdminCalls):
    """An administrator's client that deletes a topic on brokers that listen at the ports 0, 1 and so on."""

    async def delete(self, *names: str) -> None:
        requests = [(name, Address("10.0.0.1", at), {"topic": "t"}, b"") for at, name in enumerate(names)]
        await self._change(RequestCode.DELETE_TOPIC_IN_BROKER, requests)

    async def delete_at_name_servers(self) -> None:
        await self._ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "t"})


HANGS = partial(NoAnswer, detail="it hangs")


@attrs.define
class Servers:
    """Brokers of which the one at port `silent` does not do what it is asked."""

    silent: int
    failure: Callable[[str], ClientError] = HANGS

    name_servers: tuple[Address, ...] = (Address("10.0.0.1", 0), Address("10.0.0.1", 1), Address("10.0.0.1", 2))
    asked: list[int] = attrs.field(factory=list[int])

    async def ask(self, address: Address, _command: RemotingCommand, _seconds: float) -> Any:
        self.asked.append(address.port)
        if address.port == self.silent:
            raise self.failure(str(address))


@pytest.mark.parametrize(
    ("silent", "told"),
    [
        (0, "Changed on no broker; a may have the change; not asked: b, c."),
        (1, "Changed on a; b may have the change; not asked: c."),
        (2, "Changed on a, b; c may have the change; not asked: none."),
    ],
)
async def test_a_change_that_fails_half_way_says_where_it_was_made(silent: int, told: str) -> None:
    """A deletion that has failed may have deleted the messages of some brokers."""
    with pytest.raises(NoAnswer) as caught:
        await Admin(cast("Session", Servers(silent))).delete("a", "b", "c")
    assert caught.value.__notes__ == [told]


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (partial(NoPermission, 16, "nothing was changed"), "b was not changed"),
        (partial(Unreachable, detail="nobody listens"), "b was not changed"),
        (partial(BrokerSystemError, 1, "the change may be lost"), "b may have the change"),
    ],
    ids=("refused", "unreachable", "system error"),
)
async def test_a_broker_that_refused_a_change_does_not_count_as_one_that_may_have_it(
    failure: Callable[[str], ClientError], told: str
) -> None:
    """Its own error may say beside the note that nothing was changed."""
    with pytest.raises(ClientError) as caught:
        await Admin(cast("Session", Servers(1, failure))).delete("a", "b", "c")
    assert caught.value.__notes__ == [f"Changed on a; {told}; not asked: c."]


async def test_a_change_of_one_broker_that_fails_needs_no_note() -> None:
    """Its error names it."""
    with pytest.raises(NoAnswer) as caught:
        await Admin(cast("Session", Servers(0))).delete("a")
    assert not hasattr(caught.value, "__notes__")


async def test_a_name_server_that_is_gone_keeps_no_other_from_a_change() -> None:
    """Those that miss it are named: until they are asked again they tell clients of a topic that is deleted."""
    servers = Servers(0)
    with pytest.raises(NoAnswer) as caught:
        await Admin(cast("Session", servers)).delete_at_name_servers()
    assert servers.asked == [0, 1, 2]
    assert caught.value.__notes__ == ["Done by 10.0.0.1:1, 10.0.0.1:2; not by 10.0.0.1:0."]


async def test_a_queue_is_found_where_the_new_master_has_it(autojump_clock: MockClock) -> None:
    """The client knew the route from before the failover."""
    async with (
        open_virtual(mode="controller", nodes=2) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
        open_admin(cluster.namesrv, world=cluster.world) as admin,
    ):
        sent = await producer.send(Message("orders", b"first"))
        assert await admin.queue_range(sent.queue) == (0, 1)
        await cluster.kill(await cluster.master())
        await cluster.master()

        assert await admin.queue_range(sent.queue) == (0, 1)


async def test_a_topic_is_created_while_a_broker_is_drained(autojump_clock: MockClock) -> None:
    """Its routes have fewer permissions than the topic until the broker takes sends again."""
    async with (
        open_virtual(settings={"brokerPermission": "4"}) as cluster,
        open_admin(cluster.namesrv, world=cluster.world) as admin,
    ):
        assert {each.perm for each in (await admin.create_topic("t", queues=2)).values()} == {6}
