"""Unique message ids in RocketMQ's Java layout, so that its tools can read the send time from them.

`ip (4 or 16) | process (2) | instance (4) | ms since the first of the month (4) | counter (2)`, as upper-case hex. Two ids of
one generator are never equal: the counter continues across milliseconds, and at most 65,536 ids are made per millisecond.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime

import attrs

_COUNTER_MASK = 0xFFFF


@attrs.define
class UniqueIds:
    """Makes ids for one client.

    Args:
        host: the numeric address of the client.
        process: 16 bits that distinguish the processes of one host.
        instance: 32 bits that distinguish the clients of one process.
    """

    host: str
    process: int
    instance: int
    _prefix: str = attrs.field(init=False)
    _head: str = attrs.field(init=False, default="")
    """The common first part of all ids of the newest millisecond."""
    _month_start_ms: int = attrs.field(init=False, default=0)
    _month_end_ms: int = attrs.field(init=False, default=0)
    _counter: int = attrs.field(init=False, default=0)
    _newest_ms: int = attrs.field(init=False, default=0)
    _left: int = attrs.field(init=False, default=0)
    """How many more ids may be made in the newest millisecond."""

    def __attrs_post_init__(self) -> None:
        packed = ipaddress.ip_address(self.host).packed
        self._prefix = packed.hex().upper() + f"{self.process & 0xFFFF:04X}{self.instance & 0xFFFFFFFF:08X}"

    def next(self, wall_ms: int) -> str:
        """Make the next id; it is unique even if `wall_ms` stays the same or goes back."""
        if wall_ms > self._newest_ms:
            self._enter(wall_ms)
        elif not self._left:
            self._enter(self._newest_ms + 1)  # uses the next millisecond early; the clock soon reaches it
        self._left -= 1
        counter = self._counter = self._counter + 1 & _COUNTER_MASK
        return f"{self._head}{counter:04X}"

    def _enter(self, wall_ms: int) -> None:
        self._newest_ms = wall_ms
        self._left = _COUNTER_MASK + 1
        if wall_ms >= self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_around(wall_ms)
        self._head = f"{self._prefix}{wall_ms - self._month_start_ms:08X}"


def _month_around(wall_ms: int) -> tuple[int, int]:
    """The first millisecond of the month by UTC, and that of the next month."""
    first = datetime.fromtimestamp(wall_ms / 1000, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(first.timestamp()) * 1000, int(after.timestamp()) * 1000


def sent_at_ms(unique_id: str, wall_ms: int) -> int:
    """Read the send time from an id that was made at most a month before `wall_ms`.

    Raises:
        ValueError: `unique_id` does not have this layout.
    """
    if len(unique_id) not in (32, 56):
        raise ValueError(f"a unique id has 32 or 56 hex digits (got {len(unique_id)})")
    elapsed = int(unique_id[-12:-4], 16)
    start = _month_around(wall_ms)[0]
    if start + elapsed > wall_ms:
        start = _month_around(start - 1)[0]
    return start + elapsed
