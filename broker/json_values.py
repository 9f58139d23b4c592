"""A typed look into JSON of files and peers, where anything may stand."""

from __future__ import annotations

from typing import Any, cast


def object_of(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one if it is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def table_of(value: Any, name: str) -> dict[str, Any]:
    """A JSON object that matters, or an empty one where there is none.

    Raises:
        TypeError: something else stands there. What it was meant to say is unknown, so it must not pass for nothing.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {type(value).__name__} where an object should be")
    return cast("dict[str, Any]", value)
