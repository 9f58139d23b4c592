"""Taking queues in a rebalance."""

from __future__ import annotations

from trio.testing import MockClock

from ledgermq.client.consumer import open_consumer
from ledgermq.message.json import dumps
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, open_cluster
from .test_consumer import fill, numbers


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
