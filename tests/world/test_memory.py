"""What is known of the machine's memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgermq.world.memory import ASSUMED_MEMORY_BYTES
from ledgermq.world.real import real_world

MEMINFO = Path("/proc/meminfo")


@pytest.mark.skipif(not MEMINFO.exists(), reason="only Linux tells in a second way")
def test_the_real_world_knows_how_much_memory_it_has() -> None:
    """As much as the kernel says elsewhere."""
    total_kib = next(int(line.split()[1]) for line in MEMINFO.read_text().splitlines() if line.startswith("MemTotal:"))

    assert real_world().memory_bytes == 1024 * total_kib


def test_a_machine_that_does_not_say_counts_as_one_of_24_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's assumption."""

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)

    assert real_world().memory_bytes == ASSUMED_MEMORY_BYTES == 24 * 1024**3
