"""The C++ client, librocketmq, unmodified, against the name server and the broker."""

from collections import Counter, defaultdict

import pytest

from .conftest import Names
from .driver import Driver, bodies, expected

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_sends_are_consumed_once(cpp: Driver, names: Names, mode: str) -> None:
    """What the producer sent, however it sent, reaches the push consumer once with keys, tags and properties."""
    topic = names.topic()

    sent = cpp.send(topic=topic, mode=mode, count=30, tags="TagA", keys="key-{i}", properties="colour=green-{i}")

    assert {each.status for each in sent} == {"ONEWAY" if mode == "oneway" else "SEND_OK"}
    with cpp.consuming("push", topic=topic, group=names.group(), properties="colour=") as consumer:
        consumer.wait(30)
        received = consumer.stop()
    assert bodies(received) == expected(30)
    assert {each.tags for each in received} == {"TagA"}
    assert {each.keys for each in received} == {f"key-{i}" for i in range(30)}


def test_pull_consumer_reads_every_queue(cpp: Driver, names: Names) -> None:
    """Explicit pulls over all queues of the topic return each message once."""
    topic = names.topic()

    cpp.send(topic=topic, count=50)
    stored = cpp.read_all(topic)

    assert bodies(stored) == expected(50)
    assert len({(each.queue_id, each.queue_offset) for each in stored}) == 50


def test_orderly_consumer_keeps_the_order_of_each_shard(cpp: Driver, names: Names) -> None:
    """Messages sent with a queue selector reach an orderly consumer in order, shard by shard."""
    topic = names.topic()

    cpp.send(topic=topic, mode="ordered", count=40, shards=4, body="{s}:{i}")
    with cpp.consuming("orderly", topic=topic, group=names.group()) as consumer:
        consumer.wait(40)
        received = consumer.stop()

    by_shard: dict[str, list[str]] = defaultdict(list)
    for each in received:
        by_shard[each.body.partition(":")[0]].append(each.body)
    assert by_shard == {str(s): [f"{s}:{i}" for i in range(s, 40, 4)] for s in range(4)}


def test_waiting_consumer_is_woken_for_its_tags(cpp: Driver, names: Names) -> None:
    """Messages sent while the consumer's pulls are held arrive, filtered by tag."""
    topic = names.topic()

    with cpp.consuming("push", topic=topic, group=names.group(), expression="TagA || TagC") as consumer:
        cpp.send(topic=topic, count=30, tags="TagA,TagB,TagC", body="{i}")
        consumer.wait(20)
        received = consumer.stop()

    assert Counter(each.tags for each in received) == {"TagA": 10, "TagC": 10}
    assert sorted(int(each.body) for each in received) == [i for i in range(30) if i % 3 != 1]


def test_messages_cross_between_java_and_cpp(cpp: Driver, admin: Driver, names: Names) -> None:
    """What C++ sends Java reads and the reverse, compressed bodies included."""
    topic = names.topic()

    from_cpp = cpp.send(topic=topic, count=2, size=100_000, body="cpp-{i}")
    from_java = admin.send(topic=topic, count=2, size=100_000, body="java-{i}")

    every = sorted(each.body for each in from_cpp + from_java)
    assert bodies(cpp.read_all(topic)) == every
    assert bodies(admin.read_all(topic)) == every
