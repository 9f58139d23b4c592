"""The version of a table that name servers, slaves and tools compare (RocketMQ DataVersion)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import attrs

from .numbers import long_of


@attrs.frozen
class DataVersion:
    """Two tables with equal versions are taken to be equal."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The version after one more change."""
        return DataVersion(self.counter + 1, now_ms, self.state_version)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what `to_json` or a peer wrote; absent fields count as 0, such as the state version of 4.9.

        Raises:
            TypeError, ValueError: the value is not an object, or a number does not fit a Java long.
        """
        if value is not None and not isinstance(value, dict):
            raise TypeError(f"a data version is {type(value).__name__} where an object should be")
        fields = cast("Mapping[str, Any]", value or {})
        return cls(*(long_of(fields.get(name) or 0) for name in ("counter", "timestamp", "stateVersion")))
