"""Producers and pull consumers behave alike on trio, on asyncio and in threads."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from ledgermq.testing.client_contract import CHECKS, check_clients
from ledgermq.testing.hosting import KINDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", CHECKS)
async def test_clients_of_every_kind_keep_the_contract(autojump_clock: MockClock, check: str, kind: str) -> None:
    await check_clients(KINDS[kind], CHECKS[check])
