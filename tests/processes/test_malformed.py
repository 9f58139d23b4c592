"""A real broker under malformed frames; a million of them are `python -m ledgermq.testing.process_fuzz`."""

from __future__ import annotations

from pathlib import Path

from ledgermq.testing.process_fuzz import fuzz_broker
from ledgermq.testing.process_malformed import KINDS

GROWN_BYTES_MAX = 64 << 20


async def test_malformed_frames_harm_nobody_else(tmp_path: Path) -> None:
    """Each is answered, ignored or closes its own connection; the probe's messages go through, and memory stays."""
    outcome = await fuzz_broker(tmp_path, 20_000, seed=1)

    assert outcome.violations == []
    assert outcome.frames >= 20_000
    assert set(outcome.kinds) == {kind.name for kind in KINDS}
    assert outcome.probes > 10
    assert outcome.resident_max - outcome.resident_before < GROWN_BYTES_MAX, outcome.summary()
