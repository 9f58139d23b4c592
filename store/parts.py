"""The parts of a message store: the log, what is derived from it, and what both depend on."""

from __future__ import annotations

import attrs

from ..world.real import World
from .config import StoreConfig
from .derived.consumequeue import ConsumeQueues
from .derived.dispatch import Dispatcher
from .derived.index import IndexFiles
from .log.commitlog import CommitLog

DAMAGED_MAX = 1000
"""How many damaged records are remembered; further ones are reported, and found again by the next read."""


@attrs.define(eq=False, kw_only=True)
class StoreParts:
    """The parts of a message store, which its writing and its reading side share."""

    config: StoreConfig
    world: World
    log: CommitLog
    dispatcher: Dispatcher
    queues: ConsumeQueues
    index: IndexFiles | None
    is_replica: bool = False
    """Whether the log is copied from another broker, which may have more, and may truncate this one."""
    next_offsets: dict[tuple[str, int], int] = attrs.field(factory=dict[tuple[str, int], int])
    """The queue offset table: the offset of the next message of each queue."""
    damaged: set[int] = attrs.field(factory=set[int])
    """The physical offsets of records that are known to be damaged, which consumers are not given."""
    file_ends: dict[tuple[str, int], int] = attrs.field(factory=dict[tuple[str, int], int])
    """The first queue offset for which each queue has no file yet; queues that were not put to since they lost a file are
    absent."""

    def note_damaged(self, physical_offset: int) -> None:
        """Remember a record that is damaged or that the disk does not give, unless there are very many already."""
        if len(self.damaged) < DAMAGED_MAX:
            self.damaged.add(physical_offset)

    def disk_ratio(self) -> float:
        """Used share of the commit log's file system, 0..1."""
        return self.world.disk.usage(self.config.commit_log_directory).ratio
