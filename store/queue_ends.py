"""Keeping the next offsets of queues in the log when the messages that determine them expire.

Invariant: on a node that accepts messages, and while nothing is `pending`, the log determines the next offset of every queue:
by a message, by a deletion or by a `QUEUES_END` event. So a node that is filled from this log assigns no queue offset a second
time. A replica expires its log independently; when it becomes master, it appends what its log then lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import trio

from ..message.control import Control, queues_end_of
from ..world.events import get_logger
from .commitlog import CommitLog
from .consumequeue import ConsumeQueues
from .errors import NotWritable

log = get_logger(__name__)

QUEUES_PER_RECORD_MAX = 200
"""More queues than this are divided among several records, each of which stays below 64 KiB."""
APPEND_SECONDS_MAX = 5.0
"""How long we wait until an event is as safe as the mode promises, before the attempt counts as failed."""


class _Writability(Protocol):
    @property
    def hard_refusal(self) -> str | None: ...


class EventLog(Protocol):
    """What `QueueEnds` needs of a store (`PutSide`)."""

    @property
    def log(self) -> CommitLog: ...

    @property
    def queues(self) -> ConsumeQueues: ...

    @property
    def next_offsets(self) -> Mapping[tuple[str, int], int]: ...

    @property
    def writability(self) -> _Writability: ...

    def append_event(self, control: Control, *, on_full_disk: bool = False) -> int: ...

    async def event_done(self, end: int) -> None: ...


@attrs.define(eq=False)
class QueueEnds:
    """Keeps the next offsets of queues in the log of one store."""

    store: EventLog
    filled_from: Callable[[], int] = attrs.field(init=False)
    """Returns the physical offset from which on a node with an empty log is filled by this one."""
    pending: bool = False
    """Whether the log from `filled_from` on may lack the record that determines the next offset of some queue."""

    restate: list[Callable[[], int]] = attrs.field(factory=list[Callable[[], int]])
    """Functions that append what else a node needs whose log begins there. Each returns the end of what it has appended, and
    raises NotWritable if the log does not accept it."""

    def __attrs_post_init__(self) -> None:
        self.filled_from = lambda: self.store.log.min_offset

    def missing(self, offset: int) -> list[tuple[str, int, int]]:
        """Topic, queue id and next offset of the queues whose next offset is determined by no record behind `offset`."""
        table = self.store.queues.table
        return [
            (topic, queue_id, next_offset)
            for (topic, queue_id), next_offset in self.store.next_offsets.items()
            if next_offset and ((queue := table.get((topic, queue_id))) is None or queue.last_mention <= offset)
        ]

    async def append(self, offset: int) -> bool:
        """Append the next offsets that a log would lack if it began at `offset`; returns whether it now has them.

        The events have been applied when this returns True. On a broker that accepts no messages nothing is appended.
        """
        end, store = 0, self.store
        missing = self.missing(offset)
        try:
            for at in range(0, len(missing), QUEUES_PER_RECORD_MAX):
                end = store.append_event(queues_end_of(missing[at : at + QUEUES_PER_RECORD_MAX]), on_full_disk=True)
            if offset > 0:
                end = max([end, *(restate() for restate in self.restate)])
            if end:
                with trio.fail_after(APPEND_SECONDS_MAX):
                    await store.event_done(end)
        except (NotWritable, OSError, trio.TooSlowError) as error:
            log.warning("queue_ends_not_in_log", queues=len(missing), offset=offset, reason=str(error) or "it took too long")
            return False
        if missing:
            log.info("queue_ends_appended", queues=len(missing), offset=offset)
        return True

    async def append_pending(self) -> None:
        """Append what is pending; if that fails, it stays pending."""
        if self.pending and self.store.writability.hard_refusal is None and await self.append(self.filled_from()):
            self.pending = False
