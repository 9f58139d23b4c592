"""Adoption of topics and queues that have messages in the store but are not in the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import attrs

from ...store.message_store import MessageStore
from ...world.events import get_logger
from ...world.slices import in_slices
from .topics import TopicConfig, TopicTable

log = get_logger(__name__)

QUEUES_PER_TURN = 10_000
"""How many queues of the store are listed in one turn of the event loop, in a microsecond each."""
TOPICS_PER_TURN = 250
"""How many topics are compared with the table in one turn of the event loop, in about 20 microseconds each."""


async def adopt_stored(
    topics: TopicTable, store: MessageStore, *, but: AbstractSet[str] = frozenset(), has_every_change: bool = False
) -> None:
    """Add every topic with stored messages to the table, except those in `but`, which were deleted, and queues with new ones.

    The work is divided among turns of the event loop; what is deleted meanwhile is not added.

    Args:
        has_every_change: whether the table cannot lack a change, as in DLedger mode, where changes are in the log.
    """
    ids = defaultdict[str, list[int]](list)
    async for piece in in_slices(list(store.queues.table), QUEUES_PER_TURN):
        for topic, queue_id in piece:
            ids[topic].append(queue_id)
    changed_ms = topics.version.timestamp  # before the changes made here, which make the table newer
    async for names in in_slices(sorted(ids), TOPICS_PER_TURN):
        stored = [topic for topic in names if store.has_messages(topic)]
        if not has_every_change:
            _adopt_queues(topics, store, stored, changed_ms)
        queue_nums = {topic: max(ids[topic]) + 1 for topic in stored if topic not in but}
        if adopted := topics.adopt(queue_nums):
            log.warning("topics_adopted", topics=adopted)


def _adopt_queues(topics: TopicTable, store: MessageStore, stored: Iterable[str], changed_ms: int) -> None:
    """Let clients read queues that the table does not have, if they got messages after the last change in it.

    Such a topic was given more queues by a change that is not in the table: a slave copies the table seconds later, and a
    broker may be killed before it has written the file. Without those queues, acknowledged messages would be hidden. Messages
    that are older than the table are those of queues that an administrator has taken away.
    """
    wider: list[TopicConfig] = []
    for topic in stored:
        config = topics.get(topic)
        if config is None or topics.is_system(topic):
            continue
        ids = store.queue_ids(topic)
        newer = [at for at in ids if at >= config.read_queue_nums and _newest_ms(store, topic, at) >= changed_ms]
        if newer:
            wider.append(attrs.evolve(config, read_queue_nums=max(newer) + 1))
    if wider:
        log.warning("queues_adopted", read_queue_nums={config.topic_name: config.read_queue_nums for config in wider})
        topics.put(*wider)


def _newest_ms(store: MessageStore, topic: str, queue_id: int) -> int:
    return store.store_time(topic, queue_id, store.max_offset(topic, queue_id) - 1)
