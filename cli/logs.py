"""How commands and servers print log events: one line of text or one JSON object for each, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import click
import orjson

from ..world.clock import SystemClock
from ..world.events import ROOT_LOGGER
from ..world.logs import RateLimit, readable

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

LogFormat = Literal["text", "json"]

_EVENT_CHARACTERS = 30
"""The width of the column of event names in text."""
_COLOURS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}
_PLAIN = "\x1b[0m"


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
    handler.setFormatter(TextFormatter(coloured=terminal) if as_text else JsonFormatter())
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


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of an event, shortened and escaped; `not_logged` is how many events of this name were dropped before it."""
    fields = readable(getattr(record, "fields", {}))
    left_out: int | None = getattr(record, "not_logged", None)
    return fields if left_out is None else {**fields, "not_logged": left_out}


def _time_of(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


class TextFormatter(logging.Formatter):
    """One line per event: local time, level, name and fields; the trace of an error follows, one frame per line."""

    def __init__(self, *, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        level, fields = record.levelname.lower(), _fields_of(record)
        column = f"{level:<8}"
        if self._coloured:
            column = f"{_COLOURS.get(level, '')}{column}{_PLAIN}"
        time = _time_of(record).astimezone().isoformat(" ", "milliseconds")
        trace = [f"    {place}" for place in fields.pop("trace", ())]
        shown = " ".join(f"{name}={value if _is_plain(value) else repr(value)}" for name, value in fields.items())
        return "\n".join((f"{time} {column} {_event_of(record):<{_EVENT_CHARACTERS}} {shown}".rstrip(), *trace))


def _is_plain(value: object) -> bool:
    return not isinstance(value, str) or (value != "" and " " not in value)


class JsonFormatter(logging.Formatter):
    """One JSON object per event: its fields, `event`, `level` and `timestamp` (UTC)."""

    def format(self, record: logging.LogRecord) -> str:
        time = _time_of(record).isoformat().replace("+00:00", "Z")
        shown = {**_fields_of(record), "event": _event_of(record), "level": record.levelname.lower(), "timestamp": time}
        return orjson.dumps(shown, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
