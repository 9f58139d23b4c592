"""Events of the log: control records, applied in log order on master, slave and at recovery.

Invariant: what an event changes in the store follows from the log alone, so every node that derives the same log has the same
queues. The dispatcher calls `LogEvents.apply` between the records before and behind an event. Tables outside the store (topics,
groups, offsets) follow through `on_event`; events that recovery met wait in `recovered` until those tables are loaded.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ..message.control import TOPIC_DELETED, Control, decode_control, deleted_topic_of
from ..message.errors import CorruptRecord
from ..world.events import get_logger
from .commitlog import CommitLog
from .consumequeue import ConsumeQueue, ConsumeQueues, Deletion
from .errors import BadQueueName
from .names import queue_offset_fault

log = get_logger(__name__)

OnEvent = Callable[[Control], None]


@attrs.define(eq=False)
class LogEvents:
    """Applies events to the queues of one store, and tells others of them."""

    log: CommitLog
    queues: ConsumeQueues
    on_event: list[OnEvent] = attrs.field(factory=list[OnEvent])
    """Called with each event once the store is open."""
    recovered: list[tuple[int, Control]] = attrs.field(factory=list[tuple[int, Control]])
    """Physical offsets and contents of the events that recovery met, in log order."""
    recovering: bool = True
    restarted: dict[ConsumeQueue, None] = attrs.field(factory=dict[ConsumeQueue, None])
    """Queues whose files still hold units of messages that were deleted."""

    def apply(self, physical_offset: int, size: int) -> None:
        """Carry out the event whose control record lies there; one that cannot be read, or is unknown, changes nothing.

        Raises:
            OSError: the disk refused. The event may be applied again.
        """
        record = self.log.record(physical_offset, size)
        try:
            control = decode_control(record if record is not None else b"")
            if control.kind == TOPIC_DELETED:
                self._delete_topic(control, physical_offset, size)
        except (CorruptRecord, BadQueueName) as error:
            log.error("control_record_unreadable", physical_offset=physical_offset, reason=str(error))
            return
        if self.recovering:
            self.recovered.append((physical_offset, control))
        for tell in self.on_event:
            tell(control)

    def _delete_topic(self, control: Control, physical_offset: int, size: int) -> None:
        topic, next_offsets = deleted_topic_of(control)
        for offset in next_offsets.values():
            if fault := queue_offset_fault(offset):
                raise CorruptRecord(fault)
        for queue_id in self.queues.ids(topic):
            next_offsets.setdefault(queue_id, self.queues.table[topic, queue_id].max_offset)
        for queue_id, offset in next_offsets.items():
            if offset > 0:
                queue = self.queues.of(topic, queue_id)
                queue.restart(Deletion(physical_offset, size, offset))
                self.restarted[queue] = None
        log.info("topic_ended", topic=topic, physical_offset=physical_offset, queues=len(next_offsets))
