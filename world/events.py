"""Events as the whole project logs them: a name in snake case and fields, which structlog passes to the standard library.

Each module has a logger of its own below `ledgermq`, such as `ledgermq.client.session`, and a program configures `ledgermq` as
any other logger. Until it does, Python prints warnings and errors to standard error and drops the rest; nothing is ever printed
to standard output, and nothing of structlog is configured globally. A record's message is the event's name with its fields, and
handlers find both apart as the attributes `event` and `fields`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs

from .logs import readable

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict

ROOT_LOGGER = "ledgermq"
_FRAMES_BELOW_CALLER = 5
"""How many frames lie between a module that logs and the standard library's logger: two are ours, three are structlog's."""


@attrs.frozen(str=False)
class Event:
    """The message of a log record; its text is made only where somebody reads it."""

    name: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join((self.name, *(f"{name}={value!r}" for name, value in readable(self.fields).items())))


@attrs.frozen
class EventLogger:
    """Logs events of one module, or of one object in it once fields are bound."""

    _logger: logging.Logger
    _bound: Mapping[str, object] = attrs.field(factory=dict[str, object])

    def bind(self, **fields: object) -> EventLogger:
        """A logger whose events all have these fields too, such as the connection or the group that they concern."""
        return EventLogger(self._logger, {**self._bound, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        """Log what concerns one message or connection."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._structured().debug(event, **fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log a change of state."""
        if self._logger.isEnabledFor(logging.INFO):
            self._structured().info(event, **fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log that something is degraded."""
        if self._logger.isEnabledFor(logging.WARNING):
            self._structured().warning(event, **fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Log what a person must act on; `exc_info=True` adds the exception that is being handled."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._structured().error(event, **fields)

    def _structured(self) -> BoundLogger:
        return _wrap(self._logger).bind(**self._bound)


def get_logger(module: str) -> EventLogger:
    """The logger of a module, which is named by its `__name__`."""
    return EventLogger(logging.getLogger(module))


@cache
def _wrap(logger: logging.Logger) -> BoundLogger:
    # Imported for the first event that somebody wants, because structlog imports asyncio, which no command needs at its start.
    import structlog  # noqa: PLC0415

    wrapped: BoundLogger = structlog.wrap_logger(
        logger, processors=[_to_record], wrapper_class=structlog.stdlib.BoundLogger, context_class=dict
    )
    return wrapped


def _to_record(_logger: object, _method: str, event_dict: EventDict) -> tuple[tuple[Event], dict[str, Any]]:
    """The last processor: what the standard library's logger is called with."""
    name = event_dict.pop("event")
    exc_info = event_dict.pop("exc_info", None)
    fields = dict(event_dict)
    extra = {"event": name, "fields": fields}
    return (Event(name, fields),), {"extra": extra, "exc_info": exc_info, "stacklevel": _FRAMES_BELOW_CALLER}
