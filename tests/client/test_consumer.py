"""The consumer against a scripted cluster, on a mock clock."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError, Closed, InvalidArgument, NoRoute
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.json import dumps, loads
from ledgermq.message.layout import HEAD_V4
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand

from .fake_cluster import NAMESRV, FakeBroker, open_cluster, until

RETRY = "%RETRY%g"
PULL = RequestCode.PULL_MESSAGE


def fill(broker: FakeBroker, count: int, topic: str = "t", queue_id: int = 0, tag: str = "") -> None:
    for number in range(count):
        broker.put(topic, queue_id, str(number).encode(), {"TAGS": tag} if tag else None)


def silence(request: RemotingCommand) -> None:
    """Script: never answer."""


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


async def test_a_group_without_an_offset_starts_where_it_was_configured(autojump_clock: MockClock) -> None:
    """First means the oldest message, last only what comes after."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 3)
        async with (
            open_consumer(NAMESRV, "g1", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as first,
            open_consumer(NAMESRV, "g2", "t", consume_from=ConsumeFrom.LAST, world=cluster.world) as last,
        ):
            broker.put("t", 0, b"3")

            assert numbers([*await first.get_many(3), *await first.get_many(3)]) == [0, 1, 2, 3]
            assert numbers(await last.get_many(10)) == [3]


async def test_iteration_acknowledges_what_is_behind_it(autojump_clock: MockClock) -> None:
    """In auto mode a message is done with when the next one is asked for; what is in hand at the end comes again."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 5)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            async for message in consumer:
                if message.body == b"2":
                    await consumer.commit()
                    assert broker.offsets["g", "t", 0] == 2, "0 and 1 are done with, 2 is in hand"
                if message.body == b"3":
                    await message.ack()
                    break
                if message.body == b"4":
                    raise AssertionError("the loop had ended")

        assert broker.offsets["g", "t", 0] == 4


async def test_what_was_in_hand_when_the_block_failed_comes_again(autojump_clock: MockClock) -> None:
    """An exception in the application does not acknowledge the message that caused it."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 5)

        async def consume() -> None:
            async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
                async for message in consumer:
                    if message.body == b"2":
                        raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await consume()

        assert broker.offsets["g", "t", 0] == 2
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            assert numbers(await consumer.get_many(10)) == [2, 3, 4]


async def test_the_offset_waits_for_the_oldest_open_message(autojump_clock: MockClock) -> None:
    """Explicit acknowledgements may come in any order; the offset never passes an open message."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 4)
        async with open_consumer(
            NAMESRV, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as consumer:
            messages = await consumer.get_many(4)
            await messages[2].ack()
            await messages[0].ack()
            await consumer.commit()
            assert broker.offsets["g", "t", 0] == 1

            await messages[1].ack()
            await trio.sleep(5.1)
            assert broker.offsets["g", "t", 0] == 3, "committed within five seconds"

        assert broker.offsets["g", "t", 0] == 3


async def test_progress_counts_what_is_not_done(autojump_clock: MockClock) -> None:
    """In the queues that this member reads: what has been pulled or handed out is behind until it is acknowledged."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 4)
        async with open_consumer(
            NAMESRV, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as consumer:
            messages = await consumer.get_many(4)
            await messages[0].ack()
            await messages[2].ack()

            found = await consumer.progress()

            assert {queue.queue_id: (each.position, each.end, each.lag) for queue, each in found.items()} == {
                0: (1, 4, 3),
                1: (0, 0, 0),
            }
            broker.refuse(RequestCode.GET_MAX_OFFSET, ResponseCode.SYSTEM_ERROR)
            with pytest.raises(ClientError):
                await consumer.progress()
        with pytest.raises(Closed):
            await consumer.progress()


async def test_a_retried_message_comes_again(autojump_clock: MockClock) -> None:
    """It goes back to the broker, which hands it out through the retry topic under its own topic's name."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.create(RETRY, 1)
        fill(broker, 2)
        async with open_consumer(
            NAMESRV, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, reconsume_times_max=5, world=cluster.world
        ) as consumer:
            first, second = await consumer.get_many(2)
            await first.retry(delay_level=4)
            await second.ack()
            again = await consumer.get_one()

            assert again is not None
            assert (again.body, again.topic, again.queue.topic) == (b"0", "t", RETRY)
            assert (again.reconsume_times, first.reconsume_times) == (1, 0)
            (request,) = broker.requests_of(RequestCode.CONSUMER_SEND_MSG_BACK)
            assert (request.ext["delayLevel"], request.ext["maxReconsumeTimes"]) == ("4", "5")
            await again.ack()

        assert (broker.offsets["g", "t", 0], broker.offsets["g", RETRY, 0]) == (2, 1)


async def test_a_refused_send_back_is_sent_as_a_message(autojump_clock: MockClock) -> None:
    """The copy carries what the broker needs to count retries."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.create(RETRY, 1)
        broker.put("t", 0, b"0", {"TAGS": "a"})
        broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
        async with open_consumer(
            NAMESRV, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as consumer:
            (message,) = await consumer.get_many(1)
            await message.retry()
            again = await consumer.get_one()

            assert again is not None
            assert (again.body, again.topic, again.tag, again.reconsume_times) == (b"0", "t", "a", 1)
            assert again.properties["ORIGIN_MESSAGE_ID"] == message.offset_message_id
            (request,) = broker.requests_of(RequestCode.SEND_MESSAGE_V2)
            assert (request.ext["j"], request.ext["l"], again.properties["DELAY"]) == ("1", "16", "3")
        assert broker.offsets["g", "t", 0] == 1


async def test_a_message_whose_copy_is_stored_but_not_on_a_slave_is_copied_once(autojump_clock: MockClock) -> None:
    """The copy may be lost, so the message is handed out again here; another copy would only be one repetition more."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.create(RETRY, 1)
        broker.put("t", 0, b"0")
        broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SLAVE_NOT_AVAILABLE)
        async with open_consumer(
            NAMESRV, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as each:
            (message,) = await each.get_many(1)
            await message.retry()
            again = await each.get_one()

        assert again is not None
        assert (again.queue.topic, again.local_redeliveries) == ("t", 1)
        assert broker.requests_of(RequestCode.SEND_MESSAGE_V2) == []
        assert broker.offsets["g", "t", 0] == 0


async def test_a_message_that_nobody_takes_back_is_handed_out_again_here(autojump_clock: MockClock) -> None:
    """Without any way back the message stays ours, and comes again after five seconds."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"0")
        broker.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR)
        async with open_consumer(
            NAMESRV, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as consumer:
            (message,) = await consumer.get_many(1)
            started = trio.current_time()
            await message.retry()
            again = await consumer.get_one()

            assert again is not None
            assert again.body == message.body
            assert trio.current_time() - started == pytest.approx(5, abs=0.1)
            assert (again.reconsume_times, message.reconsume_times) == (1, 0)
            await consumer.commit()
            assert broker.offsets["g", "t", 0] == 0


async def test_handlers_are_retried_when_they_fail(autojump_clock: MockClock) -> None:
    """`process` acknowledges what went well and retries the rest, whatever the mode is."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.create(RETRY, 1)
        fill(broker, 20)
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            await trio.sleep(0.01)
            seen.append(message.body)
            if message.body == b"7" and not message.reconsume_times:
                raise RuntimeError("not yet")

        async with (
            open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lambda: consumer.process(handle, tasks=4))
            await until(lambda: len(seen) == 21)
            nursery.cancel_scope.cancel()

        assert sorted(map(int, seen)) == sorted([*range(20), 7])
        assert (broker.offsets["g", "t", 0], broker.offsets["g", RETRY, 0]) == (20, 1)


async def test_only_wanted_tags_arrive(autojump_clock: MockClock) -> None:
    """What the broker lets through by hash alone is compared again here."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 2, tag="AaAa")
        fill(broker, 2, tag="BBBB")  # the same Java hash
        async with open_consumer(
            NAMESRV, "g", {"t": "AaAa || other"}, consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as consumer:
            async with consumer.take(10, 1) as messages:
                assert [message.tag for message in messages] == ["AaAa", "AaAa"]
            assert await consumer.get_many(10, 1) == []

        assert broker.offsets["g", "t", 0] == 4
        assert broker.requests_of(PULL)[0].ext["subscription"] == "AaAa || other"


async def test_the_group_shares_the_queues(autojump_clock: MockClock) -> None:
    """A second member takes its half when brokers say so, and gives it back when it leaves; nothing is lost between."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)

        async with open_consumer(NAMESRV, "g", "t", instance_name="a", world=cluster.world) as one:
            assert [queue.queue_id for queue in one.queues if queue.topic == "t"] == [0, 1, 2, 3]
            async with open_consumer(NAMESRV, "g", "t", instance_name="b", world=cluster.world) as two:
                for connection in list(broker.members.values()):
                    connection.notify(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}))
                await until(lambda: len(one.queues) == 2)
                assert [queue.queue_id for queue in one.queues + two.queues] == [0, 1, 2, 3]
                for queue_id in range(4):
                    broker.put("t", queue_id, b"1")
                await until(lambda: len(broker.held) == 4)
                assert len(await one.get_many(10)) + len(await two.get_many(10)) >= 2
            await trio.sleep(21)
            assert [queue.queue_id for queue in one.queues] == [0, 1, 2, 3]


async def test_a_full_queue_is_not_pulled(autojump_clock: MockClock) -> None:
    """Messages that are not done with are bounded; room is used as soon as it is there."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 200)
        async with open_consumer(
            NAMESRV,
            "g",
            "t",
            ack="explicit",
            consume_from=ConsumeFrom.FIRST,
            messages_per_queue_max=40,
            world=cluster.world,
        ) as consumer:
            messages = await consumer.get_many(100)
            await trio.sleep(60)
            messages += await consumer.get_many(100, 0)
            assert len(messages) == 64, "two pulls of 32: the bound is looked at before a pull"

            for message in messages:
                await message.ack()
            assert len(await consumer.get_many(1000)) >= 32


async def test_an_offset_reset_moves_the_consumer_at_once(autojump_clock: MockClock) -> None:
    """What was fetched is dropped, what is in hand counts no more, and the new offset is committed."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 10)
        async with open_consumer(
            NAMESRV, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as consumer:
            before = await consumer.get_many(10)
            body = dumps({"offsetTable": {MessageQueue("t", "b1", 0): 4}})
            reset = RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": "t", "group": "g"}, body)
            next(iter(broker.members.values())).notify(reset)
            await until(lambda: broker.offsets.get(("g", "t", 0)) == 4)
            for message in before:
                await message.ack()

            assert numbers(await consumer.get_many(10)) == [4, 5, 6, 7, 8, 9]
            await consumer.commit()
            assert broker.offsets["g", "t", 0] == 4


async def test_an_offset_outside_the_queue_is_put_right(autojump_clock: MockClock) -> None:
    """The broker's answer says where to go on."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 3)
        broker.offsets["g", "t", 0] = 99
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            await until(lambda: broker.offsets["g", "t", 0] == 3)
            broker.put("t", 0, b"3")
            assert numbers(await consumer.get_many(10)) == [3]


async def test_brokers_can_ask_how_it_is(autojump_clock: MockClock) -> None:
    """Status and running info name every queue with its offset."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 3)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            await consumer.get_many(3)
            connection = next(iter(broker.members.values()))
            status = await connection.call(
                RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "t", "group": "g"}), 1
            )
            running = await connection.call(
                RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c"}), 1
            )
            unknown = await connection.call(RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE), 1)

        assert list(loads(status.body)["messageQueueTable"].values()) == [0]
        assert [each["topic"] for each in loads(running.body)["subscriptionSet"]] == ["t", RETRY]
        assert next(iter(loads(running.body)["mqTable"].values()))["cachedMsgCount"] == 3
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_commit_at_the_end_waits_for_the_next_master(autojump_clock: MockClock) -> None:
    """What was acknowledged after the master died is committed at its successor, which is there in a moment."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 5)
        async with (
            trio.open_nursery() as nursery,
            open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer,
        ):
            messages = await consumer.get_many(5)
            cluster.kill(broker)
            cluster.forget(broker)

            async def succeed() -> None:
                await trio.sleep(0.8)
                successor = await cluster.start_broker("b1")
                cluster.create("t", 1)
                fill(successor, 5)

            nursery.start_soon(succeed)
            for message in messages:
                await message.ack()

        assert cluster.brokers[0].offsets["g", "t", 0] == 5


async def test_a_topic_may_come_later(autojump_clock: MockClock) -> None:
    """A consumer waits for a topic that nobody has created yet."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            assert await consumer.get_one(5) is None
            fill(broker, 1)
            cluster.create("t", 1)
            message = await consumer.get_one(5)

            assert message is not None
            assert message.body == b"0"


async def test_a_refused_pull_is_tried_again(autojump_clock: MockClock) -> None:
    """Refusals and damaged answers cost a second, flow control 20 ms; no message is skipped."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 2)
        fields = {"suggestWhichBrokerId": 0, "nextBeginOffset": 2, "minOffset": 0, "maxOffset": 2}
        broker.script(PULL, lambda request: request.response(0, fields, b"\0" * 200))
        broker.refuse(PULL, ResponseCode.FLOW_CONTROL)
        broker.refuse(PULL, ResponseCode.SYSTEM_ERROR)
        started = trio.current_time()
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            assert numbers(await consumer.get_many(10)) == [0, 1]
            assert trio.current_time() - started == pytest.approx(2.02, abs=0.1)


async def test_impossible_options_are_refused(autojump_clock: MockClock) -> None:
    """Before anything is opened, with the name of what is wrong; a missing name server raises at once, too."""
    async with open_cluster() as cluster:
        refused: list[tuple[str | list[str] | dict[str, str], str, str]] = [
            ("bad topic", "average", "topic"),
            ([], "average", "at least one topic"),
            ({"t": " || "}, "average", "names no tag"),
            ("t", "fair", "average"),
        ]
        for topics, strategy, text in refused:
            with pytest.raises(InvalidArgument, match=text):
                async with open_consumer(NAMESRV, "g", topics, strategy=strategy, world=cluster.world):
                    pass
        with pytest.raises(InvalidArgument, match="group"):
            async with open_consumer(NAMESRV, "", "t", world=cluster.world):
                pass
        for option, text in (
            ({"ack": "later"}, "ack must be one of auto, explicit"),
            ({"consume_from": "FIRST"}, "consume_from must"),
        ):
            with pytest.raises(InvalidArgument, match=text):
                async with open_consumer(NAMESRV, "g", "t", world=cluster.world, **cast("dict[str, Any]", option)):
                    pass
        with pytest.raises(NoRoute, match="no name server"):
            async with open_consumer("10.0.0.8:9876", "g", "t", world=cluster.world):
                pass
        assert cluster.open_connections() == 0


async def test_cancelling_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    """After a cancelled scope no task and no connection is left; offsets of finished messages are committed."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)
        fill(broker, 3)
        tasks = trio.lowlevel.current_statistics().tasks_living
        consumers: list[Consumer] = []
        with trio.move_on_after(10) as scope:
            async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
                consumers.append(consumer)
                async for _ in consumer:
                    pass

        assert scope.cancelled_caught
        assert trio.current_time() < 12
        assert broker.offsets["g", "t", 0] == 3
        await until(lambda: cluster.open_connections() == 0)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living == tasks)
        with pytest.raises(Closed):
            await consumers[0].get_one()


async def test_a_black_hole_does_not_hold_up_the_end(autojump_clock: MockClock) -> None:
    """A broker that answers nothing any more costs the farewell at most two seconds."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world):
            for code in (RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT):
                broker.script(code, *[silence] * 100)
            started = trio.current_time()
        assert trio.current_time() - started <= 2.1


async def test_a_message_that_is_damaged_holds_its_queue_up(autojump_clock: MockClock) -> None:
    """It is neither delivered nor passed; it comes once the broker has it sound again, as after a change of leader."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 3)
        sound = broker.queues["t", 0][1]
        damaged = bytearray(sound)
        damaged[HEAD_V4.size] ^= 1  # the first byte of its body
        broker.queues["t", 0][1] = bytes(damaged)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
            assert await consumer.get_many(10, 30) == []
            assert broker.offsets["g", "t", 0] == 0
            broker.queues["t", 0][1] = sound
            assert [message.queue_offset for message in await consumer.get_many(10, 30)] == [0, 1, 2]
