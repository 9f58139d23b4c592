"""What the run of one seed showed, on either floor of the simulator."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping
from typing import Protocol

import attrs

from ..store.errors import StoreError
from .history import History


class Draw(Protocol):
    """What a seed drew."""

    @property
    def seed(self) -> int: ...


@attrs.frozen
class Outcome:
    """One seed's run."""

    draw: Draw
    violations: list[str]
    trace: list[str]
    history: History
    faults: Mapping[str, int]

    @property
    def digest(self) -> str:
        """A short name of the trace: two runs of one seed must agree on it."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]

    @property
    def counts(self) -> dict[str, int]:
        """What was done, and each fault that happened."""
        acknowledged = sum(put.acknowledged for put in self.history.puts)
        done = {"puts": len(self.history.puts), "acknowledged": acknowledged, "reads": len(self.history.reads)}
        return {**done, **self.faults}


def told(error: BaseException) -> str:
    """One line about an exception that a run let out: the innermost one, and where it came from."""
    while (members := getattr(error, "exceptions", None)) is not None:
        error = members[0]
    last = traceback.extract_tb(error.__traceback__)[-1]
    kind = "refused to open" if isinstance(error, StoreError) else "raised"
    return f"{kind}: {type(error).__name__}: {error} in {last.filename.rpartition('/')[2]}:{last.lineno}"
