"""Typed access to JSON from files and peers, which may contain any value."""

from __future__ import annotations

from typing import Any, cast


def object_of(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one if it is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def table_of(value: Any, name: str) -> dict[str, Any]:
    """A JSON object, or an empty one if the value is absent.

    Raises:
        TypeError: the value is something else. Its meaning is unknown, so it must not be treated as absent.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {type(value).__name__} where an object should be")
    return cast("dict[str, Any]", value)
