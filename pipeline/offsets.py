"""Offsets of queues as JSON, `{"topic":{"broker-a":{"0":23,"1":-1}}}`, for options, checkpoints and progress reports.

Spark compares offsets as texts, so the order of keys is fixed and equal maps have equal JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..message.message import MessageQueue
from ..message.numbers import is_digits
from .errors import BadOption

EARLIEST = -2
"""A value in place of an offset that means the oldest message of the queue."""
LATEST = -1
"""A value in place of an offset that means the end of the queue, after its newest message."""

Offsets = dict[MessageQueue, int]
"""The next offset to read, for each queue."""

JsonOffsets = dict[str, dict[str, dict[str, int]]]


def to_json(offsets: Mapping[MessageQueue, int]) -> JsonOffsets:
    """Write offsets as nested dicts, keys sorted: topics and brokers by name, queues by number."""
    nested: JsonOffsets = {}
    for queue in sorted(offsets):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = int(offsets[queue])
    return nested


def from_json(nested: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """Read what `to_json` wrote."""
    return {
        MessageQueue(topic, broker, int(queue_id)): int(offset)
        for topic, brokers in nested.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def parse(option: str, text: str, least: int = EARLIEST) -> Offsets:
    """Read offsets that a user has written.

    Args:
        option: named in errors.
        text: JSON.
        least: the smallest number that is allowed.

    Raises:
        BadOption: the text is not JSON, or not of this shape, or a number is not an offset; the error names the place.
    """
    found: Offsets = {}
    for topic, brokers in _object(option, text, _loaded(option, text), "the whole").items():
        for broker, queues in _object(option, text, brokers, f"{topic!r}").items():
            for queue_id, offset in _object(option, text, queues, f"{topic!r}.{broker!r}").items():
                place = f"{topic!r}.{broker!r}.{queue_id!r}"
                if not is_digits(queue_id):
                    raise BadOption(option, text, f"{place}: a queue is a number from 0 on")
                if type(offset) is not int or offset < least:
                    raise BadOption(option, text, f"{place}: {offset!r} is not an offset: a whole number, at least {least}")
                found[MessageQueue(topic, broker, int(queue_id))] = offset
    return found


def parse_assignment(option: str, text: str) -> list[MessageQueue]:
    """Read `{"topic":{"broker-a":[0,1]}}`; raises as `parse` does."""
    found: list[MessageQueue] = []
    for topic, brokers in _object(option, text, _loaded(option, text), "the whole").items():
        for broker, queues in _object(option, text, brokers, f"{topic!r}").items():
            listed = cast("list[int]", queues) if isinstance(queues, list) else [-1]
            if not listed or any(type(each) is not int or each < 0 for each in listed):
                raise BadOption(option, text, f"{topic!r}.{broker!r}: a list of queue numbers is expected, such as [0, 1]")
            found += [MessageQueue(topic, broker, queue_id) for queue_id in listed]
    if not found:
        raise BadOption(option, text, "no queue is named")
    return sorted(set(found))


def assignment(queues: Iterable[MessageQueue]) -> str:
    """Return the text that `parse_assignment` reads."""
    nested: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(queues):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker_name, []).append(queue.queue_id)
    return json.dumps(nested)


def _loaded(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadOption(option, text, f"not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}") from error


def _object(option: str, text: str, value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadOption(option, text, f'{place}: an object is expected, as in {{"topic":{{"broker-a":{{"0":23}}}}}}')
    return cast("dict[str, Any]", value)
