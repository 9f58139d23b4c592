"""Fixtures for tests of applications: `ledgermq_broker` and `ledgermq_cluster`.

They run on real sockets in a thread of their own, so that trio tests, asyncio tests and plain tests use them alike, with any
client. A test may kill, stop and start their brokers. For virtual time there is `open_virtual` in `ledgermq.testing.embedded`.
LedgerMQ is imported only when a test uses one of the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .embedded import StartedEmbedded


@pytest.fixture
def ledgermq_broker() -> Iterator[StartedEmbedded]:
    """A name server and one broker with an empty store; `.namesrv` is the address for clients."""
    from .embedded import start_embedded  # noqa: PLC0415

    with start_embedded() as embedded:
        yield embedded


@pytest.fixture
def ledgermq_cluster() -> Iterator[Callable[..., StartedEmbedded]]:
    """A function that starts clusters: `ledgermq_cluster(mode="dledger", nodes=3, settings={...})`; they end with the test."""
    from .embedded import start_embedded  # noqa: PLC0415

    with ExitStack() as stack:

        def start(**options: object) -> StartedEmbedded:
            return stack.enter_context(start_embedded(**options))  # type: ignore[arg-type]

        yield start
