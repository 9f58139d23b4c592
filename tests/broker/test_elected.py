"""Brokers whose master a real controller elects, on simulated machines."""

from __future__ import annotations

import pytest
import trio

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.testing.embedded import open_virtual

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def send(producer: Producer, text: str) -> None:
    """Send until it is acknowledged."""
    with trio.fail_after(60):
        while True:
            try:
                if (await producer.send(Message("orders", text.encode()))).status.name == "SEND_OK":
                    return
            except ClientError:
                await trio.sleep(0.05)


@pytest.mark.parametrize("nodes", [2, 3])
async def test_any_one_broker_may_die_and_nothing_acknowledged_is_lost(nodes: int) -> None:
    """Each master in turn is killed, and started again when another one has taken over."""
    async with (
        open_virtual(mode="controller", nodes=nodes) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
    ):
        sent: list[str] = []
        for kill in range(4):
            for number in range(5):
                await send(producer, f"{kill}-{number}")
                sent.append(f"{kill}-{number}")
            master = await cluster.master()
            await cluster.kill(master)
            begun = trio.current_time()
            await send(producer, f"{kill}-after")
            sent.append(f"{kill}-after")
            assert trio.current_time() - begun < 3
            await cluster.start(master)
            await trio.sleep(5)

        got: list[str] = []
        with trio.fail_after(60):
            async with open_consumer(
                cluster.namesrv, "consumers", "orders", consume_from=ConsumeFrom.FIRST, world=cluster.world
            ) as consumer:
                async for message in consumer:
                    got.append(message.body.decode())
                    if set(got) >= set(sent):
                        break
        assert sorted(set(got)) == sorted(sent)


async def test_a_master_that_is_stopped_in_order_is_replaced_before_it_goes() -> None:
    """A deploy costs no time-out: the next send is acknowledged at once by another replica."""
    async with (
        open_virtual(mode="controller", nodes=2) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
    ):
        await send(producer, "before")
        master = await cluster.master()
        await cluster.stop(master)
        begun = trio.current_time()

        await send(producer, "after")

        assert trio.current_time() - begun < 0.5
        assert await cluster.master() != master
