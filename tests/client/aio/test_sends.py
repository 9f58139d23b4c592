"""Sends of asyncio tasks as they cross to the client's thread together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Self, cast

import attrs
import pytest
import trio
import trio.testing

from ledgermq.client.aio.clients import AioProducer
from ledgermq.client.aio.host import Opening
from ledgermq.client.aio.sends import SENDS_PER_TURN
from ledgermq.client.cancelled import may_have_been_stored
from ledgermq.client.errors import Closed, MessageIllegal, NoRoute, SendTimeout
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.send_many import Item, Lanes
from ledgermq.client.sending import SendResult
from ledgermq.message.batch import decode_batch
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message, MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand

from ..fake_cluster import NAMESRV, FakeBroker, open_cluster

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
SECONDS = 60.0


@attrs.define(eq=False)
class HeldBroker:
    """A producer for asyncio, and in the thread of its client a broker that stores some requests only when the test says so."""

    producer: AioProducer[bytes]
    broker: FakeBroker
    held: list[RemotingCommand] = attrs.field(factory=list[RemotingCommand])

    def hold(self, code: int) -> None:
        """Hold the next request with `code`."""
        self.broker.script(code, self.held.append)

    def store(self) -> None:
        """Store what is held, and answer it."""
        (connection,) = self.broker.server.connections
        while self.held:
            self.broker.store(connection, self.held.pop(0))

    def refuse(self) -> None:
        """Refuse what is held."""
        (connection,) = self.broker.server.connections
        while self.held:
            connection.answer(self.held.pop(0), ResponseCode.MESSAGE_ILLEGAL)

    def start(self, numbers: Sequence[int], **options: Any) -> list[asyncio.Task[Any]]:
        """Start a send for each number."""
        options = options or {"key": "k"}
        return [asyncio.create_task(self.producer.send(Message("t", b"%d" % number), **options)) for number in numbers]

    async def in_thread(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the client and its broker."""

        async def call() -> None:
            function()

        await self.producer.host.run(call)

    async def settle(self) -> None:
        """Wait until the client has done all that it can do without an answer from the broker."""
        await asyncio.sleep(0)
        await self.producer.host.run(trio.testing.wait_all_tasks_blocked)

    @property
    def stored(self) -> list[int]:
        return [int(decode_record(record).body) for record in self.broker.queues.get(("t", 0), [])]


@asynccontextmanager
async def held_broker() -> AsyncGenerator[HeldBroker]:
    """The topic has one queue, and its first message is -1."""
    brokers: list[FakeBroker] = []

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Producer]:
        async with (
            open_cluster() as cluster,
            open_producer(NAMESRV, world=cluster.world, send_timeout_seconds=SECONDS) as producer,
        ):
            brokers.append(await cluster.start_broker("b1"))
            cluster.create("t", 1)
            await producer.send(Message("t", b"-1"))
            yield producer

    opening: Opening[Producer, AioProducer[bytes]] = Opening(opened, AioProducer, (), {})
    async with opening as producer:
        yield HeldBroker(producer, brokers[0])


def test_sends_of_one_turn_share_requests() -> None:
    """Each task gets what became of its own message; two tasks never get the same error."""

    async def main() -> None:
        async with held_broker() as held:
            names = [MessageQueue("t", "b1", at) for at in (0, 7)]
            tasks = [task for number in range(3) for queue in names for task in held.start([number], queue=queue)]
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [SendResult] * 6
            assert [len(decode_batch(request.body)) for request in held.broker.requests_of(BATCH)] == [3, 3]

            held.hold(BATCH)
            tasks = held.start(range(2), queue=names[0], timeout_seconds=0.2)
            first, second = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(first, SendTimeout)
            assert first is not second
            assert (str(first), first.topic, may_have_been_stored(first)) == (str(second), "t", True)

    asyncio.run(main())


def test_a_cancelled_send_stops_no_other() -> None:
    """One that waits is not sent; one whose request is pending leaves the others in it alone, and all go on in order."""

    async def main() -> None:
        async with held_broker() as held:
            held.hold(SEND)
            held.hold(BATCH)
            known: dict[int, bool] = {}

            async def send(number: int) -> SendResult:
                try:
                    return await held.producer.send(Message("t", b"%d" % number), key="k")
                except asyncio.CancelledError as error:
                    known[number] = may_have_been_stored(error)
                    raise

            tasks = [asyncio.create_task(send(0))]
            await held.settle()
            tasks.append(asyncio.create_task(send(1)))
            await held.settle()
            tasks += [asyncio.create_task(send(number)) for number in (2, 3, 4)]
            await held.settle()
            for at in (1, 0):  # with the second, the pending request is given up, so the next one is sent
                tasks[at].cancel()
                await held.settle()
            assert [request.code for request in held.held] == [SEND, BATCH]
            tasks[3].cancel()
            tasks.append(asyncio.create_task(send(5)))
            await held.settle()
            assert len(held.held) == 2
            await held.in_thread(held.store)
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            results = [outcome for outcome in outcomes if isinstance(outcome, SendResult)]
            assert [result.queue_offset for result in results] == [2, 4, 5]
            assert held.stored == [-1, 0, 2, 3, 4, 5]
            assert [type(outcomes[at]) for at in (1, 0, 3)] == [asyncio.CancelledError] * 3
            assert known == {0: True, 1: False, 3: True}

    asyncio.run(main())


def test_a_send_is_made_though_the_one_before_it_failed() -> None:
    """Also one of the same key: what failed may be sent again by the application only, behind the others then."""

    async def main() -> None:
        async with held_broker() as held:
            held.hold(SEND)
            tasks = held.start([0])
            await held.settle()
            tasks += held.start([1, 2])
            await held.settle()
            await held.in_thread(held.refuse)
            failed, *results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(failed, MessageIllegal)
            assert [type(result) for result in results] == [SendResult] * 2
            assert held.stored == [-1, 1, 2]

    asyncio.run(main())


def test_a_send_fails_in_time_behind_one_that_has_more_time() -> None:
    """It was not sent, and the error says so."""

    async def main() -> None:
        async with held_broker() as held:
            held.hold(SEND)
            tasks = held.start([0])
            await held.settle()
            late = [task for number in (1, 2) for task in held.start([number], key="k", timeout_seconds=0.3 / number)]
            errors: list[Any] = [*await asyncio.gather(*late, return_exceptions=True)]
            assert [type(error) for error in errors] == [SendTimeout] * 2
            assert not any(map(may_have_been_stored, errors))
            await held.in_thread(held.store)
            await asyncio.gather(*tasks, *held.start([3]))
            assert held.stored == [-1, 0, 3]

    asyncio.run(main())


def test_a_send_that_was_not_begun_is_not_made() -> None:
    """Its task was cancelled before the client's thread came to it."""

    async def main() -> None:
        async with held_broker() as held:
            thread = cast("Any", held.producer.host)._loop
            thread._woken = True  # the thread sleeps for the test
            with pytest.raises(TimeoutError) as late:
                async with asyncio.timeout(0):
                    await held.producer.send(Message("t", b"0"))
            known = [may_have_been_stored(late.value)]
            tasks = held.start([1, 2])
            await asyncio.sleep(0)
            with pytest.raises(TimeoutError) as late:
                async with asyncio.timeout(0):
                    await asyncio.gather(*tasks)
            known.append(may_have_been_stored(late.value))
            thread._woken = False
            await held.settle()
            assert held.stored == [-1]
        assert known == [False, True]  # the error of `gather` comes from one of the sends, and the other is not known

    asyncio.run(main())


def test_a_send_that_was_cancelled_before_its_request_is_in_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task was told so, although the client's thread has not heard of the cancellation yet."""
    add = Lanes.add

    def add_and_cancel(lanes: Lanes, item: Item) -> None:
        add(lanes, item)
        item.withdrawn = item.message.body in (b"1", b"4")
        assert item.request is None

    async def main() -> None:
        async with held_broker() as held:
            monkeypatch.setattr(Lanes, "add", add_and_cancel)
            await asyncio.wait(held.start([0, 1, 2]), timeout=0.2)
            await asyncio.wait(held.start([4]), timeout=0.2)
            await asyncio.gather(*held.start([3]))
            assert held.stored == [-1, 0, 2, 3]

    asyncio.run(main())


class Exit(BaseException):
    """As a `SystemExit`, but asyncio does not end its loop for it."""


def test_a_selector_may_raise_anything() -> None:
    """Its send raises it, whole, and the sends beside it and those after it are made."""

    class Unusual(Exception):
        def __new__(cls, *codes: object) -> Self:
            assert codes
            return super().__new__(cls, *codes)

    def raising(error: BaseException) -> Callable[..., MessageQueue]:
        def selector(*_: object) -> MessageQueue:
            raise error

        return selector

    async def main() -> None:
        async with held_broker() as held:
            tasks: list[asyncio.Task[Any]] = []
            errors = [StopIteration(), asyncio.CancelledError(), Unusual(7), Exit(), FileNotFoundError(2, "none", "here")]
            for number, error in enumerate(errors):
                tasks += held.start([-1], selector=raising(error)) + held.start([number])
            done, waiting = await asyncio.wait(tasks, timeout=10)
            assert (len(done), len(waiting)) == (10, 0)
            raised: list[Any] = [task.exception() for task in tasks]
            assert held.stored == [-1, 0, 1, 2, 3, 4]
        assert [type(error) for error in raised[::2]] == [RuntimeError, RuntimeError, Unusual, Exit, FileNotFoundError]
        assert [type(raised[at].__cause__) for at in (0, 2)] == [StopIteration, asyncio.CancelledError]
        assert raised[-2].filename == "here"

    asyncio.run(main())


def test_a_send_that_is_cancelled_when_the_client_has_ended_is_cancelled() -> None:
    """Another error in place of the cancellation would let the task go on that was to end."""

    async def main() -> None:
        async with held_broker() as held:
            (task,) = held.start([0])
            await held.settle()
            held.hold(SEND)
            (task,) = held.start([1])
            await held.settle()
            loop = cast("Any", held.producer.host)._loop
            loop.end(cancel=True)  # this blocks the event loop, so the task does not get its outcome
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_what_an_encoder_raises_reaches_its_send() -> None:
    """Even what would end the client's thread, and the sends beside it are made."""

    def encode(body: bytes) -> bytes:
        if body == b"0":
            raise Exit
        return body

    async def main() -> None:
        async with held_broker() as held:
            cast("Any", held.producer.host.client.lanes)._body_of = encode
            outcomes = await asyncio.gather(*held.start([0, 1]), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [Exit, SendResult]
            assert held.stored == [-1, 1]

    asyncio.run(main())


def test_no_send_waits_for_a_client_that_has_failed() -> None:
    """A fault of ours ends the client's thread, with all that is under way in it; each error names it."""

    def fail(_: object) -> None:
        raise LookupError("a bug")

    async def main() -> None:
        async with held_broker() as held:
            cast("Any", held.producer.host.client).lanes = SimpleNamespace(add=fail)
            outcomes: list[Any] = []
            async with asyncio.timeout(10):
                for _ in range(2):
                    outcomes += await asyncio.gather(*held.start([0, 1]), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [Closed] * 4
            assert all(isinstance(outcome.__cause__, trio.TrioInternalError) for outcome in outcomes)

    with pytest.raises(trio.TrioInternalError):
        asyncio.run(main())


def test_what_is_not_known_of_a_cancellation_is_not_ruled_out() -> None:
    """Asyncio makes some cancellations anew, and a `TaskGroup` does not name the sends that it has cancelled."""
    refused = Closed("closed")

    assert may_have_been_stored(asyncio.CancelledError())
    assert may_have_been_stored(TimeoutError())
    assert may_have_been_stored(BaseExceptionGroup("", [refused]))
    assert not may_have_been_stored(refused)
    assert not may_have_been_stored(ValueError())


@pytest.mark.parametrize("way", ["send_batch", "sleep", "other thread"])
def test_an_error_that_was_handled_before_rules_nothing_out(way: str) -> None:
    """Python chains it to the one that follows, as of a retry in an `except` block or the pause before one."""

    async def main() -> None:
        async with held_broker() as held:
            held.hold(SEND)
            held.hold(BATCH)
            producer = held.producer

            def send_from_thread() -> None:
                coroutine = producer.send(Message("t", b"1"))
                asyncio.run_coroutine_threadsafe(coroutine, producer.host.event_loop).result(0.2)

            async def send_again() -> None:
                if way == "sleep":
                    await asyncio.sleep(SECONDS)
                elif way == "send_batch":
                    await producer.send_batch([Message("t", b"1"), Message("t", b"2")])
                else:
                    await asyncio.to_thread(send_from_thread)

            async def send() -> None:
                try:
                    await producer.send(Message("nowhere", b"0"), queue=MessageQueue("nowhere", "b1", 0))
                except NoRoute:
                    await send_again()

            with pytest.raises(TimeoutError) as late:
                async with asyncio.timeout(0.5):
                    await send()
            assert may_have_been_stored(late.value)

    asyncio.run(main())


def test_the_client_goes_on_among_many_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks get turns before all sends that crossed together have begun."""
    turns, begun, add = [0], list[int](), Lanes.add

    def add_counted(lanes: Lanes, item: Item) -> None:
        begun.append(turns[0])
        add(lanes, item)

    async def main() -> None:
        async with held_broker() as held:

            async def take_turns() -> None:
                while True:
                    turns[0] += 1
                    await trio.lowlevel.checkpoint()

            monkeypatch.setattr(Lanes, "add", add_counted)
            ticking = asyncio.create_task(held.producer.host.run(take_turns))
            await held.producer.host.run(trio.lowlevel.checkpoint)
            crossing = threading.Event()
            held.producer.host.soon(crossing.wait)
            tasks = held.start(range(3 * SENDS_PER_TURN))
            await asyncio.sleep(0)
            crossing.set()
            await asyncio.gather(*tasks)
            ticking.cancel()
        assert len(set(begun)) > 1  # within one turn, the other task may run before or behind
        assert held.stored == list(range(-1, 3 * SENDS_PER_TURN))

    asyncio.run(main())


def test_sends_under_way_at_the_end_say_that_they_may_be_stored() -> None:
    """Those that wait were not sent, and those that come later were not begun."""

    async def main() -> None:
        async with held_broker() as held:
            held.hold(SEND)
            tasks = held.start([0])
            await held.settle()
            tasks += held.start([1])
            await held.settle()
        errors: list[Any] = [*await asyncio.gather(*tasks, return_exceptions=True)]
        for _ in range(2):
            errors += await asyncio.gather(*held.start([2]), return_exceptions=True)
        assert [type(error) for error in errors] == [Closed] * 4
        assert [may_have_been_stored(error) for error in errors] == [True, False, False, False]

    asyncio.run(main())


def test_later_sends_do_not_overtake_those_that_wait_for_an_answer() -> None:
    """Of 600 sends, a request carries 256; the later ones come many at once, alone, and by the name of the queue."""

    async def main() -> None:
        async with held_broker() as held:
            held.hold(BATCH)
            tasks = held.start(range(600))
            await held.settle()
            assert len(held.held) == 1
            for numbers in (range(600, 1200), [1200], [1201]):
                tasks += held.start(numbers)
                await held.settle()
            tasks += held.start([1202], queue=MessageQueue("t", "b1", 0))
            await held.settle()
            await held.in_thread(held.store)
            results = await asyncio.gather(*tasks)
            assert held.stored == [-1, *range(1203)]
            assert [result.queue_offset for result in results] == list(range(1, 1204))

    asyncio.run(main())
