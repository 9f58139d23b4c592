"""A leader whose disk keeps it from leading lets another node lead."""

from __future__ import annotations

import errno

import pytest
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.modes.dledger import DISK_REFUSES_SECONDS_MAX, DLedgerReplication
from ledgermq.client.producer import open_producer
from ledgermq.ha.dledger.replica import Replica
from ledgermq.ha.raft.core import Raft
from ledgermq.ha.raft.progress import Mode
from ledgermq.store.derived.consumequeue import ConsumeQueue

from ...broker.modes.test_dledger import Group, Node, check_nodes_agree, scenario
from .groups import Group as Nodes
from .groups import scenario as nodes_scenario


def replica_of(broker: Broker) -> Replica:
    """The node of a broker in its group."""
    assert isinstance(broker.replication, DLedgerReplication)
    return broker.replication.node.replica


class Refusing:
    """Disks that refuse the files of queues, and nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: list[Node] = []
        original = ConsumeQueue.write

        def write(queue: ConsumeQueue) -> None:
            if queue.segments.disk in [node.machine.disk for node in self.nodes]:
                raise OSError(errno.ENOSPC, "No space left on device")
            original(queue)

        monkeypatch.setattr(ConsumeQueue, "write", write)


def test_a_leader_whose_queues_cannot_be_written_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status says why; sends go on at the next leader, and the node follows."""
    refusing = Refusing(monkeypatch)

    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        async with open_producer(group.namesrv, "p", world=world) as producer:
            await group.produce(producer, 10)
            old = await group.master()
            refusing.nodes = [old]
            with trio.fail_after(DISK_REFUSES_SECONDS_MAX + 3):
                await group.produce(producer, 20)
            new = await group.master()
            assert new is not old
            assert old.broker is not None
            failure = old.broker.replication.status()["dledger"]["failure"]
            assert "No space left on device" in failure
            refusing.nodes.clear()
            await group.produce(producer, 5)
            await check_nodes_agree(group)
            assert sorted(await group.consumed()) == sorted(group.sent)

    scenario(story)


def test_leadership_goes_to_another_voter_if_the_first_one_cannot_take_it() -> None:
    async def story(group: Nodes) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        await group.converged()
        core = leader.up.core
        assert isinstance(core, Raft)
        assert core.leadership is not None
        first, second = sorted(core.leadership.group, key=lambda one: (one.match_index, one.contact_tick), reverse=True)
        first.mode = Mode.REGRESSED
        assert leader.up.hand_over("a test")
        assert core.leadership.transfer_to == second.peer

    nodes_scenario(story)


def test_a_node_that_is_elected_though_its_queues_cannot_be_written_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never becomes master: it waits for its queues, read-only, until another node leads."""
    refusing = Refusing(monkeypatch)

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 10)
            master = await group.master()
            full = next(node for node in group.nodes if node is not master)
            refusing.nodes = [full]
            await group.produce(producer, 10)
            assert full.broker is not None
            assert master.broker is not None
            replica_of(master.broker).transfer(replica_of(full.broker).settings.self_id)
            with trio.fail_after(5):
                while not replica_of(full.broker).is_leader:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.01)
            with trio.fail_after(DISK_REFUSES_SECONDS_MAX + 5):
                await group.produce(producer, 10)
            assert not full.broker.role.takes_puts

    scenario(story)


def test_leadership_does_not_run_in_a_circle_while_all_disks_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(monkeypatch)

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 10)
            master = await group.master()
            assert master.broker is not None
            before = replica_of(master.broker).leading.term
            refusing.nodes = list(group.nodes)
            with trio.move_on_after(30):
                await group.produce(producer, 1)
            assert replica_of(master.broker).leading.term - before <= 8
            refusing.nodes.clear()
            await group.produce(producer, 5)

    scenario(story)
