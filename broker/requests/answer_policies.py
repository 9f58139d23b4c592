"""Policies of requests that only the master decides: when they are refused, and what has happened when they are answered."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import attrs

from ...remoting.dispatcher import Wait
from ..tables.table_log import TableLog


class Known(Protocol):
    """What name servers know of the topics."""

    def is_known(self) -> bool:
        """Whether they know all topics of now."""
        ...

    async def known(self) -> None:
        """Wait until they know the topics of now, for a limited time."""
        ...


@attrs.frozen
class Decided:
    """The policy of requests that only the master decides, and that answer by themselves."""

    tables: TableLog

    def check(self) -> None:
        self.tables.check_decides()

    def settling(self) -> None:
        return None


@attrs.frozen
class Applied:
    """The policy of changes of tables: the master decides, and answers when the change is applied and safe."""

    tables: TableLog
    gathered: bool = False
    """Whether a request changes offsets, which are collected."""

    def check(self) -> None:
        self.tables.check_changes()

    def settling(self) -> Wait | None:
        return self.tables.settling(gathered=self.gathered)


@attrs.frozen
class Routed:
    """The policy of changes of topics: as `Applied`, and when the name servers know the topics."""

    tables: TableLog
    known: Known

    def check(self) -> None:
        self.tables.check_changes()

    def settling(self) -> Wait | None:
        settling = self.tables.settling()
        return partial(self._settled, settling) if settling is not None or not self.known.is_known() else None

    async def _settled(self, settling: Wait | None) -> None:
        if settling is not None:
            await settling()
        await self.known.known()
