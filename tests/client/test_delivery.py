"""Acknowledged only after handled, handled at least once: every way to take, finish, give back and leave messages."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError, Closed, InvalidArgument
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.json import dumps
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand

from .fake_cluster import NAMESRV, FakeBroker, FakeCluster, open_cluster, until

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2


@asynccontextmanager
async def filled(count: int) -> AsyncGenerator[tuple[FakeCluster, FakeBroker]]:
    """A cluster with one queue of so many messages; a message that never comes fails the test, by virtual time."""
    with trio.fail_after(3600):
        async with open_cluster() as cluster:
            broker = await cluster.start_broker("b1")
            cluster.create("t", 1)
            for number in range(count):
                broker.put("t", 0, b"%d" % number)
            yield cluster, broker


def consuming(cluster: FakeCluster, **options: Any) -> Any:
    return open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world, **options)


def silence(request: RemotingCommand) -> None:
    """Script: never answer."""


def take_no_message_back(broker: FakeBroker, times: int = 100) -> None:
    """Let every way back be refused."""
    broker.refuse(BACK, ResponseCode.SYSTEM_ERROR, times)
    broker.refuse(SEND, ResponseCode.SYSTEM_ERROR, times)


def reset_to(broker: FakeBroker, offset: int) -> None:
    body = dumps({"offsetTable": {MessageQueue("t", "b1", 0): offset}})
    command = RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": "t", "group": "g"}, body)
    for connection in list(broker.members.values()):
        connection.notify(command)


def number(message: ReceivedMessage | None) -> int:
    assert message is not None
    return int(message.body)


async def test_a_message_whose_way_back_failed_is_not_acknowledged(autojump_clock: MockClock) -> None:
    """The loop of the README: `retry`, and on to the next message, which acknowledges what was before it."""
    async with filled(3) as (cluster, broker):
        take_no_message_back(broker)
        seen: list[tuple[int, int]] = []
        async with consuming(cluster) as consumer:
            async for message in consumer:
                seen.append((number(message), message.reconsume_times))
                if number(message) == 1 and message.reconsume_times < 2:
                    await message.retry()
                    await consumer.commit()
                    assert broker.offsets["g", "t", 0] <= 1
                if len(seen) == 5:
                    await message.ack()
                    break

        assert seen == [(0, 0), (1, 0), (2, 0), (1, 1), (1, 2)]
        assert broker.offsets["g", "t", 0] == 3


@pytest.mark.parametrize("mode", ["auto", "explicit"])
async def test_an_orderly_message_may_be_retried_again_and_again(autojump_clock: MockClock, mode: str) -> None:
    """The queue waits for it each time, goes on with it, and commits nothing behind it."""
    async with filled(4) as (cluster, broker):
        seen: list[int] = []
        async with consuming(cluster, orderly=True, ack=mode) as consumer:
            async for message in consumer:
                seen.append(number(message))
                if number(message) == 1 and message.reconsume_times < 3:
                    await message.retry()
                    await consumer.commit()
                    assert broker.offsets["g", "t", 0] == 1
                elif mode == "explicit" or number(message) == 3:
                    await message.ack()
                if number(message) == 3:
                    break

        assert seen == [0, 1, 1, 1, 1, 2, 3]
        assert broker.offsets["g", "t", 0] == 4


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("mode", ["auto", "explicit"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_batch_of_which_some_are_retried(autojump_clock: MockClock, orderly: bool, mode: str, seed: int) -> None:
    """`get_many`, and `ack` or `retry` for each: all are handled in the end, in order if the queue is orderly."""
    async with filled(40) as (cluster, broker):
        cluster.create("%RETRY%g", 1)
        handled: list[int] = []
        failing = {(seed * 7 + step * 5) % 40: 1 + step % 2 for step in range(6)}
        async with consuming(cluster, orderly=orderly, ack=mode) as consumer:
            while len(set(handled)) < 40:
                with trio.fail_after(60):
                    batch = await consumer.get_many(7)
                for message in batch:
                    if failing.get(number(message), 0) > 0:
                        failing[number(message)] -= 1
                        await message.retry()
                    elif message.in_hand:
                        handled.append(number(message))
                        await message.ack()
            await consumer.commit()

        assert sorted(handled) == list(range(40))
        if orderly:
            assert handled == list(range(40))
        assert broker.offsets["g", "t", 0] == 40


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_that_fails_while_its_queue_is_reset(autojump_clock: MockClock, orderly: bool) -> None:
    """What it had counts no more, and the queue goes on at the new offset: after it has finished, if it is orderly."""
    async with filled(10) as (cluster, broker):
        cluster.create("%RETRY%g", 1)
        seen: list[int] = []
        running = 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal running
            running += 1
            assert running == 1 or not orderly
            seen.append(number(message))
            try:
                if len(seen) == 3:
                    reset_to(broker, 5)
                    await trio.sleep(3)
                    raise ValueError("scripted")
            finally:
                running -= 1

        async with consuming(cluster, orderly=orderly) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: consumer.process(handle, tasks=1 if not orderly else 2))
            await until(lambda: 9 in seen)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()

        assert seen == [0, 1, 2, 5, 6, 7, 8, 9]
        assert broker.offsets["g", "t", 0] == 10


async def test_a_step_that_was_cut_off_is_unfinished(autojump_clock: MockClock) -> None:
    """By a cancel scope or an exception inside the block: its message comes again to the next member."""
    async with filled(3) as (cluster, broker):
        async with consuming(cluster) as consumer:
            with trio.move_on_after(1):
                async for message in consumer:
                    if number(message) == 1:
                        await trio.sleep_forever()
        assert broker.offsets["g", "t", 0] == 1

        async with consuming(cluster) as consumer:
            try:
                async for message in consumer:
                    _ = number(message) // 0
            except ZeroDivisionError:
                pass  # as an application does that logs it and goes on
        assert broker.offsets["g", "t", 0] == 1

        async with consuming(cluster) as consumer:
            with trio.move_on_after(1):
                assert [number(message) for message in await consumer.get_many(10)] == [1, 2]
                await trio.sleep_forever()
        assert broker.offsets["g", "t", 0] == 1


@pytest.mark.parametrize("way", ["loop", "get_one"])
async def test_taking_one_message_at_a_time_never_stops(autojump_clock: MockClock, way: str) -> None:
    """`async for … break`, again and again: each time acknowledges what the same task was given before."""
    async with filled(1500) as (cluster, broker):
        async with consuming(cluster) as consumer:
            for expected in range(1500):
                with trio.fail_after(5):
                    if way == "get_one":
                        message = await consumer.get_one()
                    else:
                        message = None
                        async for message in consumer:  # noqa: B007 - it is looked at behind the loop
                            break
                assert number(message) == expected
            await consumer.commit()
            assert broker.offsets["g", "t", 0] == 1499
        assert broker.offsets["g", "t", 0] == 1499


async def test_each_task_acknowledges_its_own(autojump_clock: MockClock) -> None:
    """One that works on a message for long keeps it, however much another one takes meanwhile."""
    async with filled(50) as (cluster, broker), consuming(cluster) as consumer, trio.open_nursery() as nursery:

        async def slow() -> None:
            assert number(await consumer.get_one()) == 0
            await trio.sleep(20)
            await consumer.get_one(0)
            await trio.sleep_forever()

        async def fast() -> None:
            await trio.sleep(1)
            while await consumer.get_many(3, 1):
                pass

        nursery.start_soon(slow)
        nursery.start_soon(fast)
        await trio.sleep(10)
        await consumer.commit()
        assert broker.offsets["g", "t", 0] == 0
        await trio.sleep(20)
        await consumer.commit()
        assert broker.offsets["g", "t", 0] == 50
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("orderly", [False, True])
async def test_what_a_task_leaves_behind_comes_again(autojump_clock: MockClock, orderly: bool) -> None:
    """It ended without a word about its message; other tasks get it, and nothing is stuck."""
    async with filled(5) as (cluster, broker):
        seen: list[int] = []
        async with consuming(cluster, orderly=orderly) as consumer:

            async def take_the_rest(consumer: Consumer) -> None:
                async for message in consumer:
                    seen.append(number(message))  # noqa: PERF401 - each is looked at as it comes

            async def take_one() -> None:
                async for message in consumer:
                    seen.append(number(message))
                    return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_one)
            gc.collect()
            await trio.sleep(2)
            with trio.move_on_after(5):
                await take_the_rest(consumer)

        assert sorted(seen) == [0, 0, 1, 2, 3, 4]
        assert seen[2:] == sorted(seen[2:])
        assert broker.offsets["g", "t", 0] == 5


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_that_is_cancelled_gives_its_message_back(autojump_clock: MockClock, orderly: bool) -> None:
    """When `process` is started again in the same consumer, the message comes again."""
    async with filled(3) as (cluster, broker):
        seen: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(number(message))
            await trio.sleep(1)

        async with consuming(cluster, orderly=orderly) as consumer:
            for _ in range(2):
                with trio.move_on_after(1.5 if len(seen) == 0 else 10):
                    await consumer.process(handle)

        assert seen in ([0, 1, 1, 2], [0, 1, 1, 2])
        assert broker.offsets["g", "t", 0] == 3


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_retry_that_is_cancelled_loses_nothing(autojump_clock: MockClock, orderly: bool) -> None:
    """The message comes again, whether or not the broker had taken it."""
    async with filled(2) as (cluster, broker):
        for code in (BACK, SEND):
            broker.script(code, *[silence] * 4)
        async with consuming(cluster, orderly=orderly, ack="explicit") as consumer:
            message = await consumer.get_one()
            assert number(message) == 0
            with trio.move_on_after(1):
                await message.retry(delay_level=-1)
            await consumer.commit()
            assert broker.offsets["g", "t", 0] == 0
            with trio.fail_after(30):
                again = {number(each) for each in await consumer.get_many(5)}
                while 0 not in again:
                    again |= {number(each) for each in await consumer.get_many(5)}


async def test_acknowledging_and_giving_back_have_an_end(autojump_clock: MockClock) -> None:
    """Twice acknowledged is once; retried after that is a mistake; and after the end there is nobody to tell."""
    async with filled(4) as (cluster, _):
        cluster.create("%RETRY%g", 1)
        async with consuming(cluster, ack="explicit") as consumer:
            first, second, third, _ = await consumer.get_many(4)
            await first.ack()
            await first.ack()
            with pytest.raises(InvalidArgument, match="done with"):
                await first.retry()
            await second.retry()
            await second.ack()
            with pytest.raises(InvalidArgument, match="done with"):
                await second.retry()
        with pytest.raises(Closed):
            await third.ack()
        with pytest.raises(Closed):
            await third.retry()


async def test_every_wait_on_a_consumer_that_closes_raises(autojump_clock: MockClock) -> None:
    """At once, with `Closed`: iterations, `get_many` and `process`."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        raised_in: list[str] = []
        opened: list[Consumer] = []
        async with trio.open_nursery() as nursery, consuming(cluster) as consumer:
            opened.append(consumer)

            async def iterate() -> None:
                async for _ in consumer:
                    pass

            async def handle(_: ReceivedMessage) -> None: ...

            async def wait(name: str, ask: Any) -> None:
                with pytest.raises(Closed):
                    await ask()
                raised_in.append(name)

            nursery.start_soon(wait, "loop", iterate)
            nursery.start_soon(wait, "get_many", consumer.get_many)
            nursery.start_soon(wait, "process", lambda: consumer.process(handle))
            await trio.sleep(1)

        assert sorted(raised_in) == ["get_many", "loop", "process"]
        for ask in (opened[0].get_one, opened[0].commit):
            with pytest.raises(Closed):
                await ask()


async def test_a_commit_that_reaches_no_broker_says_so(autojump_clock: MockClock) -> None:
    """And is made up for when the broker is back."""
    async with filled(3) as (cluster, broker):
        async with consuming(cluster, ack="explicit") as consumer:
            for message in await consumer.get_many(3):
                await message.ack()
            cluster.kill(broker)
            with pytest.raises(ClientError):
                await consumer.commit()
            cluster.network.refusing.clear()
            await trio.sleep(15)
        assert broker.offsets["g", "t", 0] == 3


async def test_memory_is_bounded_by_what_is_held(autojump_clock: MockClock) -> None:
    """One unfinished message of each answer holds all of it, and all queues together have one bound."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 8)
        for queue_id in range(8):
            for _ in range(320):
                broker.put("t", queue_id, bytes(1000))
        async with consuming(cluster, ack="explicit", bytes_max=400_000) as consumer:
            kept: list[ReceivedMessage] = []
            while batch := await consumer.get_many(32, 5):
                kept.append(batch[0])
                for message in batch[1:]:
                    await message.ack()
            held = sum(source.assigned.held_bytes for source in consumer.sources.values())
            assert 400_000 <= held < 400_000 + 8 * 40_000
            assert {message.queue.queue_id for message in kept} == set(range(8)), "each queue could be pulled"

            taken = 8 * 320
            for message in kept:
                await message.ack()
            rest = 0
            while batch := await consumer.get_many(1000, 5):
                for message in batch:
                    await message.ack()
                    rest += 1
            assert rest + len(kept) * 32 == taken


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("end", ["return", "fail", "cancel"])
async def test_a_handler_may_outlive_its_consumer(autojump_clock: MockClock, orderly: bool, end: str) -> None:
    """When it ends nobody is there any more to take its message, which another member gets; `process` ends with `Closed`."""
    async with filled(3) as (cluster, broker):
        ended: list[type[BaseException]] = []

        async def handle(_: ReceivedMessage) -> None:
            await trio.sleep(5)
            if end == "fail":
                raise ValueError("scripted")

        async def process(consumer: Consumer) -> None:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_after, scope)
                try:
                    await consumer.process(handle)
                except Closed as error:
                    ended.append(type(error))
            if scope.cancelled_caught:
                ended.append(trio.Cancelled)

        async def cancel_after(scope: trio.CancelScope) -> None:
            await trio.sleep(3 if end == "cancel" else 30)
            scope.cancel()

        async with trio.open_nursery() as nursery, consuming(cluster, orderly=orderly) as consumer:
            nursery.start_soon(process, consumer)
            await trio.sleep(1)

        assert ended == [trio.Cancelled if end == "cancel" else Closed]
        assert broker.offsets["g", "t", 0] == 0


@pytest.mark.parametrize("way", ["loop", "get_one"])
async def test_a_task_does_not_acknowledge_for_one_that_has_ended(autojump_clock: MockClock, way: str) -> None:
    """Short tasks follow one another, at the same place in memory as it happens; each gets what the one before left."""
    async with filled(2) as (cluster, broker):
        seen: list[int] = []
        async with consuming(cluster) as consumer:

            async def take_one() -> None:
                if way == "get_one":
                    seen.append(number(await consumer.get_one()))
                    return
                async for message in consumer:
                    seen.append(number(message))
                    return

            for _ in range(40):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(take_one)
                gc.collect()
            await consumer.commit()

        assert len(seen) == 40
        assert broker.offsets["g", "t", 0] == 0
