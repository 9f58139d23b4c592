"""How commands end that could not read or write a store."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import click

from ..ha.errors import HaError
from ..store.errors import StoreError
from ..store.offline import unfinished_copy
from ..world.disk import Disk
from .reasons import reason_of


@contextmanager
def ending_with_reason(disk: Disk, target: str | None = None) -> Generator[None]:
    """Let the errors of stores and disks end the command with their text.

    Args:
        target: a directory that is to be removed if the block has begun to write a store there, and has not finished it.
    """
    began_before = target is None or unfinished_copy(disk, target) is not None
    try:
        yield
    except (HaError, StoreError, OSError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        if target is not None and not began_before and unfinished_copy(disk, target) is not None:
            reason = f"{reason}. {target} is incomplete: remove it"
        raise click.ClickException(reason) from error
