"""`ledgermq dashboard`: a cluster as web pages, rendered from what brokers answer; nothing is kept between requests."""

from __future__ import annotations

from .start import command

__all__ = ["command"]
