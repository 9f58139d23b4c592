"""What a run of `process_faults` did and found, in either mode; and how the commands that try real processes tell of theirs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import attrs

from .history import History

VIOLATIONS_SHOWN_MAX = 20

Report = Callable[[str], object]
"""Is told of progress, line by line."""


def say(line: str) -> None:
    """Print a line at once: runs take hours, and are watched."""
    print(line, flush=True)  # noqa: T201


def drawn_seed(given: int | None) -> int:
    """The seed that was asked for, or a new one."""
    return random.SystemRandom().randrange(1 << 32) if given is None else given


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
