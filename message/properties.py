"""The property string: name U+0001 value U+0002, repeated (RocketMQ message properties).

Java 4.9 drops the last U+0002, everybody else writes it; readers accept both. No escaping exists, so neither separator may
occur in a name or value.
"""

from __future__ import annotations

from collections.abc import Mapping

NAME_END = "\x01"
PROPERTY_END = "\x02"
PROPERTIES_BYTES_MAX = 32767
COPY_BYTES = 768
"""By how many bytes at most a copy of a message for a delay, a retry or the dead letters is larger than the message. The copy
has up to three names of topics, two message ids and some numbers as properties, and a longer topic."""
SENT_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX - COPY_BYTES
"""The largest properties of a message that is sent, so that those of its copies stay within `PROPERTIES_BYTES_MAX`."""

KEYS = "KEYS"
TAGS = "TAGS"
UNIQUE_KEY = "UNIQ_KEY"
WAIT = "WAIT"
DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
CLUSTER = "CLUSTER"
MESSAGE_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
SHARDING_KEY = "__SHARDINGKEY"
SEND_NUMBER = "LMQ_SEND"
"""Our own property: the number of the send that stored the message, see `send_number.py`; only brokers write it."""

KEYS_MARK, TAGS_MARK, DELAY_MARK, UNIQUE_KEY_MARK, SEND_NUMBER_MARK = (
    name + NAME_END for name in (KEYS, TAGS, DELAY, UNIQUE_KEY, SEND_NUMBER)
)
"""A property string without its mark has no such property, and searching the mark is faster than decoding the string."""


def decode_properties(text: str) -> dict[str, str]:
    r"""Read a property string; items without a name, a value or U+0001 are skipped, the last of a name wins.

    >>> decode_properties("TAGS\x01a\x02KEYS\x01k1 k2")
    {'TAGS': 'a', 'KEYS': 'k1 k2'}
    """
    properties: dict[str, str] = {}
    for item in text.split(PROPERTY_END):
        name, _, value = item.partition(NAME_END)
        if name and value:
            properties[name] = value
    return properties


def find_property(text: str, name: str) -> str:
    r"""One property's value as `decode_properties` gives it, or ""; twice as fast where few of many properties are wanted.

    >>> find_property("TAGS\x01a\x02KEYS\x01k1 k2", "KEYS")
    'k1 k2'
    """
    return find_marked(text, name + NAME_END)


def find_marked(text: str, mark: str) -> str:
    """The value of the property whose name and U+0001 are `mark`, or ""; for code that runs once per message."""
    at = text.rfind(mark)
    if at < 0:
        return ""
    if at == 0 or text[at - 1] == PROPERTY_END:
        at += len(mark)
        end = text.find(PROPERTY_END, at)
        value = text[at:end] if end >= 0 else text[at:]
        if value:
            return value
    # The mark was the end of another name, a part of a value, or a property without a value, before which one may have a value.
    return decode_properties(text).get(mark[:-1], "")


def encode_properties(properties: Mapping[str, str]) -> str:
    """Write a property string, each item ended by U+0002.

    Raises:
        ValueError: a name or value holds U+0001 or U+0002.
    """
    items: list[str] = []
    for name, value in properties.items():
        item = f"{name}{NAME_END}{value}{PROPERTY_END}"
        if item.count(NAME_END) != 1 or item.count(PROPERTY_END) != 1:
            raise ValueError(f"property {name!r}: names and values must not hold U+0001 or U+0002 (got {value!r})")
        items.append(item)
    return "".join(items)


def join_properties(text: str, addition: str) -> str:
    """Append `addition` to `text`, which may or may not end with U+0002."""
    if not text or text.endswith(PROPERTY_END):
        return text + addition
    return text + PROPERTY_END + addition
