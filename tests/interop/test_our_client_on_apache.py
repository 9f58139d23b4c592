"""Our client library against brokers and name servers of Apache's, which it has to take as they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from ledgermq.client.admin import LATEST, open_admin
from ledgermq.client.compression import Compression
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import MessageIllegal, NotFound
from ledgermq.client.producer import open_producer
from ledgermq.client.pull import open_pull_consumer
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom, MessageModel, sql
from ledgermq.message.message import Message

from .conftest import obtain
from .servers import Cluster, Maker, jars_of, running

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", params=[Maker.APACHE_55, Maker.APACHE_49], ids=lambda maker: maker.value)
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    maker: Maker = request.param
    obtain(lambda: jars_of(maker))
    with running(maker, tmp_path_factory.mktemp("apache"), enablePropertyFilter="true") as cluster:
        yield cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "_" for each in request.node.name)


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    with trio.fail_after(120):
        while len(messages) < count:
            async with consumer.take() as batch:
                messages += batch
    return messages


async def fill(namesrv: str, topic: str, count: int) -> None:
    async with open_producer(namesrv, send_timeout_seconds=20) as producer:
        for number in range(count):
            await producer.send(Message(topic, b"%d" % number, tag=f"tag{number % 2}", keys=[f"key{number}"]))


async def test_every_way_of_sending_arrives(apache: Cluster, topic: str) -> None:
    """Single, batch, oneway, delayed, ordered, and all three compressions, to a topic that the first send creates."""
    body = b"again and again " * 1000
    async with open_producer(apache.namesrv, "pg", send_timeout_seconds=20) as producer:
        await producer.send(Message(topic, b"single", properties={"größe": "5 µm"}))
        results = await producer.send_batch([Message(topic, b"batch 0"), Message(topic, b"batch 1")])
        assert results[1].queue_offset == results[0].queue_offset + 1
        assert len({result.offset_message_id for result in results}) == 2
        await producer.send_oneway(Message(topic, b"oneway"))
        await producer.send(Message(topic, b"delayed", delay_level=1))
        ordered = [await producer.send(Message(topic, b"ordered"), key="one") for _ in range(2)]
        assert len({result.queue for result in ordered}) == 1
    for compression in Compression:
        async with open_producer(apache.namesrv, compression=compression) as producer:
            await producer.send(Message(topic, body))

    async with open_consumer(apache.namesrv, f"{topic}_g", topic, consume_from=ConsumeFrom.FIRST) as consumer:
        messages = await take(consumer, 10)
    sent = [b"single", b"batch 0", b"batch 1", b"oneway", b"delayed", b"ordered", b"ordered", body, body, body]
    assert sorted(message.body for message in messages) == sorted(sent)
    assert {message.properties.get("größe") for message in messages} == {None, "5 µm"}


async def test_a_failed_message_comes_again_until_it_is_dead(apache: Cluster, topic: str) -> None:
    """Through Apache's retry topic, and in the end its dead-letter queue."""
    await fill(apache.namesrv, topic, 1)
    group = f"{topic}_g"
    async with open_consumer(
        apache.namesrv, group, topic, ack="explicit", consume_from=ConsumeFrom.FIRST, reconsume_times_max=1
    ) as consumer:
        for times in range(2):
            message = await consumer.get_one(120)
            assert message is not None
            assert (message.reconsume_times, message.topic) == (times, topic)
            await message.retry(delay_level=1)
    async with open_consumer(apache.namesrv, f"{topic}_u", f"%DLQ%{group}", consume_from=ConsumeFrom.FIRST) as consumer:
        assert (await take(consumer, 1))[0].body == b"0"


async def test_members_of_one_group_share(apache: Cluster, topic: str) -> None:
    """Apache tells both members of each other; every message is consumed, each queue by one."""
    await fill(apache.namesrv, topic, 1)
    group = f"{topic}_g"
    async with (
        open_consumer(apache.namesrv, group, topic, consume_from=ConsumeFrom.FIRST) as one,
        open_consumer(apache.namesrv, group, topic, consume_from=ConsumeFrom.FIRST) as two,
    ):
        with trio.fail_after(120):
            while True:
                shares = [{queue for queue in member.queues if queue.topic == topic} for member in (one, two)]
                if all(shares) and not shares[0] & shares[1] and len(shares[0] | shares[1]) == 4:
                    break
                await trio.sleep(0.1)


async def test_orderly_and_broadcasting_consumption(apache: Cluster, topic: str) -> None:
    """Locks are Apache's; a broadcasting consumer asks for no group state."""
    await fill(apache.namesrv, topic, 20)
    async with open_consumer(apache.namesrv, f"{topic}_o", topic, orderly=True, consume_from=ConsumeFrom.FIRST) as consumer:
        seen: dict[int, list[int]] = {}
        with trio.fail_after(120):
            async for message in consumer:
                seen.setdefault(message.queue.queue_id, []).append(message.queue_offset)
                if sum(map(len, seen.values())) == 20:
                    break
        assert all(offsets == list(range(len(offsets))) for offsets in seen.values())
    async with open_consumer(
        apache.namesrv, f"{topic}_b", topic, model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        assert len(await take(consumer, 20)) == 20


async def test_filters_and_explicit_pulling(apache: Cluster, topic: str) -> None:
    """Tags, SQL92, and queues read by hand."""
    await fill(apache.namesrv, topic, 10)
    async with open_consumer(apache.namesrv, f"{topic}_t", {topic: "tag1"}, consume_from=ConsumeFrom.FIRST) as consumer:
        assert {message.tag for message in await take(consumer, 5)} == {"tag1"}
    async with open_consumer(
        apache.namesrv, f"{topic}_s", {topic: sql("TAGS = 'tag0'")}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        assert {message.tag for message in await take(consumer, 5)} == {"tag0"}
    async with open_pull_consumer(apache.namesrv, f"{topic}_p") as consumer:
        queues = await consumer.queues(topic)
        await consumer.assign(queues)
        count = 0
        with trio.fail_after(120):
            while count < 10:
                count += len(await consumer.poll(100))
        assert count == 10
        await consumer.commit()
        assert sum([await consumer.committed(queue) or 0 for queue in queues]) == 10
        await consumer.seek(queues[0], 0)
        assert (await consumer.poll(100, 120))[0].queue_offset == 0


async def test_administration(apache: Cluster, topic: str) -> None:
    """What the admin client asks for is answered by Apache in shapes that it understands."""
    async with open_admin(apache.namesrv) as admin:
        await admin.create_topic(topic, queues=2)
        with trio.fail_after(120):
            while topic not in await admin.topics():  # noqa: ASYNC110
                await trio.sleep(0.1)
        await fill(apache.namesrv, topic, 6)
        with trio.fail_after(120):  # queues and index follow the log a little later
            while sum(each.max_offset for each in (await admin.topic_stats(topic)).values()) != 6:  # noqa: ASYNC110
                await trio.sleep(0.1)
            while not (found_by_key := await admin.messages_by_key(topic, "key3")):  # noqa: ASYNC110
                await trio.sleep(0.1)
        (found,) = found_by_key
        assert found.body == b"3"
        assert (await admin.message_by_id(found.message_id)).body == b"3"
        assert found.unique_key is not None
        assert (await admin.message_by_id(found.unique_key, topic)).body == b"3"
        group = f"{topic}_g"
        await admin.create_group(group, retryMaxTimes=3)
        async with open_consumer(apache.namesrv, group, topic, consume_from=ConsumeFrom.FIRST) as consumer:
            await take(consumer, 6)
            await consumer.commit()
            assert sum(each.lag for each in (await admin.group_stats(group)).values()) == 0
            assert [each.client_id for each in (await admin.group_connections(group)).members] == [consumer.client_id]
            assert (await admin.running_info(group, consumer.client_id))["properties"]["consumerGroup"] == group
        assert set((await admin.reset_offsets(group, topic, 0)).values()) == {0}
        assert set((await admin.reset_offsets(group, topic, LATEST)).values()) == {3}
        (broker,) = (await admin.cluster()).brokers
        assert "brokerVersionDesc" in await admin.broker_runtime(broker.name)
        assert (await admin.broker_config(broker.name))["brokerName"] == broker.name
        queue = (await admin.topic_route(topic)).subscribe_queues()[0]
        assert await admin.queue_range(queue) == (0, 3)
        with pytest.raises(NotFound):
            await admin.message_at(queue, 999)
        await admin.delete_group(group)
        await admin.delete_topic(topic)
        assert topic not in await admin.topics()


async def test_refusals_have_their_own_errors(apache: Cluster, topic: str) -> None:
    """A body over the broker's limit, which our own limit let through, is refused with 13 and not retried."""
    async with open_producer(apache.namesrv, compression=None, message_bytes_max=8 << 20, send_timeout_seconds=20) as producer:
        await producer.send(Message(topic, b"x"))
        with pytest.raises(MessageIllegal):
            await producer.send(Message(topic, bytes(5 << 20)))
