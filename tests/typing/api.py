"""The public API as users type it: checked by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import assert_type

import msgspec

import ledgermq
from ledgermq import (
    ClientError,
    ClientTls,
    ConsumeFrom,
    Consumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    ReceivedMessage,
    SendResult,
    aio,
    blocking,
    known_outcomes,
    open_admin,
    open_consumer,
    open_producer,
    open_pull_consumer,
    sql,
)
from ledgermq.client.admin.values import GroupPosition
from ledgermq.client.subscription import Subscription


async def produce() -> None:
    async with open_producer(namesrv="localhost:9876", group="orders", send_timeout_seconds=5, retries=1) as producer:
        message = Message("orders", b"42", tag="new", keys=["42"], delay_level=1, properties={"a": "b"})
        assert_type(await producer.send(message, key="customer"), SendResult)
        assert_type(await producer.send_batch([message, message]), list[SendResult])
        assert_type(await producer.send_oneway(message), None)
        assert_type(await producer.queues("orders"), tuple[MessageQueue, ...])

        def first(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
            return queues[0]

        result = await producer.send(message, selector=first, timeout_seconds=1)
        assert_type((result.message_id, result.queue, result.queue_offset), tuple[str, MessageQueue, int])
        try:
            await producer.send(message)
        except ClientError as error:
            assert_type((error.retriable, error.may_have_been_stored), tuple[bool, bool])
            assert_type(known_outcomes(error), list[SendResult | ClientError] | None)


async def consume() -> None:
    assert_type(sql("price > 10"), Subscription)
    async with open_consumer(
        namesrv=["a:9876", "b:9876"],
        group="billing",
        topics={"orders": "new || changed", "prices": sql("price > 10")},
        ack="explicit",
        consume_from=ConsumeFrom.FIRST,
        model=MessageModel.CLUSTERING,
    ) as consumer:
        async for message in consumer:
            assert_type(message, ReceivedMessage)
            assert_type((message.body, message.tag, message.keys), tuple[bytes, str | None, list[str]])
            await message.ack()
            await message.retry(delay_level=3)
        assert_type(await consumer.get_one(timeout_seconds=1), ReceivedMessage | None)
        assert_type(await consumer.get_many(100, timeout_seconds=1), list[ReceivedMessage])
        async with consumer.take(100, timeout_seconds=1) as messages:
            assert_type(messages, list[ReceivedMessage])

        async def handle(message: ReceivedMessage) -> None:
            print(message.body)  # noqa: T201

        await consumer.process(handle, tasks=4)
        await consumer.run(handle, concurrency=4, stop_seconds=10)


async def pull() -> None:
    async with open_pull_consumer("localhost:9876", "billing") as consumer:
        queues = await consumer.queues("orders")
        await consumer.assign(queues)
        await consumer.seek(queues[0], 0)
        assert_type(await consumer.poll(timeout_seconds=1), list[ReceivedMessage])
        assert_type(await consumer.committed(queues[0]), int | None)


async def administer() -> None:
    async with open_admin("localhost:9876", tls=ClientTls(trust_cert_path="ca.pem")) as admin:
        await admin.create_topic("orders", queues=8)
        assert_type(await admin.topics(), list[str])
        assert_type(await admin.group_stats("billing"), dict[MessageQueue, GroupPosition])


async def in_asyncio() -> None:
    async with aio.open_producer(namesrv="localhost:9876", group="orders") as producer:
        assert_type(await producer.send(Message("orders", b"42"), key="customer"), SendResult)
        assert_type(await producer.send_many([Message("orders", b"42")], key="k"), list[SendResult | ClientError])
        assert_type(await producer.send_batch([Message("orders", b"42")]), list[SendResult])
        assert_type(await producer.queues("orders"), tuple[MessageQueue, ...])
    async with aio.open_consumer("localhost:9876", "billing", "orders", ack="auto") as consumer:
        async for message in consumer:
            assert_type(message, aio.AioMessage)
            await message.ack()
        assert_type(await consumer.get_one(timeout_seconds=1), aio.AioMessage | None)
        assert_type(sum(queue.lag for queue in (await consumer.progress()).values()), int)
        async with consumer.take(100) as messages:
            assert_type(messages, list[aio.AioMessage])
        await consumer.run(lambda message: message.ack(), concurrency=4, stop_seconds=10)
    async with aio.open_pull_consumer("localhost:9876", "billing") as pulling:
        assert_type(await pulling.queues("orders"), list[MessageQueue])
        assert_type(await pulling.committed(pulling.assignment()[0]), int | None)
    async with aio.open_admin("localhost:9876", tls=True) as admin:
        assert_type(await admin.topics(), list[str])
        assert_type(await admin.group_stats("billing"), dict[MessageQueue, GroupPosition])


class Order(msgspec.Struct):
    number: int


def encode_order(order: Order) -> bytes:
    return msgspec.json.encode(order)


def decode_order(body: bytes) -> Order:
    return msgspec.json.decode(body, type=Order)


async def typed() -> None:
    async with open_producer(encode=encode_order) as producer:
        assert_type(producer, Producer[Order])
        await producer.send(Message("orders", Order(1)), key="customer")
        await producer.send_many([Message("orders", Order(1))], key=lambda message: str(message.body.number))
    async with open_consumer(group="billing", topics="orders", decode=decode_order) as consumer:
        assert_type(consumer, Consumer[Order])
        async for message in consumer:
            assert_type(message.value, Order)
        await consumer.process(lambda message: print(message.value.number))  # noqa: T201
    async with aio.open_consumer(group="billing", topics="orders", decode=decode_order) as in_asyncio:
        assert_type(in_asyncio, aio.AioConsumer[Order])
        async for received in in_asyncio:
            assert_type(received.value, Order)
    async with aio.open_producer(encode=encode_order) as from_asyncio:
        assert_type(from_asyncio, aio.AioProducer[Order])
        await from_asyncio.send(Message("orders", Order(1)))
        await from_asyncio.send_oneway(Message("orders", Order(1)))
        await from_asyncio.send_oneway(Message("orders", b"42"))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    async with AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(aio.open_producer()), aio.AioProducer[bytes])
        assert_type(await stack.enter_async_context(aio.open_producer(encode=encode_order)), aio.AioProducer[Order])
        opening = aio.open_consumer(group="billing", topics="orders", decode=decode_order)
        assert_type(await stack.enter_async_context(opening), aio.AioConsumer[Order])
    with blocking.open_consumer(group="billing", topics="orders", decode=decode_order) as in_threads:
        for each in in_threads:
            assert_type(each.value, Order)
    with blocking.open_producer(encode=encode_order) as from_thread:
        assert_type(from_thread, blocking.BlockingProducer[Order])


def from_threads() -> None:
    with blocking.open_producer(namesrv="localhost:9876", group="orders") as producer:
        assert_type(producer.send(Message("orders", b"42")), SendResult)
        assert_type(producer.send_many([Message("orders", b"42")], key="k"), list[SendResult | ClientError])
    with blocking.open_consumer("localhost:9876", "billing", "orders", ack="auto") as consumer:
        for message in consumer:
            assert_type(message, blocking.BlockingMessage)
            message.ack()
        consumer.run(lambda message: message.retry(), concurrency=4, stop_seconds=10)
    with blocking.open_admin("localhost:9876", tls=True) as admin:
        assert_type(admin.call(lambda each: each.topics()), list[str])
    assert_type(ledgermq.Message("orders", b"42"), Message)
