"""Bounds of texts that any peer may send, for what a server keeps in memory after it has answered. Pure."""

from __future__ import annotations

from .codes import ResponseCode
from .errors import RequestRefused

NAME_CHARACTERS_MAX = 255
"""The longest name of a group, cluster, broker, zone, namespace or key, as in RocketMQ for groups. A longer one is refused."""


def refuse(remark: str) -> RequestRefused:
    """The refusal of input beyond a bound."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"{remark}; nothing was changed")


def checked_name(kind: str, name: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Return a name that a table may hold.

    Raises:
        RequestRefused: it is empty or too long, or has unprintable characters.
    """
    if not 1 <= len(name) <= characters_max:
        raise refuse(f"a {kind} has 1 to {characters_max} characters (got {len(name)})")
    if not name.isprintable():
        raise refuse(f"a {kind} consists of printable characters (got {name!r})")
    return name
