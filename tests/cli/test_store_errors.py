"""How commands end that could not read or write a store."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import click
import pytest

from ledgermq.cli.store_errors import ending_with_reason
from ledgermq.ha.errors import HaError
from ledgermq.store.errors import StoreError
from ledgermq.world.disk import RealDisk

from .conftest import Run

DISK = RealDisk()
ERRORS = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x"), StoreError("a store"), HaError("a node")]


@pytest.mark.parametrize("error", ERRORS, ids=["disk", "store", "node"])
def test_a_directory_is_to_be_removed_only_if_it_was_begun_now(tmp_path: Path, error: Exception) -> None:
    """One that was there before may hold what its owner wants to keep."""
    target = tmp_path / "target"

    def restore(*, begins: bool) -> None:
        with ending_with_reason(DISK, str(target)):
            if begins:
                (target / "commitlog-unfinished").mkdir(parents=True)
            raise error

    def ended(*, begins: bool) -> str:
        with pytest.raises(click.ClickException) as ending:
            restore(begins=begins)
        return ending.value.message

    assert "remove it" not in ended(begins=False)
    assert ended(begins=True).endswith(f"{target} is incomplete: remove it")
    assert "remove it" not in ended(begins=False)


def test_a_store_that_was_not_finished_is_named(runner: Run, tmp_path: Path) -> None:
    """Its log lies in another directory while it is copied from a ledger."""
    (tmp_path / "commitlog-unfinished").mkdir()

    for command in ("dump", "verify"):
        said = runner("store", command, str(tmp_path), status=1).stderr
        assert "`ledgermq store to-classic` or `ledgermq store restore` has not finished writing this store" in said
