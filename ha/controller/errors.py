"""Errors of the controller.

HaError
└── CorruptEvents     an entry of the log is no decision of a controller: the node stops
BadControllerConfig   a configuration holds a value with which no controller can run; nothing was started or changed

A refused request is answered by raising `remoting.errors.RequestRefused`.
"""

from __future__ import annotations

from ...remoting.errors import BadSetting
from ..errors import HaError


class CorruptEvents(HaError):
    """An entry of the log cannot be applied, so that this node would differ from the others. It was not applied."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"an entry of the controller's log cannot be applied: {found}. If another version wrote it, run that one; if not, "
            "move the store of this node away and let the other controllers fill it again"
        )


class BadControllerConfig(BadSetting):
    """A setting of a controller is not allowed."""
