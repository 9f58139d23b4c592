"""Messages that an administrator pushes to one consumer."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.blocking import BlockingConsumer, BlockingHost
from ledgermq.client.consumer import open_consumer
from ledgermq.client.received import ReceivedMessage
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.server import ServerConnection
from ledgermq.testing.sim.threads import SimLock, SimThread, SimThreadLoop

from .fake_cluster import NAMESRV, open_cluster


@pytest.mark.parametrize(("accept", "outcome"), [(True, "CR_SUCCESS"), (False, "CR_LATER")])
async def test_a_message_can_be_consumed_directly(autojump_clock: MockClock, accept: bool, outcome: str) -> None:
    """A message that an administrator pushes is handed out first, and what becomes of it is the answer."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"pushed")
        request = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"brokerName": "b1"}, broker.queues["t", 0][0])
        answers: list[RemotingCommand] = []
        async with open_consumer(NAMESRV, "g", "t", ack="explicit", world=cluster.world) as consumer:
            connection = next(iter(broker.members.values()))

            async def push() -> None:
                answers.append(await connection.call(request, 5))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(push)
                message = await consumer.get_one()
                assert message is not None
                await (message.ack() if accept else message.retry())

        assert message.body == b"pushed"
        assert loads(answers[0].body)["consumeResult"] == outcome


@pytest.mark.parametrize("way", ["nobody", "closing", "a handler that fails", "a loop in a thread"])
async def test_a_message_that_nobody_has_consumed_directly_is_no_success(autojump_clock: MockClock, way: str) -> None:
    """The answer comes in a few seconds, even if no loop asks for a message, and says that it has to come later."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"pushed")
        request = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"brokerName": "b1"}, broker.queues["t", 0][0])
        answers: list[RemotingCommand] = []
        seen: list[bytes] = []

        async def push(connection: ServerConnection) -> None:
            answers.append(await connection.call(request, 5))

        async def fail(message: ReceivedMessage) -> None:
            seen.append(message.body)
            raise ValueError("scripted")

        def fail_in_thread(shell: BlockingConsumer) -> None:
            for message in shell:
                seen.append(message.body)
                break

        async with trio.open_nursery() as nursery, open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            nursery.start_soon(push, next(iter(broker.members.values())))
            await trio.sleep(0.1)
            if way == "a handler that fails":
                with trio.move_on_after(1):
                    await consumer.process(fail)
            elif way == "a loop in a thread":
                loop = cast("Any", SimThreadLoop(random.Random(0)))
                shell = BlockingConsumer(BlockingHost(consumer, loop), fetching=cast("Any", SimLock()))
                await SimThread(partial(fail_in_thread, shell)).drive()
            elif way == "nobody":
                await trio.sleep(4)

        assert seen == ([b"pushed"] if "loop" in way or "handler" in way else [])
        assert loads(answers[0].body)["consumeResult"] == "CR_LATER"


async def test_a_damaged_message_is_refused_and_the_connection_goes_on(autojump_clock: MockClock) -> None:
    """The administrator hears why."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"pushed")
        damaged = broker.queues["t", 0][0].replace(b"pushed", b"pulled")
        request = RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"brokerName": "b1"}, damaged)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world):
            connection = next(iter(broker.members.values()))
            answer = await connection.call(request, 5)
            assert list(broker.members.values()) == [connection]

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "is damaged" in (answer.remark or "")
