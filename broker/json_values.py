"""A typed look into JSON of files and peers, where anything may stand."""

from __future__ import annotations

from typing import Any, cast


def object_of(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one if it is something else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
