"""What went wrong, in the system's words; imported by every command, so it imports nothing itself."""

from __future__ import annotations


def reason_of(error: OSError) -> str:
    """What the system says, and about which file, without its number."""
    said = error.strerror or str(error)
    return f"{error.filename}: {said}" if isinstance(error.filename, str) and error.filename else said
