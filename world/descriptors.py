"""How many files and connections this process may have open together."""

from __future__ import annotations

import resource

DESCRIPTORS_ASSUMED = 1 << 20
"""The limit that is assumed where the system sets none."""


def descriptors_max() -> int:
    """The current limit of open descriptors; the commands raise it to the most that the system allows before they serve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_ASSUMED if soft == resource.RLIM_INFINITY else soft
