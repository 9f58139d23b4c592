"""Messages that an administrator pushes to one consumer, which consumes them before all others and reports the outcome.

Names: RocketMQ `CONSUME_MESSAGE_DIRECTLY`. The outcome is a success only if the application has acknowledged the message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import trio

from ..message.message import MessageQueue
from .delivery import Line
from .received import DONE, HANDED_OUT, ReceivedMessage

WAIT_SECONDS = 3.0
"""How long such a message waits for a loop that takes it; then the answer is that it was not consumed."""
WAITING_MAX = 64
"""How many of these messages may wait; a further one is refused as SYSTEM_BUSY."""


@attrs.define(eq=False)
class DirectDelivery:
    """The origin of a message that a broker wants consumed now; the outcome is sent as the answer."""

    queue: MessageQueue
    _answer: Callable[[str], None]

    @property
    def withheld(self) -> bool:
        """False: such a message belongs to no queue that is read."""
        return False

    def check_open(self) -> None:
        """Do nothing: a late answer does no harm."""

    def ack(self, message: ReceivedMessage) -> None:
        self._settle(message, "CR_SUCCESS")

    async def retry(self, message: ReceivedMessage, delay_level: int) -> None:  # noqa: ARG002 - the administrator decides
        self._settle(message, "CR_LATER")

    def put_back(self, message: ReceivedMessage) -> None:
        self.give_back(message)

    def give_back(self, message: ReceivedMessage) -> None:
        self._settle(message, "CR_LATER")

    def _settle(self, message: ReceivedMessage, outcome: str) -> None:
        if message.state != DONE:
            message.state = DONE
            self._answer(outcome)


@attrs.define(eq=False)
class DirectMessages:
    """The pushed messages that no loop has taken yet."""

    waiting: deque[ReceivedMessage] = attrs.field(factory=deque[ReceivedMessage])

    def add(self, message: ReceivedMessage, nursery: trio.Nursery, line: Line) -> bool:
        """Let a message wait, and wake a loop; False if there is no room for it."""
        if len(self.waiting) >= WAITING_MAX or line.closed:
            return False
        self.waiting.append(message)
        line.wake_one()
        nursery.start_soon(self._expire, message)
        return True

    def take(self) -> ReceivedMessage:
        """Hand out the first one."""
        message = self.waiting.popleft()
        message.state = HANDED_OUT
        return message

    def close(self) -> None:
        """Give back all that wait."""
        while self.waiting:
            self.waiting.popleft().give_back()

    async def _expire(self, message: ReceivedMessage) -> None:
        await trio.sleep(WAIT_SECONDS)
        if message in self.waiting:
            self.waiting.remove(message)
            message.give_back()
