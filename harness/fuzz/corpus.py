"""The kept corpus: for each target a few inputs that together take every step in our code that all found inputs take.

A step is a pair of lines that one function executes one after the other. Smaller inputs are tried first, so the kept ones are
small. Files are named by the hash of their content, so renewing the corpus changes no file that is still needed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from .judge import Decode, Target, judge, judging

Step = tuple[str, int, int]
INPUT_BYTES_KEPT_MAX = 8 * 1024
"""Longer inputs are not kept: the code that only they reach is not worth their space and time."""

_OURS = str(Path(__file__).resolve().parents[2])


def steps_of(target: Target, decode: Decode, data: bytes) -> frozenset[Step]:
    """The steps that a decoder takes for one input."""
    steps: set[Step] = set()
    last: dict[int, int] = {}

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(_OURS):
            return None
        line = frame.f_lineno
        if event == "line":
            steps.add((path, last.get(id(frame), 0), line))
        last[id(frame)] = line
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        decode(data)
    except target.raises as error:
        steps.add((type(error).__name__, 0, 0))
    finally:
        sys.settrace(before)
    return frozenset(steps)


def needed(target: Target, decode: Decode, inputs: Iterable[bytes]) -> list[bytes]:
    """The inputs that are to be kept, the smallest first."""
    kept: list[bytes] = []
    known: set[Step] = set()
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        if len(data) <= INPUT_BYTES_KEPT_MAX and not (steps := steps_of(target, decode, data)) <= known:
            known |= steps
            kept.append(data)
    return kept


def read_inputs(*directories: Path) -> list[bytes]:
    """All inputs in those of the directories that exist."""
    return [path.read_bytes() for directory in directories if directory.is_dir() for path in sorted(directory.iterdir())]


async def keep(target: Target, found: Sequence[bytes], corpus: Path) -> None:
    """Replace the corpus of a target by the needed ones among its inputs and those found."""
    kept = corpus / target.name
    with judging():
        async with target.opens() as decode:
            inputs = [data for data in (*found, *read_inputs(kept)) if _is_sound(target, decode, data)]
            names = {hashlib.sha256(data).hexdigest()[:16]: data for data in needed(target, decode, inputs)}
    kept.mkdir(parents=True, exist_ok=True)
    for path in kept.iterdir():
        if path.name not in names:
            path.unlink()
    for name, data in names.items():
        (kept / name).write_bytes(data)


def _is_sound(target: Target, decode: Decode, data: bytes) -> bool:
    try:
        judge(target, decode, data)
    except Exception:  # noqa: BLE001 - it is a finding, which the fuzzing run reports
        return False
    return True
