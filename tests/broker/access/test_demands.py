"""What each request asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from ledgermq.broker.access.control import OPEN_CODES
from ledgermq.broker.access.demands import ASKED, demands_of
from ledgermq.broker.access.policies import Demand
from ledgermq.message.json import dumps
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RequestRefused
from ledgermq.testing.embedded import open_virtual

from ..desk import open_desk


def asked(code: int, ext: dict[str, str] | None = None, body: Any = None) -> list[str]:
    """The demands of a request as `Kind:name=Action|Action`."""
    request = RemotingCommand(code, ext or {}, b"" if body is None else dumps(body))
    return [f"{kind}:{name}={'|'.join(actions)}" for kind, name, actions in demands_of(request, "c1")]


async def test_every_request_that_a_broker_answers_has_a_row(tmp_path: Path) -> None:
    """Only the table with the passwords of all users has none, which leaves it to super users and nodes."""
    async with open_desk(tmp_path) as desk:
        assert desk.broker.dispatcher.codes - ASKED.keys() - OPEN_CODES == {RequestCode.GET_ALL_ACCESS}


async def test_so_has_every_request_of_a_dledger_group(autojump_clock: trio.testing.MockClock) -> None:
    async with open_virtual(mode="dledger", nodes=3) as cluster:
        assert cluster.brokers[0].dispatcher.codes - ASKED.keys() - OPEN_CODES == {RequestCode.GET_ALL_ACCESS}


@pytest.mark.parametrize(
    ("code", "ext", "expected"),
    [
        (10, {"topic": "T"}, ["Topic:T=Pub"]),
        (310, {"b": "T"}, ["Topic:T=Pub"]),
        (320, {"b": "T"}, ["Topic:T=Pub"]),
        (310, {"b": "%RETRY%g"}, ["Group:g=Sub"]),
        (36, {"group": "g"}, ["Group:g=Sub"]),
        (11, {"topic": "T", "consumerGroup": "g"}, ["Topic:T=Sub", "Group:g=Sub"]),
        (361, {"topic": "%RETRY%g", "consumerGroup": "g"}, ["Group:g=Sub", "Group:g=Sub"]),
        (12, {"topic": "T"}, ["Topic:T=Sub|Get"]),
        (14, {"topic": "T", "consumerGroup": "g"}, ["Group:g=Sub|Get", "Topic:T=Sub|Get"]),
        (15, {"topic": "T", "consumerGroup": "g"}, ["Group:g=Sub|Update", "Topic:T=Sub|Update"]),
        (35, {"producerGroup": "p"}, []),
        (35, {"consumerGroup": "g"}, ["Group:g=Sub"]),
        (17, {"topic": "T"}, ["Topic:T=Create"]),
        (215, {"topic": "T"}, ["Topic:T=Delete"]),
        (207, {"groupName": "g"}, ["Group:g=Delete"]),
        (25, {}, ["Cluster:c1=Update"]),
        (28, {}, ["Cluster:c1=Get"]),
        (3001, {"username": "u"}, ["Cluster:c1=Update"]),
        (3010, {}, ["Cluster:c1=Get"]),
        (21, {}, ["Topic:=List|Get"]),
    ],
)
def test_requests_ask_for_what_their_fields_name(code: int, ext: dict[str, str], expected: list[str]) -> None:
    assert asked(code, ext) == expected


def test_a_send_with_the_fields_of_both_versions_asks_for_both_topics() -> None:
    """The handler takes one of them, and a sender must not choose which one is checked."""
    assert asked(10, {"topic": "mine", "b": "other"}) == ["Topic:mine=Pub", "Topic:other=Pub"]


def test_a_heartbeat_asks_for_each_group_and_topic() -> None:
    body = {
        "clientID": "c",
        "consumerDataSet": [
            {"groupName": "g", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%g"}]},
            {"groupName": "h"},
        ],
        "producerDataSet": [{"groupName": "p"}],
    }

    assert asked(34, None, body) == ["Group:g=Sub", "Topic:T=Sub", "Group:g=Sub", "Group:h=Sub"]


def test_locks_ask_for_the_group_and_the_topics_of_the_queues() -> None:
    body = {"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": n} for n in (0, 1)]}

    assert asked(41, None, body) == asked(42, None, body) == ["Group:g=Sub", "Topic:T=Sub"]


def test_lists_of_topics_and_groups_ask_for_each() -> None:
    assert asked(18, None, {"topicConfigList": [{"topicName": "A"}, {"topicName": "B"}]}) == [
        "Topic:A=Create",
        "Topic:B=Create",
    ]
    assert asked(225, None, {"groupConfigList": [{"groupName": "g"}]}) == ["Group:g=Create"]
    assert asked(200, None, {"groupName": "g"}) == ["Group:g=Create"]


UNREADABLE: list[tuple[int, Any]] = [
    (34, {"consumerDataSet": {}}),
    (34, {"consumerDataSet": [{}]}),
    (41, {"mqSet": []}),
    (18, {"topicConfigList": [1]}),
    (200, []),
]


@pytest.mark.parametrize(("code", "body"), UNREADABLE)
def test_a_body_that_cannot_be_read_is_refused(code: int, body: Any) -> None:
    with pytest.raises(RequestRefused, match="body"):
        asked(code, None, body)


def test_a_request_without_its_field_is_refused() -> None:
    with pytest.raises(RequestRefused, match="lacks the field 'consumerGroup'"):
        asked(11, {"topic": "T"})


def test_a_demand_of_all_topics_has_no_name() -> None:
    assert demands_of(RemotingCommand(201), "c1") == [Demand("Group", "", ("List", "Get"))]
