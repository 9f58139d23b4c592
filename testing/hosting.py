"""Applications of each kind in a simulated world: on trio, in a thread that blocks, and under asyncio.

What an application does is written once, with `await`. In a thread each call blocks and gives its result at once, so nothing
that it awaits suspends it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from inspect import iscoroutinefunction, isfunction
from typing import Any, cast

import attrs
import trio

from ..client.aio.clients import AioConsumer, AioProducer, AioPullConsumer
from ..client.aio.host import AioHost, Wakeups
from ..client.blocking import BlockingConsumer, BlockingHost, BlockingProducer, BlockingPullConsumer
from ..client.consumer import Consumer
from ..client.producer import Producer
from ..client.pull import PullConsumer
from .sim.asyncio_loop import SimEventLoop
from .sim.threads import SimLock, SimThread, SimThreadLoop, current_thread

BLOCKING: Mapping[type, Callable[[Any], Any]] = {
    Producer: BlockingProducer,
    Consumer: lambda host: BlockingConsumer(host, fetching=cast("Any", SimLock())),
    PullConsumer: BlockingPullConsumer,
}
AIO: Mapping[type, Callable[[Any], Any]] = {Producer: AioProducer, Consumer: AioConsumer, PullConsumer: AioPullConsumer}


@attrs.frozen
class Hosting:
    """How an application of one kind reaches clients, and how it waits.

    Attributes:
        shell: the client of this kind around a trio client; the application sees it as the trio client.
        sleep: wait for some seconds.
    """

    shell: Callable[[Any], Any]
    sleep: Callable[[float], Awaitable[object]]


Application = Callable[[Hosting], Coroutine[Any, Any, None]]
Kind = Callable[[Application, random.Random, float], Awaitable[None]]
"""Runs an application; the last arguments say how likely a call of a thread is interrupted (Ctrl-C)."""


@attrs.define(eq=False)
class _Awaitable:
    """A client for threads whose methods are awaited: each blocks, and then its result is there."""

    host: Any
    _shell: Any
    _like: type

    def __getattr__(self, name: str) -> Any:
        method, original = getattr(self._shell, name), getattr(self._like, name)
        if not isfunction(original) or not iscoroutinefunction(original):
            return method

        @wraps(method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return call


async def _sleep_in_thread(seconds: float) -> None:
    current_thread().sleep(seconds)


async def on_trio(application: Application, rng: random.Random, interrupts: float) -> None:
    """Run an application as a task of trio."""
    del rng, interrupts
    await application(Hosting(lambda client: client, trio.sleep))


async def in_thread(application: Application, rng: random.Random, interrupts: float) -> None:
    """Run an application in a thread."""
    loop = cast("Any", SimThreadLoop(rng, interrupts))

    def shell(client: object) -> Any:
        host = BlockingHost[Any](client, loop)
        return _Awaitable(host, BLOCKING[type(client)](host), type(client))

    def run() -> None:
        try:
            application(Hosting(shell, _sleep_in_thread)).send(None)
        except StopIteration:
            return
        raise AssertionError("something in a thread waits for an event loop")

    await SimThread(run).drive()


async def in_asyncio(application: Application, rng: random.Random, interrupts: float) -> None:
    """Run an application as a task of asyncio."""
    del interrupts  # tasks are cancelled instead, by themselves
    hosts: list[AioHost[Any]] = []

    async def main() -> None:
        event_loop = asyncio.get_running_loop()

        def shell(client: object) -> Any:
            hosts.append(AioHost(client, cast("Any", loop), event_loop, Wakeups(event_loop)))
            return AIO[type(client)](hosts[-1])

        try:
            await application(Hosting(shell, asyncio.sleep))
        finally:
            for host in hosts:
                host.closed = True

    def run() -> None:
        with asyncio.Runner(loop_factory=SimEventLoop) as runner:
            runner.run(main())

    async with trio.open_nursery() as nursery:
        loop = SimThreadLoop(rng, nursery=nursery)
        await SimThread(run).drive()
        nursery.cancel_scope.cancel()


KINDS: Mapping[str, Kind] = {"trio": on_trio, "threads": in_thread, "asyncio": in_asyncio}
"""The kinds of applications."""
