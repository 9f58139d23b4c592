"""What may be deleted, and when the disk counts as full: decisions only (RocketMQ CleanCommitLogService).

Callers supply sizes, times and the disk's use; nothing here touches a file. The last file of a run is never chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

import attrs

from ...message.numbers import int_of
from ..config import CONSUMED, StoreConfig

_HOUR_MS = 3_600_000
_RATIO_FORCIBLY_RANGE = (0.30, 0.85)
_RATIO_WARNING_RANGE = (0.35, 0.90)
_PERCENT_RANGE = (10, 95)
MANUAL_ROUNDS = 20
"""How many rounds of deletion one request of an operator starts."""


@attrs.frozen
class FileAge:
    """One file of the commit log, oldest first in every list."""

    name: str
    modified_ms: int
    size: int
    end: int = 0
    """The physical offset behind its last record."""


@attrs.frozen
class RetentionRules:
    """When files are deleted; see RocketMQ's keys of the same names."""

    reserved_hours: int = 72
    delete_hours: tuple[int, ...] = (4,)
    """Local hours of the day in which expired files are deleted."""
    used_percent_max: int = 75
    forcibly_ratio: float = 0.85
    warning_ratio: float = 0.90
    forcibly: str = CONSUMED
    batch_max: int = 10

    @classmethod
    def of(cls, config: StoreConfig) -> RetentionRules:
        """Take the configured values, limited to the ranges that RocketMQ allows.

        Raises:
            ValueError: `delete_when` is not a list of hours.
        """
        return cls(
            reserved_hours=config.file_reserved_time,
            delete_hours=parse_hours(config.delete_when),
            used_percent_max=int(_clamp(config.disk_max_used_space_ratio, _PERCENT_RANGE)),
            forcibly_ratio=_clamp(config.disk_space_clean_forcibly_ratio, _RATIO_FORCIBLY_RANGE),
            warning_ratio=_clamp(config.disk_space_warning_level_ratio, _RATIO_WARNING_RANGE),
            forcibly=config.clean_file_forcibly_enable,
            batch_max=config.delete_file_batch_max,
        )

    def pressed(self, disk_ratio: float) -> bool:
        """Whether the disk is so full that files may go before they have expired."""
        return disk_ratio > min(self.forcibly_ratio, self.warning_ratio)


class Reason(Enum):
    """Why files are deleted now."""

    HOUR = "hour"
    SPACE = "space"
    MANUAL = "manual"
    FORCED = "forced"
    """The disk is nearly full: files are deleted before they have expired."""
    CONSUMED = "consumed"
    """The disk is nearly full: files that all groups have read are deleted before they have expired."""


@attrs.frozen
class Deletion:
    """What to delete now: the first files of the list, oldest first."""

    names: tuple[str, ...]
    reason: Reason | None


def parse_hours(text: str) -> tuple[int, ...]:
    """Read `deleteWhen`: hours 0..23 separated by `;`.

    Raises:
        ValueError: the text is something else.
    """
    hours = tuple(int_of(item) for item in text.split(";") if item.strip())
    if not hours or any(not 0 <= hour <= 23 for hour in hours):
        raise ValueError(f"deleteWhen: hours from 0 to 23 separated by ; (got {text!r})")
    return hours


def _clamp(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def due(
    files: Sequence[FileAge],
    *,
    now_ms: int,
    local_hour: int,
    disk_ratio: float,
    rules: RetentionRules,
    manual: bool = False,
    read_before: int = 0,
) -> Deletion:
    """Choose the files of the commit log to delete now, at most `rules.batch_max`.

    Args:
        files: all of them, oldest first.
        now_ms: by the wall clock that the files' times come from.
        local_hour: hour of the day by the wall clock.
        disk_ratio: used share of the disk, 0..1.
        rules: when files are deleted.
        manual: whether an operator has requested the deletion.
        read_before: the physical offset before which all messages have been read by all groups.
    """
    pressed = rules.pressed(disk_ratio)
    if pressed and rules.forcibly == "true":
        return Deletion(tuple(file.name for file in files[:-1][: rules.batch_max]), Reason.FORCED)
    if manual:
        reason = Reason.MANUAL
    elif math.ceil(disk_ratio * 100) > rules.used_percent_max:
        reason = Reason.SPACE
    elif local_hour in rules.delete_hours:
        reason = Reason.HOUR
    else:
        reason = None
    expired, read = 0, 0
    candidates = files[:-1][: rules.batch_max]
    # The first file that must stay ends each of the two: deleting a later one would leave a gap in the log.
    while reason and expired < len(candidates) and candidates[expired].modified_ms + rules.reserved_hours * _HOUR_MS <= now_ms:
        expired += 1
    while pressed and rules.forcibly == CONSUMED and read < len(candidates) and candidates[read].end <= read_before:
        read += 1
    if read > expired:
        expired, reason = read, Reason.CONSUMED
    return Deletion(tuple(file.name for file in candidates[:expired]), reason)


def disk_full(disk_ratio: float, rules: RetentionRules) -> bool:
    """Whether puts are refused: set above the warning level, cleared below it."""
    return disk_ratio > rules.warning_ratio
