"""Bounds on what a peer's input can put into a log: no values of variables, no control characters, no flood of lines.

`trace_of` describes an exception by the places it passed; it renders no variable, because a frame may hold a whole table or a
signature. `readable` bounds and escapes the values of a line, and `RateLimit` decides whether a line is written.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

TRACE_FRAMES_MAX = 12
"""How many of the innermost frames a trace names; those further out are the same for every request and are left out."""
TEXT_CHARACTERS_MAX = 400
"""Longer texts are truncated, with the number of characters that are missing."""
ITEMS_MAX = 50
"""Longer lists and tables are truncated, with the number of items that are missing."""
BURST_LINES = 20
"""How many lines of one event may be written in a burst; after them `LINES_PER_SECOND` holds."""
LINES_PER_SECOND = 1.0
"""How many lines of one event are written per second in the long run; the others are only counted."""


def trace_of(error: BaseException) -> list[str]:
    """The places that an exception passed, innermost last, and before them those of the exception that caused it."""
    lines: list[str] = []
    if error.__cause__ is not None:
        lines += [*trace_of(error.__cause__)[-TRACE_FRAMES_MAX:], f"caused {shortened(str(error.__cause__))}"]
    for frame, line in list(traceback.walk_tb(error.__traceback__))[-TRACE_FRAMES_MAX:]:
        path = "/".join(frame.f_code.co_filename.rsplit("/", 2)[-2:])
        lines.append(f"{path}:{line} {frame.f_code.co_name}")
    return lines


def fault_of(error: BaseException) -> str:
    """An exception in one short line: its type and its text."""
    return shortened(f"{type(error).__name__}: {error}")


def shortened(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """The first `characters_max` characters of a text, followed by the number of those left out."""
    if len(text) <= characters_max:
        return text
    return f"{text[:characters_max]}... ({len(text) - characters_max} more characters)"


def printable(text: str) -> str:
    """A text whose unprintable characters, which a terminal could act on, are written as escape sequences of Python."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def readable(fields: Mapping[str, object]) -> dict[str, Any]:
    """The values of a line, bounded and escaped."""
    return {name: _bounded(value) for name, value in fields.items()}


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return printable(shortened(value))
    if isinstance(value, list | tuple | set | frozenset):
        items = _members(value)  # pyright: ignore[reportUnknownArgumentType]
        left_out = [f"... ({len(items) - ITEMS_MAX} more)"] if len(items) > ITEMS_MAX else []
        return [*map(_bounded, items[:ITEMS_MAX]), *left_out]
    if isinstance(value, dict):
        table = _items(value)  # pyright: ignore[reportUnknownArgumentType]
        bounded = {_bounded(key): _bounded(item) for key, item in table[:ITEMS_MAX]}
        return bounded | ({"...": f"{len(table) - ITEMS_MAX} more"} if len(table) > ITEMS_MAX else {})
    return value if value is None or isinstance(value, bool | int | float) else printable(shortened(str(value)))


def _members(value: Iterable[Any]) -> list[Any]:
    return list(value)


def _items(value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return list(value.items())


@attrs.define
class _Bucket:
    lines: float
    at: float
    left_out: int = 0


@attrs.define(eq=False)
class RateLimit:
    """Admits at most one line a second of each event once `BURST_LINES` were written.

    Any peer can cause most events, so a log that wrote them all could fill the disk.
    """

    now: Callable[[], float]
    """Seconds of a monotonic clock."""
    _buckets: dict[str, _Bucket] = attrs.field(factory=dict[str, _Bucket])
    """By event; the names of events are literals, which bounds their number."""

    def admit(self, event: str) -> int | None:
        """Whether a line may be written: None if not, else how many of its event were left out before it."""
        now = self.now()
        bucket = self._buckets.setdefault(event, _Bucket(BURST_LINES, now))
        bucket.lines = min(BURST_LINES, bucket.lines + (now - bucket.at) * LINES_PER_SECOND)
        bucket.at = now
        if bucket.lines < 1:
            bucket.left_out += 1
            return None
        bucket.lines -= 1
        left_out, bucket.left_out = bucket.left_out, 0
        return left_out
