"""Repeats requests until a server answers, and reports what is being waited for, so that nobody waits in silence."""

from __future__ import annotations

import time

import attrs

from .errors import warn

PAUSE_SECONDS = 0.1
"""The pause between two rounds over all servers that could answer."""
REPORT_SECONDS = 1.0
"""A wait is reported once it has lasted this long, because a short one is part of every failover."""


@attrs.define(eq=False)
class Wait:
    """The wait for one answer, which begins with the first attempt and ends after `failoverTimeoutMs`."""

    seconds: float
    _began: float = attrs.field(init=False)
    _is_reported: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._began = time.monotonic()

    def goes_on(self, awaited: str, pause_seconds: float = PAUSE_SECONDS) -> bool:
        """Pause before the next attempt; returns False instead if the time has passed.

        Args:
            awaited: what failed and why, for the report.
            pause_seconds: the length of the pause.
        """
        waited = time.monotonic() - self._began
        if waited >= self.seconds:
            return False
        if waited >= REPORT_SECONDS and not self._is_reported:
            self._is_reported = True
            warn(f"{awaited}; trying again until {self.seconds:g} s have passed ('failoverTimeoutMs')")
        time.sleep(pause_seconds)
        return True
