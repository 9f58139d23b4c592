"""How the commands that run real processes report their progress."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

VIOLATIONS_SHOWN_MAX = 20

Report = Callable[[str], object]
"""A function that receives progress line by line."""


def print_line(line: str) -> None:
    """Print a line and flush it, because runs of hours are watched."""
    print(line, flush=True)  # noqa: T201


def drawn_seed(given: int | None) -> int:
    """The seed that was asked for, or a new one."""
    return random.SystemRandom().randrange(1 << 32) if given is None else given


def close_directory(directory: Path, violations: Sequence[str]) -> int:
    """Remove the directory of a run, or keep it with its violations if there are any; returns the command's exit status."""
    if violations:
        (directory / "violations.txt").write_text("\n".join(violations))
        return 1
    shutil.rmtree(directory)
    return 0
