"""How many files and connections this process may have open together."""

from __future__ import annotations

import resource

DESCRIPTORS_ASSUMED = 1 << 20
"""Where the system sets no limit."""


def descriptors_max() -> int:
    """The limit of open descriptors as it is now; the commands raise it to what the system allows before they serve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_ASSUMED if soft == resource.RLIM_INFINITY else soft
