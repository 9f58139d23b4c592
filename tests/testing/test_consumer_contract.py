"""What "done" means for consumers, on the trio client and on the client for threads."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from ledgermq.testing.consumer_contract import WAYS, Ending, check_way


@pytest.mark.parametrize("orderly", [False, True], ids=["any order", "orderly"])
@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("way", WAYS)
async def test_what_was_not_handled_to_the_end_is_delivered_again(
    autojump_clock: MockClock, way: str, ending: Ending, orderly: bool
) -> None:
    """By exception, break and cancellation, in whatever way messages are taken."""
    await check_way(WAYS[way], ending, orderly=orderly)
