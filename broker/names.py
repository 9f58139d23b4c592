"""The rules for names of topics and groups (RocketMQ's TopicValidator)."""

from __future__ import annotations

import re

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def name_fault(kind: str, name: str, characters_max: int) -> str | None:
    """Return why the name of a `kind`, such as a topic, is refused, or None if it is valid."""
    if not name:
        return f"a {kind} has a name"
    if len(name) > characters_max:
        return f"a {kind} has at most {characters_max} characters (got {len(name)})"
    if not _NAME.fullmatch(name):
        return f"a {kind} consists of A-Z a-z 0-9 % | - _ (got {name!r})"
    return None
