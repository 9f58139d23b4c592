"""The KV configuration: small texts by namespace and key, kept as RocketMQ's `kvConfig.json`. Pure: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..message.errors import JsonError
from ..message.json import dumps, loads

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""The namespace of order configurations: topic, then `brokerA:4;brokerB:4`."""


@attrs.define(eq=False)
class KvConfig:
    """Namespaces of texts."""

    _table: dict[str, dict[str, str]] = attrs.field(factory=dict[str, dict[str, str]])

    @classmethod
    def from_bytes(cls, content: bytes) -> KvConfig:
        """Read a `kvConfig.json`.

        Raises:
            JsonError: not one.
        """
        value: Any = loads(content)
        try:
            tables = value["configTable"].items()
            return cls({namespace: {key: str(text) for key, text in entries.items()} for namespace, entries in tables})
        except (AttributeError, KeyError, TypeError) as error:
            raise JsonError("no configTable of namespaces", 0) from error

    def to_bytes(self) -> bytes:
        """Write a `kvConfig.json`."""
        return dumps({"configTable": self._table})

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        self._table.get(namespace, {}).pop(key, None)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All entries of a namespace, None for one that never had any."""
        return self._table.get(namespace)
