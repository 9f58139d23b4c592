"""The settings of a topic on one broker, and the queues that a change would hide. Pure; named as RocketMQ's `TopicConfig`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ...message.flags import PERM_READ, PERM_READ_WRITE, PERM_WRITE
from ...message.message import MessageQueue
from ..arguments import QUEUES_MAX, check_integer, check_properties
from ..route import AUTO_CREATE_TOPIC
from .values import QueueRange

PERMISSION_NAMES = {PERM_READ_WRITE: "rw", PERM_READ: "r", PERM_WRITE: "w", 0: "none"}
QUEUES = 8


def _no_attributes() -> Mapping[str, str]:
    return {}


@attrs.frozen
class TopicSettings:
    """The settings of a topic on one broker."""

    read_queues: int = QUEUES
    write_queues: int = QUEUES
    perm: int = PERM_READ_WRITE
    order: bool = False
    attributes: Mapping[str, str] = attrs.field(factory=_no_attributes)

    def __str__(self) -> str:
        queues = f"{self.read_queues} queue{'' if self.read_queues == 1 else 's'}"
        if self.read_queues != self.write_queues:
            queues = f"{self.read_queues} queues to read and {self.write_queues} to write"
        words = [queues, f"permission {PERMISSION_NAMES.get(self.perm, self.perm)}"]
        words += ["ordered"] if self.order else []
        words += [f"{name}={value}" for name, value in sorted(self.attributes.items())]
        return ", ".join(words)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TopicSettings:
        """Read a `TopicConfig`; missing fields have RocketMQ's defaults."""
        attributes: Mapping[str, Any] = body.get("attributes") or {}
        return cls(
            int(body.get("readQueueNums", 16)),
            int(body.get("writeQueueNums", 16)),
            int(body.get("perm", PERM_READ_WRITE)),
            bool(body.get("order")),
            {name: str(value) for name, value in attributes.items()},
        )

    def fields(self, topic: str) -> dict[str, Any]:
        """The fields of the request that gives a broker these settings."""
        return {
            "topic": topic,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": self.read_queues,
            "writeQueueNums": self.write_queues,
            "perm": self.perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": self.order,
            "attributes": ",".join(f"+{name}={value}" for name, value in self.attributes.items()) or None,
        }


@attrs.frozen(kw_only=True)
class TopicChange:
    """A requested change of a topic's settings; None leaves a setting as it is.

    Raises:
        InvalidArgument: a value is one that no broker accepts.
    """

    queues: int | None = None
    read_queues: int | None = None
    write_queues: int | None = None
    perm: int | None = None
    order: bool | None = None
    attributes: Mapping[str, str] | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("queues", "read_queues", "write_queues"):
            if (count := getattr(self, name)) is not None:
                check_integer(name, count, 1 if name == "queues" else 0, QUEUES_MAX)
        if self.perm is not None:
            check_integer("perm", self.perm, 0, PERM_READ_WRITE)
        check_properties(self.attributes or {}, "attributes")

    def applied(self, before: TopicSettings) -> TopicSettings:
        """The settings after this change; those that it does not name are as before."""
        return TopicSettings(
            _first(self.read_queues, self.queues, before.read_queues),
            _first(self.write_queues, self.queues, before.write_queues),
            _first(self.perm, before.perm),
            before.order if self.order is None else self.order,
            {**before.attributes, **(self.attributes or {})},
        )


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def hidden_queues(
    ranges: Iterable[tuple[MessageQueue, QueueRange]], before: TopicSettings, after: TopicSettings
) -> dict[MessageQueue, int]:
    """The queues that hold messages and are readable with `before` but not with `after`, with their numbers of messages."""
    return {
        queue: held.max_offset - held.min_offset
        for queue, held in ranges
        if after.read_queues <= queue.queue_id < before.read_queues and held.max_offset > held.min_offset
    }
