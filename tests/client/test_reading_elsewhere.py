"""Reading from a slave: while the master is gone, by its hint, and back again."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import Unreachable
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom, ReadFrom
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import RemotingCommand, wire_fields

from .fake_cluster import NAMESRV, open_cluster, until
from .test_consumer import PULL, fill, numbers


async def taken(consumer: Consumer, messages_max: int, timeout_seconds: float | None = None) -> list[int]:
    """Take and acknowledge messages."""
    async with consumer.take(messages_max, timeout_seconds) as messages:
        return numbers(messages)


async def test_reading_goes_on_from_the_slave_and_comes_back(autojump_clock: MockClock) -> None:
    """When the master is gone its slave is read; when it returns, it is read again."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        fill(master, 3)
        fill(slave, 6)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            assert await taken(consumer, 10) == [0, 1, 2]

            cluster.kill(master)
            started = trio.current_time()
            assert await taken(consumer, 10) == [3, 4, 5]
            assert trio.current_time() - started < 1
            assert not int(slave.requests_of(PULL)[0].ext["sysFlag"]) & 1, "offsets are the master's affair"
            with pytest.raises(Unreachable, match="only a slave has noted the offset"):
                await consumer.commit()
            assert slave.offsets["g", "t", 0] == 6, "while it is gone, any member keeps them"

            cluster.network.refusing.clear()
            fill(master, 3)
            await trio.sleep(10)
            master.put("t", 0, b"6")
            slave.put("t", 0, b"6")
            assert await taken(consumer, 10) == [6]
            master.put("t", 0, b"7")
            assert await taken(consumer, 10, 5) == [7], "which only the master has"
            assert await consumer.get_one(0) is None
        assert master.offsets["g", "t", 0] == 8


def behind(request: RemotingCommand) -> RemotingCommand:
    """Script: a slave that does not have the offset yet."""
    fields = {"suggestWhichBrokerId": 0, "nextBeginOffset": request.ext["queueOffset"], "minOffset": 0, "maxOffset": 3}
    return request.response(ResponseCode.PULL_RETRY_IMMEDIATELY, wire_fields(fields))


async def test_a_slave_that_is_behind_is_asked_now_and_then(autojump_clock: MockClock) -> None:
    """What only the dead master had given out it cannot continue yet: it answers at once, and is asked again a second later."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        fill(master, 5)
        fill(slave, 5)
        slave.script(PULL, *[behind] * 100)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            assert await taken(consumer, 10) == [0, 1, 2, 3, 4]
            cluster.kill(master)
            await trio.sleep(20)
            assert 10 <= len(slave.requests_of(PULL)) <= 22

            cluster.network.refusing.clear()
            master.put("t", 0, b"5")
            started = trio.current_time()
            assert await taken(consumer, 10) == [5], "no offset was moved"
            assert trio.current_time() - started < 10


async def test_a_slave_that_is_behind_sends_readers_back_to_a_master_that_lives(autojump_clock: MockClock) -> None:
    """At once, with the offset that they asked for."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        fill(master, 40)
        master.suggest = 1
        slave.script(PULL, behind, behind)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            started = trio.current_time()
            messages: list[ReceivedMessage] = []
            while len(messages) < 40:
                async with consumer.take(100) as batch:
                    messages += batch

            assert numbers(messages) == list(range(40))
            assert trio.current_time() - started < 0.5
            assert slave.requests_of(PULL)[0].ext["queueOffset"] == "32"


async def test_a_hint_moves_reading_to_the_slave(autojump_clock: MockClock) -> None:
    """A master that is behind in its cache sends readers to its slave, whose hint sends them back."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        fill(master, 64)
        fill(slave, 64)
        master.suggest = 1
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            started = trio.current_time()
            messages: list[ReceivedMessage] = []
            while len(messages) < 64:
                async with consumer.take(100) as batch:
                    messages += batch

            assert numbers(messages) == list(range(64))
            assert trio.current_time() - started < 1, "nobody waited for the master to have nothing more"
            asked, compared = (pull.ext["queueOffset"] for pull in slave.requests_of(PULL))
            assert (asked, compared) == ("32", "31")
            await until(lambda: "64" in {request.ext["queueOffset"] for request in master.requests_of(PULL)})


@pytest.mark.parametrize("wanted", [ReadFrom.MASTER, ReadFrom.SLAVE])
async def test_a_consumer_reads_from_the_member_that_it_was_told(autojump_clock: MockClock, wanted: ReadFrom) -> None:
    """Whatever the broker suggests; when that member is gone, the other one is read."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        for broker in (master, slave):
            fill(broker, 3)
        chosen, other = (master, slave) if wanted is ReadFrom.MASTER else (slave, master)
        chosen.suggest = other.broker_id
        async with open_consumer(
            NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, read_from=wanted, world=cluster.world
        ) as consumer:
            assert await taken(consumer, 10) == [0, 1, 2]
            await trio.sleep(20)
            assert other.requests_of(PULL) == []

            cluster.kill(chosen)
            await until(lambda: bool(other.requests_of(PULL)))
            other.put("t", 0, b"3")
            assert await taken(consumer, 10) == [3]
