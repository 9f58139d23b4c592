"""Store directories change hands: a broker of one make goes on where a broker of another make left off.

Both ways, after a clean stop and after kill -9 under load: every message is served again at its old position.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import pytest

from . import servers
from .conftest import TARGETS, mqadmin, obtain, start_java, target_name
from .driver import Driver, Received, Sent, bodies, expected, wait_for_topic
from .servers import Cluster, Maker

pytestmark = pytest.mark.interop

PLAIN, MIXED, LARGE, PENDING, LOADED = "Plain", "Mixed", "Large", "Pending", "Loaded"
GROUP = "halfway"
ACKNOWLEDGED_BEFORE_THE_KILL = 1500


@attrs.frozen
class LeftBehind:
    """A store directory whose broker is gone, and what it served before."""

    store: Path
    served: dict[str, list[Received]] = attrs.field(factory=dict[str, list[Received]])
    acknowledged: list[Sent] = attrs.field(factory=list[Sent])


Writer = Callable[[Maker], LeftBehind]


def pairs() -> list[tuple[Maker, Maker]]:
    """Who writes and who reads: the target with both Apache brokers, in both directions."""
    target = TARGETS[target_name()]
    others = [maker for maker in (Maker.APACHE_55, Maker.APACHE_49) if maker is not target]
    return [(target, other) for other in others] + [(other, target) for other in others]


each_pair = pytest.mark.parametrize(
    ("writer", "reader"), [pytest.param(*pair, id=f"{pair[0].value}-to-{pair[1].value}") for pair in pairs()]
)


@contextmanager
def serving(maker: Maker, folder: Path, **keys: object) -> Generator[tuple[Cluster, Driver]]:
    """A cluster on ``folder/store``, whose broker is configured with more keys, and a Java client on it."""
    obtain(lambda: servers.jars_of(maker))
    with ExitStack() as started:
        cluster = started.enter_context(servers.running(maker, folder, servers.NO_TLS, **keys))
        java = start_java("5.5.0", cluster.namesrv, folder / "client")
        started.callback(java.close)
        yield cluster, java


def create_topic(java: Driver, cluster: Cluster, topic: str, queues: int) -> None:
    java.run("create_topic", topic=topic, broker=cluster.broker, queues=queues)


@pytest.fixture(scope="module")
def cleanly_stopped(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Stores whose broker was stopped in order; each make writes once."""
    left: dict[Maker, LeftBehind] = {}

    def write(maker: Maker) -> LeftBehind:
        if maker not in left:
            folder = tmp_path_factory.mktemp(f"clean-{maker.value}")
            with serving(maker, folder) as (cluster, java):
                served = fill(java, cluster)
                cluster.broker_server.stop()
            left[maker] = LeftBehind(cluster.store, served=served)
        return left[maker]

    return write


def fill(java: Driver, cluster: Cluster) -> dict[str, list[Received]]:
    """Every kind of message, several segments of them; what the broker serves of it."""
    create_topic(java, cluster, PLAIN, 4)
    java.send(topic=PLAIN, count=200, tags="TagA,TagB", keys="order-{i}", properties="%E9%A2%9C=%E7%BB%BF-{i}&n={i}")
    with java.consuming("push", topic=PLAIN, group=GROUP) as consumer:
        consumer.wait(200)
    java.send(topic=PLAIN, count=20, body="later-{i}")
    create_topic(java, cluster, MIXED, 3)
    java.send(topic=MIXED, mode="batch", count=30, body="batch-{i}", keys="batch-{i}")
    java.send(topic=MIXED, mode="ordered", shards=3, count=30, body="shard-{s}-{i}")
    java.send(topic=MIXED, mode="oneway", count=10, body="oneway-{i}")
    java.send(topic=MIXED, count=3, delay=1, body="delayed-{i}")
    for compression in ("ZLIB", "LZ4", "ZSTD"):
        java.send(topic=MIXED, count=3, size=100_000, body=f"{compression}-{{i}}", compression=compression)
    create_topic(java, cluster, LARGE, 2)
    java.send(topic=LARGE, count=40, size=1_000_000, body="large-{i}-")
    create_topic(java, cluster, PENDING, 1)
    mqadmin(java, "updateSubGroup", "-b", cluster.broker, "-g", "limited", "-r", "7")
    wait_for_topic(java, MIXED, 82)
    java.send(topic=PENDING, count=5, delay=4, body="pending-{i}")
    return {topic: java.read_all(topic) for topic in (PLAIN, MIXED, LARGE)}


@pytest.fixture(scope="module")
def killed_under_load(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """Stores whose broker was killed while producers were sending; each make writes once."""
    left: dict[Maker, LeftBehind] = {}

    def write(maker: Maker) -> LeftBehind:
        if maker not in left:
            folder = tmp_path_factory.mktemp(f"killed-{maker.value}")
            with serving(maker, folder) as (cluster, java):
                create_topic(java, cluster, LOADED, 4)
                load = java.begin("load", topic=LOADED, size=3000, body="load-{i}-", keys="load-{i}")
                enough = ACKNOWLEDGED_BEFORE_THE_KILL
                java.wait_until(lambda: len(load.events) >= enough, 60, lambda: f"{len(load.events)} of {enough}")
                cluster.broker_server.kill()
                java.run("stop", consumer=load.number)
                java.finish(load)
                left[maker] = LeftBehind(cluster.store, acknowledged=java.sent(load))
        return left[maker]

    return write


@each_pair
def test_cleanly_stopped_store_is_served_by_the_other(
    cleanly_stopped: Writer, writer: Maker, reader: Maker, tmp_path: Path
) -> None:
    """Messages, positions, topics, group settings, consumer offsets, keys and pending delays all change hands."""
    left = cleanly_stopped(writer)
    servers.copy_store(left.store, tmp_path / "store")

    with serving(reader, tmp_path) as (_, java):
        for topic, messages in left.served.items():
            assert java.read_all(topic) == messages
        pending = wait_for_topic(java, PENDING, 5)
        assert bodies(pending) == expected(5, "pending-{}")
        with java.consuming("push", topic=PLAIN, group=GROUP) as consumer:
            consumer.wait(20)
            assert bodies(consumer.stop()) == expected(20, "later-{}")
        found = mqadmin(java, "queryMsgByKey", "-t", PLAIN, "-k", "order-77")
        assert next(each for each in left.served[PLAIN] if each.keys == "order-77").msg_id in found
        assert re.search(r"retryMaxTimes\s*=\s*7\b", mqadmin(java, "getConsumerConfig", "-g", "limited"))
        java.send(topic=PLAIN, count=8, body="new-{i}")
        before = left.served[PLAIN]
        after = wait_for_topic(java, PLAIN, len(before) + 8)
        assert bodies(after) == sorted([each.body for each in before] + expected(8, "new-{}"))


@each_pair
def test_store_of_a_killed_broker_is_served_by_the_other(
    killed_under_load: Writer, writer: Maker, reader: Maker, tmp_path: Path
) -> None:
    """Nothing acknowledged before the kill is missing or moved; queues go on without a gap."""
    left = killed_under_load(writer)
    servers.copy_store(left.store, tmp_path / "store")

    with serving(reader, tmp_path) as (_, java):
        stored = java.read_all(LOADED)
        by_position = {(each.queue_id, each.queue_offset): each for each in stored}
        assert len(by_position) == len(stored)
        for sent in left.acknowledged:
            again = by_position[sent.queue_id, sent.queue_offset]
            assert (again.body, again.msg_id, again.offset_msg_id) == (sent.body, sent.msg_id, sent.offset_msg_id)
        java.send(topic=LOADED, count=8, body="new-{i}")
        after = wait_for_topic(java, LOADED, len(stored) + 8)
        assert bodies(after) == sorted([each.body for each in stored] + expected(8, "new-{}"))
        offsets: dict[int, list[int]] = defaultdict(list)
        for each in after:
            offsets[each.queue_id].append(each.queue_offset)
        assert all(found == list(range(len(found))) for found in offsets.values())


@pytest.mark.parametrize("reader", [Maker.APACHE_55, Maker.APACHE_49], ids=lambda maker: maker.value)
def test_a_topic_that_we_have_deleted_begins_anew_at_another_broker(reader: Maker, tmp_path: Path) -> None:
    """Apache passes over the record of the deletion: later messages are served, and the topic takes messages again."""
    empty, again = "Emptied", "Again"
    with serving(Maker.OURS, tmp_path / "ours") as (cluster, java):
        for topic in (empty, again):
            create_topic(java, cluster, topic, 1)
            java.send(topic=topic, count=10, body="old-{i}", keys="old-{i}")
            mqadmin(java, "deleteTopic", "-c", "DefaultCluster", "-t", topic)
            create_topic(java, cluster, topic, 1)
        java.send(topic=again, count=5, body="new-{i}", keys="new-{i}")
        assert [each.queue_offset for each in java.read_all(again)] == list(range(10, 15))
        cluster.broker_server.stop()
    servers.copy_store(cluster.store, tmp_path / "store")

    with serving(reader, tmp_path) as (_, java):
        for topic in (again, empty):
            java.send(topic=topic, count=3, body="later-{i}")
        served = wait_for_topic(java, again, 8, since=10)
        assert bodies(served) == sorted(expected(5, "new-{}") + expected(3, "later-{}"))
        assert [each.queue_offset for each in served] == list(range(10, 18))
        served = wait_for_topic(java, empty, 3, since=10)
        assert bodies(served) == expected(3, "later-{}")
