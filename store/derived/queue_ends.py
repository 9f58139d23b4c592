"""Keeping the next offsets of queues in the log when the messages that determine them expire.

Invariant: on a node that accepts messages, and while nothing is `pending`, the log determines the next offset of every queue:
by a message, by a deletion or by a `QUEUES_END` event. So a node that is filled from this log assigns no queue offset a second
time. A replica expires its log independently; when it becomes master, it appends what its log then lacks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import attrs
import trio

from ...message.control import Control, queues_end_of
from ...world.events import get_logger
from ...world.real import World
from ...world.slices import in_slices
from ..errors import NotWritable
from ..log.commitlog import LogRecords
from .consumequeue import ConsumeQueues

log = get_logger(__name__)

QUEUES_PER_RECORD_MAX = 200
"""More queues than this are divided among several records, each of which stays below 64 KiB."""
APPEND_SECONDS_MAX = 5.0
"""How long we wait until an event is as safe as the mode promises, before the attempt counts as failed."""

_Queue = tuple[str, int]
"""Topic and queue id."""


class _Writability(Protocol):
    @property
    def hard_refusal(self) -> str | None: ...


class EventLog(Protocol):
    """What `QueueEnds` needs of a store (`PutSide`)."""

    @property
    def world(self) -> World: ...

    @property
    def log(self) -> LogRecords: ...

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

    restate: list[Callable[[int], Awaitable[None]]] = attrs.field(factory=list[Callable[[int], Awaitable[None]]])
    """Functions that append what else a node needs whose log begins at an offset, unless the log has it. Each returns when that
    is as safe as the mode promises and applied here, and raises NotWritable if it is not."""

    def __attrs_post_init__(self) -> None:
        self.filled_from = lambda: self.store.log.min_offset

    def missing(self, queues: Iterable[_Queue], offset: int) -> list[_Queue]:
        """Those of the queues whose next offset is determined by no record behind `offset`."""
        table, next_offsets = self.store.queues.table, self.store.next_offsets
        return [
            key
            for key in queues
            if next_offsets.get(key) and ((queue := table.get(key)) is None or queue.last_mention <= offset)
        ]

    async def append(self, offset: int) -> bool:
        """Append the next offsets that a log would lack if it began at `offset`; returns whether it now has them.

        The events have been applied when this returns True. On a broker that accepts no messages nothing is appended. The work
        is divided among turns of the event loop; a queue whose next offset is determined meanwhile may be in an event, too.
        """
        end, missing, store = 0, 0, self.store
        try:
            async for queues in in_slices(
                list(store.next_offsets), QUEUES_PER_RECORD_MAX, next_turn=store.world.processor.next_turn
            ):
                if lacking := self.missing(queues, offset):
                    rows = [(topic, queue_id, store.next_offsets[topic, queue_id]) for topic, queue_id in lacking]
                    end = store.append_event(queues_end_of(rows), on_full_disk=True)
                    missing += len(lacking)
            if end:
                with trio.fail_after(APPEND_SECONDS_MAX):
                    await store.event_done(end)
            if offset > 0:
                for restate in self.restate:
                    await restate(offset)
        except (NotWritable, OSError, trio.TooSlowError) as error:
            log.warning("queue_ends_not_in_log", queues=missing, offset=offset, reason=str(error) or "it took too long")
            return False
        if missing:
            log.info("queue_ends_appended", queues=missing, offset=offset)
        return True

    async def append_pending(self) -> None:
        """Append what is pending; if that fails, or the log begins later meanwhile, it stays pending."""
        if self.pending and self.store.writability.hard_refusal is None:
            offset = self.filled_from()
            if await self.append(offset) and offset == self.filled_from():
                self.pending = False
