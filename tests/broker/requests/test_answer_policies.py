"""When requests that change tables are answered."""

from __future__ import annotations

import pytest
import trio

from ledgermq.broker.requests.answer_policies import Applied
from ledgermq.remoting.errors import RequestRefused

from ..modes.test_dledger import Group, scenario


def test_a_leader_that_was_deposed_while_it_carried_out_a_request_does_not_confirm_it() -> None:
    """A reset goes on in later turns of the event loop; what it changed after the node stopped leading is in no log."""

    async def story(group: Group) -> None:
        leader = await group.master()
        assert leader.broker is not None
        tables = leader.broker.table_log
        settling = Applied(tables, gathered=True)
        leader.broker.offsets.reset("g", "T", 0, 0)
        settled = settling.settling()
        assert settled is not None
        group.fabric.part([leader.machine.host], [node.machine.host for node in group.nodes if node is not leader])
        with trio.fail_after(5):
            while leader.broker.role.takes_puts:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
        with pytest.raises(RequestRefused, match="whether the change was made is unknown: the broker is a candidate"):
            await settled()
        group.fabric.heal()

    scenario(story)
