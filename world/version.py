"""The version of LedgerMQ that is installed."""

from __future__ import annotations

from functools import cache


@cache
def own_version() -> str:
    """The version, such as `0.1.0`; `unknown` in a checkout that is not installed. Read once, when it is first asked for."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - no start waits for it

    try:
        return version("ledgermq")
    except PackageNotFoundError:
        return "unknown"
