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
from ledgermq.client.errors import ClientError, Closed
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
        assert broker.offsets["g", "t", 0] == 2
        assert broker.bodies("%RETRY%g") == [b"1"]

        async with consuming(cluster) as consumer:
            try:
                async for message in consumer:
                    _ = number(message) // 0
            except ZeroDivisionError:
                pass  # as an application does that logs it and goes on

        cluster.create("%RETRY%g", 1)
        async with consuming(cluster) as consumer:
            with trio.move_on_after(1):
                assert [number(message) for message in await consumer.get_many(10)] == [1, 2]
                await trio.sleep_forever()
        assert broker.offsets["g", "%RETRY%g", 0] == 0


@pytest.mark.parametrize("way", ["loop", "get_one", "take"])
async def test_taking_one_message_at_a_time_never_stops(autojump_clock: MockClock, way: str) -> None:
    """A new loop for each message, a call, or a block: each message is acknowledged, and the next one comes."""
    async with filled(1500) as (cluster, broker), consuming(cluster) as consumer:
        for expected in range(1500):
            message = None
            with trio.fail_after(5):
                if way == "get_one":
                    message = await consumer.get_one()
                    assert message is not None
                    await message.ack()
                elif way == "take":
                    async with consumer.take(1) as (message,):
                        pass
                else:
                    async for message in consumer:
                        await message.ack()
                        break
            assert number(message) == expected
        await consumer.commit()
        assert broker.offsets["g", "t", 0] == 1500


async def test_no_call_acknowledges_what_another_was_given(autojump_clock: MockClock) -> None:
    """Neither of the same task nor of another one, however many messages are taken and acknowledged meanwhile."""
    async with filled(50) as (cluster, broker), consuming(cluster) as consumer:
        first = await consumer.get_one()
        assert number(first) == 0
        second = await anext(kept := aiter(consumer))
        assert number(second) == 1
        while messages := await consumer.get_many(3, 1):
            for message in messages:
                await message.ack()
        with trio.move_on_after(1):
            async for message in consumer:
                raise AssertionError(f"{message} came twice")
        await consumer.commit()
        assert broker.offsets["g", "t", 0] == 0

        assert first is not None
        await first.ack()
        await consumer.commit()
        assert broker.offsets["g", "t", 0] == 1

        with trio.move_on_after(1):
            await anext(kept)
        await consumer.commit()
        assert broker.offsets["g", "t", 0] == 50


async def test_a_message_that_is_kept_is_given_back_when_the_consumer_closes(autojump_clock: MockClock) -> None:
    """However long it is kept, it is neither acknowledged nor taken away."""
    async with filled(2) as (cluster, broker):
        async with consuming(cluster) as consumer:
            kept = await consumer.get_many(2)
            await kept[1].ack()
            assert await consumer.get_one(600) is None
            assert kept[0].is_current
        assert broker.offsets["g", "t", 0] == 0


async def test_a_block_whose_consumer_has_closed_acknowledges_nothing(autojump_clock: MockClock) -> None:
    """It must not seem to have: its messages are delivered to the next member."""
    async with filled(1) as (cluster, broker):
        async with consuming(cluster) as consumer:
            block = consumer.take(1)
            await block.__aenter__()
        with pytest.raises(Closed):
            await block.__aexit__(None, None, None)
        assert broker.offsets["g", "t", 0] == 0


@pytest.mark.parametrize("orderly", [False, True])
async def test_what_a_task_leaves_behind_comes_again(autojump_clock: MockClock, orderly: bool) -> None:
    """It ended without a word about its message; other tasks get it, and nothing is stuck."""
    async with filled(5) as (cluster, broker):
        seen: list[int] = []
        cluster.create("%RETRY%g", 1)
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
        assert not orderly or seen == [0, 0, 1, 2, 3, 4]
        assert broker.offsets["g", "t", 0] == 5


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_handler_that_is_cancelled_gives_its_message_back(autojump_clock: MockClock, orderly: bool) -> None:
    """When `process` is started again in the same consumer, the message comes again."""
    async with filled(3) as (cluster, broker):
        cluster.create("%RETRY%g", 1)
        seen: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(number(message))
            await trio.sleep(1)

        async with consuming(cluster, orderly=orderly) as consumer:
            for _ in range(2):
                with trio.move_on_after(1.5 if len(seen) == 0 else 10):
                    await consumer.process(handle)

        assert seen == [0, 1, 1, 2] if orderly else sorted(seen) == [0, 1, 1, 2]
        assert broker.offsets["g", "t", 0] == 3


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


async def test_a_plain_function_may_handle_messages(autojump_clock: MockClock) -> None:
    """What it returns from is acknowledged, and what it raises at comes again."""
    async with filled(3) as (cluster, broker):
        cluster.create("%RETRY%g", 1)
        seen: list[int] = []

        def handle(message: ReceivedMessage) -> None:
            seen.append(number(message))
            if seen == [0, 1]:
                raise ValueError("scripted")

        async with consuming(cluster) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.process, handle)
            await until(lambda: len(seen) == 4)
            nursery.cancel_scope.cancel()

        assert sorted(seen) == [0, 1, 1, 2]
        assert broker.offsets["g", "t", 0] == 3


async def test_a_handler_that_fails_is_logged_once_with_its_traceback(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """At the level of what a person must look at."""
    async with filled(1) as (cluster, broker):
        cluster.create("%RETRY%g", 1)

        async def handle(message: ReceivedMessage) -> None:
            if not message.reconsume_times:
                raise ValueError("scripted")

        async with consuming(cluster) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.process, handle)
            await until(lambda: len(broker.bodies("%RETRY%g")) == 1)
            nursery.cancel_scope.cancel()

    (record,) = [each for each in caplog.records if each.getMessage().startswith("message_failed")]
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_a_dropped_message_of_a_reset_queue_does_not_hold_it_up(autojump_clock: MockClock) -> None:
    """An ordered queue waits for what was handed out before the reset, but not for what nobody can finish any more."""
    async with filled(5) as (cluster, broker), consuming(cluster, orderly=True) as consumer:
        message = await consumer.get_one()
        assert number(message) == 0
        reset_to(broker, 3)
        assert await consumer.get_one(20) is None, "it is still being handled"
        del message
        assert number(await consumer.get_one(20)) == 3


async def test_handlers_that_compute_for_long_let_other_tasks_run(autojump_clock: MockClock) -> None:
    """After each message, even if they never wait."""
    turns, seen = [0], list[int]()
    async with filled(40) as (cluster, _), consuming(cluster) as consumer, trio.open_nursery() as nursery:

        async def take_turns() -> None:
            while True:
                turns[0] += 1
                await trio.lowlevel.checkpoint()

        def handle(_: ReceivedMessage) -> None:
            autojump_clock.jump(0.05)
            seen.append(turns[0])
            if len(seen) == 40:
                consumer.stop()

        nursery.start_soon(take_turns)
        await consumer.process(handle, tasks=2)
        nursery.cancel_scope.cancel()

    assert all(later > before for before, later in zip(seen, seen[4:], strict=False))
