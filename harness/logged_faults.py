"""Faults of ours that a server logs and survives: a task that begins again, or a request that is answered with an exception.

Clients may never notice them, so a simulator counts each as a violation. An event with a trace is one, unless the exception is
an error of the disk or the network, which simulators inject.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ledgermq.world.events import ROOT_LOGGER

INJECTED = ("OSError", "AppendUnclear", "FileNotFoundError", "TimeoutError")
"""The types of exceptions that a simulated disk or network causes."""


class _Collector(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "fields", {})
        reason = str(fields.get("reason", ""))
        if fields.get("trace") and reason.partition(":")[0] not in INJECTED:
            self._found.append(f"{record.getMessage().partition(' ')[0]}: {reason} at {fields['trace'][-1]}")


@contextmanager
def logged_faults() -> Generator[list[str]]:
    """Collect the faults that are logged in the block; nothing else sees what is logged there."""
    logger, found = logging.getLogger(ROOT_LOGGER), list[str]()
    level, propagate, collector = logger.level, logger.propagate, _Collector(found)
    logger.addHandler(collector)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagate
