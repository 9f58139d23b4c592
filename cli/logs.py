"""How commands and servers print log events: one line of text or one JSON object for each, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click
import orjson

from ..world.clock import SystemClock
from ..world.events import ROOT_LOGGER
from ..world.logs import RateLimit, fault_of, readable, trace_of

if TYPE_CHECKING:
    from structlog.stdlib import ProcessorFormatter
    from structlog.typing import EventDict

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

LogFormat = Literal["text", "json"]


def log_options(level: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options for the log level, by default `level`, and for the log format."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        log_format = click.option(
            "--log-format", type=click.Choice(LOG_FORMATS), help="By default text on a terminal and JSON elsewhere."
        )
        log_level = click.option("--log-level", type=click.Choice(LOG_LEVELS), default=level, show_default=True)
        return log_level(log_format(function))

    return decorate


def log_to_stderr(level: str, log_format: LogFormat | None = None) -> None:
    """Print events of at least `level` to standard error; replaces the handler of an earlier call.

    Args:
        level: one of `LOG_LEVELS`.
        log_format: by default text on a terminal and JSON elsewhere.
    """
    logger = logging.getLogger(ROOT_LOGGER)
    for handler in [handler for handler in logger.handlers if isinstance(handler, _StderrHandler)]:
        logger.removeHandler(handler)
    terminal = sys.stderr.isatty()
    handler = _StderrHandler()
    as_text = log_format == "text" or (log_format is None and terminal)
    handler.setFormatter(text_formatter(coloured=terminal) if as_text else json_formatter())
    logger.addHandler(handler)
    logger.setLevel(level.upper())


class _StderrHandler(logging.Handler):
    """Prints to the current standard error, and drops lines that cannot be written.

    A full disk under the log file must not end the server.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limit = RateLimit(SystemClock().monotonic)

    def emit(self, record: logging.LogRecord) -> None:
        left_out = self._limit.admit(_event_of(record))
        if left_out is None:
            return
        if left_out:
            record.not_logged = left_out
        stream: TextIO = sys.stderr
        with suppress(OSError):
            stream.write(self.format(record) + "\n")
            stream.flush()


def _event_of(record: logging.LogRecord) -> str:
    event: str = getattr(record, "event", None) or record.getMessage()
    return event


def text_formatter(*, coloured: bool) -> ProcessorFormatter:
    """One line per event: local time, level, name and fields; the trace of an error follows, one frame per line."""
    import structlog  # noqa: PLC0415 - commands that print no events do not wait for it

    def with_trace(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
        places = event_dict.pop("trace", None)
        if places:
            event_dict["exception"] = "\n".join(f"    {place}" for place in places)
        at = datetime.fromisoformat(event_dict["timestamp"])
        event_dict["timestamp"] = at.astimezone().isoformat(" ", "milliseconds")
        return event_dict

    return _formatter(with_trace, structlog.dev.ConsoleRenderer(colors=coloured, sort_keys=False))


def json_formatter() -> ProcessorFormatter:
    """One JSON object per event: its fields, `event`, `level` and `timestamp` (UTC)."""
    import structlog  # noqa: PLC0415 - commands that print no events do not wait for it

    def dumps(event_dict: EventDict, **_settings: object) -> str:
        return orjson.dumps(event_dict, default=str, option=orjson.OPT_NON_STR_KEYS).decode()

    return _formatter(structlog.processors.JSONRenderer(serializer=dumps))


def _formatter(*processors: Callable[[Any, str, EventDict], Any]) -> ProcessorFormatter:
    from structlog.stdlib import ProcessorFormatter  # noqa: PLC0415 - as above

    return ProcessorFormatter(
        foreign_pre_chain=(_fields_of_record,),
        processors=(ProcessorFormatter.remove_processors_meta, *processors),
    )


def _fields_of_record(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    """The fields of a record, bounded and escaped; `not_logged` is how many events of this name were dropped before it.

    An exception is its reason and the places that it passed: structlog's own renderers print local variables, which can be
    whole tables.
    """
    record: logging.LogRecord = event_dict["_record"]
    fields = readable(getattr(record, "fields", {}))
    left_out: int | None = getattr(record, "not_logged", None)
    if left_out is not None:
        fields["not_logged"] = left_out
    if record.exc_info and record.exc_info[1]:
        fields |= {"reason": fault_of(record.exc_info[1]), "trace": trace_of(record.exc_info[1])}
    time = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
    level = record.levelname.lower()
    own = {"event": getattr(record, "event", event_dict["event"]), "level": level, "timestamp": time}
    return {**fields, **own, **{name: event_dict[name] for name in ("_record", "_from_structlog")}}
