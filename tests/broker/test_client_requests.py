"""Heartbeats, membership, offsets and locks as clients ask for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from ledgermq.broker.client_requests import GROUPS_PER_HEARTBEAT_MAX, NOTICE_PAUSE_SECONDS, NOTIFIED_AT_ONCE_MAX
from ledgermq.broker.clients import EXPIRY_SECONDS
from ledgermq.broker.groups import GroupConfig
from ledgermq.broker.topics import TopicConfig
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode

from .desk import Desk, Peer, open_desk, until

Code = ResponseCode


def notices(peer: Peer) -> list[str]:
    """Groups that a client was told to rebalance."""
    return [
        request.ext["consumerGroup"]
        for request in peer.told()
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and request.is_oneway
    ]


def members(peer: Peer, group: str = "g") -> list[str] | int:
    answer = peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return sorted(loads(answer.body)["consumerIdList"]) if answer.code == Code.SUCCESS else answer.code


async def test_a_heartbeat_makes_group_and_retry_topic(tmp_path: Path) -> None:
    """After it, the group exists, its retry topic too, and the client is listed."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        answer = peer.heartbeat("g", "T1", client_id="c1")

        assert answer.code == Code.SUCCESS
        assert answer.version >= 232  # an older broker is not trusted with filters
        assert desk.broker.groups.get("g") is not None
        assert desk.broker.topics.topics["%RETRY%g"] == TopicConfig("%RETRY%g", 1, 1, 6)
        assert members(peer) == ["c1"]
        assert [member.client_id for member in desk.broker.producers.members("pg")] == ["c1"]


async def test_members_are_told_when_one_comes_or_goes(tmp_path: Path) -> None:
    """All connections of the group are told, the newcomer too; a heartbeat without news is no news."""
    async with open_desk(tmp_path) as desk:
        first, second = desk.peer(), desk.peer()
        first.heartbeat("g", "T1", client_id="c1")
        assert notices(first) == ["g"]

        second.heartbeat("g", "T1", client_id="c2")
        assert (notices(first), notices(second)) == (["g"], ["g"])
        second.heartbeat("g", "T1", client_id="c2")
        assert (notices(first), notices(second)) == ([], [])
        second.close()

        assert notices(first) == ["g"]
        assert members(first) == ["c1"]


async def test_members_are_told_when_topics_change(tmp_path: Path) -> None:
    """A topic that comes into or leaves the subscriptions means a new share-out."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        peer.heartbeat("g", "T1")
        notices(peer)

        peer.heartbeat("g", "T1", "T2")
        assert notices(peer) == ["g"]
        peer.heartbeat("g", "T2")

        assert notices(peer) == ["g"]
        assert desk.broker.consumers.groups["g"].subscriptions.keys() == {"T2"}


async def test_the_newest_subscription_of_a_topic_counts(tmp_path: Path) -> None:
    """A member that lags behind does not bring an old filter back."""

    def subscription(expression: str, version: int) -> dict[str, Any]:
        return {"topic": "T1", "subString": expression, "subVersion": version, "codeSet": [version]}

    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        for expression, version in (("new", 8), ("old", 7)):
            peer.heartbeat("g", subscriptionDataSet=[subscription(expression, version)])

        assert desk.broker.consumers.groups["g"].subscriptions["T1"].expression == "new"


@pytest.mark.parametrize("reason", ["broadcasting", "group", "broker"])
async def test_nobody_is_told_who_need_not_know(tmp_path: Path, reason: str) -> None:
    """Broadcasting consumers share nothing out, and the notice can be switched off."""
    async with open_desk(tmp_path, notify_consumer_ids_changed_enable=reason != "broker") as desk:
        desk.broker.groups.put(GroupConfig("g", notify_consumer_ids_changed_enable=reason != "group"))
        peer = desk.peer()

        peer.heartbeat("g", "T1", messageModel="BROADCASTING" if reason == "broadcasting" else "CLUSTERING")

        assert notices(peer) == []
        assert members(peer) == ["c1"]


async def test_a_client_takes_its_leave(tmp_path: Path) -> None:
    """UNREGISTER_CLIENT removes it at once; the last one takes the group along."""
    async with open_desk(tmp_path) as desk:
        first, second = desk.peer(), desk.peer()
        first.heartbeat("g", "T1", client_id="c1")
        second.heartbeat("g", "T1", client_id="c2")
        notices(first)

        second.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g"})
        second.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "producerGroup": "pg"})
        assert notices(first) == ["g"]
        assert members(first) == ["c1"]
        assert [member.client_id for member in desk.broker.producers.members("pg")] == ["c1"]
        first.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g"})

        assert members(first) == Code.SYSTEM_ERROR


async def test_two_clients_on_one_connection_are_two(tmp_path: Path) -> None:
    """A process may share a connection among its clients."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        peer.heartbeat("g", "T1", client_id="c1")
        peer.heartbeat("g", "T1", client_id="c2")

        assert members(peer) == ["c1", "c2"]


async def test_silent_clients_are_dropped(tmp_path: Path) -> None:
    """Two minutes without a heartbeat end a membership; those who spoke stay and are told."""
    async with open_desk(tmp_path) as desk:
        silent, living = desk.peer(), desk.peer()
        silent.heartbeat("g", "T1", client_id="c1")
        living.heartbeat("g", "T1", client_id="c2")
        now = desk.broker.world.clock.monotonic()
        for member in desk.broker.consumers.groups["g"].members.values():
            member.last_heartbeat = now - (EXPIRY_SECONDS + 1 if member.client_id == "c1" else 1)
        notices(living)

        desk.broker.clients.expire(now)

        assert members(living) == ["c2"]
        assert notices(living) == ["g"]


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"[]",
        b"{}",
        b'{"clientID":"c","consumerDataSet":[{}]}',
        b'{"clientID":"c","consumerDataSet":[7]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T","codeSet":["x"]}]}]}',
    ],
)
async def test_a_heartbeat_that_is_none_is_refused_whole(tmp_path: Path, body: bytes) -> None:
    """It is answered with what is wrong, and nobody becomes a member by it."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        answer = peer.ask(RequestCode.HEART_BEAT, None, body)

        assert answer.code == Code.SYSTEM_ERROR
        assert answer.remark
        assert not desk.broker.consumers.groups


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

        assert refused.code == Code.QUERY_NOT_FOUND


async def test_a_new_group_on_an_old_queue_decides_for_itself(tmp_path: Path) -> None:
    """Once the first message has left memory, there is no offset to give."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        desk.put("T1")
        desk.put("T1")
        await desk.settled()
        desk.broker.store.config = attrs.evolve(desk.broker.store.config, memory_bytes=10)

        answer = desk.peer().ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T1", "queueId": 0})

        assert answer.code == Code.QUERY_NOT_FOUND


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
            assert committed.code == Code.SUCCESS

        assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, ask).ext == {"offset": "4"}


async def test_an_offset_on_no_topic_is_not_kept(tmp_path: Path) -> None:
    """Committing on a topic that does not exist is refused, so that nobody fills the table with names."""
    async with open_desk(tmp_path) as desk:
        answer = desk.peer().ask(
            RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T9", "queueId": 0, "commitOffset": 3}
        )

        assert answer.code == Code.TOPIC_NOT_EXIST
        assert not desk.broker.offsets.table


async def test_the_ends_of_a_queue_are_told(tmp_path: Path) -> None:
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
        assert peer.ask(RequestCode.QUERY_MESSAGE, {**query, "key": "k7"}).code == ResponseCode.SUCCESS


async def test_queues_are_locked_for_one_client(tmp_path: Path) -> None:
    """The answer lists what the client holds; unlocking makes room for the next."""
    queue = {"brokerName": "b1", "queueId": 0, "topic": "T1"}
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1"))
        peer = desk.peer()

        async def lock(client_id: str) -> list[Any]:
            body = {"clientId": client_id, "consumerGroup": "g", "mqSet": [queue]}
            held: list[Any] = loads((await peer.ask_waiting(RequestCode.LOCK_BATCH_MQ, None, body)).body)["lockOKMQSet"]
            return held

        assert await lock("c1") == [queue]
        assert await lock("c2") == []
        unlock = {"clientId": "c1", "consumerGroup": "g", "mqSet": [queue]}
        assert peer.ask(RequestCode.UNLOCK_BATCH_MQ, None, unlock).code == Code.SUCCESS
        assert await lock("c2") == [queue]
        assert peer.ask(RequestCode.LOCK_BATCH_MQ, None, {"mqSet": [{}]}).code == Code.SYSTEM_ERROR
        for strange in ({**queue, "queueId": 16}, {**queue, "queueId": -1}, {**queue, "topic": "nowhere"}):
            asked = {"clientId": "c1", "consumerGroup": "g", "mqSet": [strange]}
            answer = await peer.ask_waiting(RequestCode.LOCK_BATCH_MQ, None, asked)
            assert loads(answer.body)["lockOKMQSet"] == []  # they would be written down for whoever asks


async def test_a_restart_gives_no_queue_to_another_while_its_owner_may_go_on(tmp_path: Path) -> None:
    """The broker ends without a word as soon as the lock is granted; its owner renews it, another member must wait."""
    queue = {"brokerName": "b", "queueId": 0, "topic": "T1"}

    async def lock(desk: Desk, client_id: str) -> bool:
        body = {"clientId": client_id, "consumerGroup": "g", "mqSet": [queue]}
        return bool(loads((await desk.peer().ask_waiting(RequestCode.LOCK_BATCH_MQ, None, body)).body)["lockOKMQSet"])

    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1"))
        assert await lock(desk, "owner")
        shutil.copytree(tmp_path, tmp_path / "copy")
    for client_id, granted in (("other", False), ("owner", True)):
        async with open_desk(tmp_path / "copy") as desk:
            assert await lock(desk, client_id) is granted


@pytest.mark.parametrize(
    ("subscription", "code"),
    [
        ({"topic": "T1", "subString": "a > 1", "expressionType": "SQL92"}, Code.SYSTEM_ERROR),
        ({"topic": "T1", "subString": "TagA", "expressionType": "TAG"}, Code.SUCCESS),
        ({"topic": "T1", "subString": "||"}, Code.SUBSCRIPTION_PARSE_FAILED),
        (None, Code.SYSTEM_ERROR),
    ],
)
async def test_a_filter_is_judged_before_the_consumer_starts(tmp_path: Path, subscription: Any, code: int) -> None:
    """CHECK_CLIENT_CONFIG tells a consumer early that its filter will not work here."""
    async with open_desk(tmp_path) as desk:
        answer = desk.peer().ask(
            RequestCode.CHECK_CLIENT_CONFIG, None, {"clientId": "c", "group": "g", "subscriptionData": subscription}
        )

        assert answer.code == code
        assert (answer.remark is not None) is (code != Code.SUCCESS)


async def test_a_heartbeat_of_too_many_groups_creates_none(tmp_path: Path) -> None:
    """Each would be kept with its retry topic for good."""
    async with open_desk(tmp_path) as desk:
        before = len(desk.broker.topics.topics)
        groups: list[dict[str, Any]] = [
            {"groupName": f"g{n}", "subscriptionDataSet": []} for n in range(GROUPS_PER_HEARTBEAT_MAX + 1)
        ]

        answer = desk.peer().ask(RequestCode.HEART_BEAT, None, {"clientID": "c", "consumerDataSet": groups})

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert len(desk.broker.topics.topics) == before
        assert not desk.broker.consumers.groups


async def test_members_of_a_large_group_are_notified_together(tmp_path: Path) -> None:
    """However many leave at once: those that stay are told a few times, not once for each that left."""
    async with open_desk(tmp_path) as desk:
        peers = [desk.peer() for _ in range(3 * NOTIFIED_AT_ONCE_MAX)]
        for peer in peers:
            peer.heartbeat("g", "T1")
        await until(lambda: any(told.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for told in peers[-1].told()))
        await trio.sleep(2 * NOTICE_PAUSE_SECONDS)
        for peer in peers:
            peer.told()

        for peer in peers[:NOTIFIED_AT_ONCE_MAX]:
            peer.close()
        notices = 0

        def is_told() -> bool:
            nonlocal notices
            notices += len(peers[-1].told())
            return notices > 0

        await until(is_told)
        await trio.sleep(3 * NOTICE_PAUSE_SECONDS)
        is_told()

        assert notices <= 3
