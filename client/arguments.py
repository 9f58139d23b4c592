"""Checks of the arguments that applications pass to the client's public functions, before anything is sent. Pure.

Each check raises `InvalidArgument` with a sentence that names the argument, says what is allowed and quotes the value.
Values that Python would convert silently are refused too: the number 5 is no tag, and `True` is no timeout.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from inspect import iscoroutinefunction
from math import isfinite
from typing import TypeGuard, TypeVar, cast

from ..message.message import DLQ_PREFIX, RETRY_PREFIX, Body, Message, MessageQueue
from .errors import InvalidArgument

TOPIC_CHARACTERS_MAX = 127
LONG_TOPIC_CHARACTERS_MAX = 255
"""The names of retry and dead-letter topics contain the name of a group, so they may be longer."""
GROUP_CHARACTERS_MAX = 255
DELAY_LEVEL_MAX = 18
QUEUES_MAX = 65535
"""How many queues of a topic one broker may have; a larger number is refused."""
LONG_MAX = (1 << 63) - 1
INT_MAX = (1 << 31) - 1

DEAD_LETTER_LEVEL = -1
"""The delay level that sends a message to the dead letters at once."""

_NAME = re.compile(r"[A-Za-z0-9%|_-]+")
_SHOWN_CHARACTERS_MAX = 64

Choice = TypeVar("Choice", bound=Enum)


def shown(value: object) -> str:
    """The representation of a value for an error text, shortened to one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[: _SHOWN_CHARACTERS_MAX - 3]}..."


def check_text(name: str, value: object, *, empty: bool = False) -> str:
    """Refuse anything but a text; the text may be empty only if `empty` is set."""
    if not isinstance(value, str) or not (value or empty):
        raise InvalidArgument(f"{name} must be a {'' if empty else 'non-empty '}text (got {shown(value)})")
    return value


def check_topic(topic: object, name: str = "topic") -> str:
    """Refuse a topic that every broker refuses: empty, too long, or a character outside `A-Z a-z 0-9 % | - _`."""
    if not isinstance(topic, str):
        raise InvalidArgument(f"{name} must be a text (got {shown(topic)})")
    longest = LONG_TOPIC_CHARACTERS_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_CHARACTERS_MAX
    return _check_name(name, topic, longest)


def check_group(group: object, name: str = "group") -> str:
    """Refuse a group that every broker refuses; the rules are those of `check_topic`."""
    if not isinstance(group, str):
        raise InvalidArgument(f"{name} must be a text (got {shown(group)})")
    return _check_name(name, group, GROUP_CHARACTERS_MAX)


def _check_name(what: str, name: str, longest: int) -> str:
    if not 1 <= len(name) <= longest:
        raise InvalidArgument(f"{what} {name[:32]!r}: 1 to {longest} characters are allowed (got {len(name)})")
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{what} {name!r}: only the characters A-Z a-z 0-9 % | - _ are allowed")
    return name


def check_integer(name: str, value: object, least: int, most: int) -> int:
    """Refuse anything but a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        too_large = isinstance(value, int) and value > most
        bounds = f"of at least {least}" if most == LONG_MAX and not too_large else f"from {least} to {most}"
        raise InvalidArgument(f"{name} must be a whole number {bounds} (got {shown(value)})")
    return value


def check_seconds(name: str, value: object) -> float:
    """Refuse anything but a finite number of seconds above 0."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not (value > 0 and isfinite(value)):
        raise InvalidArgument(f"{name} must be a number of seconds above 0 (got {shown(value)})")
    return value


def check_timeout(name: str, value: object) -> None:
    """Refuse anything but None, which means no time limit, and a number of seconds of at least 0."""
    if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0):
        raise InvalidArgument(f"{name} must be None or a number of seconds, at least 0 (got {shown(value)})")


def check_choice(name: str, value: object, choices: type[Choice]) -> Choice:
    """Refuse anything but a member of an enumeration."""
    if not isinstance(value, choices):
        raise InvalidArgument(f"{name} must be one of {', '.join(map(str, choices))} (got {shown(value)})")
    return value


def check_switch(name: str, value: object) -> None:
    """Refuse anything but True and False: the text "false", as a file of settings has it, would count as true."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False (got {shown(value)})")


def check_function(name: str, value: object, *, may_be_async: bool = False) -> None:
    """Refuse anything but None and what can be called, and an async function where nobody would wait for it."""
    if value is not None and not callable(value):
        raise InvalidArgument(f"{name} must be None or a function (got {shown(value)})")
    if not may_be_async and iscoroutinefunction(value):
        raise InvalidArgument(f"{name} must not be async (got {shown(value)})")


def _is_several(value: object) -> TypeGuard[Iterable[object]]:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray | memoryview | Message)


def _is_mapping(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, Mapping)


def check_queue(name: str, value: object) -> MessageQueue:
    """Refuse anything but a `MessageQueue` with usable parts."""
    if not isinstance(value, MessageQueue):
        raise InvalidArgument(f"{name} must be a MessageQueue (got {shown(value)})")
    check_topic(value.topic, f"the topic of {name}")
    check_text(f"the broker name of {name}", value.broker_name)
    check_integer(f"the queue id of {name}", value.queue_id, 0, INT_MAX)
    return value


def check_queues(name: str, values: object) -> list[MessageQueue]:
    """Refuse anything but several `MessageQueue`s."""
    if not _is_several(values):
        raise InvalidArgument(f"{name} must be several MessageQueues (got {shown(values)})")
    return [check_queue(f"each of {name}", queue) for queue in values]


def check_delay_level(level: object, least: int = 0) -> int:
    """Refuse a delay level outside `least`..18."""
    return check_integer("delay_level", level, least, DELAY_LEVEL_MAX)


def check_message(message: object) -> Message:
    """Refuse what cannot be sent as a message, naming the field; sizes are checked later, when they are known."""
    if not isinstance(message, Message):
        raise InvalidArgument(f"a Message is sent (got {shown(message)})")
    message = cast("Message", message)
    check_topic(message.topic)
    if not isinstance(message.body, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"a body is bytes (got {shown(message.body)})")
    if message.tag is not None:
        check_text("tag", message.tag, empty=True)
    check_keys(message.keys)
    check_delay_level(message.delay_level)
    check_properties(message.properties)
    check_switch("wait_stored", message.wait_stored)
    check_integer("flag", message.flag, -INT_MAX - 1, INT_MAX)
    return message


def check_several(messages: Iterable[Message[Body]]) -> list[Message[Body]]:
    """Refuse what is not several of anything, such as one message or a text; returns what there is as a list."""
    given: object = messages
    if not _is_several(given):
        raise InvalidArgument(f"messages must be several Messages (got {shown(given)})")
    return list(messages)


def check_keys(keys: object) -> None:
    """Refuse anything but a sequence of texts of which none is empty or contains white space."""
    if not _is_several(keys) or not isinstance(keys, Collection):
        raise InvalidArgument(f"keys must be a sequence of texts (got {shown(keys)})")
    for key in keys:
        if not isinstance(key, str):
            raise InvalidArgument(f"each of keys must be a text (got {shown(key)})")
        if not key or len(key.split()) != 1 or key.strip() != key:
            raise InvalidArgument(f"key {key!r}: a key is not empty and has no white space")


def check_properties(properties: object, name: str = "properties") -> None:
    """Refuse anything but a mapping of texts to texts."""
    if not _is_mapping(properties):
        raise InvalidArgument(f"{name} must be a mapping of texts to texts (got {shown(properties)})")
    for key, value in properties.items():
        if not isinstance(key, str) or not key:
            raise InvalidArgument(f"each name in {name} must be a non-empty text (got {shown(key)})")
        if not isinstance(value, str):
            raise InvalidArgument(f"the value of {key!r} in {name} must be a text (got {shown(value)})")
