"""A store in memory: a node of a DLedger group that comes back empty takes part again, and costs nothing acknowledged."""

from __future__ import annotations

import attrs
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.config import BrokerConfig, config_of
from ledgermq.broker.errors import BadConfig
from ledgermq.broker.storage import world_of_store
from ledgermq.client.producer import open_producer
from ledgermq.ha.dledger.node import DLedgerNode
from ledgermq.ha.errors import WrongHaSetting
from ledgermq.ha.raft.core import Raft
from ledgermq.testing.history import End
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.memory_disk import MemoryDisk

from .modes.test_dledger import Group, check_nodes_agree, scenario

IN_MEMORY = {"storeType": "MEMORY"}
A_NODE = {"enableDLegerCommitLog": "true", "dLegerSelfId": "n0", "dLegerPeers": "n0-10.0.0.1:40911"}
CONFIG = config_of({**IN_MEMORY, **A_NODE, "storePathRootDir": "store"})


@pytest.mark.parametrize("how", list(End), ids=lambda end: end.name.lower())
def test_nothing_acknowledged_is_lost_while_one_node_after_the_other_loses_its_memory(how: End) -> None:
    """Each comes back empty, is filled, and votes again before the next one ends; then every node has lost its memory once."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            for node in group.nodes:
                await group.produce(producer, 20)
                await node.process.end(how)
                await group.produce(producer, 5)
                await group.nursery.start(node.process.run)
                await _all_vote(group)
        await check_nodes_agree(group)
        assert list(group.sent) == sorted(await group.consumed())
        assert not any(node.machine.disk.exists(node.config.store_path_root_dir) for node in group.nodes)

    scenario(story, settings=IN_MEMORY)


def test_a_node_that_alone_has_its_memory_is_not_outvoted_by_those_that_lost_theirs() -> None:
    """Two empty nodes of three would be a majority for a log without what was acknowledged; the group stands still instead."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
        first, second, _ = group.nodes
        for node in (first, second):
            await node.process.end(End.KILL)
        for node in (first, second):
            await group.nursery.start(node.process.run)
        with trio.move_on_after(30):
            while True:
                assert group.masters() == []
                await trio.sleep(0.1)

    scenario(story, settings=IN_MEMORY)


def test_a_group_of_which_every_node_has_lost_its_memory_begins_anew() -> None:
    """Nobody is left who knows of anything, so nobody waits for what is gone."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
        await group.begin_anew()
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 5)
        assert sorted(await group.consumed()) == list(group.sent)

    scenario(story, settings=IN_MEMORY)


@pytest.mark.parametrize("directory", ["store/commitlog", "store/dledger-n0", "elsewhere"])
def test_a_store_on_the_disk_is_not_left_behind(directory: str) -> None:
    """With it the node could come back later with an older vote, and without what it acknowledged from its memory."""
    world = sim_world(1)
    world.disk.make_directories(directory)
    with pytest.raises(WrongHaSetting, match=f"storeType is MEMORY, and {directory} is there"):
        world_of_store(attrs.evolve(CONFIG, store_path_dledger_commit_log="elsewhere"), world)


def test_only_the_store_is_in_memory() -> None:
    """Files of accounts and certificates are the operator's; a store in files is on the disk of its world."""
    world = sim_world(1)
    assert isinstance(world_of_store(CONFIG, world).disk, MemoryDisk)
    assert world_of_store(BrokerConfig(), world) is world


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({}, "default without enableDLegerCommitLog"),
        ({"enableControllerMode": "true", "controllerAddr": "h:1"}, "default without enableDLegerCommitLog"),
        ({**A_NODE, "raftDialect": "java"}, "default with raftDialect=java"),
    ],
)
def test_a_store_in_memory_is_refused_where_nothing_keeps_it_safe(entries: dict[str, str], said: str) -> None:
    with pytest.raises(BadConfig, match=said):
        config_of({**IN_MEMORY, **entries})


async def _all_vote(group: Group) -> None:
    """Wait until the group has a master, and no node is without a vote."""
    await group.master()
    with trio.fail_after(60):
        while not all(map(_votes, group.nodes)):  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.1)


def _votes(node: Node) -> bool:
    if node.broker is None:
        return False
    dledger = node.broker.node
    assert isinstance(dledger, DLedgerNode)
    assert isinstance(dledger.replica.core, Raft)
    return not dledger.replica.core.forgetful
