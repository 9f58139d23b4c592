"""Adoption of topics and queues that have messages in the store but are not in the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import attrs

from ..store.message_store import MessageStore
from ..world.events import get_logger
from .topics import TopicConfig, TopicTable

log = get_logger(__name__)


def adopt_stored(
    topics: TopicTable, store: MessageStore, *, but: AbstractSet[str] = frozenset(), has_every_change: bool = False
) -> None:
    """Add every topic with stored messages to the table, except those in `but`, which were deleted, and queues with new ones.

    Args:
        has_every_change: whether the table cannot lack a change, as in DLedger mode, where changes are in the log.
    """
    stored = store.queues_by_topic()
    if not has_every_change:
        _adopt_queues(topics, store, stored)  # first, because an adopted topic makes the table newer
    queue_nums = {topic: max(ids) + 1 for topic, ids in stored.items() if topic not in but}
    if adopted := topics.adopt(queue_nums):
        log.warning("topics_adopted", topics=adopted)


def _adopt_queues(topics: TopicTable, store: MessageStore, stored: Mapping[str, Iterable[int]]) -> None:
    """Let clients read queues that the table does not have, if they got messages after the last change in it.

    Such a topic was given more queues by a change that is not in the table: a slave copies the table seconds later, and a
    broker may be killed before it has written the file. Without those queues, acknowledged messages would be hidden. Messages
    that are older than the table are those of queues that an administrator has taken away.
    """
    changed_ms = topics.version.timestamp
    wider: list[TopicConfig] = []
    for topic, ids in stored.items():
        config = topics.get(topic)
        if config is None or topics.is_system(topic):
            continue
        newer = [at for at in ids if at >= config.read_queue_nums and _newest_ms(store, topic, at) >= changed_ms]
        if newer:
            wider.append(attrs.evolve(config, read_queue_nums=max(newer) + 1))
    if wider:
        log.warning("queues_adopted", read_queue_nums={config.topic_name: config.read_queue_nums for config in wider})
        topics.put(*wider)


def _newest_ms(store: MessageStore, topic: str, queue_id: int) -> int:
    return store.store_time(topic, queue_id, store.max_offset(topic, queue_id) - 1)
