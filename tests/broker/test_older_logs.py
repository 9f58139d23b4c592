"""DLedger switched on for brokers that have a classic store: its messages, queues, tables and retention go on."""

from __future__ import annotations

import attrs
import pytest
import trio

from harness.simulate.older import copy_tree
from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.broker.modes.dledger import DLedgerReplication
from ledgermq.broker.opening import open_broker
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import ConsumeFrom, open_consumer
from ledgermq.client.producer import open_producer
from ledgermq.message.control import CONTROL_TOPIC, TABLES_CARRIED, decode_control
from ledgermq.message.message import Message, MessageQueue
from ledgermq.message.units import QueueId
from ledgermq.store.errors import LogOfOtherMode, MissingLog, MissingSegment
from ledgermq.store.log.divided_log import DividedCommitLog
from ledgermq.testing.history import End

from ..ha.dledger.test_node import hand_over
from .modes.test_dledger import Group, check_nodes_agree, scenario

ROOT = "older"
OLDER_MESSAGES = 400
IDLE_MESSAGES, DELETED_MESSAGES = 5, 7


async def leave_classic_stores(group: Group, *, how: End = End.CLEAN, copies: int = 3) -> None:
    """Let the first node be a classic master for a while, and give copies of its store to others."""
    for node in group.nodes:
        await node.process.end(End.CLEAN)
        node.config = attrs.evolve(node.config, store_path_root_dir=ROOT)
    first = group.nodes[0]
    dledger = first.config
    first.config = attrs.evolve(dledger, enable_dleger_commit_log=False)
    await group.nursery.start(first.process.run)
    world = group.world("10.0.3.1")
    async with open_admin(group.namesrv, world=world) as admin:
        await admin.create_topic("T", queues=2)
        await admin.create_topic("Deleted", queues=1)
        await admin.create_topic("Idle", queues=1)
        async with open_producer(group.namesrv, "p", world=world) as producer:
            await group.produce(producer, OLDER_MESSAGES)
            for topic, count in (("Deleted", DELETED_MESSAGES), ("Idle", IDLE_MESSAGES)):
                for _ in range(count):
                    await producer.send(Message(topic, b"x"))
        async with open_consumer(group.namesrv, "reader", "T", consume_from=ConsumeFrom.FIRST, world=world) as consumer:
            taken = 0
            while taken < 100:
                async with consumer.take(32, 1.0) as batch:
                    taken += len(batch)
        await admin.delete_topic("Deleted")
    await trio.sleep(1)
    await first.process.end(how)
    first.config = dledger
    for node in group.nodes[1:copies]:
        copy_tree(first.machine.disk, node.machine.disk, ROOT)


def log_of(node: Node) -> DividedCommitLog:
    assert node.broker is not None
    commit_log = node.broker.store.log
    assert isinstance(commit_log, DividedCommitLog)
    return commit_log


def up(node: Node) -> Broker:
    assert node.broker is not None
    return node.broker


async def start_all(group: Group) -> Node:
    for node in group.nodes:
        await group.nursery.start(node.process.run)
    return await group.master()


def kinds_of_events(node: Node) -> list[str]:
    """The control records of the newer log, in order."""
    commit_log = log_of(node)
    found: list[str] = []
    for _, parts in commit_log.records(commit_log.divided_offset, commit_log.committed_offset):
        if parts is not None and parts[6] == CONTROL_TOPIC:
            record = commit_log.record(parts[3], parts[0])
            assert record is not None
            found.append(decode_control(record).kind)
    return found


async def expire_older_files(node: Node, *, left: int = 0) -> None:
    """Delete what retention would delete one day, as the cleaner does it."""
    store, older = up(node).store, log_of(node).older
    assert store.cleaner is not None
    end = older.local.files()[-1 - left].start + older.local.files()[0].size
    assert up(node).store.writability.hard_refusal is not None or await store.queue_ends.append(end)
    while len(files := older.local.files()) > left:
        await store.cleaner.before_removal(files[0].end)
        await store.log.remove_oldest()
    await store.cleaner.follow_log()


@pytest.mark.parametrize("how", list(End), ids=lambda end: end.name.lower())
def test_messages_of_the_classic_log_are_read_behind_which_the_ledger_goes_on(how: End) -> None:
    """By consumers, by key and by time, on every node; queue offsets go on, and so do groups."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group, how=End.CLEAN if how is End.POWER else how)
        master = await start_all(group)
        world = group.world("10.0.3.2")
        divided = log_of(master).divided_offset
        assert divided > 65536
        ends = [up(master).store.max_offset("T", queue_id) for queue_id in range(2)]
        assert sum(ends) == len(group.sent) == OLDER_MESSAGES
        async with open_producer(group.namesrv, "p", world=world) as producer:
            for queue_id, end in enumerate(ends):
                sent = await producer.send(Message("T", b"0"), queue=MessageQueue("T", "broker-a", QueueId(queue_id)))
                assert sent.queue_offset == end
            await group.produce(producer, 50)
        await check_nodes_agree(group)

        if how is not End.CLEAN:
            await master.process.end(how)
            await group.master()
        assert sorted(set(await group.consumed())) == sorted(group.sent)
        for node in group.nodes:
            if node.broker is None:
                continue
            store = node.broker.store
            assert len(store.query("T", "3", 10, 0, 1 << 62).slices) == 1
            assert store.earliest_store_time() <= min(store.earliest_store_time("T", queue_id) for queue_id in range(2))
            middle = store.store_time("T", 0, 40)
            assert store.store_time("T", 0, store.offset_by_time("T", 0, middle)) == middle
            assert sum(node.broker.offsets.query("reader", "T", queue_id) or 0 for queue_id in range(2)) >= 64
            assert node.broker.store.max_offset("Deleted", 0) == DELETED_MESSAGES
            assert node.broker.store.min_offset("Deleted", 0) == DELETED_MESSAGES
        if how is not End.CLEAN:
            await group.nursery.start(master.process.run)
            await check_nodes_agree(group)
            assert log_of(master).divided_offset == divided

    scenario(story)


@pytest.mark.parametrize("how", [End.KILL, End.POWER], ids=lambda end: end.name.lower())
@pytest.mark.parametrize("seconds", [0.0, *(pytest.param(later, marks=pytest.mark.slow) for later in (0.05, 0.5))])
def test_a_group_that_ends_while_it_is_switched_goes_on_with_the_switch(how: End, seconds: float) -> None:
    """The classic log may be sealed and the ledger still be empty; nothing of either is lost or there twice."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        for _ in range(2):
            for node in group.nodes:
                await group.nursery.start(node.process.run)
            await trio.sleep(seconds)
            for node in group.nodes:
                await node.process.end(how)
        master = await start_all(group)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 20)
        await check_nodes_agree(group)
        assert sum(up(master).store.max_offset("T", queue_id) for queue_id in range(2)) == OLDER_MESSAGES + 20
        assert sorted(set(await group.consumed())) == sorted(group.sent)

    scenario(story)


def test_tables_of_the_classic_store_are_the_first_events_of_the_log() -> None:
    """Once: topics, groups, commits. A later master does not repeat them."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        master = await start_all(group)
        with trio.fail_after(10):
            while TABLES_CARRIED not in kinds_of_events(master):  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.05)
        assert {"topics_changed", "groups_changed", "offsets_committed"} <= set(kinds_of_events(master))

        for _ in range(2):
            ended = await group.master()
            await ended.process.end(End.CLEAN)
            await group.master()
            await group.nursery.start(ended.process.run)
        await trio.sleep(2)
        assert kinds_of_events(await group.master()).count(TABLES_CARRIED) == 1

    scenario(story)


def test_older_files_expire_first_and_the_ledger_goes_on_alone() -> None:
    """The last older file too; a start without them finds a ledger that begins at the divided offset."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        master = await start_all(group)
        divided = log_of(master).divided_offset
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 30)
            await check_nodes_agree(group)
            for node in group.nodes:
                await expire_older_files(node, left=1)
                assert up(node).store.log.min_offset == divided - 65536
            first = up(master).store.min_offset("T", 0)
            assert 0 < first < up(master).store.max_offset("T", 0)
            for node in group.nodes:
                await expire_older_files(node)
                assert up(node).store.log.min_offset == divided
                assert up(node).store.min_offset("T", 0) > first
            await master.process.end(End.KILL)
            await group.produce(producer, 10)
            await group.nursery.start(master.process.run)
            await check_nodes_agree(group)
            assert not isinstance(up(master).store.log, DividedCommitLog)
            assert up(master).store.log.min_offset == divided

    scenario(story)


def test_a_group_does_not_begin_before_all_have_the_classic_log() -> None:
    """The first start of a group needs all of its nodes, and one without a copy is refused by the others."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group, copies=2)
        for node in group.nodes:
            await group.nursery.start(node.process.run)
        await trio.sleep(10)
        assert not group.masters()
        lacking = group.nodes[2]
        assert all("which node n2 does not have" in refusal for refusal in refusals_of(lacking))

        await lacking.process.end(End.CLEAN)
        lacking.machine.disk.remove_tree(ROOT)
        for directory in ("commitlog", "config"):
            copy_tree(group.nodes[0].machine.disk, lacking.machine.disk, f"{ROOT}/{directory}")
        await group.nursery.start(lacking.process.run)
        await group.master()
        await check_nodes_agree(group)

    scenario(story)


def refusals_of(node: Node) -> list[str]:
    """What the other nodes say to one that they refuse."""
    replication = up(node).replication
    assert isinstance(replication, DLedgerReplication)
    return [peer.refusal for peer in replication.node.replica.status().peers if peer.refusal]


def test_a_node_without_the_classic_log_is_refused_until_that_has_expired() -> None:
    """It could not serve those messages as the leader; the refusal names the directories to copy."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        master = await start_all(group)
        lacking = next(node for node in group.nodes if node is not master)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 30)
            await lacking.process.end(End.CLEAN)
            lacking.machine.disk.remove_tree(ROOT)
            await group.nursery.start(lacking.process.run)
            await trio.sleep(1)
            refusals = refusals_of(lacking)
            assert len(refusals) == 2
            assert all("does not have" in refusal and "commitlog" in refusal for refusal in refusals)
            assert up(lacking).store.log.max_offset == 0
            others = [node for node in group.nodes if node is not lacking]
            for node in others:
                await expire_older_files(node)
            await group.produce(producer, 10)
            with trio.fail_after(30):
                while up(lacking).store.log.committed_offset < log_of(master).committed_offset:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.1)
            assert up(lacking).store.log.min_offset == log_of(master).divided_offset
            # Queues of which no message is left go on all the same, those of a deleted topic too.
            await hand_over(group, up(master), lacking)
            assert up(lacking).store.next_offset("Deleted", 0) == DELETED_MESSAGES
            assert up(lacking).store.next_offset("Idle", 0) == IDLE_MESSAGES
            sent = await producer.send(Message("Idle", b"x"))
            assert sent.queue_offset == IDLE_MESSAGES

    scenario(story)


def test_nodes_whose_classic_logs_differ_do_not_form_a_group() -> None:
    """A slave that lacks its master's last messages must get the master's store first."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        behind = group.nodes[1]
        behind.config = attrs.evolve(behind.config, enable_dleger_commit_log=False)
        await group.nursery.start(behind.process.run)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await producer.send(Message("T", b"only here"))
        await behind.process.end(End.CLEAN)
        behind.config = attrs.evolve(behind.config, enable_dleger_commit_log=True)
        for node in group.nodes:
            await group.nursery.start(node.process.run)
        await trio.sleep(10)
        assert len(refusals := refusals_of(behind)) == 2
        assert all("the classic commit logs that the ledger continues differ" in refusal for refusal in refusals)
        assert not group.masters()

    scenario(story)


def test_a_node_that_begins_anew_drops_its_classic_log_too() -> None:
    """Its leader has nothing of what came between, so what is older has expired as well."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        master = await start_all(group)
        away = next(node for node in group.nodes if node is not master)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 5)
            await away.process.end(End.CLEAN)
            for _ in range(60):
                await producer.send(Message("U", group.rng.randbytes(5000)))
            for node in group.nodes:
                if node is not away:
                    await expire_older_files(node)
                    store = up(node).store
                    assert store.cleaner is not None
                    while len(files := store.log.files()) > 2:
                        await store.cleaner.before_removal(files[0].end)
                        await store.log.remove_oldest()
                    await store.cleaner.follow_log()
            begin = up(master).store.log.min_offset
            await group.nursery.start(away.process.run)
            with trio.fail_after(30):
                while up(away).store.log.min_offset < begin:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.01)
            assert log_of(away).older.expired
            await away.process.end(End.KILL)
            await group.nursery.start(away.process.run)
            await group.produce(producer, 5)
            await trio.sleep(2)
            assert up(away).store.log.min_offset == begin

    scenario(story)


def test_a_copy_of_the_classic_log_is_taken_of_a_node_that_has_gone_on_without_what_belongs_to_its_ledger() -> None:
    """Queues and checkpoint lead into the ledger, and are refused without it; the other nodes take the rest for a true copy."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        master = await start_all(group)
        lost = next(node for node in group.nodes if node is not master)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 30)
            await trio.sleep(6)
            await lost.process.end(End.CLEAN)
            disk = lost.machine.disk
            disk.remove_tree(ROOT)
            disk.make_directories(ROOT)
            for directory in ("commitlog", "consumequeue", "config"):
                copy_tree(master.machine.disk, disk, f"{ROOT}/{directory}")
            copy_file(master, lost, "checkpoint")
            with pytest.raises(MissingLog, match="holds no file of the log"):
                async with open_broker(lost.config, lost.machine.world()):
                    pass

            for path in ("consumequeue", "index", "dledger-" + lost.config.dleger_self_id):
                if lost.machine.disk.exists(f"{ROOT}/{path}"):
                    lost.machine.disk.remove_tree(f"{ROOT}/{path}")
            lost.machine.disk.remove(f"{ROOT}/checkpoint")
            await group.nursery.start(lost.process.run)
            await group.produce(producer, 10)
            assert log_of(lost).older.end == log_of(master).older.end
            assert up(lost).store.max_offset("Idle", 0) == IDLE_MESSAGES
            replication = up(lost).replication
            assert isinstance(replication, DLedgerReplication)
            assert not [peer.refusal for peer in replication.node.replica.status().peers if peer.refusal]

    scenario(story)


def copy_file(source: Node, target: Node, name: str) -> None:
    """Copy one file of the store."""
    read = source.machine.disk.open(f"{ROOT}/{name}", read_only=True)
    written = target.machine.disk.open(f"{ROOT}/{name}", create_size=read.size)
    written.write(read.read(0, read.size), 0)
    written.sync()
    target.machine.disk.sync_directory(ROOT)


@pytest.mark.parametrize(("missing", "error"), [("last", MissingSegment), ("ledger", LogOfOtherMode)])
def test_logs_that_do_not_join_are_refused(missing: str, error: type[Exception]) -> None:
    """A file between the two is missing, or both have messages at the same offsets."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        await start_all(group)
        node = group.nodes[0]
        last = log_of(node).older.local.files()[-1]
        await trio.sleep(1)
        await node.process.end(End.CLEAN)
        if missing == "last":
            node.machine.disk.remove(last.path)
        else:
            copy = node.machine.disk.open(f"{ROOT}/commitlog/{last.start + 65536:020d}", create_size=65536)
            copy.close()

        with pytest.raises(error):
            async with open_broker(node.config, node.machine.world()):
                pass

    scenario(story)
