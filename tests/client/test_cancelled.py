"""What is known of the messages of a cancelled send, in trio, under asyncio and in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.cancelled import Outcome, known_outcomes, may_have_been_stored, note_outcomes, unknown
from ledgermq.client.errors import InvalidArgument, SendCancelled
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.publications import Publications
from ledgermq.client.send_many import BATCH_MESSAGES_MAX
from ledgermq.client.sending import SendResult
from ledgermq.message.message import Message
from ledgermq.testing.hosting import KINDS, Hosting

from .fake_cluster import NAMESRV, open_cluster
from .test_send_many import BATCH, SEND, numbered, silence, stored

SECONDS = 2.0
each_kind = pytest.mark.parametrize("kind", sorted(KINDS))


@attrs.define(eq=False)
class Interrupts:
    """Stands in for the randomness of simulated threads: each call is interrupted after a little less than `SECONDS`."""

    def random(self) -> float:
        return 0.5


@asynccontextmanager
async def limited(kind: str) -> AsyncGenerator[None]:
    """A block that is cancelled after some seconds; calls of a thread are interrupted instead, by themselves."""
    if kind == "trio":
        with trio.fail_after(SECONDS):
            yield
    elif kind == "asyncio":
        async with asyncio.timeout(SECONDS):
            yield
    else:
        yield


@attrs.frozen
class Known:
    """What the cancellation of a send says in its own task or thread."""

    outcomes: list[Outcome] | None
    may_be_stored: bool


async def cut_off(kind: str, producer: Producer, way: str, messages: Sequence[Message]) -> Known:
    """Send with a producer of this kind until the send is cancelled."""
    found: list[Known] = []

    async def application(hosting: Hosting) -> None:
        send = getattr(hosting.shell(producer), way)
        try:
            async with limited(kind):
                await send(messages[0] if way == "send" else messages)
        except (trio.TooSlowError, TimeoutError, KeyboardInterrupt) as error:
            found.append(Known(known_outcomes(error), may_have_been_stored(error)))

    await KINDS[kind](application, cast("Any", Interrupts()), 1.0)
    (known,) = found
    return known


def told(outcomes: Sequence[Outcome] | None) -> list[bool | str]:
    assert outcomes is not None
    return ["stored" if isinstance(each, SendResult) else each.may_have_been_stored for each in outcomes]


@each_kind
async def test_a_cancelled_send_many_says_what_is_known_of_each_message(autojump_clock: MockClock, kind: str) -> None:
    """The first one was acknowledged, a request with more of them has no answer, and the rest waits behind it."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.script(BATCH, silence)
        first, *others = numbered(BATCH_MESSAGES_MAX + 50)

        known = await cut_off(kind, producer, "send_many", [attrs.evolve(first, delay_level=1), *others])

        assert told(known.outcomes) == ["stored", *[True] * BATCH_MESSAGES_MAX, *[False] * 49]
        assert known.may_be_stored
        assert stored(broker) == [0]
        await trio.sleep(60)
        assert stored(broker) == [0], "what was not sent is not sent later"


@each_kind
@pytest.mark.parametrize("way", ["send", "send_batch", "send_many"])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_cancelled_send_says_whether_it_was_begun(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: str, way: str, begun: bool
) -> None:
    """One that waits for the queues of its topic is not stored; one whose request has no answer may be."""

    async def find(*_: object) -> None:
        await trio.sleep_forever()

    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        for code in (SEND, BATCH):
            broker.script(code, silence)
        if not begun:
            monkeypatch.setattr(Publications, "find", find)

        known = await cut_off(kind, producer, way, numbered(1 if way == "send" else 2))

        assert told(known.outcomes) == [begun] * (1 if way == "send" else 2)
        assert known.may_be_stored == begun


async def test_the_cancellation_of_another_task_says_nothing(autojump_clock: MockClock) -> None:
    """A nursery raises one cancellation for all of its tasks, and another one of them may have sent its message."""
    noted, known = list[BaseException](), list[bool]()

    async def send() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            note_outcomes(error, unknown(1, begun=False))
            noted.append(error)
            known.append(may_have_been_stored(error))
            raise

    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)

    known.append(may_have_been_stored(noted[0]))
    assert known == [False, True]
    assert known_outcomes(noted[0]) is None


async def test_what_cancels_no_send_rules_nothing_out() -> None:
    """It may have met a send in another task, or come between two sends."""
    errors: list[BaseException] = [KeyboardInterrupt(), trio.TooSlowError()]
    with trio.move_on_after(0):
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            error.__context__ = InvalidArgument("an error that was handled before")
            errors.append(error)
            raise

    assert [may_have_been_stored(error) for error in errors] == [True] * 3
    assert [known_outcomes(error) for error in errors] == [None] * 3


def test_an_error_of_a_send_says_itself_what_is_known() -> None:
    """Also that which stands for a message whose send was cancelled."""
    assert not may_have_been_stored(InvalidArgument("no topic"))
    assert [may_have_been_stored(SendCancelled(may_have_been_stored=known)) for known in (True, False)] == [True, False]
    assert known_outcomes(InvalidArgument("no topic")) is None
