"""Messages that are given back: to a broker, to the dead letters, or again to the application, and once each."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import Consumer
from ledgermq.client.errors import Closed, InvalidArgument
from ledgermq.client.membership import Membership
from ledgermq.client.subscription import MessageModel
from ledgermq.remoting.command import RemotingCommand

from .fake_cluster import until
from .test_delivery import BACK, SEND, consuming, filled, number, silence, take_no_message_back


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
async def test_a_block_that_fails_gives_back_what_it_has_not_finished(autojump_clock: MockClock, orderly: bool) -> None:
    """What it has acknowledged or sent back itself stays so; a block that ends well acknowledges the rest."""
    async with filled(4) as (cluster, broker):
        cluster.create("%RETRY%g", 1)
        async with consuming(cluster, orderly=orderly) as consumer:

            async def fail() -> None:
                async with consumer.take(4) as messages:
                    await messages[0].ack()
                    _ = number(messages[1]) // 0

            with pytest.raises(ZeroDivisionError):
                await fail()
            await consumer.commit()
            found: dict[int, int] = {}
            while len(found) < 3:
                async with consumer.take(1, 60) as (message,):
                    found[number(message)] = message.reconsume_times
            await consumer.commit()

        assert found == {1: 1, 2: 0, 3: 0} if orderly else {1: 1, 2: 1, 3: 1}
        assert broker.offsets["g", "t", 0] == 4
        assert len(broker.requests_of(BACK)) == (0 if orderly else 3)


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


async def test_a_retry_that_is_cancelled_while_its_consumer_ends_brings_back_that_message_alone(
    autojump_clock: MockClock,
) -> None:
    """The broker accepts the message when nobody waits for that any more, and the position passes what is done behind it."""
    async with filled(3) as (cluster, broker):
        cluster.create("%RETRY%g", 1)
        asked: list[RemotingCommand] = []
        broker.script(BACK, asked.append)
        async with consuming(cluster, ack="explicit") as consumer:
            failed, *done = await consumer.get_many(3)
            for message in done:
                await message.ack()
            with trio.move_on_after(0.2) as scope:
                await failed.retry()
            assert scope.cancelled_caught
            consumer.stop()
            (connection,) = broker.members.values()
            broker.handle(connection, asked)

        assert broker.bodies("%RETRY%g") == [b"0"]
        assert broker.offsets["g", "t", 0] == 3


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


async def test_an_orderly_broadcast_queue_goes_on_behind_a_retried_message(autojump_clock: MockClock) -> None:
    """No broker takes a broadcast message back, so it is dropped, and the next one is handed out."""
    async with filled(2) as (cluster, _), consuming(cluster, orderly=True, model=MessageModel.BROADCASTING) as consumer:
        first = await consumer.get_one()
        assert first is not None
        await first.retry()
        with trio.fail_after(10):
            assert number(await consumer.get_one()) == 1


async def test_a_loop_that_is_left_gives_a_broadcast_message_back_too(autojump_clock: MockClock) -> None:
    """It comes again to the same member, because no broker takes it back."""
    async with filled(1) as (cluster, _), consuming(cluster, model=MessageModel.BROADCASTING) as consumer:
        async for _message in consumer:
            break
        with trio.fail_after(30):
            assert number(await consumer.get_one()) == 0


async def test_an_ordered_queue_keeps_its_order_when_a_dead_letter_is_refused(autojump_clock: MockClock) -> None:
    """While a broker is asked to take one message, an earlier one comes back; both come again in their order."""
    async with filled(3) as (cluster, broker), consuming(cluster, orderly=True) as consumer:
        cluster.create("%RETRY%g", 1)
        broker.script(SEND, *[silence] * 4)
        first, second, _ = await consumer.get_many(3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(second.retry, delay_level=-1))
            await trio.sleep(0.5)
            await first.retry()
        seen: list[int] = []
        while len(seen) < 3:
            async with consumer.take(1, 60) as (message,):
                seen.append(number(message))

        assert seen == [0, 1, 2]


@pytest.mark.parametrize("checkpoints", range(6))
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_consumer_whose_own_task_has_failed_takes_back_what_is_in_hand(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, orderly: bool, checkpoints: int
) -> None:
    """The failure comes out as it is: a late return of a message neither ends trio's run nor raises something else."""

    async def loop(consumer: Consumer[bytes]) -> None:
        async for _ in consumer:
            try:
                await trio.sleep_forever()
            finally:
                for _ in range(checkpoints):
                    await trio.lowlevel.cancel_shielded_checkpoint()

    failing = trio.Event()

    async def fail(_: Membership) -> None:
        await failing.wait()
        raise ZeroDivisionError

    monkeypatch.setattr(Membership, "run", fail)
    async with filled(1) as (cluster, broker):
        with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
            async with consuming(cluster, orderly=orderly) as consumer, trio.open_nursery() as nursery:
                nursery.start_soon(loop, consumer)
                await until(lambda: consumer.statistics().in_hand == 1)
                failing.set()
                await trio.sleep_forever()

        assert broker.offsets["g", "t", 0] == 0
