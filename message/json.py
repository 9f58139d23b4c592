"""JSON bodies as RocketMQ's Java peers write and read them (fastjson), on top of orjson.

Readers take what fastjson writes beyond JSON: bare integer keys, objects as keys, `$ref` back-references, a byte order mark.
Keys become text: `0` is read as "0", an object as its compact JSON with sorted keys. Writers leave None out, sort keys, and
write integer and `MessageQueue` keys bare, as Java does. Nesting, size and what references expand to are bounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs
import orjson

from .errors import JsonError
from .message import MessageQueue
from .numbers import int_of
from .units import QueueId

DEPTH_MAX = 100
"""Nesting of what is written, or read by our own reader; RocketMQ's bodies stay under ten."""
OWN_READER_BYTES_MAX = 4 * 1024 * 1024
"""Our own reader is slow (1 to 10 MB/s); what needs it are tables keyed by queue, about 100 bytes an entry."""
OF_STRANGERS_BYTES_MAX = 32 * 1024
"""What servers read of strangers on their event loop that is not strict JSON, as Java's requests are: some 30 ms at worst."""
EXPANDED_NODES_MAX = 1_000_000
"""Values that back-references may add, counted as if each were a copy: what writing the result again would cost."""

_BOM = b"\xef\xbb\xbf"
REFERENCE = "$ref"
"""The key of a back-reference, which no table may have as a key of its own: fastjson resolves it wherever it reads one."""

# A string without escapes, the beginning of another one, or what precedes a bare integer key, and the key.
_STRING_OR_BARE_KEY = re.compile(rb'"[^"\\]*+"|"|[{,]\s*+(-?\d++)(?=\s*+:)')
_ESCAPE_OR_END = re.compile(rb'\\.|"', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
# Atomic, and not possessive repetitions of groups: before Python 3.11.5 those do not match all that they should.
_STRING = re.compile(r'"(?>(?:[^"\\]++|\\.)*)"', re.DOTALL)
_REFERENCE_KEY = re.compile(r'\{\s*+"\$ref"\s*+:\s*+("(?>(?:[^"\\]++|\\.)*)")\s*+\}', re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,39})(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
_BARE_KEY = re.compile(r"-?[0-9]{1,20}")
_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]{1,9})\]")
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 64) - 1
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile("|".join(_WORDS))
_NOT_ASCII = re.compile("[^\x00-\x7f]")


def loads(data: bytes, *, loose_bytes_max: int | None = None, references: bool = True) -> Any:
    """Read a JSON body.

    Args:
        loose_bytes_max: only strict JSON may have more bytes than this; bare integer keys in any number if None.
        references: False if the writer makes no back-references, so that a key `$ref` is a key like any other.

    Raises:
        JsonError: not JSON even by fastjson's rules, or beyond the bounds above.
    """
    data = data.removeprefix(_BOM)
    if not references or b'"$ref"' not in data:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            if loose_bytes_max is not None and len(data) > loose_bytes_max:
                raise JsonError(error.msg, error.pos) from error
        try:
            return orjson.loads(_quote_bare_keys(data))
        except orjson.JSONDecodeError as error:
            # Only an object as a key is left to explain the failure.
            if b"{{" not in data and not re.search(rb"[{,]\s*\{", data):
                raise JsonError(error.msg, error.pos) from error
    most = OWN_READER_BYTES_MAX if loose_bytes_max is None else min(loose_bytes_max, OWN_READER_BYTES_MAX)
    if len(data) > most:
        raise JsonError(f"{len(data)} bytes of JSON with object keys or references; {most} are allowed", 0)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise JsonError("not UTF-8", error.start) from error
    return _Reader(text, references).read()


def message_queue_of(key: str) -> MessageQueue:
    """Read a key that `loads` made of a MessageQueue object, or that a peer wrote as text.

    Raises:
        JsonError: something else.
    """
    try:
        value = orjson.loads(key)
        return MessageQueue(str(value["topic"]), str(value["brokerName"]), QueueId(int_of(value["queueId"])))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise JsonError(f"a key is not a message queue (got {key[:200]!r})", 0) from error


def dumps(value: Any) -> bytes:
    """Write a body as Java does: bare integer keys, bare `MessageQueue` keys, no None, keys sorted."""
    return orjson.dumps(_prepared(value, 0, strict=False), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def dumps_strict(value: Any) -> bytes:
    """Write strict JSON in ASCII: integer keys quoted, `MessageQueue` keys as text, no None, keys sorted."""
    text = orjson.dumps(_prepared(value, 0, strict=True), option=orjson.OPT_SORT_KEYS).decode()
    return (text if text.isascii() else _NOT_ASCII.sub(_escape, text)).encode()


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _prepared(value: Any, depth: int, *, strict: bool) -> Any:
    """The value that orjson writes for `value`: None removed from objects, keys that are not text turned into raw JSON."""
    if depth > DEPTH_MAX:
        raise JsonError(f"nested more than {DEPTH_MAX} deep", 0)
    if isinstance(value, dict):
        table = cast("Mapping[Any, Any]", value)
        items = {key: _prepared(item, depth + 1, strict=strict) for key, item in table.items() if item is not None}
        if all(type(key) is str for key in items):
            return items
        if strict:
            return {_key_text(key).decode(): item for key, item in items.items()}
        return _bare_keyed(items)
    if isinstance(value, list | tuple | set | frozenset):
        listed = list(cast("Iterable[Any]", value))
        if set(map(type, listed)) == {str}:  # texts stay as they are, however many they are
            return listed
        return [_prepared(item, depth + 1, strict=strict) for item in listed]
    return value


def _bare_keyed(items: dict[Any, Any]) -> orjson.Fragment:
    written = (
        (orjson.dumps(key) if type(key) is str else _key_text(key)) + b":" + orjson.dumps(item, option=orjson.OPT_SORT_KEYS)
        for key, item in sorted(items.items())
    )
    return orjson.Fragment(b"{" + b",".join(written) + b"}")


def queue_key(queue: MessageQueue) -> bytes:
    """Write a message queue as the bare key of an object."""
    return orjson.dumps({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic})


def _key_text(key: Any) -> bytes:
    if isinstance(key, MessageQueue):
        return queue_key(key)
    return key.encode() if isinstance(key, str) else b"%d" % key


def _quote_bare_keys(data: bytes) -> bytes:
    parts: list[bytes] = []
    copied = position = 0
    while (match := _STRING_OR_BARE_KEY.search(data, position)) is not None:
        position = match.end()
        if match[1] is not None:
            parts += (data[copied : match.start(1)], b'"', match[1], b'"')
            copied = position
        elif match[0] == b'"':
            position = _end_of_string(data, position)
    parts.append(data[copied:])
    return b"".join(parts)


def _end_of_string(data: bytes, position: int) -> int:
    for match in _ESCAPE_OR_END.finditer(data, position):
        if match[0] == b'"':
            return match.end()
    return len(data)


@attrs.define(eq=False)
class _Reader:
    """A recursive reader of one text; recursion ends at `DEPTH_MAX`."""

    text: str
    _references: bool = True
    _at: int = 0
    _open: list[Any] = attrs.field(factory=list[Any])
    """Containers that are being read, outermost first."""
    _key_objects: dict[int, tuple[Any, list[str]]] = attrs.field(factory=dict[int, tuple[Any, list[str]]])
    """By identity of a map: the map, and its keys that were objects, in order of appearance."""
    _expanded: int = 0
    _sizes: dict[int, tuple[Any, int, int]] = attrs.field(factory=dict[int, tuple[Any, int, int]])
    """By identity of a complete container that was referred to, or is inside one: the container, its values and its depth."""

    def read(self) -> Any:
        value = self._value()
        self._skip_space()
        if self._at != len(self.text):
            raise JsonError("text after the end of the value", self._at)
        return value

    def _skip_space(self) -> str:
        match = _SPACE.match(self.text, self._at)
        assert match is not None
        self._at = match.end()
        return self.text[self._at : self._at + 1]

    def _value(self) -> Any:
        first = self._skip_space()
        if first == "{":
            return self._object()
        if first == "[":
            return self._array()
        if first == '"':
            return self._string()
        if (number := _NUMBER.match(self.text, self._at)) is not None:
            self._at = number.end()
            whole = int(number[0]) if not (number[1] or number[2]) else None
            # As orjson does, which writes integers of at most 64 bits and no infinite number.
            if whole is not None and _LONG_MIN <= whole <= _LONG_MAX:
                return whole
            if math.isinf(value := float(number[0])):
                raise JsonError("a number beyond those of 64 bits", number.start())
            return value
        if (word := _WORD.match(self.text, self._at)) is not None:
            self._at = word.end()
            return _WORDS[word[0]]
        raise JsonError("a value was expected", self._at)

    def _string(self) -> str:
        match = _STRING.match(self.text, self._at)
        if match is None:
            raise JsonError("a string without end", self._at)
        value = _text_of(match[0], self._at)
        self._at = match.end()
        return value

    def _enter(self, container: Any) -> None:
        if len(self._open) >= DEPTH_MAX:
            raise JsonError(f"nested more than {DEPTH_MAX} deep", self._at)
        self._open.append(container)
        self._at += 1

    def _array(self) -> list[Any]:
        items: list[Any] = []
        self._enter(items)
        if self._skip_space() != "]":
            while True:
                items.append(self._value())
                if self._separator("]"):
                    break
        self._at += 1
        self._open.pop()
        return items

    def _object(self) -> Any:
        start = self._at
        items: dict[str, Any] = {}
        keys: list[str] = []
        references: dict[str, int] = {}
        self._enter(items)
        if self._skip_space() != "}":
            while True:
                key = self._key(keys, references)
                if self._skip_space() != ":":
                    raise JsonError("a colon was expected", self._at)
                self._at += 1
                items[key] = self._value()
                if self._separator("}"):
                    break
        self._at += 1
        self._open.pop()
        if self._references and len(items) == 1 and isinstance(path := items.get(REFERENCE), str):
            return self._resolve(path, start)
        if keys:
            self._key_objects[id(items)] = (items, keys)
        return items

    def _separator(self, closing: str) -> bool:
        found = self._skip_space()
        if found == ",":
            self._at += 1
            return False
        if found != closing:
            raise JsonError(f"a comma or {closing!r} was expected", self._at)
        return True

    def _key(self, keys: list[str], references: dict[str, int]) -> str:
        first = self._skip_space()
        if first == '"':
            return self._string()
        start = self._at
        if first == "{":
            reference = _REFERENCE_KEY.match(self.text, start) if self._references else None
            if reference is None:
                key = orjson.dumps(self._object(), option=orjson.OPT_SORT_KEYS).decode()
                keys.append(key)
                return key
            self._at = reference.end()
            path = _text_of(reference[1], start)
            turn = references[path] = references.get(path, -1) + 1
            return self._resolve_key(path, turn, start)
        if (number := _BARE_KEY.match(self.text, start)) is not None:
            self._at = number.end()
            return number[0]
        raise JsonError("a key was expected", start)

    def _resolve(self, path: str, position: int) -> Any:
        """The value that a reference of fastjson names; it was written before the reference and so it is complete."""
        target = self._follow(path, position)
        if any(target is container for container in self._open):
            raise JsonError(f"the reference {path!r} leads to what contains it", position)
        values, depth = self._size_of(target)
        if len(self._open) + depth > DEPTH_MAX:
            raise JsonError(f"nested more than {DEPTH_MAX} deep", position)
        self._expanded += values
        if self._expanded >= EXPANDED_NODES_MAX:
            raise JsonError(f"references expand to more than {EXPANDED_NODES_MAX} values", position)
        return target

    def _size_of(self, value: Any) -> tuple[int, int]:
        """The number of values of a complete value, itself included, and how deep containers are nested in it."""
        # Each container is counted once; otherwise nested references would take as long as all the copies that they expand to.
        if not isinstance(value, dict | list):
            return 1, 0
        known = self._sizes.get(id(cast("Any", value)))
        if known is None:
            container = cast("dict[str, Any] | list[Any]", value)
            members = container.values() if isinstance(container, dict) else container
            sizes = [self._size_of(member) for member in members]
            values, depth = 1 + sum(count for count, _ in sizes), 1 + max((depth for _, depth in sizes), default=0)
            known = self._sizes[id(container)] = container, values, depth
        return known[1:]

    def _resolve_key(self, path: str, turn: int, position: int) -> str:
        """The key that a reference names: every object key of a map has the path `<map>.null`, in their order."""
        if path.endswith(".null"):
            _, keys = self._key_objects.get(id(self._follow(path.removesuffix(".null"), position)), (None, []))
            if turn < len(keys):
                return keys[turn]
            raise JsonError(f"the reference {path!r} leads nowhere", position)
        return orjson.dumps(self._resolve(path, position), option=orjson.OPT_SORT_KEYS).decode()

    def _follow(self, path: str, position: int) -> Any:
        if path in ("@", "..") or not path.startswith("$") or not self._open:
            raise JsonError(f"the reference {path!r} leads to what contains it", position)
        value: Any = self._open[0]
        at = 1
        while at < len(path):
            step = _STEP.match(path, at)
            if step is None:
                raise JsonError(f"the reference {path!r} is not a path", position)
            at = step.end()
            try:
                value = value[int(step[2])] if step[1] is None else value[step[1]]
            except (LookupError, TypeError, ValueError):
                raise JsonError(f"the reference {path!r} leads nowhere", position) from None
        return value


def _text_of(quoted: str, position: int) -> str:
    try:
        text: str = orjson.loads(quoted)
    except orjson.JSONDecodeError as error:
        raise JsonError(error.msg, position + error.pos) from error
    return text
