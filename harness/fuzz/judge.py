"""The rule for every decoder: it accepts any bytes or raises its own documented error, in bounded time and memory.

The fuzzer, the replay of the corpus and the replay of a single finding all use this rule.
"""

from __future__ import annotations

import gc
import importlib
import logging
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import attrs

from ledgermq.world.events import ROOT_LOGGER

INPUT_BYTES_MAX = 64 * 1024
"""The fuzzer makes no longer inputs; this is long enough to detect work that grows faster than the input."""
SECONDS_BASE, SECONDS_PER_BYTE = 0.2, 20e-6
"""CPU time that a decoder may use: several times what an instrumented one needs on a busy machine."""
BYTES_BASE, BYTES_FACTOR = 256 * 1024, 64
"""Memory that a decoder may use: an object read from one or two bytes of text takes that many times their size."""

Decode = Callable[[bytes], object]
Opens = Callable[[], AbstractAsyncContextManager[Decode]]


def always(decode: Decode) -> Opens:
    """Open a decoder that needs no environment."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Decode]:
        yield decode

    return opened


@attrs.frozen
class Target:
    """One decoder, its documented errors and its bounds."""

    name: str
    opens: Opens
    """Opens the environment of the decoder and yields the decoder."""
    raises: tuple[type[Exception], ...] = ()
    """The errors that it is documented to raise."""
    seconds_base: float = SECONDS_BASE
    bytes_base: int = BYTES_BASE
    bytes_factor: int = BYTES_FACTOR
    """It may use `bytes_base` and this many bytes of memory per byte of input; the bases matter where a short input expands."""


class Finding(Exception):
    """A decoder used too much time or memory; any undocumented error that it raises is a finding by itself."""


def judge(target: Target, decode: Decode, data: bytes) -> bool:
    """Let the decoder read `data`; returns whether it accepted it. To be called inside `judging`.

    Raises:
        Finding: the decoder used too much time or memory.
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
    """Trace memory and suppress log output; a log event with a stack trace, which is an unexpected error, is raised."""
    logger, judge = logging.getLogger(ROOT_LOGGER), _Judge()
    logger.addHandler(judge)
    logger.propagate = False
    importlib.import_module("structlog")  # the first event of a process loads it, which is not the decoder's time
    # Garbage of the process is not the decoder's: collecting it would count as the decoder's time.
    gc.freeze()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.unfreeze()
        logger.removeHandler(judge)
        logger.propagate = True


class _Judge(logging.Handler):
    """Drops log events, but raises a finding for one with a stack trace, which is an unexpected error."""

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "fields", {})
        if "trace" in fields:
            raise Finding(f"{vars(record)['event']}: {fields.get('reason')} at {fields['trace']}")
