"""What applications pass wrongly is refused by the name of the argument, before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from trio.testing import MockClock

from ledgermq.client.admin import Admin, open_admin
from ledgermq.client.arguments import (
    check_group,
    check_integer,
    check_message,
    check_seconds,
    check_timeout,
    check_topic,
    shown,
)
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import InvalidArgument, WrongEventLoop
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.client.subscription import ConsumeFrom, sql
from ledgermq.message.message import Message, MessageQueue

from .fake_cluster import NAMESRV, open_cluster

WRONG: Any = None
"""Wrong arguments are wrong for the type checker too."""


def wrong(value: object) -> Any:
    return value


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "ü", "x" * 128, "%RETRY%" + "x" * 249, None, 5])
def test_topics_that_no_broker_takes_are_refused(topic: object) -> None:
    """RocketMQ's characters and lengths."""
    with pytest.raises(InvalidArgument, match=r"^topic "):
        check_topic(topic)


def test_topics_and_groups_that_brokers_take_pass() -> None:
    """Up to the limits."""
    check_topic("x" * 127)
    check_topic("%RETRY%" + "x" * 248)
    check_topic("A-z_0|9%")
    check_group("x" * 255)


@pytest.mark.parametrize("seconds", [0, -1, "3", None, True, float("nan"), float("inf")])
def test_a_timeout_is_a_number_above_0(seconds: object) -> None:
    """What Python would convert silently is refused too."""
    with pytest.raises(InvalidArgument, match="timeout_seconds must be a number of seconds above 0"):
        check_seconds("timeout_seconds", seconds)


def test_patience_may_be_none_or_0() -> None:
    """None waits without end and 0 takes what is there."""
    for seconds in (None, 0, 0.5, float("inf")):
        check_timeout("timeout_seconds", seconds)
    for seconds in (-1, "3", False, float("nan")):
        with pytest.raises(InvalidArgument, match="must be None or a number of seconds, at least 0"):
            check_timeout("timeout_seconds", seconds)


def test_an_error_shows_what_was_given_in_one_short_line() -> None:
    """Whatever it was."""
    assert shown("x\ny" * 1000) == "'" + ("x\\ny" * 1000)[:60] + "..."
    with pytest.raises(InvalidArgument, match=r"queues must be a whole number from 1 to 8 \(got 9\)"):
        check_integer("queues", 9, 1, 8)


MESSAGES = [
    (wrong(b"body"), "a Message is sent"),
    (Message(wrong(None), b""), "topic must be a text"),
    (Message(wrong([]), b""), "topic must be a text"),
    (Message("t", wrong("text")), "a body is bytes"),
    (Message("t", wrong(None)), "a body is bytes"),
    (Message("t", b"", tag=wrong(5)), "tag must be a text"),
    (Message("t", b"", keys=wrong([1])), "each of keys must be a text"),
    (Message("t", b"", keys="k"), "keys must be a sequence of texts"),
    (Message("t", b"", keys=wrong(iter("k"))), "keys must be a sequence of texts"),
    (Message("t", b"", keys=["a b"]), "a key is not empty and has no white space"),
    (Message("t", b"", delay_level=19), "delay_level must be a whole number from 0 to 18"),
    (Message("t", b"", delay_level=wrong("1")), "delay_level must be a whole number"),
    (Message("t", b"", wait_stored=wrong("no")), "wait_stored must be True or False"),
    (Message("t", b"", wait_stored=wrong(0)), "wait_stored must be True or False"),
    (Message("t", b"", flag=1 << 40), "flag must be a whole number from -2147483648 to 2147483647"),
    (Message("t", b"", flag=wrong(None)), "flag must be a whole number"),
    (Message("t", b"", properties=wrong(None)), "properties must be a mapping of texts to texts"),
    (Message("t", b"", properties=wrong({"n": 1})), "the value of 'n' in properties must be a text"),
    (Message("t", b"", properties=wrong({1: "v"})), "each name in properties must be a non-empty text"),
]


@pytest.mark.parametrize(("message", "words"), MESSAGES)
async def test_a_message_that_cannot_be_sent_is_refused_by_its_field(
    autojump_clock: MockClock, message: Message, words: str
) -> None:
    """In each way of sending, with nothing sent."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        await producer.send(Message("t", b"found"))

        ways: list[Callable[[Message], Awaitable[object]]] = [
            producer.send,
            producer.send_oneway,
            lambda message: producer.send_batch([message]),
        ]
        for send in ways:
            with pytest.raises(InvalidArgument, match=words):
                await send(message)

        assert broker.bodies("t") == [b"found"]


QUEUE = MessageQueue("t", "b1", 0)
M = Message("t", b"")
SENDS: list[tuple[Callable[[Producer], Awaitable[object]], str]] = [
    (lambda producer: producer.send(M, timeout_seconds=0), "timeout_seconds must be"),
    (lambda producer: producer.send(M, timeout_seconds=wrong("3")), "timeout_seconds must be"),
    (lambda producer: producer.send_batch([M], timeout_seconds=-1), "timeout_seconds must be"),
    (lambda producer: producer.send_batch(wrong(M)), "messages must be several Messages"),
    (lambda producer: producer.send_batch(wrong(None)), "messages must be several Messages"),
    (lambda producer: producer.send_many(wrong(M)), "messages must be several Messages"),
    (lambda producer: producer.send_many(wrong(None)), "messages must be several Messages"),
    (lambda producer: producer.send_many(wrong("text")), "messages must be several Messages"),
    (lambda producer: producer.send(M, key=wrong(5)), "key must be a non-empty text"),
    (lambda producer: producer.send(M, queue=wrong(3)), "queue must be a MessageQueue"),
    (lambda producer: producer.send(M, queue=MessageQueue("t", "b1", wrong("0"))), "the queue id of queue must be"),
    (lambda producer: producer.send(M, selector=wrong(0)), "selector must be None or a function"),
    (lambda producer: producer.send(M, selector=lambda _, __: WRONG), "selector must return one of the queues"),
    (lambda producer: producer.send(M, key="k", queue=QUEUE), "at most one of key, queue and selector"),
    (lambda producer: producer.queues(wrong(None)), "topic must be a text"),
]


@pytest.mark.parametrize(("call", "words"), SENDS)
async def test_a_wrong_argument_of_a_send_is_named(
    autojump_clock: MockClock, call: Callable[[Producer], Awaitable[object]], words: str
) -> None:
    """Nothing is sent."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)

        with pytest.raises(InvalidArgument, match=words):
            await call(producer)

        assert broker.bodies("t") == []


TIMESTAMP = {"consume_from": ConsumeFrom.TIMESTAMP}


async def waiting(*_: object) -> None:
    """A function for which the client would have to wait."""


OPENINGS: list[tuple[Callable[..., Any], dict[str, object], str]] = [
    (open_producer, {"group": 5}, "group must be a text"),
    (open_producer, {"send_timeout_seconds": "3"}, "send_timeout_seconds must be"),
    (open_producer, {"retries": -1}, "retries must be a whole number"),
    (open_producer, {"message_bytes_max": 0}, "message_bytes_max must be"),
    (open_producer, {"compression": "zlib"}, "compression must be None or one of"),
    (open_producer, {"instance_name": ""}, "instance_name must be a non-empty text"),
    (open_producer, {"avoid_slow_brokers": "no"}, "avoid_slow_brokers must be True or False"),
    (open_producer, {"retry_unless_ok": 1}, "retry_unless_ok must be True or False"),
    (open_producer, {"idempotent": "false"}, "idempotent must be True or False"),
    (open_producer, {"tls": "yes"}, "tls must be True, False or a ClientTls"),
    (open_producer, {"namesrv": [9876]}, "each name server must be"),
    (open_consumer, {"group": "g", "topics": None}, "topics must be a topic, several"),
    (open_consumer, {"group": "g", "topics": [5]}, "topic must be a text"),
    (open_consumer, {"group": "g", "topics": {"t": 5}}, "the expression of topic t must be a text"),
    (open_consumer, {"group": "g", "topics": {"t": "a|b"}}, "the expression of topic t has a single bar"),
    (open_consumer, {"group": "g", "topics": "t", "offsets_path": "o"}, "offsets_path needs MessageModel.BROADCASTING"),
    (open_consumer, {"group": "g", "topics": "t", "consume_timestamp_ms": 1}, "needs consume_from=ConsumeFrom.TIMESTAMP"),
    (open_consumer, {"group": "g", "topics": "t", "model": "CLUSTERING"}, "model must be one of"),
    (open_consumer, {"group": "g", "topics": "t", "consume_from": "FIRST"}, "consume_from must be one of"),
    (open_consumer, {"group": "g", "topics": "t", "ack": "manual"}, "ack must be one of auto, explicit"),
    (open_consumer, {"group": "g", "topics": "t", "strategy": "fair"}, "strategy must be one of"),
    (open_consumer, {"group": "g", "topics": "t", "strategy": 3}, "strategy must be one of"),
    (open_consumer, {"group": "g", "topics": "t", "pull_messages_max": 0}, "pull_messages_max must be"),
    (open_consumer, {"group": "g", "topics": "t", "consume_timestamp_ms": "now", **TIMESTAMP}, "consume_timestamp_ms must be"),
    (open_consumer, {"group": "g", "topics": "t", "reconsume_times_max": -1}, "reconsume_times_max must be"),
    (open_consumer, {"group": "g", "topics": "t", "offsets_path": 1}, "offsets_path must be"),
    (open_consumer, {"group": "g", "topics": "t", "orderly": "false"}, "orderly must be True or False"),
    (open_consumer, {"group": "g", "topics": "t", "on_offset_moved": 5}, "on_offset_moved must be None or a function"),
    (open_pull_consumer, {"group": "g", "on_offset_moved": "log"}, "on_offset_moved must be None or a function"),
    (open_consumer, {"group": "g", "topics": "t", "on_offset_moved": waiting}, "on_offset_moved must not be async"),
    (open_pull_consumer, {"group": "g", "on_offset_moved": waiting}, "on_offset_moved must not be async"),
    (open_consumer, {"group": "g", "topics": "t", "decode": waiting}, "decode must not be async"),
    (open_producer, {"encode": waiting}, "encode must not be async"),
    (open_pull_consumer, {"group": "g", "bytes_per_queue_max": 0}, "bytes_per_queue_max must be"),
]


@pytest.mark.parametrize(("opened", "arguments", "words"), OPENINGS)
async def test_a_wrong_option_of_a_client_is_named(
    autojump_clock: MockClock, opened: Callable[..., Any], arguments: dict[str, object], words: str
) -> None:
    """Before any server is asked."""
    async with open_cluster() as cluster:
        with pytest.raises(InvalidArgument, match=words):
            async with opened(**{"namesrv": NAMESRV, "world": cluster.world, **arguments}):
                pass

        assert not cluster.requests


QUESTIONS: list[tuple[Callable[[Admin], Awaitable[object]], str]] = [
    (lambda admin: admin.create_topic(wrong(None)), "topic must be a text"),
    (lambda admin: admin.create_topic("t", queues=-1), "queues must be a whole number from 1 to 65535"),
    (lambda admin: admin.create_topic("t", queues=0), "queues must be a whole number from 1 to 65535"),
    (lambda admin: admin.create_group("g", retries=3), "a group has no setting 'retries', nothing was changed"),
    (lambda admin: admin.update_group("g", retryMaxTime=3), "a group has no setting 'retryMaxTime', nothing was changed"),
    (lambda admin: admin.reset_offsets("g", "t", 10**20), "timestamp_ms must be a whole number from -1 to 9223372036854775807"),
    (lambda admin: admin.create_topic("t", perm=8), "perm must be"),
    (lambda admin: admin.create_topic("t", attributes=wrong({"a": 1})), "in attributes must be a text"),
    (lambda admin: admin.create_topic("t", broker=wrong(5)), "broker must be a non-empty text"),
    (lambda admin: admin.topic_route(wrong(5)), "topic must be a text"),
    (lambda admin: admin.group_stats("g", ""), "topic ''"),
    (lambda admin: admin.reset_offsets("g", "t", -2), "timestamp_ms must be"),
    (lambda admin: admin.set_offset("g", wrong("t"), 0), "queue must be a MessageQueue"),
    (lambda admin: admin.set_offset("g", QUEUE, -1), "offset must be"),
    (lambda admin: admin.message_by_id(wrong(5)), "message_id must be"),
    (lambda admin: admin.messages_by_key("t", ""), "key must be a non-empty text"),
    (lambda admin: admin.messages_by_key("t", "k", messages_max=0), "messages_max must be"),
    (lambda admin: admin.message_at(QUEUE, -1), "offset must be"),
    (lambda admin: admin.offset_at(QUEUE, wrong("now")), "timestamp_ms must be"),
    (lambda admin: admin.update_broker_config("b1", wrong({"a": 1})), "in entries must be a text"),
]


@pytest.mark.parametrize(("ask", "words"), QUESTIONS)
async def test_a_wrong_argument_of_the_admin_client_is_named(
    autojump_clock: MockClock, ask: Callable[[Admin], Awaitable[object]], words: str
) -> None:
    """Before any server is asked."""
    async with open_cluster() as cluster, open_admin(NAMESRV, world=cluster.world) as admin:
        with pytest.raises(InvalidArgument, match=words):
            await ask(admin)

        assert not cluster.requests


PULLS: list[tuple[Callable[[PullConsumer], Awaitable[object]], str]] = [
    (lambda consumer: consumer.assign(wrong("t")), "queues must be several MessageQueues"),
    (lambda consumer: consumer.assign(wrong([1])), "each of queues must be a MessageQueue"),
    (lambda consumer: consumer.assign([], "a|b"), "expression has a single bar"),
    (lambda consumer: consumer.poll(0), "messages_max must be"),
    (lambda consumer: consumer.poll(1, -1), "timeout_seconds must be"),
    (lambda consumer: consumer.seek(QUEUE, 0), "is not assigned"),
    (lambda consumer: consumer.seek_to_beginning(QUEUE), "is not assigned"),
    (lambda consumer: consumer.commit(wrong("t"), 1), "queue must be a MessageQueue"),
    (lambda consumer: consumer.commit(QUEUE, -1), "offset must be"),
]


@pytest.mark.parametrize(("call", "words"), PULLS)
async def test_a_wrong_argument_of_a_pull_consumer_is_named(
    autojump_clock: MockClock, call: Callable[[PullConsumer], Awaitable[object]], words: str
) -> None:
    """Before any broker is asked."""
    async with open_cluster() as cluster, open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
        with pytest.raises(InvalidArgument, match=words):
            await call(consumer)


async def test_a_wrong_argument_of_a_consumer_is_named(autojump_clock: MockClock) -> None:
    """Also of what is asked of a message that was received."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world, ack="explicit") as consumer:
            for call, words in (
                (consumer.get_many(0), "messages_max must be"),
                (consumer.get_one(-1), "timeout_seconds must be"),
                (consumer.process(wrong(None)), "handler must be"),
                (consumer.process(wrong(print), tasks=0), "tasks must be"),
            ):
                with pytest.raises(InvalidArgument, match=words):
                    await cast("Awaitable[object]", call)
            broker.put("t", 0, b"body")
            message = await consumer.get_one()
            assert message is not None

            for level in (99, -2, wrong("1")):
                with pytest.raises(InvalidArgument, match="delay_level must be a whole number from -1 to 18"):
                    await message.retry(delay_level=level)


def test_a_filter_is_a_text() -> None:
    """An empty one would be refused by every broker."""
    with pytest.raises(InvalidArgument, match="expression must be a non-empty text"):
        sql("")


def test_a_message_that_can_be_sent_passes() -> None:
    """With every field set."""
    message = Message("t", b"", "tag", ["k"], 18, {"n": ""}, -(1 << 31), False)
    assert check_message(message) is message


def test_a_client_in_asyncio_says_what_to_use_instead() -> None:
    """Trio's own error would speak of an async context."""

    async def main() -> None:
        async with open_producer(NAMESRV):
            pass

    with pytest.raises(WrongEventLoop, match=r"asyncio runs this task.*ledgermq\.aio"):
        asyncio.run(main())
