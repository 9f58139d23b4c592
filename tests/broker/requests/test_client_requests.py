"""Heartbeats and membership as clients announce them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from ledgermq.broker.requests.client_requests import GROUPS_PER_HEARTBEAT_MAX, NOTICE_PAUSE_SECONDS, NOTIFIED_AT_ONCE_MAX
from ledgermq.broker.tables.clients import EXPIRY_SECONDS
from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.testing.logs import capture_logs

from ...turns import counted
from ..desk import Peer, open_desk, until

Code = ResponseCode


def notices(peer: Peer) -> list[str]:
    """Groups that a client was notified to rebalance."""
    return [
        request.ext["consumerGroup"]
        for request in peer.received()
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


async def test_members_are_notified_when_one_comes_or_goes(tmp_path: Path) -> None:
    """All connections of the group are notified, the newcomer too; a heartbeat without news is no news."""
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


async def test_members_are_notified_when_topics_change(tmp_path: Path) -> None:
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


async def test_a_member_that_subscribes_to_something_else_is_warned_of_once(tmp_path: Path) -> None:
    """What its expression leaves out is passed for the whole group; a pull consumer takes no part in that."""
    async with open_desk(tmp_path) as desk:
        first, second, third = desk.peer(), desk.peer(), desk.peer()
        with capture_logs() as events:
            first.heartbeat("g", "T1", client_id="c1")
            first.heartbeat("g", "T1", "T2", client_id="c1")
            second.heartbeat("g", "T1", client_id="c2")
            second.heartbeat("g", "T1", client_id="c2")
            third.heartbeat("g", "T3", client_id="c3", consumeType="CONSUME_ACTIVELY")

        assert [(each["client_id"], each["topics"]) for each in events if each["event"] == "subscriptions_differ"] == [
            ("c2", ["T2"])
        ]


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
async def test_members_that_did_not_ask_for_notifications_get_none(tmp_path: Path, reason: str) -> None:
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
    """Two minutes without a heartbeat end a membership; those that sent something stay and are notified."""
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
    """However many leave at once: those that stay are notified a few times, not once for each that left."""
    async with open_desk(tmp_path) as desk:
        peers = [desk.peer() for _ in range(3 * NOTIFIED_AT_ONCE_MAX)]
        for peer in peers:
            peer.heartbeat("g", "T1")
        await until(lambda: any(received.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED for received in peers[-1].received()))
        await trio.sleep(2 * NOTICE_PAUSE_SECONDS)
        for peer in peers:
            peer.received()

        for peer in peers[:NOTIFIED_AT_ONCE_MAX]:
            peer.close()
        notices = 0

        def is_told() -> bool:
            nonlocal notices
            notices += len(peers[-1].received())
            return notices > 0

        await until(is_told)
        await trio.sleep(3 * NOTICE_PAUSE_SECONDS)
        is_told()

        assert notices <= 3


@pytest.mark.parametrize(
    "change",
    [
        {"clientID": "c" * 513},
        {"clientID": ""},
        {"clientID": "c\n"},
        {"producerDataSet": [{"groupName": "p" * 256}]},
        {"consumerDataSet": [{"groupName": "g" * 256}]},
        {"consumerDataSet": [{"groupName": "g", "messageModel": "x" * 256}]},
        {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T" * 256}]}]},
        {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "x" * 32769}]}]},
        {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "expressionType": "x" * 256}]}]},
    ],
    ids=str,
)
async def test_a_heartbeat_with_texts_of_any_length_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """They would stay in memory for two minutes; the remark says how long they may be."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        answer = peer.ask(RequestCode.HEART_BEAT, None, {"clientID": "c", "producerDataSet": [{"groupName": "p"}], **change})

        assert answer.code == Code.SYSTEM_ERROR
        assert "characters" in (answer.remark or "")
        assert not desk.broker.consumers.groups
        assert not desk.broker.producers.groups


async def test_a_group_that_is_refused_does_not_take_the_others_of_its_client_along(tmp_path: Path) -> None:
    """The table of groups is full, so a new group is refused; the client's known groups stay connected."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        peer.heartbeat("known", "T1")
        large = {"why": "x" * 200_000}
        desk.broker.groups.put(*(GroupConfig(f"g{n}", others=large) for n in range(42)))
        desk.broker.consumers.unregister("known", peer.connection, "c1")
        groups = [{"groupName": name} for name in ("new", "known")]
        body = {"clientID": "c1", "consumerDataSet": groups, "producerDataSet": [{"groupName": "p2"}]}

        answer = peer.ask(RequestCode.HEART_BEAT, None, body)

        assert answer.code == Code.SYSTEM_ERROR
        assert (answer.remark or "").startswith("the consumer group new: the table of groups is full")
        assert members(peer, "known") == ["c1"]
        assert members(peer, "new") == Code.SYSTEM_ERROR
        assert [member.client_id for member in desk.broker.producers.members("p2")] == ["c1"]


async def test_members_of_many_small_groups_are_notified_in_several_turns(tmp_path: Path) -> None:
    """A client with members in many groups comes and goes: each change concerns more members than one turn notifies."""
    groups = [f"g{n}" for n in range(100)]
    async with open_desk(tmp_path) as desk:
        others, newest = [desk.peer() for _ in range(4)], desk.peer()
        for at, peer in enumerate(others):
            beat(peer, groups, f"c{at}")
        await heard(others, groups)

        with counted(lambda: sum(map(pending_frames, others))) as turns:
            beat(newest, groups, "c4")
            await heard(others, groups)
            newest.close()
            await heard(others, groups)

        assert 0 < turns.most <= NOTIFIED_AT_ONCE_MAX


def beat(peer: Peer, groups: list[str], client_id: str) -> None:
    """Send one heartbeat for all these groups."""
    consumers = [{"groupName": group, "subscriptionDataSet": [{"topic": "T1", "subString": "*"}]} for group in groups]
    assert peer.ask(RequestCode.HEART_BEAT, None, {"clientID": client_id, "consumerDataSet": consumers}).code == Code.SUCCESS


def pending_frames(peer: Peer) -> int:
    """How many frames wait to be read by a client."""
    return len(peer.connection._outgoing)  # pyright: ignore[reportPrivateUsage]


async def heard(peers: list[Peer], groups: list[str]) -> None:
    """Wait until each of these clients was notified of all these groups, and nothing more is to be notified."""
    found = {peer: set[str]() for peer in peers}

    def all_have_heard() -> bool:
        for peer in peers:
            found[peer].update(notices(peer))
        return all(len(found[peer]) == len(groups) for peer in peers)

    await until(all_have_heard)
    await trio.sleep(2 * NOTICE_PAUSE_SECONDS)
    assert not any(pending_frames(peer) for peer in peers)
