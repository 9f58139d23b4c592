"""The contract of producers and pull consumers as checks, which are the same for trio, for asyncio and for threads.

A check is an application as `hosting.py` runs it, and needs a virtual clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import attrs

from ..client.errors import Closed, InvalidArgument, MessageTooLarge
from ..client.producer import Producer, open_producer
from ..client.pull import PullConsumer, open_pull_consumer
from ..client.sending import SendResult
from ..message.message import Message, MessageQueue
from .embedded import open_virtual
from .hosting import Hosting, Kind

TOPIC, GROUP = "contract", "contract-group"


@attrs.define(eq=False)
class Clients:
    """The clients of one kind; the checks see them as those for trio."""

    producer: Producer
    pulling: PullConsumer


Check = Callable[[Clients], Coroutine[Any, Any, None]]


@contextmanager
def _raises(kind: type[BaseException], words: str = "") -> Generator[None]:
    caught = ""
    try:
        yield
    except kind as error:
        caught = f"{kind.__name__}: {error}"
    assert caught, f"{kind.__name__} was not raised"
    assert words in caught, f"{caught} does not say {words!r}"


# ------------------------------------------------------------------------------------------------------------ the checks


async def _sends_keep_order_and_place(clients: Clients) -> None:
    """A key has one queue, a queue is respected, and results name offsets in the order of the messages."""
    producer = clients.producer
    first = await producer.send(Message(TOPIC, b"0"), key="k")
    many = await producer.send_many([Message(TOPIC, b"%d" % number) for number in range(1, 30)], key="k")
    batch = await producer.send_batch([Message(TOPIC, b"30"), Message(TOPIC, b"31")], key="k")
    results = [first, *many, *batch]
    assert all(isinstance(each, SendResult) for each in results)
    sent = cast("list[SendResult]", results)
    assert {each.queue for each in sent} == {first.queue}
    assert [each.queue_offset for each in sent] == list(range(32))
    other = next(queue for queue in await producer.queues(TOPIC) if queue != first.queue)
    assert (await producer.send(Message(TOPIC, b"x"), queue=other)).queue == other
    assert (await producer.send(Message(TOPIC, b"x"), selector=lambda _, __: other)).queue == other
    await producer.send_oneway(Message(TOPIC, b"x"), queue=other)


async def _bad_sends_are_refused_alone(clients: Clients) -> None:
    """Before anything is sent, by the name of what is wrong; the messages beside them are stored."""
    producer, too_large = clients.producer, Message(TOPIC, bytes(5 << 20))
    with _raises(InvalidArgument, words="topic"):
        await producer.send(Message("no topic", b""))
    with _raises(MessageTooLarge):
        await producer.send(too_large)
    with _raises(InvalidArgument, words="at most one"):
        await producer.send(Message(TOPIC, b""), key="k", queue=MessageQueue(TOPIC, "broker-a", 0))
    with _raises(InvalidArgument, words="exactly one topic"):
        await producer.send_batch([Message(TOPIC, b""), Message("other", b"")])
    outcomes = await producer.send_many([Message(TOPIC, b"1"), too_large, Message(TOPIC, b"2")])
    assert [type(outcome) for outcome in outcomes] == [SendResult, MessageTooLarge, SendResult]


class _Exit(BaseException):
    """What a function of the application raises that is no `Exception`, as a `SystemExit` is none."""


async def _exits_reach_their_call(clients: Clients) -> None:
    """Whatever a selector raises, and the client goes on."""

    def leave(*_: object) -> MessageQueue:
        raise _Exit

    producer, message = clients.producer, Message(TOPIC, b"")
    with _raises(_Exit):  # in the task that finds the queues
        await producer.send_many([message], selector=leave)
    with _raises(_Exit):
        await producer.send_many([message], selector=leave)
    with _raises(_Exit):
        await producer.send(message, selector=leave)
    with _raises(_Exit):
        await producer.send_batch([message], selector=leave)
    assert (await producer.send(message)).queue_offset == 0


async def _pulls_see_each_message_once_in_order(clients: Clients) -> None:
    """From the committed offset, by any move, and none of a queue that is paused."""
    producer, pulling = clients.producer, clients.pulling
    (queue, other, *_) = await producer.queues(TOPIC)
    await producer.send_many([Message(TOPIC, b"%d" % number) for number in range(20)], queue=queue)
    await producer.send(Message(TOPIC, b"x"), queue=other)

    async def polled() -> list[int]:
        found: list[int] = []
        while messages := await pulling.poll(7, 1.0):
            assert len(messages) <= 7
            found += [int(message.body) for message in messages]
        return found

    await pulling.assign([queue])
    assert pulling.assignment() == [queue]
    assert await polled() == list(range(20))
    assert pulling.position(queue) == 20
    await pulling.seek(queue, 17)
    assert await polled() == [17, 18, 19]
    await pulling.seek_to_beginning(queue)
    pulling.pause([queue])
    assert await polled() == []
    pulling.resume([queue])
    assert await polled() == list(range(20))
    await pulling.seek_to_end(queue)
    assert await polled() == []
    await pulling.seek_to_time(queue, 0)
    assert len(await pulling.poll(5, 1.0)) == 5
    assert await pulling.committed(queue) is None
    await pulling.commit()
    assert await pulling.committed(queue) == 5
    await pulling.commit(queue, 3)
    await pulling.assign([])
    await pulling.assign([queue])
    assert await polled() == list(range(3, 20))
    with _raises(InvalidArgument, words="is not assigned"):
        await pulling.seek(other, 0)
    with _raises(InvalidArgument, words="is not assigned"):
        pulling.pause([other])
    with _raises(InvalidArgument, words="queues must be several"):
        pulling.pause(cast("Any", queue))


async def _cancelled_polls_leave_no_gap(clients: Clients) -> None:
    """Whichever of several polls is undone, and in whatever order; but a position that was chosen since is kept."""
    producer, pulling = clients.producer, clients.pulling
    queue = (await producer.queues(TOPIC))[0]
    await producer.send_many([Message(TOPIC, b"%d" % number) for number in range(20)], queue=queue)

    async def polled(count: int) -> list[Any]:
        messages: list[Any] = []
        while len(messages) < count:
            messages += await pulling.poll(count - len(messages))
        return messages

    def undo(messages: list[Any]) -> None:
        """Do what a cancelled call does with a result that has come already."""
        client = _trio_client(pulling)
        host = getattr(pulling, "host", None)
        client.unpoll(messages) if host is None else host.soon(partial(client.unpoll, messages))

    for order in (1, -1):
        await pulling.assign([queue])
        for messages in [await polled(5), await polled(5), await polled(5)][1:][::order]:
            undo(messages)
        await pulling.commit()
        assert await pulling.committed(queue) == 5
        assert [int(message.body) for message in await polled(5)] == [5, 6, 7, 8, 9]
        earlier, _ = await polled(5), await polled(5)
        undo(earlier)
        again = await polled(5)
        assert [int(message.body) for message in again] == [10, 11, 12, 13, 14]
        await pulling.seek(queue, 17)
        undo(again)
        assert [int(message.body) for message in await polled(3)] == [17, 18, 19]
        await pulling.seek(queue, 0)
        again = await polled(5)
        await pulling.assign([])
        await pulling.commit(queue, 0)
        undo(again)


async def _closed_clients_say_so(clients: Clients) -> None:
    """Whatever is called, and nothing is sent."""
    queue = (await clients.producer.send(Message(TOPIC, b""))).queue
    await clients.pulling.assign([queue])
    _trio_client(clients.producer).close()
    _trio_client(clients.pulling).close()
    for call in (
        lambda: clients.producer.send(Message(TOPIC, b"")),
        lambda: clients.producer.send_batch([Message(TOPIC, b"")]),
        lambda: clients.pulling.poll(1, 1.0),
        lambda: clients.pulling.seek(queue, 0),
    ):
        with _raises(Closed):
            await call()
    (outcome,) = await clients.producer.send_many([Message(TOPIC, b"")])
    assert isinstance(outcome, Closed)


def _trio_client(client: Any) -> Any:
    host = getattr(client, "host", None)
    return client if host is None else host.client


CHECKS: Mapping[str, Check] = {
    "sends keep order and place": _sends_keep_order_and_place,
    "bad sends are refused alone": _bad_sends_are_refused_alone,
    "exits reach their call": _exits_reach_their_call,
    "pulls see each message once, in order": _pulls_see_each_message_once_in_order,
    "cancelled polls leave no gap": _cancelled_polls_leave_no_gap,
    "closed clients say so": _closed_clients_say_so,
}


async def check_clients(kind: Kind, check: Check) -> None:
    """Run one check on one kind of clients, on a new cluster.

    Raises:
        AssertionError: the clients of this kind behave differently.
    """
    async with (
        open_virtual(settings={"defaultTopicQueueNums": "4"}) as cluster,
        open_producer(cluster.namesrv, world=cluster.world) as producer,
        open_pull_consumer(cluster.namesrv, GROUP, world=cluster.world) as pulling,
    ):

        async def application(hosting: Hosting) -> None:
            await check(Clients(hosting.shell(producer), hosting.shell(pulling)))

        await kind(application, random.Random(0), 0.0)  # noqa: S311 - with it no call is interrupted
