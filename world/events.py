"""Events as the whole project logs them: a name in snake case and fields, through the standard library's logger `ledgermq`.

A program configures that logger as any other one. Until it does, Python prints warnings and errors to standard error and drops
the rest; nothing is ever printed to standard output. Each module has a logger of its own, such as `ledgermq.client.session`.
A record's message is the name with its fields, and handlers find both apart as the attributes `event` and `fields`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import attrs

from .logs import readable

ROOT_LOGGER = "ledgermq"


@attrs.frozen(str=False)
class Event:
    """The message of a log record; its text is made only where somebody reads it."""

    name: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{name}={value!r}" for name, value in readable(self.fields).items())))


@attrs.frozen
class EventLogger:
    """Logs events of one module."""

    _logger: logging.Logger

    def debug(self, event: str, /, **fields: object) -> None:
        """Log what concerns one message or connection."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log a change of state."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log that something is degraded."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Log what a person must act on."""
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            extra = {"event": event, "fields": fields}
            self._logger.log(level, Event(event, fields), extra=extra, stacklevel=3)


def get_logger(module: str) -> EventLogger:
    """The logger of a module, which is named by its `__name__`."""
    return EventLogger(logging.getLogger(module))
