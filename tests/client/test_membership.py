"""Taking queues in a rebalance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import open_consumer
from ledgermq.client.rebalance import Strategy
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.json import dumps
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, FakeCluster, open_cluster, until
from .test_consumer import fill, numbers
from .test_orderly import join


async def test_a_reset_reaches_a_consumer_that_has_just_asked_for_the_offset(autojump_clock: MockClock) -> None:
    """As it takes a queue in a rebalance: it does not begin at the offset that the broker named before the reset."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 10)
        broker.offsets["g", "t", 0] = 8

        def reset_and_answer_as_before(request: RemotingCommand) -> RemotingCommand:
            body = dumps({"offsetTable": {MessageQueue("t", "b1", 0): 4}})
            reset = RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {"topic": "t", "group": "g"}, body)
            next(iter(broker.members.values())).notify(reset)
            broker.offsets["g", "t", 0] = 4
            return request.response(ext={"offset": 8})

        broker.script(RequestCode.QUERY_CONSUMER_OFFSET, reset_and_answer_as_before)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            assert numbers(await consumer.get_many(10)) == [4, 5, 6, 7, 8, 9]


async def test_a_group_of_which_the_broker_knows_no_member_yet_is_joined_without_a_warning(autojump_clock: MockClock) -> None:
    """So it is on a topic that comes after its consumer: the broker gets the first heartbeat with the first question."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.refuse(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ResponseCode.SYSTEM_ERROR)
        with capture_logs() as events:
            async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
                assert consumer.queues == [MessageQueue("t", "b1", 0)]

    assert "rebalance_skipped" not in [event["event"] for event in events]


def unknown_member(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    known = {client_id: list(queues)}
    return [queue for each in client_ids for queue in known[each]]


def nothing(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    return list(queues) if len(client_ids) == 1 else cast("list[MessageQueue]", None)


@pytest.mark.parametrize("strategy", [unknown_member, nothing])
async def test_a_strategy_that_fails_leaves_the_share_as_it_is(autojump_clock: MockClock, strategy: Strategy) -> None:
    """It fails in all members at the same moment, when one joins; the consumer reads on, says so, and recovers."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        with capture_logs() as events:
            async with open_consumer(
                NAMESRV, "g", "t", strategy=strategy, consume_from=ConsumeFrom.FIRST, world=cluster.world
            ) as consumer:
                join(broker)
                fill(broker, 2, queue_id=1)
                await trio.sleep(5)
                assert numbers(await consumer.get_many(2)) == [0, 1]
                assert len(consumer.queues) == 2
                assert [problem[:20] for problem in (await consumer.healthy()).problems] == ["the strategy failed:"]
                broker.extra_members.clear()
                await trio.sleep(5)
                assert (await consumer.healthy()).problems == ()
        (failed,) = (event for event in events if event["event"] == "strategy_failed")
        assert failed["topic"] == "t"


async def test_a_strategy_cannot_give_queues_that_the_topic_does_not_have(autojump_clock: MockClock) -> None:
    """They are left out, and the consumer reads the others."""

    def foreign(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return [*queues, MessageQueue("other", "b1", 0), MessageQueue("t", "b1", 7)]

    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.create("other", 1)
        async with open_consumer(NAMESRV, "g", "t", strategy=foreign, world=cluster.world) as consumer:
            assert consumer.queues == [MessageQueue("t", "b1", 0)]


@pytest.mark.parametrize("body", [b"no JSON", b"[1]", b'{"consumerIdList":1}'])
async def test_a_list_of_members_that_cannot_be_read_is_asked_for_again(autojump_clock: MockClock, body: bytes) -> None:
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.script(RequestCode.GET_CONSUMER_LIST_BY_GROUP, lambda request: request.response(body=body))
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            assert consumer.queues == []
            await until(lambda: len(consumer.queues) == 1)


async def test_a_broker_that_a_later_route_names_without_addresses_is_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest route says where a broker is, and the queues of the earlier one cannot be divided until it is back."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.create("u", 1)
        addresses = [{"0": str(broker.address)}]

        def known_once(_: FakeCluster) -> list[dict[str, object]]:
            known: dict[str, str] = addresses.pop() if addresses else {}
            return [{"brokerName": "b1", "cluster": "c", "brokerAddrs": known}]

        monkeypatch.setattr(FakeCluster, "_broker_datas", known_once)
        async with open_consumer(NAMESRV, "g", ["t", "u"], world=cluster.world) as consumer:
            assert not await consumer.healthy()
            monkeypatch.undo()
            await until(lambda: len(consumer.queues) == 2)
