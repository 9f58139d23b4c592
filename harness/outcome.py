"""The result of one run: of a simulated seed, a series of kills of real processes, or many malformed frames."""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter

import attrs

from ledgermq.store.errors import StoreError
from ledgermq.testing.history import History


@attrs.define(eq=False)
class Outcome:
    """What one run did and found."""

    history: History
    violations: list[str] = attrs.field(factory=list[str])
    faults: Counter[str] = attrs.field(factory=Counter[str])
    """How often each kind of fault was injected."""
    requests: Counter[str] = attrs.field(factory=Counter[str])
    """Requests that simulated servers handled without refusing them, by the name of their code."""
    drawn: str = ""
    """The conditions that were drawn from the seed, if the whole run is drawn from one."""
    trace: list[str] = attrs.field(factory=list[str])
    """What happened, line by line; only simulated runs record it."""
    start_seconds_max: float = 0.0
    """The slowest start of a server, if servers are real processes."""
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        """A short hash of the trace, which must be equal in two runs of one seed."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]

    @property
    def counts(self) -> Counter[str]:
        """How many operations there were, and how often each fault happened."""
        acknowledged = sum(put.acknowledged for put in self.history.puts)
        done = {"puts": len(self.history.puts), "acknowledged": acknowledged, "reads": len(self.history.reads)}
        return Counter(done) + self.faults

    def summary(self) -> str:
        """One line about a run of real processes."""
        puts = self.history.puts
        acknowledged = sum(put.acknowledged for put in puts)
        refused = sum(put.refused for put in puts)
        done = "".join(f"{count} {kind}, " for kind, count in sorted(self.faults.items())).removesuffix(", ")
        return (
            f"{done}; "
            f"{len(puts)} messages sent: {acknowledged} acknowledged, {refused} refused, "
            f"{len(puts) - acknowledged - refused} unknown; {len(self.history.reads)} read; slowest start "
            f"{self.start_seconds_max:.2f} s; {self.seconds:.0f} s; {len(self.violations)} violations"
        )


def describe_error(error: BaseException) -> str:
    """One line about an exception that ended a run: the innermost one, and where it was raised."""
    while (members := getattr(error, "exceptions", None)) is not None:
        error = members[0]
    last = traceback.extract_tb(error.__traceback__)[-1]
    kind = "refused to open" if isinstance(error, StoreError) else "raised"
    return f"{kind}: {type(error).__name__}: {error} in {last.filename.rpartition('/')[2]}:{last.lineno}"
