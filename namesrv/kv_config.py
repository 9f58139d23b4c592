"""The KV configuration: small texts by namespace and key, kept as RocketMQ's `kvConfig.json`. Pure: bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..message.errors import JsonError
from ..message.json import dumps, loads

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"
"""The namespace of order configurations: topic, then `brokerA:4;brokerB:4`."""

ENTRY_CHARACTERS = 128
"""What an entry or a namespace counts for besides its texts: encoding many small ones takes as long as a few large ones."""


@attrs.frozen(eq=False)
class KvConfig:
    """Namespaces of texts; a change returns another value, which is served once it is on disk."""

    _table: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict[str, Mapping[str, str]])
    characters: int = attrs.field(init=False)
    """How many characters all namespaces, keys and values have together, each entry with `ENTRY_CHARACTERS` besides."""

    def __attrs_post_init__(self) -> None:
        count = sum(ENTRY_CHARACTERS + len(namespace) + _characters(entries) for namespace, entries in self._table.items())
        object.__setattr__(self, "characters", count)

    @classmethod
    def from_bytes(cls, content: bytes) -> KvConfig:
        """Read a `kvConfig.json`.

        Raises:
            JsonError: the content is not a KV configuration.
        """
        value: Any = loads(content, references=False)
        try:
            tables = value["configTable"].items()
            return cls({namespace: {key: str(text) for key, text in entries.items()} for namespace, entries in tables})
        except (AttributeError, KeyError, TypeError) as error:
            raise JsonError("no configTable of namespaces", 0) from error

    def to_bytes(self) -> bytes:
        """Write a `kvConfig.json`."""
        return dumps({"configTable": self._table})

    def with_value(self, namespace: str, key: str, value: str) -> KvConfig:
        """Return a copy of this configuration with one value set."""
        return KvConfig({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def without(self, namespace: str, key: str) -> KvConfig:
        """Return a copy of this configuration without one key, which may be absent, and without a namespace that is then empty.

        Only that of order configurations stays: brokers learn from it that there are none any more.
        """
        entries = self._table.get(namespace)
        if entries is None:
            return self
        rest = {name: value for name, value in entries.items() if name != key}
        if not rest and namespace != ORDER_TOPIC_CONFIG:
            return KvConfig({name: table for name, table in self._table.items() if name != namespace})
        return KvConfig({**self._table, namespace: rest})

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """All entries of a namespace, or None if it never had any."""
        return self._table.get(namespace)


def _characters(entries: Mapping[str, str]) -> int:
    return sum(ENTRY_CHARACTERS + len(key) + len(value) for key, value in entries.items())
