"""Memory of this process: tables whose pages cost nothing until they are written, and how freed memory is kept.

glibc adapts two thresholds by itself. Once a frame of 16 MiB has been freed, it takes every later buffer up to that size from
its heap and keeps twice that size when it is free; small objects between large buffers then keep the heap from shrinking at
all. Peers that send large frames could double a server's memory for good. With fixed thresholds large buffers are mapped, and
unmapped when they are freed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

MAPPED_FROM_BYTES = 320 * 1024
"""Buffers from this size on are mapped. Ordinary batches and pull answers are smaller: mapping costs a page fault per 4 KiB."""
KEPT_FREE_BYTES = 1024 * 1024
"""How much free memory stays at the end of the heap: a few batches, so that the heap does not shrink and grow with each."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


ASSUMED_MEMORY_BYTES = 24 << 30
"""The memory of a machine that does not say how much it has (as RocketMQ assumes)."""


def physical_memory() -> int:
    """Bytes of memory that this machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):  # the last one on Windows
        return ASSUMED_MEMORY_BYTES


def bound_freed_memory() -> bool:
    """Fix the thresholds of this process; returns whether its C library has them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES))


def untouched_memory(size: int) -> memoryview:
    """`size` zero bytes, of which only the pages that are written to take up memory."""
    return memoryview(mmap.mmap(-1, size))
