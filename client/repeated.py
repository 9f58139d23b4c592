"""Which of many failures of one kind are logged: loops that retry would otherwise log the same for every queue each second."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

import attrs

REPEAT_SECONDS = 30.0
"""A failure that is repeated is logged again after this time, with how often it came; as often as heartbeats are due."""


@attrs.define(eq=False)
class Repeated:
    """Counts failures by their kind."""

    logged: dict[Hashable, tuple[float, int]] = attrs.field(factory=dict[Hashable, "tuple[float, int]"])
    """By kind, when it was logged last and how often it came since."""

    def due(self, kind: Hashable, now: float) -> int:
        """How often `kind` came since it was logged last, this time included, if it is to be logged now; otherwise 0."""
        logged_at, count = self.logged.get(kind, (-inf, 0))
        if now - logged_at < REPEAT_SECONDS:
            self.logged[kind] = logged_at, count + 1
            return 0
        # Kinds that come no more are forgotten: the texts of errors are without number.
        self.logged = {each: last for each, last in self.logged.items() if now - last[0] < 2 * REPEAT_SECONDS}
        self.logged[kind] = now, 0
        return count + 1
