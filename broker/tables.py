"""The tables of a broker that the other nodes of its group need too."""

from __future__ import annotations

import attrs

from .delay import DelayDelivery
from .groups import GroupTable
from .locks import QueueLocks
from .offsets import ConsumerOffsets
from .topics import TopicTable


@attrs.frozen(eq=False, kw_only=True)
class Tables:
    """Topics, groups with their offsets and locks, and the positions of delayed messages."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    locks: QueueLocks
    delay: DelayDelivery
