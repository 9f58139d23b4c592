"""How long sends wait when the leader of a DLedger group is killed, in virtual time: the machine's load does not count.

Messages and syncs take a few milliseconds here, so what is measured is what the protocol and the clients wait for.
"""

from __future__ import annotations

import pytest
import trio

from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.message.message import Message
from ledgermq.testing.history import End

from .modes.test_dledger import Group, scenario

FAILOVER_SECONDS_MAX = 0.5


async def first_answer(producer: Producer) -> float:
    """When a send that begins now, or one after it, is answered as stored."""
    while True:
        try:
            await producer.send(Message("T", b"x"))
        except ClientError:
            await trio.sleep(0.001)
        else:
            return trio.current_time()


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_send_is_answered_within_half_a_second_of_the_leaders_death(seed: int) -> None:
    """The end of the leader's connections is noticed, and the next leader is found without long pauses."""
    waited: list[float] = []

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
            await trio.sleep(1 + group.rng.random())
            old = await group.master()
            killed = trio.current_time()
            async with trio.open_nursery() as nursery:
                old.process.crash(End.KILL)
                nursery.start_soon(old.process.end, End.KILL)
                waited.append(await first_answer(producer) - killed)
                assert (await group.master()) is not old

    scenario(story, seed)
    assert waited[0] < FAILOVER_SECONDS_MAX
