"""Sends while the master of a DLedger group is silent: in virtual time, so the machine's load does not count."""

from __future__ import annotations

import pytest
import trio

from ledgermq.client.producer import open_producer

from ..broker.modes.test_dledger import Group, scenario
from ..broker.test_failover_time import first_answer

SILENCE_SECONDS_MAX = 2.0
"""An election time-out of at most 0.6 s, and two looks at silent connections, half a second each."""


@pytest.mark.parametrize("how", ["cut off", "hangs"])
def test_a_send_is_answered_soon_after_the_leader_fell_silent(how: str) -> None:
    """Its connections stay open, so the group waits for a whole election time-out, and clients for a look at the route."""
    waited: list[float] = []

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
            old = (await group.master()).machine.host
            others = [host for host in ("10.0.1.0", "10.0.1.1", "10.0.1.2", "10.0.2.1", "10.0.3.1") if host != old]
            began = trio.current_time()
            if how == "hangs":
                group.fabric.hang(old)
            else:
                group.fabric.part([old], others)
            waited.append(await first_answer(producer) - began)
            group.fabric.heal()

    scenario(story)
    assert waited[0] < SILENCE_SECONDS_MAX
