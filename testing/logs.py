"""Capturing and silencing of logs in tests."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import attrs

from ..world.events import ROOT_LOGGER

SILENT = logging.CRITICAL + 1
"""A level above all others."""


class _Collector(logging.Handler):
    def __init__(self, events: list[dict[str, Any]]) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "fields", {})
        event = {"event": getattr(record, "event", record.getMessage()), "log_level": record.levelname.lower(), **fields}
        self._events.append(event)


@contextmanager
def capture_logs() -> Generator[list[dict[str, Any]]]:
    """Collect every event that is logged in the block: its fields, and under `event` and `log_level` its name and level."""
    logger = logging.getLogger(ROOT_LOGGER)
    events: list[dict[str, Any]] = []
    collector = _Collector(events)
    before = _Settings.of(logger)
    logger.addHandler(collector)
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    try:
        yield events
    finally:
        logger.removeHandler(collector)
        before.restore(logger)


@contextmanager
def logs_silenced() -> Generator[None]:
    """Log nothing in the block, at any level."""
    logger = logging.getLogger(ROOT_LOGGER)
    before = _Settings.of(logger)
    logger.setLevel(SILENT)
    try:
        yield
    finally:
        before.restore(logger)


@attrs.frozen
class _Settings:
    level: int
    propagate: bool

    @classmethod
    def of(cls, logger: logging.Logger) -> _Settings:
        return cls(logger.level, logger.propagate)

    def restore(self, logger: logging.Logger) -> None:
        logger.propagate = self.propagate
        logger.setLevel(self.level)
