"""The pull loop of one queue while the queue is given away."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.assigned import AssignedQueue
from ledgermq.client.consumer import open_consumer
from ledgermq.client.fetch import Fetcher, OffsetMoved, PullPlan
from ledgermq.client.producer import open_producer
from ledgermq.client.repeated import REPEAT_SECONDS
from ledgermq.client.session import Session
from ledgermq.client.subscription import ConsumeFrom, Subscription
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.logs import capture_logs
from ledgermq.world.network import Address

from ..broker.modes.test_dledger import Group, scenario
from .fake_cluster import NAMESRV, open_cluster
from .test_received import Recorder, record

BROKER = Address("10.0.0.1", 10911)


@attrs.define(eq=False)
class GivenAwayDuringThePull:
    """A session whose queue is given away, and its pull loop cancelled, when the answer of a pull has already come."""

    assigned: AssignedQueue
    scope: trio.CancelScope

    @property
    def routes(self) -> GivenAwayDuringThePull:
        return self

    def channel_to(self, _address: Address) -> None:
        return None

    def avoided(self) -> frozenset[Address]:
        return frozenset()

    def member(self, *_: object) -> tuple[Address, int]:
        return BROKER, 0

    async def call(self, _address: Address, command: RemotingCommand, _timeout_seconds: float) -> RemotingCommand:
        await trio.lowlevel.checkpoint()  # the second pull is cancelled here
        start = int(command.ext["queueOffset"])
        self.scope.cancel()
        self.assigned.stop()
        ext = {"nextBeginOffset": start + 2, "maxOffset": start + 2, "minOffset": 0, "suggestWhichBrokerId": 0}
        return command.response(ResponseCode.SUCCESS, ext, record(start) + record(start + 1))


async def test_an_answer_that_comes_while_the_queue_is_given_away_moves_no_offset() -> None:
    """Its messages are handed out to nobody, so committing an offset behind them would lose them."""
    assigned = AssignedQueue(MessageQueue("t", "b", 0), 5)
    scope = trio.CancelScope()
    session = cast("Session", cast("Any", GivenAwayDuringThePull(assigned, scope)))
    plan = PullPlan("g", Subscription("t"), commits=True)

    with scope:
        await Fetcher(session, plan, assigned, Recorder(), lambda: None, lambda _: None).run()

    assert assigned.committable == 5
    assert not assigned.buffered


@attrs.define(eq=False)
class Answering:
    """A session whose pulls get prepared answers; after the last one the pull loop is cancelled."""

    answers: list[tuple[ResponseCode, int, bytes]]
    """Code, offset to continue at, and records."""
    scope: trio.CancelScope
    oldest: int = 0

    @property
    def routes(self) -> Answering:
        return self

    def channel_to(self, _address: Address) -> None:
        return None

    def avoided(self) -> frozenset[Address]:
        return frozenset()

    def member(self, *_: object) -> tuple[Address, int]:
        return BROKER, 0

    async def call(self, _address: Address, command: RemotingCommand, _timeout_seconds: float) -> RemotingCommand:
        await trio.lowlevel.checkpoint()
        code, next_offset, body = self.answers.pop(0)
        if not self.answers:
            self.scope.cancel()
        ext = {"nextBeginOffset": next_offset, "maxOffset": 7, "minOffset": self.oldest, "suggestWhichBrokerId": 0}
        return command.response(code, ext, body)


async def test_a_member_that_sends_the_client_back_makes_it_hold_no_message_twice() -> None:
    """What was pulled from there on is dropped, because it is pulled again."""
    assigned = AssignedQueue(MessageQueue("t", "b", 0), 5)
    scope = trio.CancelScope()
    both = record(5) + record(6)
    answers = [(ResponseCode.SUCCESS, 7, both), (ResponseCode.PULL_RETRY_IMMEDIATELY, 5, b""), (ResponseCode.SUCCESS, 7, both)]
    session = cast("Session", cast("Any", Answering(answers, scope)))
    plan = PullPlan("g", Subscription("t"), commits=True)

    with scope:
        await Fetcher(session, plan, assigned, Recorder(), lambda: None, assigned.move).run()

    assert [message.queue_offset for message in assigned.buffered] == [5, 6]
    assigned.stop()
    assert assigned.held_bytes == 0


@pytest.mark.parametrize(
    ("answer", "oldest", "expected"),
    [
        ((ResponseCode.PULL_OFFSET_MOVED, 7, b""), 7, [7]),
        ((ResponseCode.PULL_OFFSET_MOVED, 3, b""), 0, [3]),
        ((ResponseCode.PULL_RETRY_IMMEDIATELY, 7, b""), 6, [6]),
        ((ResponseCode.SUCCESS, 7, record(6)), 6, [6]),
        ((ResponseCode.SUCCESS, 7, record(5) + record(6)), 6, []),
        ((ResponseCode.SUCCESS, 7, record(6)), 4, []),
    ],
    ids=["illegal offset", "lost messages", "expired", "expired before the first", "expired meanwhile", "other tags"],
)
async def test_the_application_is_notified_of_an_offset_that_moved(
    answer: tuple[ResponseCode, int, bytes], oldest: int, expected: list[int]
) -> None:
    """With the offsets between which messages are gone; what it raises at that does not stop the queue."""
    queue = MessageQueue("t", "b", 0)
    assigned, scope = AssignedQueue(queue, 5), trio.CancelScope()
    session = cast("Session", cast("Any", Answering([answer], scope, oldest)))
    moved: list[OffsetMoved] = []

    def note(each: OffsetMoved) -> None:
        moved.append(each)
        raise ZeroDivisionError

    plan = PullPlan("g", Subscription("t"), commits=True, on_offset_moved=note)

    with scope:
        await Fetcher(session, plan, assigned, Recorder(), lambda: None, assigned.move).run()

    assert moved == [OffsetMoved(queue, 5, actual) for actual in expected]


@pytest.mark.parametrize("messages", [5, 100], ids=["fewer messages than before", "more"])
def test_a_consumer_reads_a_group_that_begins_anew_from_its_first_message(messages: int) -> None:
    """The offsets that it has read already belong to other messages now, which it would skip."""

    async def story(group: Group) -> None:
        async with (
            open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer,
            open_consumer(group.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST, world=group.world("10.0.3.2")) as consumer,
        ):

            async def received() -> list[int]:
                numbers: list[int] = []
                with trio.fail_after(60):
                    while len(numbers) < len(group.sent):
                        async with consumer.take(32, 1.0) as batch:
                            numbers += [int(message.body) for message in batch]
                return sorted(numbers)

            await group.produce(producer, 20)
            assert await received() == list(group.sent)
            await group.begin_anew()
            await group.produce(producer, messages)
            assert await received() == list(group.sent)

    scenario(story, settings={"storeType": "MEMORY"})


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_broker_that_stays_away_fills_no_log(autojump_clock: MockClock, orderly: bool) -> None:
    """Eight queues and their locks retry about every second: one warning per reason, and their number each half minute."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 8)
        async with open_consumer(NAMESRV, "g", "t", orderly=orderly, world=cluster.world):
            await trio.sleep(1)
            with capture_logs() as events:
                cluster.kill(broker)
                await trio.sleep(3 * REPEAT_SECONDS)

    warnings = [event for event in events if event["log_level"] == "warning"]
    assert max(Counter((event["event"], event.get("reason")) for event in warnings).values()) <= 4
    assert max(event.get("times", 0) for event in warnings) > 100, "as many as were not logged"
    assert not [event for event in events if event["event"] == "route_not_refreshed"], "the retry topic need not exist"
    assert not orderly or "locks_not_renewed" in [event["event"] for event in warnings]
