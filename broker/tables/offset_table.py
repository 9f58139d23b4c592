"""Offsets by topic, then group, then queue, so that a topic leaves in one step however many groups have consumed it. Pure."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping

import attrs

Queues = dict[int, int]
"""The offsets of one group on one topic, by queue id."""
Groups = dict[str, Queues]
"""The offsets of all groups on one topic."""
Row = tuple[str, str, Queues]
"""A topic, a group, and its offsets there."""


@attrs.define(eq=False, repr=False)
class OffsetTable(Mapping[tuple[str, str], Queues]):
    """Is read as a mapping from (topic, group)."""

    topics: dict[str, Groups] = attrs.field(factory=dict[str, Groups])
    """No topic is without groups."""

    def __getitem__(self, key: tuple[str, str]) -> Queues:
        return self.topics[key[0]][key[1]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((topic, group) for topic, groups in self.topics.items() for group in groups)

    def __len__(self) -> int:
        return sum(map(len, self.topics.values()))

    def items(self) -> ItemsView[tuple[str, str], Queues]:
        return _Items(self)

    def walk(self) -> Iterator[tuple[tuple[str, str], Queues]]:
        """Iterate over the items while groups may be added and removed: those that are may be left out."""
        for topic in list(self.topics):
            for group in list(self.topics.get(topic, ())):
                if (queues := self.topics.get(topic, {}).get(group)) is not None:
                    yield (topic, group), queues

    def put(self, topic: str, group: str) -> Queues:
        """Add a group without offsets."""
        return self.topics.setdefault(topic, {}).setdefault(group, {})


class _Items(ItemsView[tuple[str, str], Queues]):
    """Without a search for each key, of which there may be hundreds of thousands in a turn of the event loop."""

    _mapping: OffsetTable

    def __iter__(self) -> Iterator[tuple[tuple[str, str], Queues]]:
        return (((topic, group), queues) for topic, groups in self._mapping.topics.items() for group, queues in groups.items())
