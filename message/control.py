"""Control records: events of the broker itself, which are stored in the log among the messages.

A control record is a message record of transaction type rollback in a topic of its own, so a reader that does not know it skips
it: neither RocketMQ nor an older version of ours adds such a record to a consume queue or to the key index. Its property
`CONTROL` names the kind of event and its body is a JSON object. A reader ignores kinds that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs

from .errors import CorruptRecord, JsonError
from .fields import Buffer
from .flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from .json import dumps_strict, loads
from .layout import body_size_of, properties_of, span_of, topic_of
from .message import IncomingMessage
from .numbers import is_digits
from .properties import NAME_END, PROPERTY_END, decode_properties

CONTROL_TOPIC = "rmq_sys_ledgermq_control"
"""The topic of all control records. RocketMQ reserves the prefix for the system, and no client may send to it."""
KIND_PROPERTY = "CONTROL"
"""The name of the property that holds the kind of event."""

TOPIC_DELETED = "topic_deleted"
"""`topic` ends here. `queues` holds for each queue the offset of its next message; other queues begin at 0 again."""
QUEUES_END = "queues_end"
"""`queues` holds lists of topic, queue id and the offset that the next message of the queue gets, for nodes whose log begins
behind the last message of the queue."""
GROUP_DELETED = "group_deleted"
"""The settings of `group` are deleted here, and with `offsets` also its consumer offsets."""
TOPICS_CHANGED = "topics_changed"
"""`topics` holds the settings of topics from here on, as `topics.json` has them."""
GROUPS_CHANGED = "groups_changed"
"""`groups` holds the settings of consumer groups from here on, as `subscriptionGroup.json` has them. `forbidden` holds for each
group whose `forbiddenTable` has changed all that it says about that group."""
OFFSETS_COMMITTED = "offsets_committed"
"""`offsets` holds lists of topic, group, queue id and consumer offset; -1 means that the group has no offset any more. `resets`
holds topic, group and queue id of those offsets that were set by a reset which clients still have to follow."""
LEASES_CHANGED = "leases_changed"
"""`leases` holds lists of group, topic, broker name, queue id and the client that has locked the queue from here on; an empty
client id means that none has."""
DELAYS_DELIVERED = "delays_delivered"
"""`levels` holds for each delay level the queue offset of the next message to deliver."""
ACCESS_CHANGED = "access_changed"
"""`users` holds users by name and `acls` rights by subject, as `access.json` has them, from here on. `deletedUsers` and
`deletedAcls` name those that are deleted."""

PRODUCER_FENCED = "producer_fenced"
"""From here on, numbered sends of `producer` count only with `epoch` or a higher one. `timestamp` is the store timestamp."""

TABLES_CARRIED = "tables_carried"
"""The events from the physical offset `from` to this one contain all tables: those that were in no log, of a classic log or of
RocketMQ, or those whose events are about to expire. `topics` and `groups` hold the names of all topics and groups, or are
absent if there are very many; nodes whose tables were in no log remove what is not named. `access` holds the names of all users
and the subjects of all rights; it is absent in events of older versions, and if they are very many."""


@attrs.frozen
class Control:
    """One event of the log."""

    kind: str
    content: Mapping[str, Any]


def is_control(topic: str, sys_flag: int) -> bool:
    """Whether a record with this topic and these system flags is a control record."""
    return topic == CONTROL_TOPIC and sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK


def control_message(control: Control, timestamp: int, host: bytes) -> IncomingMessage:
    """The message that carries an event.

    Args:
        timestamp: of the broker's wall clock, milliseconds.
        host: the encoded address of the broker.
    """
    return IncomingMessage(
        CONTROL_TOPIC,
        0,
        dumps_strict(control.content),
        f"{KIND_PROPERTY}{NAME_END}{control.kind}{PROPERTY_END}",
        0,
        TRANSACTION_ROLLBACK,
        timestamp,
        host,
    )


def decode_control(record: Buffer) -> Control:
    """Read the event that a control record carries.

    Raises:
        CorruptRecord: the bytes are no control record, or its body is no JSON object.
    """
    span = span_of(record, 0, len(record))
    if span is None or not is_control(topic_of(record, span), span.sys_flag):
        raise CorruptRecord("the bytes are no control record")
    kind = decode_properties(properties_of(record, span)).get(KIND_PROPERTY, "")
    try:
        content = loads(bytes(record[span.body_at : span.body_at + body_size_of(record, span)]))
    except JsonError as error:
        raise CorruptRecord(f"the body of the control record {kind!r} is {error}") from error
    if not isinstance(content, dict):
        raise CorruptRecord(f"the body of the control record {kind!r} is no JSON object")
    return Control(kind, cast("dict[str, Any]", content))


def deletion_of(topic: str, next_offsets: Mapping[int, int]) -> Control:
    """The event that a topic is deleted; `next_offsets` says for each queue where its offsets go on."""
    queues = {str(queue_id): offset for queue_id, offset in next_offsets.items()}
    return Control(TOPIC_DELETED, {"topic": topic, "queues": queues})


def deleted_topic_of(control: Control) -> tuple[str, dict[int, int]]:
    """The topic that an event deletes, and for each queue the offset that its next message gets.

    Raises:
        CorruptRecord: the content has another shape.
    """
    topic, queues = control.content.get("topic"), control.content.get("queues", {})
    if not isinstance(topic, str) or not isinstance(queues, dict):
        raise CorruptRecord(f"a {TOPIC_DELETED} record names a topic and queues (got {control.content!r:.200})")
    next_offsets: dict[int, int] = {}
    for queue_id, offset in cast("dict[str, Any]", queues).items():
        if not is_digits(queue_id) or not isinstance(offset, int) or isinstance(offset, bool):
            raise CorruptRecord(f"a {TOPIC_DELETED} record holds queue ids and offsets (got {queue_id!r:.40}: {offset!r:.40})")
        next_offsets[int(queue_id)] = offset
    return topic, next_offsets


def queues_end_of(queues: Iterable[tuple[str, int, int]]) -> Control:
    """The event that says where queues go on: topic, queue id and next offset of each."""
    return Control(QUEUES_END, {"queues": [list(queue) for queue in queues]})


def ended_queues_of(control: Control) -> list[tuple[str, int, int]]:
    """Topic, queue id and next offset of each queue of a `QUEUES_END` event.

    Raises:
        CorruptRecord: the content has another shape.
    """
    rows = control.content.get("queues")
    if not isinstance(rows, list):
        raise CorruptRecord(f"a {QUEUES_END} record holds a list of queues (got {control.content!r:.200})")
    found: list[tuple[str, int, int]] = []
    for row in cast("Iterable[Any]", rows):
        parts = list(cast("Iterable[Any]", row)) if isinstance(row, list) else []
        if [type(part) for part in parts] != [str, int, int]:
            raise CorruptRecord(f"a {QUEUES_END} record holds topics, queue ids and offsets (got {row!r:.200})")
        found.append((parts[0], parts[1], parts[2]))
    return found


def group_deletion_of(group: str, *, offsets: bool) -> Control:
    """The event that a group is deleted; with `offsets` its consumer offsets go too."""
    return Control(GROUP_DELETED, {"group": group, "offsets": offsets})


def deleted_group_of(control: Control) -> tuple[str, bool]:
    """The group that an event deletes, and whether its consumer offsets go too.

    Raises:
        CorruptRecord: the content has another shape.
    """
    group, offsets = control.content.get("group"), control.content.get("offsets", False)
    if not isinstance(group, str) or not isinstance(offsets, bool):
        raise CorruptRecord(f"a {GROUP_DELETED} record names a group (got {control.content!r:.200})")
    return group, offsets


def fence_of(producer_id: str, epoch: int, timestamp: int) -> Control:
    """The event that a producer with this epoch replaces those with the same id and lower epochs."""
    return Control(PRODUCER_FENCED, {"producer": producer_id, "epoch": epoch, "timestamp": timestamp})


def fenced_producer_of(control: Control) -> tuple[str, int, int]:
    """The producer id, the epoch and the timestamp of a `PRODUCER_FENCED` event.

    Raises:
        CorruptRecord: the content has another shape.
    """
    parts = [control.content.get(name) for name in ("producer", "epoch", "timestamp")]
    if [type(part) for part in parts] != [str, int, int]:
        raise CorruptRecord(f"a {PRODUCER_FENCED} record names a producer, epoch and time (got {control.content!r:.200})")
    return cast("tuple[str, int, int]", tuple(parts))
