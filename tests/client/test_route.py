"""Routes and the addresses that follow from them."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.client.errors import NoRouteReason
from ledgermq.client.route import RouteTable, TopicRoute, parse_route
from ledgermq.message.message import MessageQueue
from ledgermq.world.network import Address

MASTER, SLAVE, OTHER = (Address.parse(f"10.0.0.{number}:10911") for number in (1, 2, 3))


def route(topic: str = "t", perm: int = 6, **brokers: dict[int, Address]) -> TopicRoute:
    body: dict[str, Any] = {
        "brokerDatas": [
            {"brokerName": name, "cluster": "c", "brokerAddrs": {str(key): str(address) for key, address in each.items()}}
            for name, each in brokers.items()
        ],
        "queueDatas": [
            {"brokerName": name, "perm": perm, "readQueueNums": 3, "writeQueueNums": 2, "topicSysFlag": 0} for name in brokers
        ],
        "filterServerTable": {},
    }
    return parse_route(topic, body)


def test_queues_are_listed_broker_by_broker() -> None:
    """Sending uses the write queues, reading the read queues."""
    found = route(b={0: OTHER}, a={0: MASTER, 1: SLAVE})

    assert [(queue.broker_name, queue.queue_id) for queue in found.publish_queues()] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert [(queue.broker_name, queue.queue_id) for queue in found.subscribe_queues()] == [
        (name, queue_id) for name in "ab" for queue_id in range(3)
    ]


def test_without_a_master_a_broker_can_only_be_read() -> None:
    """Sends need a master; a slave serves reads."""
    found = route(a={1: SLAVE})

    assert found.publish_queues() == []
    assert found.why_not_publishable() is NoRouteReason.NO_MASTER
    assert len(found.subscribe_queues()) == 3


@pytest.mark.parametrize(
    ("perm", "writable", "readable"), [(6, True, True), (4, False, True), (2, True, False), (0, False, False)]
)
def test_permissions_are_respected(perm: int, writable: bool, readable: bool) -> None:
    """Bit 2 is write, bit 4 is read."""
    found = route(perm=perm, a={0: MASTER})

    assert bool(found.publish_queues()) is writable
    assert bool(found.subscribe_queues()) is readable
    assert writable or found.why_not_publishable() is NoRouteReason.NO_PERMISSION


def test_an_order_configuration_replaces_the_queues_of_producers() -> None:
    """`b1:4;b2:4` in the route."""
    body = {
        "brokerDatas": [{"brokerName": "a", "brokerAddrs": {"0": str(MASTER)}}],
        "queueDatas": [],
        "orderTopicConf": "a:2;gone:1",
    }

    assert parse_route("t", body).publish_queues() == [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1)]


def test_a_template_gives_at_most_four_queues() -> None:
    """RocketMQ's clients create topics with their own default."""
    template = parse_route(
        "TBW102",
        {
            "brokerDatas": [{"brokerName": "a", "brokerAddrs": {"0": str(MASTER)}}],
            "queueDatas": [{"brokerName": "a", "perm": 7, "readQueueNums": 8, "writeQueueNums": 8}],
        },
    )

    assert template.as_template_for("t").publish_queues() == [MessageQueue("t", "a", queue_id) for queue_id in range(4)]


def test_the_table_knows_master_and_members() -> None:
    """Reading falls back to other members, sending does not."""
    table = RouteTable()
    assert table.update(route(a={0: MASTER, 1: SLAVE}))
    assert not table.update(route(a={0: MASTER, 1: SLAVE})), "nothing new"

    assert table.master("a") == MASTER
    assert table.member("a", 0) == (MASTER, 0)
    assert table.member("a", 1) == (SLAVE, 1)
    assert table.member("a", 0, frozenset([MASTER])) == (SLAVE, 1)
    assert table.member("a", 0, frozenset([MASTER, SLAVE])) == (MASTER, 0), "when all rest, none does"
    assert table.member("gone", 0) is None

    table.update(route(a={1: SLAVE, 2: OTHER}))
    assert table.master("a") is None
    assert table.member("a", 0) == (SLAVE, 1)

    table.update(route(a={0: MASTER, 2: OTHER}))
    assert table.member("a", 1) == (OTHER, 2), "the next id, as in RocketMQ"
    assert table.member("a", 3) == (MASTER, 0)


def test_brokers_that_no_route_mentions_are_forgotten() -> None:
    """One topic still naming a broker keeps it."""
    table = RouteTable()
    table.update(route("t1", a={0: MASTER}, b={0: OTHER}))
    table.update(route("t2", b={0: OTHER}))

    table.update(route("t1", a={0: MASTER}))
    assert set(table.masters()) == {MASTER, OTHER}

    table.forget("t2")
    assert table.masters() == [MASTER]
    assert table.members() == [MASTER]


@pytest.mark.parametrize(
    "item",
    [{"brokerName": "a"}, {"brokerName": "a", "brokerAddrs": {"x": "h:1"}}, {"brokerName": "a", "brokerAddrs": {"0": "h"}}],
)
def test_other_shapes_are_refused(item: dict[str, Any]) -> None:
    """A name server that answers nonsense is found out."""
    with pytest.raises((KeyError, ValueError)):
        parse_route("t", {"brokerDatas": [item]})


_STRANGE: list[Any] = [
    [],
    "x",
    5,
    {"brokerDatas": ["b"]},
    {"brokerDatas": [{"brokerName": "a", "brokerAddrs": []}]},
    {"brokerDatas": [{"brokerName": "a", "brokerAddrs": {"0": 5}}]},
    {"queueDatas": [{"brokerName": "a", "readQueueNums": 1 << 40, "writeQueueNums": 1, "perm": 6}]},
    {"queueDatas": [{"brokerName": "a", "readQueueNums": 1, "writeQueueNums": -(1 << 40), "perm": 6}] * 2 + [5]},
    {
        "queueDatas": [
            {"brokerName": "a", "readQueueNums": (1 << 31) - 1, "writeQueueNums": 1, "perm": 6},
            {"brokerName": "b", "readQueueNums": -(1 << 31), "writeQueueNums": 1, "perm": 6},
        ]
    },
    {"orderTopicConf": "a:99999;b:99999"},
]


@pytest.mark.parametrize("body", _STRANGE)
def test_a_route_of_another_shape_or_of_absurd_size_is_refused(body: Any) -> None:
    """By the errors that a route may raise, before a queue is made of each number."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_route("t", body)


@pytest.mark.parametrize("order", ["a:\u00b2", "a:9999999999", "a:-1", "a", ":", "a:"])
def test_an_order_configuration_without_a_number_gives_no_queues(order: str) -> None:
    """Also where Python sees a digit and a number that no topic has."""
    body = {"brokerDatas": [{"brokerName": "a", "brokerAddrs": {"0": "h:1"}}], "orderTopicConf": order}
    assert parse_route("t", body).publish_queues() == []
