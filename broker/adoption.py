"""Adoption of topics that have messages in the store but no entry in the table."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from ..store.message_store import MessageStore
from ..world.events import get_logger
from .topics import TopicTable

log = get_logger(__name__)


def adopt_stored_topics(topics: TopicTable, store: MessageStore, but: AbstractSet[str] = frozenset()) -> None:
    """Add every topic with stored messages to the table, except those in `but`, which were deleted."""
    queue_nums = {topic: max(store.queue_ids(topic)) + 1 for topic in store.topics() - but}
    if adopted := topics.adopt(queue_nums):
        log.warning("topics_adopted", topics=adopted)
