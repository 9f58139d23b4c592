"""Where work goes that would hold up the event loop: `fdatasync`, recovery scans, checksums of whole files."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

import attrs
import trio

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Protocol):
    """Runs blocking calls without blocking the event loop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` elsewhere and return its result.

        Cancellation: not interrupted; the caller is cancelled only after `function` has returned.
        """
        ...


@attrs.frozen
class ThreadWorkers:
    """Trio's cached worker threads."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await trio.to_thread.run_sync(lambda: function(*args, **kwargs))
