"""The Node client, ali-ons, unmodified, against the name server and the broker."""

from collections import Counter

import pytest

from .conftest import Names
from .driver import Driver, bodies, expected

pytestmark = pytest.mark.interop


def test_acknowledged_sends_are_consumed_once(node: Driver, names: Names) -> None:
    """Every SEND_OK names a position, no position twice, and the consumer gets each message once."""
    topic = names.topic()

    sent = node.send(topic=topic, count=30, tags="TagA", keys="key-{i}", properties="colour=green-{i}", body="größe-{i}")

    assert {each.status for each in sent} == {"SEND_OK"}
    assert len({(each.queue_id, each.queue_offset) for each in sent}) == 30
    with node.consuming("push", topic=topic, group=names.group()) as consumer:
        consumer.wait(30)
        received = consumer.stop()
    assert bodies(received) == expected(30, "größe-{}")
    for each in received:
        i = each.body.rpartition("-")[2]
        assert (each.tags, each.keys, each.properties["colour"]) == ("TagA", f"key-{i}", f"green-{i}")
    assert {(each.queue_id, each.queue_offset): each.body for each in received} == {
        (each.queue_id, each.queue_offset): each.body for each in sent
    }


def test_waiting_consumer_is_woken(node: Driver, names: Names) -> None:
    """Messages sent while the consumer's pulls are held arrive, filtered by tag."""
    topic = names.topic()

    with node.consuming("push", topic=topic, group=names.group(), expression="TagA || TagC") as consumer:
        node.send(topic=topic, count=30, tags="TagA,TagB,TagC", body="{i}")
        consumer.wait(20)
        received = consumer.stop()

    assert sorted(int(each.body) for each in received) == [i for i in range(30) if i % 3 != 1]


def test_delayed_message_arrives_late(node: Driver, names: Names) -> None:
    """A message of delay level 1 is delivered a second after it was sent."""
    topic = names.topic()

    with node.consuming("push", topic=topic, group=names.group()) as consumer:
        node.send(topic=topic, count=3, delay=1)
        consumer.wait(3)
        received = consumer.stop()

    assert bodies(received) == expected(3)
    assert all(900 <= each.store_timestamp - each.born_timestamp < 4000 for each in received)


def test_retried_message_comes_again(node: Driver, names: Names) -> None:
    """ACTION_RETRY sends a message back: after the first retry level it comes again, once."""
    topic = names.topic()
    node.send(topic=topic, count=3)

    with node.consuming("push", topic=topic, group=names.group(), failures=1) as consumer:
        consumer.wait_deliveries(6)
        received = consumer.stop()

    assert Counter((each.body, each.reconsume_times) for each in received) == {
        (f"message-{i}", times): 1 for i in range(3) for times in (0, 1)
    }


def test_messages_cross_between_java_and_node(node: Driver, admin: Driver, names: Names) -> None:
    """What Node sends Java reads and the reverse, compressed bodies included."""
    topic = names.topic()

    from_node = node.send(topic=topic, count=2, size=100_000, body="node-größe-{i}")
    from_java = admin.send(topic=topic, count=2, size=100_000, body="java-größe-{i}")
    with node.consuming("push", topic=topic, group=names.group("node")) as consumer:
        consumer.wait(4)
        node_got = consumer.stop()

    every = sorted(each.body for each in from_node + from_java)
    assert bodies(node_got) == every
    assert bodies(admin.read_all(topic)) == every
