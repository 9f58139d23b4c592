"""Descriptors of the process."""

from __future__ import annotations

import resource

from ledgermq.world.descriptors import descriptors_max


def test_the_limit_is_that_of_the_process() -> None:
    """A process that may open fewer files sees fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert descriptors_max() == 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
