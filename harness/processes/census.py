"""What a server's memory consists of: a description that is written when its private memory passes a multiple of a step.

A thread of the server watches, so that it finds a peak while its objects are alive, and raises a signal. The handler describes
the memory in the main thread: in another one it would hold objects that the main thread is still creating, on which the
interpreter fails (`SystemError`). Objects are counted that the garbage collector tracks, and bytes, byte arrays and texts that
these refer to.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from ledgermq.world.garbage import private_bytes

STEP_BYTES = 128 << 20
SAMPLE_SECONDS = 0.1
KINDS_SHOWN, LARGE_SHOWN, LARGE_BYTES = 12, 12, 1 << 20
OWNERS_SHOWN = 6
_LEAVES = (bytes, bytearray, str, memoryview)


def census() -> list[str]:
    """The types that take most memory, and the largest objects with the types of what refers to them.

    Garbage is not collected meanwhile, because the collector would traverse the list of all objects.
    """
    gc.disable()
    try:
        return _census()
    finally:
        gc.enable()


def _census() -> list[str]:
    sizes, counts, large, seen = Counter[str](), Counter[str](), list[tuple[int, object]](), set[int]()
    every: list[object] = gc.get_objects()
    for tracked in every:
        found_here: list[object] = [one for one in gc.get_referents(tracked) if isinstance(one, _LEAVES)]
        for found in (tracked, *found_here):
            if id(found) in seen:
                continue
            seen.add(id(found))
            size = sys.getsizeof(found)
            kind = type(found).__qualname__
            sizes[kind] += size
            counts[kind] += 1
            if size >= LARGE_BYTES:
                large.append((size, found))
    lines = [f"  {size >> 10} KiB in {counts[kind]} {kind}" for kind, size in sizes.most_common(KINDS_SHOWN)]
    large.sort(key=lambda one: one[0], reverse=True)
    for size, found in large[:LARGE_SHOWN]:
        owners = [_owner(one) for one in gc.get_referrers(found)[: OWNERS_SHOWN + 2]]
        lines.append(f"  {type(found).__qualname__} of {size >> 10} KiB, referred to by {', '.join(filter(None, owners))}")
    return lines


def _owner(owner: object) -> str:
    if isinstance(owner, dict):
        return f"dict with {[str(key)[:30] for key in list(owner)[:4]]}"  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    code = getattr(owner, "f_code", None)
    return f"frame {code.co_qualname}:{getattr(owner, 'f_lineno', 0)}" if code is not None else type(owner).__qualname__


def watch_memory() -> None:
    """Start the thread that raises the signal for a census whenever memory has passed the next step."""
    threading.Thread(target=_watch, daemon=True).start()


def take_on_signal(path: Path, took: Callable[[float], None]) -> None:
    """Append a census to `path` on SIGUSR2; to be called in the main thread.

    Args:
        took: called with the seconds of CPU time that a census took, which are not the server's.
    """

    def take(_number: int, _frame: object) -> None:
        began = time.thread_time()
        lines = [f"{time.time():.0f} {private_bytes() >> 20} MiB", *census()]
        with path.open("a") as file:
            file.write("\n".join(lines) + "\n")
        gc.collect(1)  # what the census has made would be looked at in a turn of the server
        took(time.thread_time() - began)

    signal.signal(signal.SIGUSR2, take)


def _watch() -> None:
    passed = STEP_BYTES
    while True:
        time.sleep(SAMPLE_SECONDS)
        now = private_bytes()
        if now > passed:
            passed += (now - passed) // STEP_BYTES * STEP_BYTES + STEP_BYTES
            os.kill(os.getpid(), signal.SIGUSR2)
