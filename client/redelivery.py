"""Messages that are given back go to a broker, to the dead letters, or again to the application.

A message is given back once (`AssignedQueue.give_back`). Then exactly one of two things happens: it is done when a
broker has accepted it; otherwise it is delivered again here, even if the task that waits for the outcome is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import trio

from ..world.events import get_logger
from .delivery import Line, Source
from .errors import InvalidArgument
from .received import DONE, ReceivedMessage
from .send_back import SendBack

log = get_logger(__name__)

ORDERLY_SUSPEND_SECONDS = 1.0
"""How long an orderly queue waits before its failed message is handed out again (RocketMQ `suspendCurrentQueueTimeMillis`)."""
REDELIVER_SECONDS = 5.0
"""The pause before a failed message that no broker accepted is handed out again here."""
SEND_BACK_AT_CLOSE_SECONDS = 1.0
"""How long a consumer that closes waits for brokers to accept what was given back, before it commits what is behind that."""


@attrs.define(eq=False)
class Redelivery:
    """Takes back the messages of one consumer that were not acknowledged."""

    _nursery: trio.Nursery
    _send_back: SendBack
    _line: Line
    _orderly: bool
    _broadcasting: bool
    _reconsume_times_max: int | None
    _on_the_way: int = 0
    """How many of the messages that were given back a broker has not accepted or refused yet."""
    _arrival: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    async def retry(self, source: Source, message: ReceivedMessage, delay_level: int) -> None:
        """Take back one message; returns when a broker has accepted it, or when it is scheduled for redelivery here.

        Raises:
            InvalidArgument: the message is done already.
        """
        if message.state == DONE:
            raise InvalidArgument("the message is done with: it was acknowledged, or sent back already")
        if not self._take_back(source, message):
            return
        if self._broadcasting:
            log.warning("message_dropped", queue=str(source.queue), offset=message.queue_offset, reason="broadcasting")
            self._finish(source, message)
        else:
            await self._pass_on_soon(source, message, delay_level).wait()

    def give_back(self, source: Source, message: ReceivedMessage) -> None:
        """Take back one message that was left in hand; it comes again as after `retry`.

        A broadcast message, which no broker takes back, comes again here.
        """
        if self._take_back(source, message) and not self._line.closed:
            self._pass_on_soon(source, message, 0)

    def _pass_on_soon(self, source: Source, message: ReceivedMessage, delay_level: int) -> trio.Event:
        """Pass a message on in a task of its own, which goes on if nobody waits any more; returns what is set at its end."""
        ended = trio.Event()

        async def pass_on() -> None:
            try:
                await self._pass_on(source, message, delay_level)
            finally:
                self._on_the_way -= 1
                self._arrival.unpark_all()
                ended.set()

        self._on_the_way += 1
        self._nursery.start_soon(pass_on)
        return ended

    async def settle(self) -> None:
        """Wait until nothing that was given back is on its way to a broker, because no position passes it until then.

        What is not there after `SEND_BACK_AT_CLOSE_SECONDS` is given up: it comes again, with what follows it in its queue.
        """
        with trio.move_on_after(SEND_BACK_AT_CLOSE_SECONDS):
            passed = trio.Event()  # by then what the loops that were left had in hand has been given back too
            trio.lowlevel.current_trio_token().run_sync_soon(passed.set)
            await passed.wait()
            while self._on_the_way:
                await self._arrival.park()
        if self._on_the_way:
            log.warning("messages_not_sent_back", messages=self._on_the_way, seconds=SEND_BACK_AT_CLOSE_SECONDS)

    def _take_back(self, source: Source, message: ReceivedMessage) -> bool:
        """Whether the message was in hand, and not given back already or forgotten because its queue was moved."""
        taken = source.assigned.give_back(message)
        source.assigned.all_queues.failed += taken
        if not taken and self._orderly:
            source.look_for_idle()
        return taken

    async def _pass_on(self, source: Source, message: ReceivedMessage, delay_level: int) -> None:
        """Offer a message to a broker, or hand it out again here."""
        taken = False
        try:
            taken = not self._broadcasting and await self._give(message, delay_level)
        finally:
            if taken:
                self._finish(source, message)
            elif self._orderly:
                self._hold_up(source, message)
                source.look_for_idle()
            else:
                self._later(self._redeliver_later, source, message)

    def _finish(self, source: Source, message: ReceivedMessage) -> None:
        source.assigned.finish(message)
        if self._orderly:
            source.look_for_idle()

    async def _give(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Offer a message to a broker; return whether one has accepted it."""
        if not self._orderly:
            return await self._send_back.send(message, delay_level)
        times_max = self._reconsume_times_max
        used_up = times_max is not None and message.reconsume_times >= times_max
        return (delay_level < 0 or used_up) and await self._send_back.resend(message, -1)

    def _hold_up(self, source: Source, message: ReceivedMessage) -> None:
        """Pause an orderly queue, and then hand the message out again before all later ones."""
        if source.assigned.redeliver_in_order(message):
            source.suspended = True
            self._later(self._resume_later, source)

    def _later(self, act: Callable[..., Awaitable[None]], *arguments: object) -> None:
        if not self._line.closed:  # after closing, no message is handed out here any more
            self._nursery.start_soon(act, *arguments)

    async def _resume_later(self, source: Source) -> None:
        await trio.sleep(ORDERLY_SUSPEND_SECONDS)
        source.suspended = False
        self._line.offer(source)

    async def _redeliver_later(self, source: Source, message: ReceivedMessage) -> None:
        await trio.sleep(REDELIVER_SECONDS)
        if source.assigned.redeliver(message):
            self._line.offer(source)
