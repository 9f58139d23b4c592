"""Moving a queue that is read to another offset, which push and pull consumers do alike."""

from __future__ import annotations

import trio

from ..message.message import MessageQueue
from .arguments import LONG_MAX, check_integer
from .queue_calls import max_offset, min_offset, offset_at
from .session import Session


class Seeks:
    """The part of a consumer that moves its queues. All methods raise `InvalidArgument` for a queue that it does not read."""

    __slots__ = ()

    _session: Session

    def _check_read(self, queue: MessageQueue) -> None:
        """Raise `Closed` or `InvalidArgument` unless the queue is read now."""
        raise NotImplementedError

    def _move(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset in a queue that is read now."""
        raise NotImplementedError

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at `offset` in a queue that is read now.

        Prefetched messages are dropped. Those that the application has in hand are no longer waited for: a push consumer
        commits `offset` for its group, and acknowledging or retrying them does nothing.
        """
        self._check_read(queue)
        check_integer("offset", offset, 0, LONG_MAX)
        self._move(queue, offset)
        await trio.lowlevel.checkpoint()

    async def seek_to_beginning(self, queue: MessageQueue) -> None:
        """Continue at the oldest message of a queue that is read now; see `seek`."""
        self._check_read(queue)
        await self.seek(queue, await min_offset(self._session, queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue behind the newest message of a queue that is read now; see `seek`."""
        self._check_read(queue)
        await self.seek(queue, await max_offset(self._session, queue))

    async def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue at the first message of a queue that was stored at `timestamp_ms` or later; see `seek`."""
        self._check_read(queue)
        check_integer("timestamp_ms", timestamp_ms, 0, LONG_MAX)
        await self.seek(queue, await offset_at(self._session, queue, timestamp_ms))
