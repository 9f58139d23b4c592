"""All clients with a real broker and name server of ours, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import attrs
import pytest
import trio

from ledgermq import blocking
from ledgermq.broker.broker import Broker
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.opening import open_broker
from ledgermq.client.admin import LATEST, open_admin
from ledgermq.client.admin.errors import NoSuchGroup
from ledgermq.client.compression import Compression
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import (
    InvalidArgument,
    NoPermission,
    NotFound,
    NotOnline,
    SubscriptionRefused,
    TopicNotExist,
    Unreachable,
)
from ledgermq.client.producer import open_producer
from ledgermq.client.pull import open_pull_consumer
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.sending import SendResult
from ledgermq.client.subscription import ConsumeFrom, MessageModel, sql
from ledgermq.message.message import Message, MessageQueue
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.testing.embedded import Embedded, open_embedded
from ledgermq.world.real import real_world

from .fake_cluster import until


@attrs.frozen
class Servers:
    namesrv: str
    broker: Broker


@asynccontextmanager
async def open_servers(directory: Path) -> AsyncGenerator[Servers]:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
    async with open_namesrv(config, real_world()) as namesrv:
        address = f"127.0.0.1:{namesrv.port}"
        broker_config = BrokerConfig(
            broker_name="b1",
            broker_cluster_name="c1",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=0,
            namesrv_addr=address,
            store_path_root_dir=str(directory),
            mapped_file_size_commit_log=1 << 24,
            max_hash_slot_num=1000,
            max_index_num=4000,
        )
        async with open_broker(broker_config) as broker:
            yield Servers(address, broker)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncGenerator[Servers]:
    async with open_servers(tmp_path / "store") as servers:
        yield servers


async def get(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    with trio.fail_after(60):
        while len(messages) < count:
            messages += await consumer.get_many()
    return messages


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    messages = await get(consumer, count)
    for message in messages:
        await message.ack()
    return messages


async def reaches(count: int, found: Callable[[], Awaitable[int]]) -> None:
    """Ask until the answer is `count`: queues and indexes follow the log a little later."""
    with trio.fail_after(60):
        while await found() != count:  # noqa: ASYNC110 - only asking tells
            await trio.sleep(0.02)


async def test_a_new_topic_goes_round(servers: Servers) -> None:
    """The first send creates it; a consumer that starts afterwards gets everything, in each form of sending."""
    async with open_producer(servers.namesrv, "pg", send_timeout_seconds=60) as producer:
        await producer.send(Message("t", b"single", tag="a", keys=["k"], properties={"own": "value"}))
        await producer.send_batch([Message("t", b"batch 0"), Message("t", b"batch 1")])
        await producer.send_oneway(Message("t", b"oneway"))
        await producer.send(Message("t", b"large" * 10_000))
        async with open_consumer(servers.namesrv, "g", "t", consume_from=ConsumeFrom.FIRST) as consumer:
            messages = await take(consumer, 5)

    bodies = {message.body: message for message in messages}
    assert sorted(bodies) == sorted([b"single", b"batch 0", b"batch 1", b"oneway", b"large" * 10_000])
    single = bodies[b"single"]
    assert (single.tag, single.keys, single.properties["own"]) == ("a", ["k"], "value")


@pytest.mark.parametrize("compression", list(Compression))
async def test_every_compression_comes_back(servers: Servers, compression: Compression) -> None:
    """The broker stores what it is given."""
    body = b"again and again " * 1000
    async with open_producer(servers.namesrv, compression=compression, send_timeout_seconds=60) as producer:
        await producer.send(Message("t", body))
    async with open_consumer(servers.namesrv, "g", "t", consume_from=ConsumeFrom.FIRST) as consumer:
        (message,) = await take(consumer, 1)
        assert message.body == body
        assert message.size < 1000


async def test_a_thousand_sends_at_once(servers: Servers) -> None:
    """Each has its own acknowledgement, and queue offsets are dense."""
    results: dict[int, tuple[int, int]] = {}
    async with open_producer(servers.namesrv, send_timeout_seconds=60) as producer:

        async def send(number: int) -> None:
            result = await producer.send(Message("t", b"%d" % number))
            results[number] = (result.queue.queue_id, result.queue_offset)

        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(send, number)

    by_queue: dict[int, list[int]] = {}
    for queue_id, offset in results.values():
        by_queue.setdefault(queue_id, []).append(offset)
    assert all(sorted(offsets) == list(range(len(offsets))) for offsets in by_queue.values())
    async with open_consumer(servers.namesrv, "g", "t", consume_from=ConsumeFrom.FIRST) as consumer:
        assert sorted(int(message.body) for message in await take(consumer, 1000)) == list(range(1000))


async def test_tags_are_filtered_by_the_broker(servers: Servers) -> None:
    """Only wanted messages cross the wire."""
    async with open_producer(servers.namesrv, send_timeout_seconds=60) as producer:
        for tag in ("a", "b", "c"):
            await producer.send(Message("t", tag.encode(), tag=tag))
    async with open_consumer(servers.namesrv, "g", {"t": "a || c"}, consume_from=ConsumeFrom.FIRST) as consumer:
        assert sorted(message.body for message in await take(consumer, 2)) == [b"a", b"c"]
        assert await consumer.get_many(timeout_seconds=0.2) == []


async def test_a_failed_message_comes_again_and_ends_as_a_dead_letter(servers: Servers) -> None:
    """Delay level 1 is one second; with one retry allowed the second failure buries it."""
    async with open_producer(servers.namesrv, send_timeout_seconds=60) as producer:
        await producer.send(Message("t", b"poison"))
    async with open_consumer(
        servers.namesrv, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST, reconsume_times_max=1
    ) as consumer:
        (first,) = await get(consumer, 1)
        await first.retry(delay_level=1)
        (second,) = await get(consumer, 1)
        assert (second.body, second.topic, second.reconsume_times) == (b"poison", "t", 1)
        await second.retry(delay_level=1)
    async with open_consumer(servers.namesrv, "undertaker", "%DLQ%g", consume_from=ConsumeFrom.FIRST) as consumer:
        (dead,) = await take(consumer, 1)
        assert dead.body == b"poison"


async def test_members_share_and_take_over(servers: Servers) -> None:
    """Two members have half the queues each; when one leaves, the other has all and goes on where it stopped."""
    async with open_admin(servers.namesrv) as admin, open_producer(servers.namesrv, send_timeout_seconds=60) as producer:
        await admin.create_topic("t", queues=4)
        async with open_consumer(servers.namesrv, "g", "t", ack="explicit") as one:
            async with open_consumer(servers.namesrv, "g", "t", ack="explicit") as two:
                await until(lambda: len([queue for queue in one.queues if queue.topic == "t"]) == 2)
                for number in range(40):
                    await producer.send(Message("t", b"%d" % number))
                mine, others = await get(one, 20), await get(two, 20)
                for message in [*mine, *others[:10]]:
                    await message.ack()
            seen = {int(message.body) for message in [*mine, *others[:10]]}
            with trio.fail_after(60):
                while seen != set(range(40)):
                    message = await one.get_one()
                    assert message is not None
                    seen.add(int(message.body))
                    await message.ack()


async def test_order_is_kept_within_keys(servers: Servers) -> None:
    """Messages of one key are sent to one queue and consumed one after the other."""
    async with open_producer(servers.namesrv, send_timeout_seconds=60) as producer:
        for number in range(60):
            await producer.send(Message("t", b"%d" % number), key=f"key{number % 3}")
    seen: dict[str, list[int]] = {}

    async def handle(message: ReceivedMessage) -> None:
        await trio.sleep(0.001)
        seen.setdefault(message.properties["__SHARDINGKEY"], []).append(int(message.body))

    async with (
        open_consumer(servers.namesrv, "g", "t", orderly=True, consume_from=ConsumeFrom.FIRST) as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(lambda: consumer.process(handle, tasks=8))
        await until(lambda: sum(map(len, seen.values())) == 60)
        nursery.cancel_scope.cancel()
    assert seen == {f"key{key}": list(range(key, 60, 3)) for key in range(3)}


async def test_broadcasting_gives_everything_to_everybody(servers: Servers) -> None:
    """Two members of one group, all messages twice."""
    async with open_producer(servers.namesrv, send_timeout_seconds=60) as producer:
        for number in range(10):
            await producer.send(Message("t", b"%d" % number))
    for _ in range(2):
        async with open_consumer(
            servers.namesrv, "g", "t", model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            assert len(await take(consumer, 10)) == 10


async def test_queues_can_be_read_by_hand(servers: Servers) -> None:
    """Assign, poll, commit, seek, pause."""
    async with open_producer(servers.namesrv, send_timeout_seconds=60) as producer:
        for number in range(20):
            await producer.send(Message("t", b"%d" % number))
    async with open_pull_consumer(servers.namesrv, "g") as consumer:
        queues = await consumer.queues("t")
        await consumer.assign(queues)
        assert consumer.assignment() == queues
        messages: list[ReceivedMessage] = []
        with trio.fail_after(60):
            while len(messages) < 20:
                found = await consumer.poll(7)
                assert 1 <= len(found) <= 7
                messages += found
        assert [await consumer.committed(queue) for queue in queues] != [consumer.position(queue) for queue in queues]
        await consumer.commit()
        assert sum([await consumer.committed(queue) or 0 for queue in queues]) == 20

        await consumer.seek_to_beginning(queues[0])
        again = await consumer.poll(100, 60)
        assert {message.queue for message in again} == {queues[0]}
        assert again[0].queue_offset == 0

        await consumer.seek_to_end(queues[0])
        consumer.pause(queues[1:])
        for queue in queues[1:]:
            await consumer.seek(queue, 0)
        assert await consumer.poll(100, 0.3) == []
        consumer.resume(queues[1:])
        assert await consumer.poll(100, 60)
        with pytest.raises(InvalidArgument, match="no retries"):
            await again[0].retry()
        await consumer.assign([])
        with pytest.raises(InvalidArgument, match="not assigned"):
            consumer.position(queues[0])

    async with open_pull_consumer(servers.namesrv, "g") as consumer:
        await consumer.assign(queues)
        assert await consumer.poll(100, 0.3) == [], "everything was committed"


async def test_an_administrator_sees_and_changes_everything(servers: Servers) -> None:
    """Topics, groups, positions, messages, brokers and name servers through one client."""
    async with open_admin(servers.namesrv) as admin, open_producer(servers.namesrv, "pg", send_timeout_seconds=60) as producer:
        (broker,) = (await admin.cluster()).brokers
        assert (broker.name, broker.cluster) == ("b1", "c1")
        await admin.create_topic("t", queues=2, cluster="c1")
        assert "t" in await admin.topics()
        assert (await admin.topic_route("t")).queues[0].write_queues == 2
        results = [await producer.send(Message("t", b"body %d" % number, keys=[f"k{number}", "all"])) for number in range(6)]

        async def stored() -> int:
            return sum(each.max_offset - each.min_offset for each in (await admin.topic_stats("t")).values())

        async def indexed() -> int:
            return len(await admin.messages_by_key("t", "all"))

        await reaches(6, stored)
        assert (await admin.topic_config("t", "b1"))["writeQueueNums"] == 2
        assert [each.client_id for each in await admin.producer_connections("pg")]

        sent = results[3]
        await reaches(6, indexed)
        assert (await admin.message_by_id(sent.offset_message_id)).body == b"body 3"
        assert (await admin.message_by_id(sent.message_id, "t")).body == b"body 3"
        assert [each.body for each in await admin.messages_by_key("t", "k4")] == [b"body 4"]
        assert (await admin.message_at(sent.queue, sent.queue_offset)).body == b"body 3"
        with pytest.raises(NotFound):
            await admin.message_at(sent.queue, 99)
        assert await admin.queue_range(sent.queue) == (0, 3)
        assert await admin.offset_at(sent.queue, 0) == 0

        for asked in (admin.group_stats("g"), admin.group_stats("g", "t"), admin.clone_offsets("g", "copy", "t")):
            with pytest.raises(NoSuchGroup, match="there is no group 'g'"):
                await asked
        await admin.create_group("g", retryMaxTimes=3)
        assert not any(each.consumer_offset for each in (await admin.group_stats("g")).values())
        assert (await admin.groups())["g"]["retryMaxTimes"] == 3
        with pytest.raises(NotOnline):
            await admin.group_connections("g")
        async with open_consumer(servers.namesrv, "g", "t", consume_from=ConsumeFrom.FIRST) as consumer:
            await take(consumer, 6)
            assert await consumer.get_many(timeout_seconds=0) == []
            await consumer.commit()
            assert sum(each.lag for each in (await admin.group_stats("g")).values()) == 0
            connections = await admin.group_connections("g")
            assert [each.client_id for each in connections.members] == [consumer.client_id]
            assert connections.subscriptions["t"] == "*"
            running = await admin.running_info("g", consumer.client_id)
            assert running["properties"]["consumerGroup"] == "g"
            assert "g" in await admin.topic_groups("t")

            assert set((await admin.reset_offsets("g", "t", 0)).values()) == {0}
            assert len(await take(consumer, 6)) == 6, "a member that is online goes back at once"
        assert set((await admin.reset_offsets("g", "t", LATEST)).values()) == {3}
        await admin.set_offset("g", sent.queue, 1)
        assert await admin.offset_of("g", sent.queue) == 1
        await admin.clone_offsets("g", "copy", "t")
        assert await admin.offset_of("copy", sent.queue) == 1

        assert (await admin.broker_config("b1"))["brokerName"] == "b1"
        assert "brokerVersionDesc" in await admin.broker_runtime("b1")
        await admin.put_kv("space", "key", "value")
        assert await admin.get_kv("space", "key") == "value"
        await admin.delete_kv("space", "key")
        assert await admin.get_kv("space", "key") is None
        assert await admin.set_writable("b1", writable=False) > 0
        assert await admin.set_writable("b1", writable=True) > 0

        await admin.delete_group("g")
        assert "g" not in await admin.groups()
        await admin.delete_topic("t")
        assert "t" not in await admin.topics()
        with pytest.raises(TopicNotExist):
            await admin.topic_config("t", "b1")


class Background:
    """Servers in a thread of their own, for tests that block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,))
        self.namesrv = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._token.run_sync_soon(self._scope.cancel)
        self._thread.join()

    async def _serve(self) -> None:
        with trio.CancelScope() as self._scope:
            async with open_servers(self._directory) as servers:
                self._token = trio.lowlevel.current_trio_token()
                self.namesrv = servers.namesrv
                self._started.set()
                await trio.sleep_forever()


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    with Background(tmp_path / "store") as background:
        yield background


async def test_a_queue_that_does_not_exist_stores_nothing_and_says_so(ledgermq_broker: Embedded) -> None:
    """At once, and without a flag that contradicts the words."""
    async with (
        open_admin(ledgermq_broker.namesrv) as admin,
        open_producer(ledgermq_broker.namesrv, send_timeout_seconds=60) as producer,
    ):
        await admin.create_topic("few", queues=2)

        with pytest.raises(NoPermission, match=r"queue 77 of topic few does not exist.*the message was not stored") as refused:
            await producer.send(Message("few", b""), queue=MessageQueue("few", "broker-a", 77))

        assert (refused.value.retriable, refused.value.may_have_been_stored) == (False, False)


async def test_sends_go_on_where_a_topic_has_fewer_queues_than_a_moment_ago(ledgermq_broker: Embedded) -> None:
    """The refusal of a queue that is gone makes a producer ask for the route again."""
    async with (
        open_admin(ledgermq_broker.namesrv) as admin,
        open_producer(ledgermq_broker.namesrv, send_timeout_seconds=60) as producer,
    ):
        await admin.create_topic("shrinking", queues=8)
        await producer.send(Message("shrinking", b""))
        await admin.update_topic("shrinking", queues=2, force=True)

        results = [await producer.send(Message("shrinking", b"")) for _ in range(16)]

        assert {result.queue.queue_id for result in results} == {0, 1}


async def test_a_filter_that_no_broker_can_use_is_raised(ledgermq_broker: Embedded) -> None:
    """Otherwise the consumer would wait for ever."""
    async with open_admin(ledgermq_broker.namesrv) as admin:
        await admin.create_topic("filtered")

        with pytest.raises(SubscriptionRefused, match="filters by tags only"):
            async with open_consumer(ledgermq_broker.namesrv, "g", {"filtered": sql("a > 1")}):
                pass


def client_threads() -> int:
    """How many threads run blocking clients; threads on which the broker of a test reaches its disk come and go."""
    return sum(thread.name == "ledgermq-client" for thread in threading.enumerate())


def test_plain_threads_have_the_same_clients(background: Background) -> None:
    """Send, consume, administer; afterwards no thread of theirs is left."""
    threads = client_threads()
    with blocking.open_producer(background.namesrv, "pg", send_timeout_seconds=60) as producer:
        assert client_threads() == threads + 1
        assert producer.send(Message("t", b"first")).queue_offset == 0
        bad = Message("t", b"", delay_level=99)
        *results, refused = producer.send_many([*(Message("t", b"%d" % number) for number in range(500)), bad])
        stored = [result for result in results if isinstance(result, SendResult)]
        assert len({(result.queue, result.queue_offset) for result in stored}) == 500
        assert isinstance(refused, InvalidArgument), "each message has an answer of its own"
        producer.send_batch([Message("t", b"batch")])
        producer.send_oneway(Message("t", b"oneway"), key="k")
        assert len(producer.queues("t")) == 4
    seen: list[bytes] = []
    with blocking.open_consumer(background.namesrv, "g", "t", consume_from=ConsumeFrom.FIRST) as consumer:
        for message in consumer:
            seen.append(message.body)
            if len(seen) == 503:
                message.ack()
                break
        assert consumer.get_one(0) is None
        assert len(consumer.queues) >= 4
        assert "@" in consumer.client_id
    assert len(set(seen)) == 503
    with blocking.open_admin(background.namesrv) as admin:
        stats = admin.call(lambda each: each.group_stats("g", "t"))
        assert sum(position.lag for position in stats.values()) == 0, (
            "the loop acknowledged all but the last, which has been acknowledged by name"
        )
    with blocking.open_pull_consumer(background.namesrv, "other") as puller:
        puller.assign(puller.queues("t"))
        count = 0
        while count < 503:
            found = puller.poll(1000, 60)
            assert found
            count += len(found)
    assert client_threads() == threads


def test_a_blocking_consumer_can_retry(background: Background) -> None:
    """Explicitly acknowledged or sent back, from the caller's thread."""
    with blocking.open_producer(background.namesrv, send_timeout_seconds=60) as producer:
        producer.send(Message("t", b"x"))
    with blocking.open_consumer(background.namesrv, "g", "t", ack="explicit", consume_from=ConsumeFrom.FIRST) as consumer:
        message = consumer.get_one(60)
        assert message is not None
        message.retry(delay_level=1)
        again = consumer.get_one(60)
        assert again is not None
        assert (again.body, again.reconsume_times) == (b"x", 1)
        again.ack()
        consumer.commit()


def test_a_failed_block_closes_its_client(background: Background) -> None:
    """The exception comes through, nothing is acknowledged, and the thread is gone."""
    threads = client_threads()
    with blocking.open_producer(background.namesrv, send_timeout_seconds=60) as producer:
        producer.send(Message("t", b"x"))

    def consume() -> None:
        with blocking.open_consumer(background.namesrv, "g", "t", consume_from=ConsumeFrom.FIRST) as consumer:
            for _ in consumer:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        consume()

    assert client_threads() == threads
    with blocking.open_consumer(background.namesrv, "g", "t") as consumer:
        assert consumer.get_one(60) is not None


async def test_one_broker_can_be_asked_alone() -> None:
    """What another one has, or that it does not answer, plays no part then."""
    async with open_embedded(nodes=2) as cluster, open_admin(cluster.namesrv) as admin:
        one, other = cluster.addresses
        await admin.create_topic("t", queues=1, broker=one)
        await admin.create_group("g", broker=one)
        async with open_producer(cluster.namesrv) as producer:
            result = await producer.send(Message("t", b"body", keys=["k"]))
        await admin.set_offset("g", result.queue, 1)
        await reaches(1, lambda: length_of(admin.messages_by_key("t", "k")))

        await cluster.kill(other)

        assert list(await admin.topic_stats("t", broker=one)) == [result.queue]
        assert await admin.topic_groups("t", broker=one) == ["g"]
        assert "g" in await admin.groups(broker=one)
        assert [each.lag for each in (await admin.group_stats("g", broker=one)).values()] == [0]
        assert await admin.lost_messages("g", broker=one) == {}
        assert [each.body for each in await admin.messages_by_key("t", "k", broker=one)] == [b"body"]
        assert [each.body for each in await admin.messages_by_unique_key("t", result.message_id, broker=one)] == [b"body"]
        with pytest.raises(NotOnline):
            await admin.group_connections("g", broker=one)
        with pytest.raises(Unreachable):
            await admin.group_stats("g", broker=other)


async def length_of(found: Awaitable[Sequence[object]]) -> int:
    return len(await found)
