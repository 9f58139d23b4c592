"""What a run of real processes did and found, of any mode."""

from __future__ import annotations

from collections import Counter

import attrs

from .history import History


@attrs.define(eq=False)
class Outcome:
    """One run."""

    history: History
    kills: int = 0
    faults: Counter[str] = attrs.field(factory=Counter[str])
    """What else was done, by kind."""
    start_seconds_max: float = 0.0
    violations: list[str] = attrs.field(factory=list[str])
    seconds: float = 0.0

    def summary(self) -> str:
        puts = self.history.puts
        acknowledged = sum(put.acknowledged for put in puts)
        refused = sum(put.refused for put in puts)
        done = "".join(f", {count} {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.kills} kills{done}; "
            f"{len(puts)} messages sent: {acknowledged} acknowledged, {refused} refused, "
            f"{len(puts) - acknowledged - refused} unknown; {len(self.history.reads)} read; slowest start "
            f"{self.start_seconds_max:.2f} s; {self.seconds:.0f} s; {len(self.violations)} violations"
        )
