"""What a simulated run knows of its nodes."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import attrs
import trio

from harness.simulate.scene import Node, Process, Scene
from ledgermq.broker.broker import Broker
from ledgermq.broker.config import BrokerConfig
from ledgermq.testing.history import End, History, Put
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.world import sim_machines
from ledgermq.world.real import World


@attrs.define
class Log:
    """The log of a broker that holds one message."""

    written: bytes
    min_offset: int = 0

    @property
    def max_offset(self) -> int:
        return len(self.written)

    def slice_from(self, offset: int, size: int) -> memoryview:
        return memoryview(self.written)[offset : offset + size]


@asynccontextmanager
async def _broker(_world: World) -> AsyncGenerator[Broker]:
    yield cast("Broker", SimpleNamespace(store=SimpleNamespace(log=Log(b"45;"))))


async def test_copies_of_a_message_are_not_counted_if_a_node_was_killed_while_its_answer_was_in_transit(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """The killed master had the message when it answered, but it does not run any more when the answer arrives."""
    del autojump_clock
    scene = Scene(random.Random(1), SimFabric(), History(sync_flush=True, copies=2), life_seconds=1.0)
    for machine in sim_machines(seed=1, count=2):
        node = Node(machine, BrokerConfig())
        node.process = Process(machine, _broker)
        scene.nodes.append(node)
        await nursery.start(node.process.run)
    put = Put(45, 0, ("T", 0), epoch=0, sent_at=trio.current_time(), physical_offset=0)

    before = scene.copies(put)
    await trio.sleep(1)
    await scene.nodes[0].process.end(End.KILL)
    after = scene.copies(put)
    await trio.sleep(1)
    of_a_later_one = scene.copies(attrs.evolve(put, sent_at=trio.current_time()))

    assert (before, after, of_a_later_one) == (2, None, 1)
    await scene.nodes[1].process.end(End.KILL)
