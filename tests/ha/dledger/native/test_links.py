"""Connections between nodes that carry nothing any more, although neither end notices."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ledgermq.ha.dledger.native.layout import LANE_CONTROL, LANE_ENTRIES
from ledgermq.ha.dledger.native.links import Links
from ledgermq.testing.sim.network import SimStream

from ..groups import Group, Node, scenario

NOTICED_SECONDS = 12.0
"""In virtual time: the time after which a silent peer is dialled again, a connection, an election and a retry."""


def forget(dialler: Node, listener: Node, lane: int) -> None:
    """Let one connection deliver nothing more, as TCP does for a while after a long cut: it retries ever more rarely."""
    links = listener.up.links
    assert isinstance(links, Links)
    for accepted in links.accepted:
        if (accepted.peer, accepted.lane) == (dialler.peer, lane):
            assert isinstance(accepted.stream, SimStream)
            for direction in (accepted.stream.incoming, accepted.stream.outgoing):
                direction.forgotten = True
                direction.notify()


@pytest.mark.parametrize("lane", [LANE_CONTROL, LANE_ENTRIES])
@pytest.mark.parametrize("by_leader", [True, False])
def test_one_connection_that_carries_nothing_is_replaced(lane: int, *, by_leader: bool) -> None:
    """The other connections to the same peer work, and no third node helps out."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        needed, spare = (node for node in group.running if node is not leader)
        await group.put(leader)
        await group.converged()

        forget(*((leader, needed) if by_leader else (needed, leader)), lane)
        await spare.kill()

        with trio.fail_after(NOTICED_SECONDS):
            await group.put_until_done()
        group.check()

    scenario(story)


def test_a_message_that_takes_longer_than_a_silence_may_last_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new connection would begin again with its first byte."""
    monkeypatch.setattr("ledgermq.ha.dledger.native.links.SLOWEST_BYTES", 250)

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader)
        await group.converged()
        direction: Any = type(next(iter(group.fabric.streams)).outgoing)
        put = direction.put

        def put_slowly(way: Any, data: bytes) -> None:
            if len(data) > 1000:
                way.last_at = max(way.last_at, trio.current_time()) + len(data) / 500
            put(way, data)

        monkeypatch.setattr(direction, "put", put_slowly)
        streams = dict.fromkeys(group.fabric.streams)

        await group.put(leader, body_size=3500)
        await group.converged()

        assert group.fabric.streams == streams

    scenario(story)


def test_an_idle_group_keeps_its_connections() -> None:
    """Messages that need no answer do not count as unanswered ones."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader)
        await group.converged()
        before = dict.fromkeys(group.fabric.streams)

        await trio.sleep(60)

        assert group.fabric.streams == before

    scenario(story)
