"""The version of a table that name servers, slaves and tools compare (RocketMQ DataVersion)."""

from __future__ import annotations

from typing import Any, Self

import attrs

from ..message.numbers import long_of
from .json_values import object_of


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
        """Read what `to_json` or a peer wrote; 4.9 has no state version, and absent counts as 0."""
        get = object_of(value).get
        return cls(*(long_of(get(name) or 0) for name in ("counter", "timestamp", "stateVersion")))
