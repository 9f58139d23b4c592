"""Sends of asyncio tasks as they cross to the client's thread together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing

from ledgermq.client.aio.host import AioHost, Opening
from ledgermq.client.aio.sends import Sends, may_have_been_stored
from ledgermq.client.errors import Closed, NoAnswer
from ledgermq.client.send_many import Item
from ledgermq.message.message import Message


@attrs.define(eq=False)
class Recorder:
    """A producer that notes how sends reach it; a message with the body `wait` waits until it is cancelled."""

    alone: list[bytes] = attrs.field(factory=list[bytes])
    together: list[list[bytes]] = attrs.field(factory=list[list[bytes]])
    cancelled: list[bytes] = attrs.field(factory=list[bytes])

    async def send(self, message: Message, **_: object) -> str:
        self.alone.append(message.body)
        if message.body == b"wait":
            try:
                await trio.sleep_forever()
            finally:
                self.cancelled.append(message.body)
        return f"sent {message.body.decode()}"

    def many_sends(self, _queue: object, _seconds: float, done: Any, _deadline: float) -> Any:
        recorder = self

        class Many:
            async def send(self, items: Sequence[Item]) -> None:
                recorder.together.append([item.message.body for item in items])
                for item in items:
                    if item.message.body == b"wait":
                        try:
                            await trio.sleep_forever()
                        finally:
                            recorder.cancelled.append(item.message.body)
                    failed = item.message.body == b"fail"
                    done(item.index, NoAnswer("b", "scripted") if failed else f"sent {item.message.body.decode()}")

        return Many()


@asynccontextmanager
async def recording() -> AsyncGenerator[Recorder]:
    yield Recorder()


def opening() -> Opening[Recorder, AioHost[Any]]:
    return Opening(recording, lambda host: host, (), {})


async def outcomes_of(sends: Sends, *bodies: str, topic: str = "t") -> list[Any]:
    made = (sends.send(Message(topic, body.encode()), None, None, None, 3.0) for body in bodies)
    return await asyncio.gather(*made, return_exceptions=True)


def test_sends_of_one_turn_cross_together() -> None:
    """Those of one topic become one call, and each task gets what became of its own message."""

    async def main() -> None:
        async with opening() as host:
            sends = Sends(host)
            first, others, alone = await asyncio.gather(
                outcomes_of(sends, "a", "fail", "b", "fail"),
                outcomes_of(sends, "c", "d", topic="u"),
                outcomes_of(sends, "e", topic="v"),
            )
            recorder = host.client
        assert first[0] == "sent a"
        assert first[2] == "sent b"
        assert isinstance(first[1], NoAnswer)
        assert first[1] is not first[3]
        assert (str(first[1]), first[1].address, first[1].may_have_been_stored) == (str(first[3]), "b", True)
        assert (others, alone) == (["sent c", "sent d"], ["sent e"])
        assert sorted(recorder.together) == [[b"a", b"fail", b"b", b"fail"], [b"c", b"d"]]
        assert recorder.alone == [b"e"]

    asyncio.run(main())


@pytest.mark.parametrize("bodies", [["wait"], ["wait", "wait"]])
def test_sends_are_cancelled_when_nobody_waits_for_them(bodies: list[str]) -> None:
    """One that waits beside others goes on for these; each cancellation says that the message may be stored."""

    async def main() -> None:
        async with opening() as host:
            sends = Sends(host)
            made = [asyncio.create_task(sends.send(Message("t", body.encode()), None, None, None, 3.0)) for body in bodies]
            await asyncio.sleep(0)
            await host.run(trio.testing.wait_all_tasks_blocked)
            made[0].cancel()
            errors: list[object] = [*await asyncio.gather(made[0], return_exceptions=True)]
            await host.run(trio.testing.wait_all_tasks_blocked)
            assert len(host.client.cancelled) == (0 if made[1:] else 1)
            for task in made[1:]:
                task.cancel()
            errors += await asyncio.gather(*made[1:], return_exceptions=True)
            await host.run(trio.testing.wait_all_tasks_blocked)
            assert len(host.client.cancelled) == 1
        assert all(isinstance(error, asyncio.CancelledError) and may_have_been_stored(error) for error in errors)

    asyncio.run(main())


def test_a_send_that_was_not_begun_is_not_made() -> None:
    """Its task was cancelled before the client's thread came to it."""

    async def main() -> None:
        async with opening() as host:
            sends = Sends(host)
            thread = cast("Any", host)._loop
            thread._woken = True  # the thread sleeps for the test
            task = asyncio.create_task(sends.send(Message("t", b"x"), None, None, None, 3.0))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            thread._woken = False
            await host.run(trio.sleep, 0)
            assert host.client.alone == []
        assert not may_have_been_stored(cancelled.value)

    asyncio.run(main())


def test_what_is_not_known_of_a_cancellation_is_not_ruled_out() -> None:
    """Asyncio makes some cancellations anew; a group is as uncertain as the most uncertain error in it."""
    stored, refused = NoAnswer("b", "scripted"), Closed("closed")

    assert may_have_been_stored(asyncio.CancelledError())
    assert may_have_been_stored(TimeoutError())
    assert may_have_been_stored(BaseExceptionGroup("", [refused, stored]))
    assert not may_have_been_stored(BaseExceptionGroup("", [refused]))
    assert not may_have_been_stored(refused)
    assert not may_have_been_stored(ValueError())


def test_sends_under_way_at_the_end_say_that_they_may_be_stored() -> None:
    """Those that come later were not begun."""

    async def main() -> None:
        async with opening() as host:
            sends = Sends(host)
            task = asyncio.create_task(sends.send(Message("t", b"wait"), None, None, None, 3.0))
            await asyncio.sleep(0)
            await host.run(trio.testing.wait_all_tasks_blocked)
        (error,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(error, Closed)
        assert may_have_been_stored(error)
        for _ in range(2):
            (error,) = await outcomes_of(sends, "late")
            assert isinstance(error, Closed)
            assert not may_have_been_stored(error)

    asyncio.run(main())


def test_later_sends_do_not_overtake_those_whose_task_has_not_begun() -> None:
    """Trio begins the tasks of one turn in any order; here the later one would begin first."""

    @attrs.define
    class Host:
        """Keeps what is started, to run it in reverse."""

        event_loop: asyncio.AbstractEventLoop
        client: Recorder = attrs.field(factory=Recorder)
        started: list[Any] = attrs.field(factory=list[Any])
        woken: list[Any] = attrs.field(factory=list[Any])
        wakeups: Any = attrs.field(factory=lambda: cast("Any", type("Wakeups", (), {"add": staticmethod(lambda *_: None)})))

        def check_caller(self) -> None: ...

        def soon(self, function: Any) -> None:
            self.woken.append(function)

        def start(self, function: Any) -> bool:
            self.started.append(function)
            return True

    async def wake(function: Any) -> None:
        function()

    async def main() -> None:
        host = Host(asyncio.get_running_loop())
        sends = Sends(cast("Any", host))
        tasks: list[asyncio.Task[Any]] = []
        for body in (b"first", b"second"):
            tasks.append(asyncio.create_task(sends.send(Message("t", body), None, None, None, 3.0)))
            await asyncio.sleep(0)
            trio.run(wake, host.woken.pop())  # for each of them, and no task begins in between
        for function in reversed(host.started):
            trio.run(function)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert host.client.together == [[b"first", b"second"]]

    asyncio.run(main())
