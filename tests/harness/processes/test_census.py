"""The description of what a server's memory consists of."""

from __future__ import annotations

import pytest

from harness.processes.census import LARGE_BYTES, census


@pytest.mark.slow
def test_a_census_names_large_objects_and_what_refers_to_them() -> None:
    held = [bytes(10 * LARGE_BYTES)]

    lines = census()

    assert any(f"bytes of {10 * LARGE_BYTES >> 10} KiB, referred to by list" in line for line in lines)
    assert len(held) == 1
