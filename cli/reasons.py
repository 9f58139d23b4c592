"""What went wrong, in the system's words; imported by every command, so it imports nothing that costs."""

from __future__ import annotations

import os
import sys


def reason_of(error: OSError) -> str:
    """What the system says, and about which file, without its number."""
    said = error.strerror or str(error)
    return f"{error.filename}: {said}" if isinstance(error.filename, str) and error.filename else said


def output_lost(error: OSError) -> str:
    """Say that standard output takes no more, and let Python end without trying once again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
    return f"standard output: {reason_of(error)}; not all was printed"
