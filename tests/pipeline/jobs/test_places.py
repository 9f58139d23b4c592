"""Locks of directories that only one run may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.pipeline.errors import BadOption
from ledgermq.pipeline.jobs.places import sole_user


def test_a_checkpoint_has_one_user_at_a_time(tmp_path: Path) -> None:
    """It may be given as a path or as a URI; the next run may use it as soon as the first one has ended."""
    checkpoint = str(tmp_path / "new" / "checkpoint")
    for given in (checkpoint, f"file://{checkpoint}"):
        refusal = pytest.raises(BadOption, match=f"option 'checkpoint': another run uses this.*'{checkpoint}'")
        with sole_user(checkpoint), refusal, sole_user(given):
            pass


@pytest.mark.parametrize("given", [None, "hdfs://host/checkpoint"])
def test_what_is_not_on_this_machine_is_not_locked(given: str | None) -> None:
    """Nothing is created for it here."""
    with sole_user(given), sole_user(given):
        pass

    assert not Path("hdfs:").exists()
