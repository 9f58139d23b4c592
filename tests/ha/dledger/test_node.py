"""A broker's node of a DLedger group: what becomes of its store when the ledger begins anew."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import attrs
import pytest
import trio
import trio.testing

from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.broker.modes.dledger import DLedgerReplication
from ledgermq.broker.opening import open_broker
from ledgermq.client.admin import open_admin
from ledgermq.client.producer import Producer, open_producer
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles
from ledgermq.ha.dledger.native.group_records import barrier_record
from ledgermq.ha.dledger.node import DLedgerNode
from ledgermq.ha.dledger.replica import Replica
from ledgermq.ha.dledger.settings import ReplicaSettings
from ledgermq.ha.dledger.status import Leading
from ledgermq.ha.raft.errors import Refused
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.units import LogIndex, PeerId
from ledgermq.message.message import IncomingMessage, Message
from ledgermq.store.errors import LogOfOtherMode
from ledgermq.store.message_store import MessageStore
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.history import End
from ledgermq.testing.logs import capture_logs
from ledgermq.world.network import Address

from ...broker.modes.test_dledger import JAVA, Group, check_nodes_agree, scenario

SETTINGS = ReplicaSettings(
    group="g", self_id=PeerId("n0"), peers={PeerId("n0"): Address("10.0.0.1", 1)}, files=LedgerFiles("unused")
)


async def miss_messages(group: Group, producer: Producer, away: Node) -> None:
    """Stop a node, and send messages that fill several files meanwhile."""
    await away.process.end(End.CLEAN)
    for _ in range(60):
        await producer.send(Message("U", group.rng.randbytes(5000)))


async def expire_all_but_the_newest_files(group: Group, away: Node) -> None:
    """Delete what retention would delete one day, on all nodes but one that is away."""
    for node in group.nodes:
        if node is away:
            continue
        assert node.broker is not None
        store = node.broker.store
        assert store.cleaner is not None
        while len(files := store.log.files()) > 3:
            await store.cleaner.before_removal(files[0].end)
            await store.log.remove_oldest()
        await store.cleaner.follow_log()


async def begun_anew(node: Node) -> None:
    """Wait until the ledger of a node begins where its leader's does."""
    assert node.broker is not None
    with trio.fail_after(30):
        while node.broker.store.log.min_offset == 0:  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.001)


async def hand_over(group: Group, master: Broker, target: Node) -> None:
    """Let `target` lead."""
    assert target.broker is not None
    assert isinstance(master.replication, DLedgerReplication)
    assert isinstance(target.broker.replication, DLedgerReplication)
    master.replication.node.replica.transfer(target.broker.replication.node.settings.self_id)
    with trio.fail_after(30):
        while group.masters() != [target]:  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.01)


@pytest.mark.parametrize("seconds", [0.0, *(pytest.param(later, marks=pytest.mark.slow) for later in (0.02, 0.5)), 2.0])
@pytest.mark.parametrize("how", [End.KILL, End.POWER], ids=lambda end: end.name.lower())
def test_a_node_that_ends_right_after_its_ledger_began_anew_starts_again_and_can_lead(how: End, seconds: float) -> None:
    """The store's recovery mark tells of the old ledger; it must not make the next start look for what was dropped."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 20)
            master = await group.master()
            away = next(node for node in group.nodes if node is not master)
            await trio.sleep(12)
            await miss_messages(group, producer, away)
            await trio.sleep(12)
            await expire_all_but_the_newest_files(group, away)
            await group.nursery.start(away.process.run)
            await begun_anew(away)
            await trio.sleep(seconds)
            await away.process.end(how)

            await group.nursery.start(away.process.run)
            await group.produce(producer, 5)
            await check_nodes_agree(group)
            master = await group.master()
            assert master.broker is not None
            await hand_over(group, master.broker, away)
            await group.produce(producer, 10)
            await check_nodes_agree(group)

    scenario(story)


async def start_a_node_that_has_missed_messages(group: Group, producer: Producer) -> tuple[Node, DLedgerReplication]:
    """Let a node miss messages that expire everywhere, and start it again; returns before its ledger begins anew."""
    await group.produce(producer, 20)
    master = await group.master()
    away = next(node for node in group.nodes if node is not master)
    await miss_messages(group, producer, away)
    await expire_all_but_the_newest_files(group, away)
    await group.nursery.start(away.process.run)
    assert away.broker is not None
    assert isinstance(away.broker.replication, DLedgerReplication)
    return away, away.broker.replication


@pytest.mark.parametrize("queues_fail", [False, True])
@pytest.mark.parametrize("how", [End.KILL, End.POWER], ids=lambda end: end.name.lower())
def test_a_node_that_ends_while_it_begins_anew_keeps_nothing_of_the_old_queues(how: End, *, queues_fail: bool) -> None:
    """Its ledger is empty already and the queues of the old one are still there, because the disk refuses or the node ends."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            away, replication = await start_a_node_that_has_missed_messages(group, producer)
            reached = trio.Event()

            def stop() -> None:
                if queues_fail and not reached.is_set():
                    reached.set()
                    raise OSError(5, "the disk refuses")
                if not queues_fail:
                    away.process.crash(how)
                    reached.set()

            replication.node.replica.on_cleared.insert(0, stop)
            with trio.fail_after(30):
                await reached.wait()
            if queues_fail:
                await trio.sleep(3)
            await away.process.end(how)
            await group.nursery.start(away.process.run)
            await group.produce(producer, 10)
            await check_nodes_agree(group)
            master = await group.master()
            assert master.broker is not None
            if master is not away:
                await hand_over(group, master.broker, away)
            await group.produce(producer, 10)
            await check_nodes_agree(group)
            for topic in ("T", "U"):
                for queue_id in range(2):
                    ranges = {
                        (node.broker.store.min_offset(topic, queue_id), node.broker.store.max_offset(topic, queue_id))
                        for node in group.nodes
                        if node.broker is not None
                    }
                    assert len(ranges) == 1

    scenario(story)


@pytest.mark.parametrize("how", [End.KILL, End.POWER], ids=lambda end: end.name.lower())
def test_a_node_that_ends_before_its_old_log_is_removed_has_the_tables_of_that_log_again(how: End) -> None:
    """Their files were emptied already."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            away, replication = await start_a_node_that_has_missed_messages(group, producer)
            reached = trio.Event()

            async def stop() -> None:
                away.process.crash(how)
                reached.set()
                await trio.sleep_forever()

            replication.node.replica.before_clearing.append(stop)
            with trio.fail_after(30):
                await reached.wait()
            await away.process.end(how)
            for node in group.nodes:
                if node is not away:
                    await node.process.end(End.KILL)

            await group.nursery.start(away.process.run)

            assert away.broker is not None
            assert away.broker.store.log.min_offset == 0
            assert "T" in away.broker.topics.topics

    scenario(story)


def test_a_node_that_begins_anew_knows_where_the_queues_of_a_deleted_topic_go_on() -> None:
    """The messages are gone before it came, the deletion is still in the log: queue offsets are not given out a second time."""

    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        async with open_admin(group.namesrv, world=world) as admin, open_producer(group.namesrv, "p", world=world) as producer:
            await group.produce(producer, 20)
            master = await group.master()
            away = next(node for node in group.nodes if node is not master)
            await miss_messages(group, producer, away)
            await admin.delete_topic("T")
            await expire_all_but_the_newest_files(group, away)
            await group.nursery.start(away.process.run)
            await begun_anew(away)
            await trio.sleep(2)
            assert master.broker is not None
            await hand_over(group, master.broker, away)
            await admin.create_topic("T", queues=2)
            await group.produce(producer, 10)
            await check_nodes_agree(group)

    scenario(story)


@pytest.mark.parametrize("how", list(End), ids=lambda end: end.name.lower())
@pytest.mark.parametrize("newly_elected", [False, True])
def test_a_node_that_begins_anew_knows_where_queues_go_on_whose_messages_have_expired(how: End, *, newly_elected: bool) -> None:
    """The queue still has readers at its end; offsets that were acknowledged are not given out a second time.

    What a follower expired without a word is said when it is elected.
    """

    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        async with open_producer(group.namesrv, "p", world=world) as producer:
            await group.produce(producer, 20)
            master = await group.master()
            away = next(node for node in group.nodes if node is not master)
            await miss_messages(group, producer, away)
            await expire_all_but_the_newest_files(group, away)
            if newly_elected:
                assert master.broker is not None
                await hand_over(group, master.broker, next(node for node in group.nodes if node not in (master, away)))
            else:
                assert master.broker is not None
                await master.broker.store.queue_ends.append(master.broker.store.log.min_offset)
            await group.nursery.start(away.process.run)
            await begun_anew(away)
            await trio.sleep(2)
            await away.process.end(how)
            await group.nursery.start(away.process.run)
            await trio.sleep(2)
            master = await group.master()
            assert master.broker is not None
            if master is not away:
                await hand_over(group, master.broker, away)
            await group.produce(producer, 10)
            await check_nodes_agree(group)
            assert away.broker is not None
            assert sum(away.broker.store.max_offset("T", queue_id) for queue_id in range(2)) == 30

    scenario(story)


@pytest.mark.parametrize("how", [End.CLEAN, End.KILL], ids=lambda end: end.name.lower())
def test_a_store_with_a_ledger_is_refused_in_the_classic_mode(how: End) -> None:
    """Its messages would be hidden, even where nothing but the files of its log tells of them yet."""

    async def story(group: Group) -> None:
        node = group.nodes[0]
        for each in group.nodes:
            await each.process.end(End.CLEAN)
        peer = node.config.dleger_peers.split(";")[0]
        dledger = attrs.evolve(node.config, store_path_root_dir="alone", dleger_peers=peer)
        classic = attrs.evolve(dledger, enable_dleger_commit_log=False)
        node.config = dledger
        await group.nursery.start(node.process.run)
        assert node.broker is not None
        with trio.fail_after(30):
            while not node.broker.role.takes_puts:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
        result = await node.broker.store.put_one(IncomingMessage("T", 0, b"x", "", 0, 0, 0, bytes(8)))
        assert result.status is PutStatus.PUT_OK
        await node.process.end(how)

        with pytest.raises(LogOfOtherMode, match="enableDLegerCommitLog=true"):
            async with open_broker(classic, node.machine.world()):
                pass

    scenario(story)


def test_a_leader_waits_for_what_its_group_appends_before_it_takes_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the members of a new group follow the index of its first read; they were taken for a log of unknown end."""
    read = Replica.read_index

    async def then_append(replica: Replica) -> LogIndex:
        index = await read(replica)
        with suppress(Refused):
            replica.propose_own(barrier_record(0))
        return index

    async def story(group: Group) -> None:
        await group.master()

    monkeypatch.setattr(Replica, "read_index", then_append)
    with capture_logs() as logs:
        scenario(story)

    assert any(one["event"] == "role_changed" and one["new"] == "master" for one in logs)
    assert [one for one in logs if one["event"] == "role_change_failed"] == []


async def test_a_role_that_was_interrupted_is_taken_again_when_it_comes_back_at_once() -> None:
    """The group may lose its leader and find it again before the broker has looked."""
    taken: list[Leading] = []
    first, none = Leading(Role.FOLLOWER, 1, PeerId("n1"), None), Leading(Role.FOLLOWER, 1, None, None)

    async def take(leading: Leading) -> None:
        if not replica.interrupted:
            replica.interrupted = True
            replica.become(none)
            replica.become(first)
        await trio.lowlevel.checkpoint()
        taken.append(leading)

    replica = FlickeringReplica(first)
    node = DLedgerNode(SETTINGS, take)
    node.replica = cast("Replica", replica)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, cast("MessageStore", SimpleNamespace(queue_ends=SimpleNamespace())))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert taken == [first]


@attrs.define(eq=False)
class FlickeringReplica:
    """A replica of which nothing but the leadership is asked."""

    leading: Leading
    interrupted: bool = False
    on_role: list[Callable[[Leading], None]] = attrs.field(factory=list[Callable[[Leading], None]])
    on_bulk: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])

    def become(self, leading: Leading) -> None:
        self.leading = leading
        for tell in self.on_role:
            tell(leading)


def test_a_follower_copies_the_tables_as_soon_as_the_new_leader_serves() -> None:
    """Tables are copied in the dialect of DLedger only. A follower that has asked too early does not wait ten seconds."""

    async def story(group: Group) -> None:
        old = await group.master()
        await old.process.end(End.KILL)
        new = await group.master()
        (follower,) = [node for node in group.nodes if node not in (old, new)]
        assert follower.broker is not None
        replication = follower.broker.replication
        with trio.fail_after(3):
            while replication.sync is None or not replication.sync.rounds:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)

    scenario(story, settings=JAVA)
