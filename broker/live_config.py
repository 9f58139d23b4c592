"""The configuration of a running broker, which an operator may change while it runs."""

from __future__ import annotations

import attrs

from .config import BrokerConfig


@attrs.define(eq=False)
class LiveConfig:
    """Holds the configuration; services keep this object and read `now` each time they need a setting."""

    now: BrokerConfig
    """Replaced as a whole by every change."""
