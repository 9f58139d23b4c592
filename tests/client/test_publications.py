"""Where a producer sends when a topic that it knows is gone from the name servers."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from ledgermq.client.errors import SendTimeout
from ledgermq.client.producer import open_producer
from ledgermq.message.message import Message

from ..broker.modes.test_dledger import Group, scenario
from .fake_cluster import NAMESRV, open_cluster


def test_an_open_producer_goes_on_when_a_group_begins_anew() -> None:
    """Its topic is gone, and its old route names the old master; the new one creates the topic again, as for a new producer."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
            await group.begin_anew()

            for _ in range(5):
                await producer.send(Message("T", b"x"))

    scenario(story, settings={"storeType": "MEMORY"})


async def test_a_lost_topic_is_created_again_only_where_it_was(autojump_clock: MockClock) -> None:
    """A name server that has just started may know brokers that never had the topic before it knows those that have it."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        old, other = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 1, old)
        await producer.send(Message("t", b"1"))
        cluster.kill(old)
        cluster.forget(old)
        cluster.create("TBW102", 8, other)

        with pytest.raises(SendTimeout):
            await producer.send(Message("t", b"2"))
        new = await cluster.start_broker("b1")
        cluster.create("TBW102", 8)
        await producer.send(Message("t", b"3"))

        assert (other.bodies("t"), new.bodies("t")) == ([], [b"3"])
