"""mqadmin of rocketmq-tools 4.9.8 and 5.5.0, unmodified, against the name server and the broker."""

import re

import pytest

from .conftest import Names, mqadmin
from .driver import Driver, bodies, expected
from .servers import Cluster

pytestmark = pytest.mark.interop


def rows(printed: str) -> list[list[str]]:
    """The words of every line that is no comment or heading."""
    return [line.split() for line in printed.splitlines() if line.strip() and not line.startswith("#")]


def test_topic_is_created_listed_routed_and_deleted(java: Driver, names: Names, cluster: Cluster) -> None:
    """updateTopic, topicList, topicRoute, topicStatus and deleteTopic agree about one topic."""
    topic = names.fresh_topic()

    created = mqadmin(java, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "6", "-w", "5")
    assert f"create topic to {cluster.broker} success" in created
    assert "readQueueNums=6" in created
    assert "writeQueueNums=5" in created
    assert [topic] in rows(mqadmin(java, "topicList"))

    route = mqadmin(java, "topicRoute", "-t", topic)
    assert re.search(r'"brokerName":\s*"broker-a"', route)
    assert cluster.broker in route
    assert re.search(r'"readQueueNums":\s*6', route)
    assert re.search(r'"writeQueueNums":\s*5', route)

    sent = java.send(topic=topic, count=20)
    status = rows(mqadmin(java, "topicStatus", "-t", topic))
    counts = {int(row[1]): (int(row[2]), int(row[3])) for row in status if row[0] == "broker-a"}
    assert counts.keys() == set(range(6))
    per_queue = {queue: sum(each.queue_id == queue for each in sent) for queue in range(6)}
    assert counts == {queue: (0, count) for queue, count in per_queue.items()}

    assert "success" in mqadmin(java, "deleteTopic", "-c", "DefaultCluster", "-t", topic)
    assert [topic] not in rows(mqadmin(java, "topicList"))


def test_cluster_list_shows_the_broker(java: Driver, cluster: Cluster) -> None:
    """clusterList names cluster, broker, id and address."""
    printed = rows(mqadmin(java, "clusterList"))

    (line,) = (row for row in printed if "broker-a" in row)
    assert line[:4] == ["DefaultCluster", "broker-a", "0", cluster.broker]


def test_broker_status_counts_messages(java: Driver, names: Names, cluster: Cluster) -> None:
    """brokerStatus gives the keys that operators watch; the count of puts grows by what was sent."""
    topic = names.topic()

    before = dict(broker_status(java, cluster))
    java.send(topic=topic, count=10)
    after = dict(broker_status(java, cluster))

    assert int(after["msgPutTotalTodayNow"]) >= int(before["msgPutTotalTodayNow"]) + 10
    assert {"bootTimestamp", "brokerVersionDesc", "commitLogMaxOffset", "commitLogMinOffset", "putTps"} <= after.keys()
    assert int(after["commitLogMaxOffset"]) > int(before["commitLogMaxOffset"])


def broker_status(java: Driver, cluster: Cluster) -> list[tuple[str, str]]:
    lines = mqadmin(java, "brokerStatus", "-b", cluster.broker).splitlines()
    return [(key.strip(), value.strip()) for key, colon, value in (line.partition(":") for line in lines) if colon]


def test_consumer_progress_shows_what_is_left(java: Driver, names: Names) -> None:
    """consumerProgress gives each queue's broker offset, consumer offset and difference."""
    topic, group = names.topic(queues=2), names.group()
    java.send(topic=topic, count=10, mode="ordered", shards=2)
    with java.consuming("push", topic=topic, group=group) as consumer:
        consumer.wait(10)
    java.send(topic=topic, count=4, mode="ordered", shards=2)

    progress = progress_of(java, group, topic)

    assert progress == {0: (7, 5, 2), 1: (7, 5, 2)}


def progress_of(java: Driver, group: str, topic: str) -> dict[int, tuple[int, int, int]]:
    """Queue: broker offset, consumer offset, difference. The client's address column is absent when it is gone."""
    printed = rows(mqadmin(java, "consumerProgress", "-g", group))
    found: dict[int, tuple[int, int, int]] = {}
    for row in printed:
        if row[:2] == [topic, "broker-a"] or (topic.startswith(row[0]) and row[1:2] == ["broker-a"]):
            numbers = [int(word) for word in row[2:] if re.fullmatch(r"-?\d+", word)]
            found[numbers[0]] = (numbers[1], numbers[2], numbers[3])
    return found


def test_message_is_found_by_id_key_offset_and_unique_key(java: Driver, names: Names) -> None:
    """One message is found in the four ways, and it is the same one."""
    topic = names.topic(queues=1)
    sent = java.send(topic=topic, count=5, tags="TagA", keys="order-{i}", properties="colour=green")
    wanted = sent[3]
    # The elder tool knows no topic here, the younger insists on it.
    of_topic = [] if "4.9" in java.name else ["-t", topic]

    by_id = mqadmin(java, "queryMsgById", *of_topic, "-i", wanted.offset_msg_id)
    by_unique_key = mqadmin(java, "queryMsgByUniqueKey", "-t", topic, "-i", wanted.msg_id)
    by_offset = mqadmin(java, "queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "3")
    by_key = mqadmin(java, "queryMsgByKey", "-t", topic, "-k", "order-3")

    for printed in (by_id, by_unique_key, by_offset):
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in printed.splitlines())}
        assert fields["Topic"] == topic
        assert fields["Tags"] == "[TagA]"
        assert fields["Keys"] == "[order-3]"
        assert fields["Queue ID"] == "0"
        assert fields["Queue Offset"] == "3"
        assert "colour=green" in fields["Properties"]
    (found,) = (row for row in rows(by_key) if row[0] in {wanted.msg_id, wanted.offset_msg_id})
    assert found[1:3] == ["0", "3"]


def test_key_shared_by_many_messages_finds_them_all(java: Driver, names: Names) -> None:
    """queryMsgByKey returns every message that carries the key, and no other."""
    topic = names.topic()
    java.send(topic=topic, count=7, keys="shared-key")
    java.send(topic=topic, count=3, keys="other-key")

    found = rows(mqadmin(java, "queryMsgByKey", "-t", topic, "-k", "shared-key"))

    assert len([row for row in found if row[1:3] and all(word.isdigit() for word in row[1:3])]) == 7


def test_offsets_of_an_offline_group_are_reset_by_time(java: Driver, names: Names) -> None:
    """resetOffsetByTime to the beginning makes a group that read everything read it again."""
    topic, group = names.topic(queues=2), names.group()
    java.send(topic=topic, count=10)
    with java.consuming("push", topic=topic, group=group) as consumer:
        consumer.wait(10)

    mqadmin(java, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")

    assert {consumed for _, consumed, _ in progress_of(java, group, topic).values()} == {0}
    with java.consuming("push", topic=topic, group=group) as consumer:
        consumer.wait(10)
        assert bodies(consumer.stop()) == expected(10)


def test_offsets_of_a_running_group_are_reset_by_time(java: Driver, names: Names) -> None:
    """resetOffsetByTime reaches the consumers of the group through the broker: they start over."""
    topic, group = names.topic(queues=2), names.group()
    java.send(topic=topic, count=10)

    with java.consuming("push", topic=topic, group=group) as consumer:
        consumer.wait(10)
        printed = mqadmin(java, "resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        consumer.wait_deliveries(20)
        received = consumer.stop()

    assert "broker-a" in printed
    assert bodies(received) == sorted(expected(10) * 2)


def test_group_is_configured_and_shown(java: Driver, names: Names, cluster: Cluster) -> None:
    """updateSubGroup sets the limits of a group; getConsumerConfig shows them; deleteSubGroup removes them."""
    group = names.group()

    updated = mqadmin(java, "updateSubGroup", "-b", cluster.broker, "-g", group, "-r", "3", "-q", "2")

    assert f"create subscription group to {cluster.broker} success" in updated
    shown = mqadmin(java, "getConsumerConfig", "-g", group)
    assert re.search(r"retryMaxTimes\s*=\s*3\b", shown)
    assert re.search(r"retryQueueNums\s*=\s*2\b", shown)
    assert "success" in mqadmin(java, "deleteSubGroup", "-b", cluster.broker, "-g", group)


def test_group_that_may_not_consume_gets_nothing(java: Driver, names: Names, cluster: Cluster) -> None:
    """A group with consumption switched off receives only after it is switched on again."""
    topic, group = names.topic(), names.group()
    mqadmin(java, "updateSubGroup", "-b", cluster.broker, "-g", group, "-s", "false")
    java.send(topic=topic, count=5)

    with java.consuming("push", topic=topic, group=group) as consumer:
        assert group in mqadmin(java, "consumerConnection", "-g", group) or consumer.received() == []
        assert consumer.received() == []
        mqadmin(java, "updateSubGroup", "-b", cluster.broker, "-g", group, "-s", "true")
        consumer.wait(5)
        assert bodies(consumer.stop()) == expected(5)


def test_running_consumer_is_shown(java: Driver, names: Names) -> None:
    """consumerConnection names the client, its subscription and its model."""
    topic, group = names.topic(), names.group()
    java.send(topic=topic, count=1)

    with java.consuming("push", topic=topic, group=group, expression="TagA || TagB", instance="watched") as consumer:
        java.wait_until(lambda: "watched" in mqadmin(java, "consumerConnection", "-g", group), 20, lambda: consumer.call.line)
        printed = mqadmin(java, "consumerConnection", "-g", group)

    assert "ConsumeType: CONSUME_PASSIVELY" in printed
    assert "MessageModel: CLUSTERING" in printed
    assert re.search(rf"{topic}\s+TagA \|\| TagB", printed)
    assert f"%RETRY%{group}" in printed
