"""Offsets as clients ask for them and commit them."""

from __future__ import annotations

from pathlib import Path

import attrs

from ledgermq.broker.subscription import Subscription
from ledgermq.broker.tables.clients import Member
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode

from ..desk import open_desk


async def test_a_new_group_on_a_young_queue_begins_at_its_start(tmp_path: Path) -> None:
    """Nothing committed, first message still there: 0, unless the client does not want that."""
    ask = {"consumerGroup": "g", "topic": "T1", "queueId": 0}
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        peer = desk.peer()
        assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ask).ext == {"offset": "0"}
        desk.put("T1")
        await desk.settled()
        assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ask).ext == {"offset": "0"}
        refused = peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**ask, "setZeroIfNotFound": "false"})

        assert refused.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_new_group_on_an_old_queue_decides_for_itself(tmp_path: Path) -> None:
    """Once the first message has left memory, there is no offset to give."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        desk.put("T1")
        desk.put("T1")
        await desk.settled()
        desk.broker.store.config = attrs.evolve(desk.broker.store.config, memory_bytes=10)

        answer = desk.peer().ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T1", "queueId": 0})

        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_committed_offset_is_given_back(tmp_path: Path) -> None:
    """Any offset of the queue, also one before what was committed last."""
    ask = {"consumerGroup": "g", "topic": "T1", "queueId": 1}
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        for _ in range(9):
            desk.put("T1", queue_id=1)
        peer = desk.peer()
        for offset in (9, 4):
            committed = peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": offset})
            assert committed.code == ResponseCode.SUCCESS

        assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ask).ext == {"offset": "4"}


async def test_an_offset_beyond_the_queue_is_committed_as_its_end(tmp_path: Path) -> None:
    """A group may have read on a slave what the master has lost; beyond the end it would skip the next messages."""
    ask = {"consumerGroup": "g", "topic": "T1", "queueId": 1}
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        desk.put("T1", queue_id=1)
        peer = desk.peer()

        assert peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": 9}).code == ResponseCode.SUCCESS

        assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ask).ext == {"offset": "1"}


async def test_a_client_commits_after_a_reset_only_what_it_has_read_since(tmp_path: Path) -> None:
    """It has to ask for the group's offset, or to pull there, first; one that has connected again and sent no heartbeat too."""
    ask = {"consumerGroup": "g", "topic": "T1", "queueId": 0}
    async with open_desk(tmp_path) as desk:
        broker = desk.broker
        broker.topics.put(TopicConfig("T1", 2, 2))
        for _ in range(9):
            desk.put("T1")
        await desk.settled()
        member, reconnected = desk.peer(), desk.peer()
        broker.consumers.register("g", Member(member.connection, "c1", "JAVA", 409, 0.0, 0), [Subscription.parse("T1", "*", 0)])
        broker.offsets.reset("g", "T1", 0, 2)

        for client in (member, reconnected):
            client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": 8})
            assert broker.offsets.query("g", "T1", 0) == 2
        for client, offset in ((member, 3), (reconnected, 4)):
            client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ask)
            client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**ask, "commitOffset": offset})
            assert broker.offsets.query("g", "T1", 0) == offset


async def test_an_offset_on_no_topic_is_not_kept(tmp_path: Path) -> None:
    """Committing on a topic that does not exist is refused, so that nobody fills the table with names."""
    async with open_desk(tmp_path) as desk:
        answer = desk.peer().ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T9", "queueId": 0, "commitOffset": 3}
        )

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert not desk.broker.offsets.table


async def test_the_ends_of_a_queue_are_answered(tmp_path: Path) -> None:
    """Min, max, first by time and earliest store time; an unknown queue has 0 and -1."""
    queue = {"topic": "T1", "queueId": 0}
    async with open_desk(tmp_path) as desk:
        desk.put("T1")
        desk.put("T1")
        await desk.settled()
        peer = desk.peer()
        stored = desk.broker.store.store_time("T1", 0, 0)

        assert peer.ask(RequestCode.GET_MAX_OFFSET, queue).ext == {"offset": "2"}
        assert peer.ask(RequestCode.GET_MIN_OFFSET, queue).ext == {"offset": "0"}
        assert peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue).ext == {"timestamp": str(stored)}
        late = {**queue, "timestamp": stored + 10_000}
        assert peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, late).ext == {"offset": "2"}
        upper = {**late, "boundaryType": "UPPER"}
        assert peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, upper).ext == {"offset": "1"}
        unknown = {"topic": "T9", "queueId": 0}
        assert peer.ask(RequestCode.GET_MAX_OFFSET, unknown).ext == {"offset": "0"}
        assert peer.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, unknown).ext == {"timestamp": "-1"}


async def test_what_was_acknowledged_is_seen_by_the_next_question(tmp_path: Path) -> None:
    """Queues and index are derived in batches; whoever has just sent a message need not wait for that."""
    queue = {"topic": "T1", "queueId": 0}
    query = {"topic": "T1", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        peer.send("T1")
        assert peer.ask(RequestCode.GET_MAX_OFFSET, queue).ext == {"offset": "1"}
        peer.send("T1")
        assert peer.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": 1 << 60}).ext == {"offset": "2"}
        peer.send("T1")
        stats = loads((await peer.ask_waiting(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T1"})).body)["offsetTable"].values()
        assert sum(range_["maxOffset"] for range_ in stats) == 3
        peer.send("T1", KEYS="k7")
        assert (await peer.ask_waiting(RequestCode.QUERY_MESSAGE, {**query, "key": "k7"})).code == ResponseCode.SUCCESS


async def test_a_commit_that_a_slave_hands_over_takes_no_group_back(tmp_path: Path) -> None:
    """The group may have come further here since; a slave's commit that is ahead counts as any other."""
    commit = {"consumerGroup": "g", "topic": "T1", "queueId": 0}
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        for _ in range(9):
            desk.put("T1")
        peer = desk.peer()
        for offset, forward, expected in ((3, "true", 3), (6, "false", 6), (5, "true", 6), (8, "true", 8), (2, "false", 2)):
            answer = peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**commit, "commitOffset": offset, "onlyForward": forward})

            assert answer.code == ResponseCode.SUCCESS
            assert desk.broker.offsets.query("g", "T1", 0) == expected
