"""The Go client, rocketmq-client-go v2, unmodified, against the name server and the broker."""

from collections import Counter, defaultdict

import pytest

from .conftest import Names
from .driver import Driver, bodies, expected, wait_for_topic

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_acknowledged_sends_are_consumed_once(go: Driver, names: Names, mode: str) -> None:
    """Every SEND_OK names a position, no position twice, and the push consumer gets each message once."""
    topic = names.fresh_topic()

    sent = go.send(topic=topic, mode=mode, count=40)

    assert {each.status for each in sent} == {"SEND_OK"}
    positions = {(each.queue_id, each.queue_offset): each.body for each in sent}
    assert len(positions) == 40
    with go.consuming("push", topic=topic, group=names.group()) as consumer:
        consumer.wait(40)
        received = consumer.stop()
    assert bodies(received) == expected(40)
    assert {(each.queue_id, each.queue_offset): each.body for each in received} == positions
    assert {each.offset_msg_id for each in received} == {each.offset_msg_id for each in sent}


def test_oneway_sends_arrive(go: Driver, names: Names) -> None:
    """A oneway send, which this client does not mark as such, is stored."""
    topic = names.topic()

    go.send(topic=topic, mode="oneway", count=20)
    with go.consuming("push", topic=topic, group=names.group()) as consumer:
        consumer.wait(20)
        received = consumer.stop()

    assert bodies(received) == expected(20)


def test_batch_is_stored_as_single_messages_in_one_queue(go: Driver, admin: Driver, names: Names) -> None:
    """One batch request becomes consecutive messages of one queue with their own properties."""
    topic = names.topic()

    (batch,) = go.send(topic=topic, mode="batch", count=15, tags="TagA", keys="batch-{i}", properties="colour=green-{i}")

    assert batch.status == "SEND_OK"
    stored = admin.read_all(topic)
    assert [each.body for each in stored] == [f"message-{i}" for i in range(15)]
    assert {each.queue_id for each in stored} == {batch.queue_id}
    assert [(each.tags, each.keys, each.properties["colour"]) for each in stored] == [
        ("TagA", f"batch-{i}", f"green-{i}") for i in range(15)
    ]


def test_tag_expression_filters(go: Driver, names: Names) -> None:
    """A subscription to two of three tags gets exactly the messages of those tags."""
    topic = names.topic()

    go.send(topic=topic, count=30, tags="TagA,TagB,TagC", body="{i}")
    with go.consuming("push", topic=topic, group=names.group(), expression="TagA || TagC") as consumer:
        consumer.wait(20)
        received = consumer.stop()

    assert sorted(int(each.body) for each in received) == [i for i in range(30) if i % 3 != 1]
    assert Counter(each.tags for each in received) == {"TagA": 10, "TagC": 10}


def test_orderly_consumer_keeps_the_order_of_each_shard(go: Driver, names: Names) -> None:
    """Messages sent with a sharding key reach an orderly consumer in order, shard by shard."""
    topic = names.topic()

    go.send(topic=topic, mode="ordered", count=40, shards=4, body="{s}:{i}")
    with go.consuming("orderly", topic=topic, group=names.group()) as consumer:
        consumer.wait(40)
        received = consumer.stop()

    by_shard: dict[str, list[str]] = defaultdict(list)
    for each in received:
        by_shard[each.body.partition(":")[0]].append(each.body)
    assert by_shard == {str(s): [f"{s}:{i}" for i in range(s, 40, 4)] for s in range(4)}


def test_failed_message_is_retried_then_dead(go: Driver, admin: Driver, names: Names) -> None:
    """A message that always fails comes again through the retry topic and ends in the dead letter queue."""
    topic, group = names.topic(), names.group()

    # This client looks for new routes twice a minute only: a first visit makes the broker create the retry topic.
    with go.consuming("push", topic=topic, group=group):
        wait_for_topic(admin, f"%RETRY%{group}", 0)
    go.send(topic=topic, count=3, keys="dead-{i}")
    with go.consuming("push", topic=topic, group=group, failures=99, max_reconsume=1, delay_level=1) as consumer:
        consumer.wait_deliveries(6)
        dead = wait_for_topic(admin, f"%DLQ%{group}", 3)
        received = consumer.stop()

    assert Counter((each.body, each.reconsume_times) for each in received) == {
        (f"message-{i}", times): 1 for i in range(3) for times in (0, 1)
    }
    assert bodies(dead) == expected(3)
    assert {each.keys.strip() for each in dead} == {"dead-0", "dead-1", "dead-2"}


def test_delayed_message_arrives_late(go: Driver, names: Names) -> None:
    """A message of delay level 1 is delivered a second after it was sent."""
    topic = names.topic()

    with go.consuming("push", topic=topic, group=names.group()) as consumer:
        go.send(topic=topic, count=3, delay=1)
        consumer.wait(3)
        received = consumer.stop()

    assert bodies(received) == expected(3)
    assert all(900 <= each.store_timestamp - each.born_timestamp < 4000 for each in received)


def test_broadcasting_consumers_each_see_every_message(go: Driver, names: Names) -> None:
    """Two broadcasting consumers of one group each receive all messages once."""
    topic = names.topic()

    go.send(topic=topic, count=12)
    groups = names.group("first"), names.group("second")
    with (
        go.consuming("push", topic=topic, group=groups[0], model="BROADCASTING", name="first") as first,
        go.consuming("push", topic=topic, group=groups[1], model="BROADCASTING", name="second") as second,
    ):
        first.wait(12)
        second.wait(12)
        received = first.stop(), second.stop()

    assert [bodies(each) for each in received] == [expected(12)] * 2


def test_messages_cross_between_java_and_go(go: Driver, admin: Driver, names: Names) -> None:
    """What Go sends Java reads and the reverse, large compressed bodies and text beyond ASCII included."""
    topic = names.topic()

    from_go = go.send(topic=topic, count=2, size=200_000, body="go-größe-{i}", keys="ключ-{i}")
    from_java = admin.send(topic=topic, count=2, size=200_000, body="java-größe-{i}", keys="ключ-{i}")
    with go.consuming("push", topic=topic, group=names.group("go")) as consumer:
        consumer.wait(4)
        go_got = consumer.stop()
    with admin.consuming("push", topic=topic, group=names.group("java")) as consumer:
        consumer.wait(4)
        java_got = consumer.stop()

    assert bodies(go_got) == bodies(java_got) == sorted(each.body for each in from_go + from_java)
    assert sorted(each.keys.strip() for each in go_got) == ["ключ-0", "ключ-0", "ключ-1", "ключ-1"]
