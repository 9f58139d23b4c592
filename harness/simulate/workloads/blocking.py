"""Blocking consumers: several threads share one client, are interrupted, and must return when it is closed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, ClassVar, cast

import attrs
import trio

from ledgermq.client.blocking import BlockingConsumer, BlockingHost, BlockingMessage
from ledgermq.client.consumer import Consumer
from ledgermq.client.errors import Closed
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Wait
from ledgermq.testing.sim.threads import SimLock, SimThread, SimThreadLoop, current_thread

from .members import LoopLeft, Members, Style

THREADS_MAX = 3
INTERRUPTED_SHARE = 0.05


@attrs.define(eq=False)
class Blocking(Members):
    """Members whose threads share one blocking consumer."""

    name: ClassVar[str] = "blocking"
    topic: ClassVar[str] = "TH"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()
    styles: ClassVar[tuple[Style, ...]] = (
        Style(name="threads_auto"),
        Style(name="threads_auto_break", take="break"),
        Style(name="threads_auto_restarts", restarts=True),
        Style(name="threads_get_many", take="get_many"),
        Style(name="threads_block", take="block", restarts=True),
        Style(name="threads_ordered_auto", ordered=True),
        Style(name="threads_ordered_restarts", ordered=True, restarts=True),
    )
    _drivers: trio.Nursery | None = None
    _interrupted: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._drivers:
            await super().run(task_status=task_status)

    async def _be(self, consumer: Consumer, member: str, host: str) -> None:  # noqa: ARG002 - threads do not commit by themselves
        """Let threads consume; they must be notified when the consumer is closed."""
        assert self._drivers is not None
        loop = SimThreadLoop(self.scene.rng, INTERRUPTED_SHARE)
        shell = BlockingConsumer(BlockingHost(consumer, cast("Any", loop)), fetching=cast("Any", SimLock()))
        waits: list[Wait] = []
        for number in range(self.scene.rng.randint(1, THREADS_MAX)):
            wait = Wait(f"thread {number} of {member}")
            waits.append(wait)
            self._drivers.start_soon(self._drive, SimThread(partial(self._take, shell, member, wait)), wait)
        try:
            await trio.sleep_forever()
        finally:
            self._interrupted += loop.interrupted
            for wait in waits:
                if not wait.error:
                    wait.closed_at = trio.current_time()
            self.scene.history.waits += waits
            # Who closes a consumer gives up its queues, also those of which another thread still handles a message.
            for one in self.scene.history.handlings:
                if one.member == member:
                    one.ended = min(one.ended, trio.current_time())

    async def _drive(self, thread: SimThread, wait: Wait) -> None:
        try:
            await thread.drive()
        except Closed:
            wait.error = "Closed"
        except trio.Cancelled:
            wait.error, wait.closed_at = "the end of the run", inf
            raise
        finally:
            wait.ended_at = trio.current_time()

    # ---------------------------------------------------------------- in a thread

    def _take(self, consumer: BlockingConsumer, member: str, wait: Wait) -> None:
        while True:
            try:
                wait.began = current_thread().now  # until now it handled a list that it had been given before
                if self._style.take == "get_many":
                    self._settle_each_in_thread(consumer.get_many(self.scene.rng.randint(1, 8), 5.0), member)
                elif self._style.take == "block":
                    with consumer.take(self.scene.rng.randint(1, 8), 5.0) as messages:
                        self._settle_all_in_thread(messages, member)
                        wait.began = current_thread().now
                else:
                    for message in consumer:
                        self._settle_in_thread(message, member)
                        if self._style.take == "break":
                            break
            except (KeyboardInterrupt, LoopLeft):
                message = None
                continue

    def _settle_each_in_thread(self, messages: Sequence[BlockingMessage], member: str) -> None:
        """Handle and acknowledge each message; if the thread is interrupted, the others are dropped, and so given back."""
        for at, message in enumerate(messages, 1):
            try:
                self._settle_in_thread(message, member)
            except KeyboardInterrupt:
                self._given_back(messages[at:], member, current_thread().now)
                raise

    def _settle_all_in_thread(self, messages: Sequence[BlockingMessage], member: str) -> None:
        """Handle the messages of a block; if one fails, or the thread is interrupted, all of them are given back."""
        try:
            for message in messages:
                self._settle_in_thread(message, member)
        except (KeyboardInterrupt, LoopLeft):
            self._given_back(messages, member, current_thread().now)
            raise

    def _settle_in_thread(self, message: BlockingMessage, member: str) -> None:
        scene, thread = self.scene, current_thread()
        one = self._begin(message, member, thread.now)
        number = one.number
        try:
            thread.sleep(scene.life_seconds * scene.rng.random() ** 4 * 0.1)
            one.settled_at = thread.now
            if self._failures.get(number, 0) > 0:
                self._failures[number] -= 1
                one.ended = min(one.ended, thread.now)
                if self._style.restarts:
                    raise LoopLeft
                message.retry()
                return
            one.done = True
            self._done.add(number)
            if self._style.take in ("get_many", "break"):
                message.ack()
        except KeyboardInterrupt:
            one.settled_at = thread.now  # it is given back
            raise
        finally:
            one.ended = min(one.ended, thread.now)

    def counts(self) -> dict[str, int]:
        return {**super().counts(), "threads_interrupted": self._interrupted}
