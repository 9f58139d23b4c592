"""What a decoder may do with any bytes: read them, or raise its own documented error; in bounded time and memory.

One judgement for the fuzzer, for the replay of the corpus and for one finding by hand.
"""

from __future__ import annotations

import logging
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import attrs

from ledgermq.world.events import ROOT_LOGGER

INPUT_BYTES_MAX = 64 * 1024
"""Of what the fuzzer draws: long enough to see work that grows faster than its input."""
SECONDS_BASE, SECONDS_PER_BYTE = 0.2, 20e-6
"""CPU time, several times what an instrumented decoder on a busy machine takes."""
BYTES_BASE, BYTES_FACTOR = 256 * 1024, 64
"""Memory: small objects made of a byte or two of text take so many times as much."""

Decode = Callable[[bytes], object]
Opens = Callable[[], AbstractAsyncContextManager[Decode]]


def always(decode: Decode) -> Opens:
    """Open a decoder that needs nothing around it."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Decode]:
        yield decode

    return opened


@attrs.frozen
class Target:
    """One decoder."""

    name: str
    opens: Opens
    """Gives the decoder, for as long as what it lives in lasts."""
    raises: tuple[type[Exception], ...] = ()
    """The errors that its documentation names."""
    seconds_base: float = SECONDS_BASE
    bytes_base: int = BYTES_BASE
    bytes_factor: int = BYTES_FACTOR
    """It may take `bytes_base` and this many bytes for each of its input, and `seconds_base`: a few may stand for much."""


class Finding(Exception):
    """A decoder has taken too long or too much; any other error that leaves it is a finding by itself."""


def judge(target: Target, decode: Decode, data: bytes) -> bool:
    """Let the decoder read `data`; tells whether it took it. To be called inside `judging`.

    Raises:
        Finding: too much time or memory.
        Exception: an error that the decoder must not raise.
    """
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    began = time.thread_time()
    try:
        decode(data)
        taken = True
    except target.raises:
        taken = False
    seconds = time.thread_time() - began
    _, peak = tracemalloc.get_traced_memory()
    if seconds > (allowed := target.seconds_base + SECONDS_PER_BYTE * len(data)):
        raise Finding(f"{target.name}: {seconds:.2f} s for {len(data)} bytes, {allowed:.2f} s are allowed")
    if peak - before > (most := target.bytes_base + target.bytes_factor * len(data)):
        raise Finding(f"{target.name}: {peak - before} bytes of memory for {len(data)} bytes, {most} are allowed")
    return taken


@contextmanager
def judging() -> Generator[None]:
    """Trace memory, and keep what is logged to ourselves; an unexpected error that is logged is raised instead."""
    logger, judge = logging.getLogger(ROOT_LOGGER), _Judge()
    logger.addHandler(judge)
    logger.propagate = False
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        logger.removeHandler(judge)
        logger.propagate = True


class _Judge(logging.Handler):
    """Drops what is logged; only an unexpected error, which comes with its trace, is raised."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "fields", {})
        if "trace" in fields:
            raise Finding(f"{vars(record)['event']}: {fields.get('reason')} at {fields['trace']}")
