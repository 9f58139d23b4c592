"""The topic table: the topics of this broker with their queues and permissions (RocketMQ TopicConfigManager).

Invariant: every change takes the next version and calls `on_change` at once, so that files and name servers are updated. The
JSON of each topic is kept encoded, because registrations contain all of them. Pure except for the clock, which is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self

import attrs
import orjson

from ...message.control import CONTROL_TOPIC
from ...message.data_version import DataVersion
from ...message.flags import PERM_INHERIT, PERM_READ_WRITE, PERM_WRITE
from ...message.message import DLQ_PREFIX, RETRY_PREFIX
from ...message.numbers import int_of
from ...store.config import SCHEDULE_TOPIC
from ...world.slices import in_slices
from ..config import BrokerConfig
from ..entries import EncodedEntries, encoded_entry
from ..json_values import object_of, table_of
from ..names import name_fault

TEMPLATE_TOPIC = "TBW102"
"""The template for topics that are created by the first send."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SYSTEM_PREFIX = "rmq_sys_"
REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"

NOT_FOR_CLIENTS = frozenset(
    (SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, CONTROL_TOPIC)
)
"""Topics that no client may send to."""
_SYSTEM_TOPICS = NOT_FOR_CLIENTS | {TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

TOPIC_CHARACTERS_MAX = 127
"""The longest name of a topic, also of retry and dead letter topics; the record format of all clients has no room for more."""

SINGLE_TAG = "SINGLE_TAG"
ADOPTED_QUEUES_MIN = 4
"""The fewest queues of an adopted topic: as many as producers ask for when they create a topic by sending."""
DLQ_QUEUES = 1


def topic_name_fault(topic: str) -> str | None:
    """Return why the name of a topic is refused, or None if it is valid."""
    return name_fault("topic", topic, TOPIC_CHARACTERS_MAX)


def _no_attributes() -> dict[str, str]:
    return {}


@attrs.frozen
class TopicConfig:
    """One topic, as it is registered and stored."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ_WRITE
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = attrs.field(factory=_no_attributes)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read a topic from a file or a peer; absent settings get RocketMQ's defaults.

        Raises:
            KeyError, TypeError, ValueError: there is no name, or a number is not one.
        """
        return cls(
            str(value["topicName"]),
            int_of(value.get("readQueueNums", 16)),
            int_of(value.get("writeQueueNums", 16)),
            int_of(value.get("perm", PERM_READ_WRITE)),
            str(value.get("topicFilterType") or SINGLE_TAG),
            int_of(value.get("topicSysFlag", 0)),
            bool(value.get("order")),
            {key: str(text) for key, text in object_of(value.get("attributes")).items()},
        )


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that exist from the start."""
    cluster, broker = config.broker_cluster_name, config.broker_name
    template = config.default_topic_queue_nums
    inherited = PERM_READ_WRITE | PERM_INHERIT
    topics = [
        TopicConfig(SELF_TEST_TOPIC, 1, 1),
        TopicConfig(BENCHMARK_TOPIC, 1024, 1024),
        TopicConfig(cluster, 16, 16, inherited if config.cluster_topic_enable else PERM_INHERIT),
        TopicConfig(broker, 1, 1, inherited if config.broker_topic_enable else PERM_INHERIT),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(SCHEDULE_TOPIC, 18, 18),
        TopicConfig(cluster + REPLY_TOPIC_SUFFIX, 1, 1),
    ]
    if config.auto_create_topic_enable:
        topics.append(TopicConfig(TEMPLATE_TOPIC, template, template, inherited))
    if config.trace_topic_enable:
        topics.append(TopicConfig(TRACE_TOPIC, 1, 1))
    return topics


@attrs.define(eq=False, repr=False)
class TopicTable:
    """All topics of this broker."""

    _now_ms: Callable[[], int]
    _own_names: frozenset[str] = frozenset()
    """System topics that are named after this broker and its cluster."""
    topics: dict[str, TopicConfig] = attrs.field(factory=dict[str, TopicConfig])
    version: DataVersion = attrs.field(factory=DataVersion)
    on_change: list[Callable[[list[str]], None]] = attrs.field(factory=list[Callable[[list[str]], None]])
    """Called with the names of topics that were put or deleted."""
    _entries: EncodedEntries = attrs.field(factory=lambda: EncodedEntries("the table of topics"))

    @classmethod
    def of(cls, config: BrokerConfig, now_ms: Callable[[], int], stored: Any = None) -> Self:
        """Make the table from the content of `topics.json` and the system topics, which always exist."""
        cluster, broker = config.broker_cluster_name, config.broker_name
        table = cls(now_ms, frozenset((cluster, broker, cluster + REPLY_TOPIC_SUFFIX)))
        table.version = DataVersion(0, now_ms())
        if content := table_of(stored, "the content"):
            table.load(content)
        if not config.auto_create_topic_enable:
            table.topics.pop(TEMPLATE_TOPIC, None)  # it exists only while topics can be created by sending
            table._entries.forget(TEMPLATE_TOPIC)
        for topic in system_topics(config):
            table.topics[topic.topic_name] = topic
            table._entries.put({topic.topic_name: topic.to_json()})
        return table

    def load(self, stored: Mapping[str, Any]) -> None:
        """Replace the whole table with one that a file or a master gives; topics that it lacks are removed."""
        topics: dict[str, TopicConfig] = {}
        for name, value in table_of(stored.get("topicConfigTable"), "topicConfigTable").items():
            config = TopicConfig.from_json(table_of(value, name))
            topics[config.topic_name] = config
        self._replace(topics, {}, stored)

    async def load_in_slices(self, stored: Mapping[str, Any]) -> None:
        """Do the same as `load` in several turns of the event loop; the table changes in the last one."""
        topics: dict[str, TopicConfig] = {}
        encoded: dict[str, tuple[TopicConfig, bytes]] = {}
        async for piece in in_slices(table_of(stored.get("topicConfigTable"), "topicConfigTable").items()):
            for name, value in piece:
                config = TopicConfig.from_json(table_of(value, name))
                known = self.topics.get(config.topic_name)
                topics[config.topic_name] = known if known == config and known is not None else config
                if known != config:
                    encoded[config.topic_name] = config, encoded_entry(config.topic_name, config.to_json())
        self._replace(topics, encoded, stored)

    def _replace(
        self, topics: dict[str, TopicConfig], encoded: Mapping[str, tuple[TopicConfig, bytes]], stored: Mapping[str, Any]
    ) -> None:
        """Replace the table; the entries in `encoded` have been encoded already."""
        before, self.topics = self.topics, topics
        gone = sorted(before.keys() - topics.keys())
        # A slave copies the whole table whenever one topic has changed; only changed topics are encoded again.
        changed = [config for name, config in topics.items() if before.get(name) is not config and before.get(name) != config]
        for name in gone:
            self._entries.forget(name)
        ready = {name: entry for name, (config, entry) in encoded.items() if topics[name] is config}
        self._entries.put_encoded(ready)
        self._entries.put({config.topic_name: config.to_json() for config in changed if config.topic_name not in ready})
        self.version = DataVersion.from_json(object_of(stored.get("dataVersion")))
        self._notify([*(config.topic_name for config in changed), *gone])

    def get(self, topic: str) -> TopicConfig | None:
        return self.topics.get(topic)

    def readable_queues(self, topic: str) -> int:
        """How many queues of a topic may be read; 0 for an unknown topic."""
        config = self.topics.get(topic)
        return config.read_queue_nums if config is not None else 0

    def is_system(self, topic: str) -> bool:
        """Whether the topic belongs to the broker itself, so that no request may create or delete it."""
        return topic in _SYSTEM_TOPICS or topic in self._own_names or topic.startswith(SYSTEM_PREFIX)

    def check_room(self, configs: Iterable[TopicConfig]) -> None:
        """Refuse topics for which the table has no room; raises as `EncodedEntries.check_room`."""
        self._entries.check_room({config.topic_name: config.to_json() for config in configs})

    def put(self, *configs: TopicConfig) -> None:
        """Create or replace topics."""
        self._entries.put({config.topic_name: config.to_json() for config in configs})
        for config in configs:
            self.topics[config.topic_name] = config
        self._changed([config.topic_name for config in configs])

    def delete(self, topic: str) -> bool:
        """Delete a topic; return whether it existed."""
        if self.topics.pop(topic, None) is None:
            return False
        self._entries.forget(topic)
        self._changed([topic])
        return True

    def for_send(self, topic: str, template: str, queue_nums: int) -> TopicConfig | None:
        """The topic of a send, or the one that it creates from the topic `template` if that has the permission to be inherited.

        Args:
            queue_nums: how many queues the producer asks for; the topic gets at most as many as the template has.
        """
        config = self.topics.get(topic)
        if config is not None:
            return config
        model = self.topics.get(template)
        if model is None or not model.perm & PERM_INHERIT or topic_name_fault(topic) is not None:
            return None
        queues = max(min(queue_nums, model.write_queue_nums), 1)
        return TopicConfig(topic, queues, queues, model.perm & ~PERM_INHERIT, model.topic_filter_type)

    def for_group(self, topic: str, queue_nums: int, sys_flag: int = 0) -> TopicConfig:
        """A group's retry or dead letter topic, or the one to be created."""
        config = self.topics.get(topic)
        return config or TopicConfig(topic, queue_nums, queue_nums, PERM_READ_WRITE, topic_sys_flag=sys_flag)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all other topics but those of the system."""
        for name in [name for name in self.topics if name not in names and not self.is_system(name)]:
            self.delete(name)

    def clear(self) -> None:
        """Remove all topics but those of the system."""
        self.keep_only(())

    def adopt(self, queue_nums: Mapping[str, int]) -> list[str]:
        """Add topics that have messages in the store but are not in the table; return their names.

        A broker that was killed may have acknowledged messages of a topic that was not in the file yet. Without an entry in
        the table, no consumer could read them.

        Args:
            queue_nums: the number of queues of each topic in the store.
        """
        adopted: list[TopicConfig] = []
        for topic in sorted(queue_nums.keys() - self.topics.keys()):
            if topic_name_fault(topic) is None:
                of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
                queues = queue_nums[topic] if of_group else max(queue_nums[topic], ADOPTED_QUEUES_MIN)
                adopted.append(TopicConfig(topic, queues, queues))
        if adopted:
            self.put(*adopted)
        return [config.topic_name for config in adopted]

    def mark_ordered(self, ordered: Iterable[str]) -> None:
        """Mark the topics in a name server's list as ordered, and all others as not ordered."""
        names = set(ordered)
        changed = [
            attrs.evolve(config, order=not config.order)
            for config in self.topics.values()
            if config.order != (config.topic_name in names)
        ]
        if changed:
            self.put(*changed)

    def encoded(self, names: Iterable[str] | None = None) -> bytes:
        """The JSON of `topicConfigTable` with all topics, or with those in `names` that exist."""
        return self._entries.joined(names)

    def wrapper(self, names: Iterable[str] | None = None, version: DataVersion | None = None) -> bytes:
        """The JSON of version and table, as in registrations, slaves' copies and `topics.json`."""
        encoded = orjson.dumps((version or self.version).to_json())
        return b'{"dataVersion":%b,"topicConfigTable":%b}' % (encoded, self.encoded(names))

    def touch(self) -> None:
        """Announce all topics, because the broker's permission has changed."""
        self.announce(self.topics)

    def announce(self, names: Iterable[str]) -> None:
        """Take the next version, with which name servers accept these topics again although they have not changed."""
        if known := [name for name in names if name in self.topics]:
            self._changed(known)

    def to_json(self) -> dict[str, Any]:
        """The content of `topics.json`; the table is already encoded."""
        return {"dataVersion": self.version.to_json(), "topicConfigTable": orjson.Fragment(self.encoded())}

    def _changed(self, names: list[str]) -> None:
        self.version = self.version.next(self._now_ms())
        self._notify(names)

    def _notify(self, names: list[str]) -> None:
        for notify in self.on_change:
            notify(names)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group
