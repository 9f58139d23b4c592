"""Consumers that are stopped in order: by a signal, or by the application."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import Stopped
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.stopping import SIGNALS, signals_call
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, until
from .test_delivery import BACK, consuming, filled, number, silence, take_no_message_back


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
async def test_nothing_that_was_handled_comes_again_after_a_signal(autojump_clock: MockClock, which: signal.Signals) -> None:
    """A slow handler would keep the offset behind it back; it is waited for, and nothing new is begun."""
    async with filled(200) as (cluster, broker):
        begun: list[int] = []
        handled: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            begun.append(number(message))
            await trio.sleep(10 if number(message) % 50 == 3 else 0.1)
            handled.append(number(message))

        async with consuming(cluster) as consumer, trio.open_nursery() as nursery:

            async def stop() -> None:
                await until(lambda: len(handled) >= 100)
                signal.raise_signal(which)

            nursery.start_soon(stop)
            await consumer.run(handle, concurrency=8)

        assert 100 <= len(handled) == len(begun) < 150
        assert broker.offsets["g", "t", 0] == len(handled)


async def test_a_handler_that_does_not_end_is_cancelled(autojump_clock: MockClock) -> None:
    """When its time is over, or at a second signal; its message comes again to the next member."""
    async with filled(2) as (cluster, broker):

        async def handle(message: ReceivedMessage) -> None:
            if number(message) == 1:
                signal.raise_signal(signal.SIGTERM)
                await trio.sleep_forever()

        began = trio.current_time()
        async with consuming(cluster) as consumer:
            await consumer.run(handle, stop_seconds=7)

        assert trio.current_time() - began == pytest.approx(7, abs=0.5)
        assert broker.bodies("%RETRY%g") == [b"1"]


Handler = Callable[[ReceivedMessage], Awaitable[None]]


async def loops(consumer: Consumer[bytes], handle: Handler) -> None:
    async def loop() -> None:
        async for message in consumer:
            await handle(message)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(loop)


WORK: dict[str, Callable[[Consumer[bytes], Handler], Awaitable[None]]] = {
    "run": lambda consumer, handle: consumer.run(handle, concurrency=8, stop_seconds=1),
    "process": lambda consumer, handle: consumer.process(handle, tasks=8),
    "loops": loops,
}


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("work", WORK)
async def test_of_what_was_handled_nothing_comes_again_after_a_limit(
    autojump_clock: MockClock, work: str, orderly: bool
) -> None:
    """Only the message of the handler that did not end does, with what follows it in an ordered queue."""
    async with filled(400) as (cluster, broker):
        cluster.create("%RETRY%g", 1)
        handled: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            if number(message) == 5:
                await trio.sleep_forever()
            handled.append(number(message))

        async with consuming(cluster, orderly=orderly) as consumer, trio.open_nursery() as nursery:

            async def stop() -> None:
                await trio.sleep(10)
                consumer.stop()
                if work == "run":
                    signal.raise_signal(signal.SIGTERM)

            nursery.start_soon(stop)
            with trio.move_on_after(20):
                await WORK[work](consumer, handle)

        assert len(handled) == (5 if orderly else 399)
        assert broker.bodies("%RETRY%g") == ([] if orderly else [b"5"])
        assert broker.offsets["g", "t", 0] == len(handled) + (not orderly)


@pytest.mark.parametrize("answer", ["none", "refusal"])
async def test_a_broker_that_takes_no_message_back_costs_the_end_a_second(autojump_clock: MockClock, answer: str) -> None:
    """What was finished before the message is committed, and the rest comes again."""
    async with filled(10) as (cluster, broker):
        cluster.create("%RETRY%g", 1)
        if answer == "none":
            broker.script(BACK, *[silence] * 100)
        else:
            take_no_message_back(broker)

        async def handle(_: ReceivedMessage) -> None:
            await trio.sleep_forever()

        with capture_logs() as events:
            async with consuming(cluster) as consumer:
                for message in await consumer.get_many(5):
                    await message.ack()
                with trio.move_on_after(1):
                    await consumer.process(handle)
                ended_at = trio.current_time()

        assert broker.offsets["g", "t", 0] == 5
        assert trio.current_time() - ended_at == pytest.approx(1 if answer == "none" else 0, abs=0.1)
        logged = "messages_not_sent_back" if answer == "none" else "resend_failed"
        assert [event["log_level"] for event in events if event["event"] == logged] == ["warning"]


async def test_a_second_signal_ends_at_once(autojump_clock: MockClock) -> None:
    """As an operator expects who is in a hurry."""
    async with filled(1) as (cluster, _):

        async def handle(_message: ReceivedMessage) -> None:
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep(1)
            signal.raise_signal(signal.SIGTERM)
            await trio.sleep_forever()

        began = trio.current_time()
        async with consuming(cluster) as consumer:
            await consumer.run(handle)
        assert trio.current_time() - began < 3


async def test_the_first_signal_after_a_stop_cancels_no_handler(autojump_clock: MockClock) -> None:
    """The application has called `stop` before, and its handlers have the same time to finish."""
    async with filled(1) as (cluster, broker):
        handled: list[int] = []
        async with consuming(cluster) as consumer:

            async def handle(message: ReceivedMessage) -> None:
                consumer.stop()
                signal.raise_signal(signal.SIGTERM)
                await trio.sleep(5)
                handled.append(number(message))

            await consumer.run(handle)

        assert handled == [0]
        assert broker.offsets["g", "t", 0] == 1


def test_a_handler_of_another_language_becomes_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reports it as None, and cannot install it again."""
    installed: dict[int, object] = {}

    def install(which: signal.Signals, handler: object) -> None:
        assert handler is not None
        installed[which] = handler

    monkeypatch.setattr(signal, "signal", install)
    with signals_call(lambda: None):
        assert signal.SIG_DFL not in installed.values()

    assert installed == dict.fromkeys(SIGNALS, signal.SIG_DFL)


async def test_a_signal_stops_all_consumers_of_a_process(autojump_clock: MockClock) -> None:
    """In whatever order they end, the program then does at a signal what it did before."""
    before = [signal.getsignal(which) for which in SIGNALS]
    async with (
        filled(2) as (cluster, _),
        consuming(cluster) as first,
        open_consumer(NAMESRV, "other", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as second,
    ):
        ended: list[str] = []

        async def run(consumer: Consumer[bytes], seconds: float) -> None:
            async def handle(_: ReceivedMessage) -> None:
                await trio.sleep(seconds)

            await consumer.run(handle)
            ended.append(consumer.group)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, first, 1)
                nursery.start_soon(run, second, 5)
                await trio.sleep(0.5)
                signal.raise_signal(signal.SIGTERM)

    assert ended == ["g", "other"]
    assert [signal.getsignal(which) for which in SIGNALS] == before


async def test_loops_end_when_the_consumer_is_stopped(autojump_clock: MockClock) -> None:
    """They acknowledge what they have finished; calls that wait for messages raise."""
    async with filled(3) as (cluster, broker):
        seen: list[int] = []
        async with consuming(cluster) as consumer:
            async for message in consumer:
                seen.append(number(message))
                if len(seen) == 2:
                    consumer.stop()
            with pytest.raises(Stopped):
                await consumer.get_one()

        assert seen == [0, 1]
        assert broker.offsets["g", "t", 0] == 2


async def test_a_loop_that_waits_ends_too(autojump_clock: MockClock) -> None:
    """Nothing comes, and it is woken."""
    async with filled(0) as (cluster, _), consuming(cluster) as consumer, trio.open_nursery() as nursery:

        async def loop() -> None:
            async for message in consumer:
                raise AssertionError(f"{message} came")

        with trio.fail_after(5):
            nursery.start_soon(loop)
            await trio.sleep(1)
            consumer.stop()


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_signal_stops_handlers_that_never_wait(autojump_clock: MockClock, concurrency: int) -> None:
    """The event loop gets no turn meanwhile, and the message in hand is the last one all the same."""
    async with filled(100) as (cluster, broker):
        begun: list[int] = []

        def handle(message: ReceivedMessage) -> None:
            begun.append(number(message))
            if len(begun) == 70:
                signal.raise_signal(signal.SIGTERM)

        async with consuming(cluster) as consumer:
            await trio.sleep(5)  # the messages have come
            await consumer.run(handle, concurrency=concurrency)

        assert len(begun) == broker.offsets["g", "t", 0] == 70
