"""Large tables of a DLedger group: they are appended to the log in pieces, once, and count only when they are complete.

Records take ten rows here instead of a thousand, so that small tables are large ones.
"""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.tables import table_log
from ledgermq.broker.tables.table_log import TableLog
from ledgermq.client.producer import open_producer
from ledgermq.message.control import OFFSETS_COMMITTED, TABLES_CARRIED
from ledgermq.message.message import Message
from ledgermq.store.errors import NotWritable
from ledgermq.store.put_side import PutSide
from ledgermq.store.read_side import ReadSide
from ledgermq.testing.history import End
from ledgermq.world.slices import SLICE_ITEMS

from ...ha.dledger.test_node import hand_over
from ..tables.test_tables import check_tables_agree, expire, up
from .test_dledger import Group, scenario

ROWS_MAX = 10
OFFSETS = 95


@attrs.define(eq=False)
class CallsPerTurn(trio.abc.Instrument):
    """Counts the calls of a method in each turn of the event loop."""

    most: int = 0
    _now: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._now = 0

    def counted(self, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self._now += 1
            self.most = max(self.most, self._now)
            return method(*args, **options)

        return call


@pytest.fixture(autouse=True)
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "ROWS_PER_RECORD_MAX", ROWS_MAX)


@pytest.fixture
def appends(monkeypatch: pytest.MonkeyPatch) -> CallsPerTurn:
    """Counts the appended events."""
    calls = CallsPerTurn()
    monkeypatch.setattr(PutSide, "append_event", calls.counted(PutSide.append_event))
    return calls


def tables_in(node: Node) -> TableLog:
    return up(node).table_log


def kinds_of_events(node: Node) -> list[str]:
    tables = tables_in(node)
    return [
        control.kind
        for _, control in tables.events_between(up(node).store.log.min_offset, up(node).store.dispatcher.dispatched_offset)
    ]


async def commit_many(group: Group) -> None:
    """Let groups commit offsets, all in one turn of the event loop."""
    leader = up(await group.master())
    for number in range(OFFSETS):
        leader.commits.commit(f"g{number % 7}", "Idle", number, 0)
    await trio.sleep(1)


async def fill_files(group: Group) -> None:
    async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
        for _ in range(60):
            await producer.send(Message("U", group.rng.randbytes(5000)))


def offsets_of(node: Node) -> dict[tuple[str, str, int], int | None]:
    offsets = up(node).offsets
    return {key: offsets.query(key[1], key[0], key[2]) for key in offsets.entries()}


async def check_all_know_the_offsets(group: Group) -> None:
    await trio.sleep(1)
    for node in group.nodes:
        assert sum(topic == "Idle" for topic, _, _ in offsets_of(node)) == OFFSETS, node.host


def test_many_commits_at_once_are_appended_in_several_turns(appends: CallsPerTurn) -> None:

    async def story(group: Group) -> None:
        leader = await group.master()
        trio.lowlevel.add_instrument(appends)
        await commit_many(group)
        await leader.process.end(End.POWER)
        await group.master()
        await group.nursery.start(leader.process.run)
        await check_all_know_the_offsets(group)
        await check_tables_agree(group)

    scenario(story)
    assert appends.most <= 2, "one for each of commits and deliveries"


def test_files_expire_on_disks_without_a_free_byte() -> None:
    """Before that the ledger's checkpoint, next offsets of queues and tables are written."""

    async def story(group: Group) -> None:
        await commit_many(group)
        await fill_files(group)
        for node in sorted(group.nodes, key=lambda node: node not in group.masters()):
            disk, cleaner = node.machine.disk, up(node).store.cleaner
            assert cleaner is not None
            disk.faults.capacity = disk.allocated_bytes()
            with trio.fail_after(60):
                while not up(node).store.log.min_offset:
                    await cleaner.delete_expired()
                    await trio.sleep(1)
            disk.faults.capacity = None
        await check_tables_agree(group)

    scenario(story, settings={"fileReservedTime": "0"})


def test_tables_are_stated_once_until_the_statement_itself_expires(appends: CallsPerTurn) -> None:
    """Neither another expiry, nor another leader, nor a start of all nodes appends again what the log has behind its begin."""

    async def story(group: Group) -> None:
        trio.lowlevel.add_instrument(appends)
        await commit_many(group)
        await fill_files(group)
        for node in sorted(group.nodes, key=lambda node: node not in group.masters()):
            await expire(node)
        assert kinds_of_events(await group.master()).count(TABLES_CARRIED) == 1

        await expire(await group.master())
        old = await group.master()
        await hand_over(group, up(old), next(node for node in group.nodes if node is not old))
        await trio.sleep(2)
        for node in group.nodes:
            await node.process.end(End.POWER)
        for node in group.nodes:
            await group.nursery.start(node.process.run)
        leader = await group.master()
        await trio.sleep(2)
        assert up(leader).store.log.min_offset > 0
        assert kinds_of_events(leader).count(TABLES_CARRIED) == 1
        await check_all_know_the_offsets(group)

        await fill_files(group)
        await expire(leader)
        assert kinds_of_events(leader).count(TABLES_CARRIED) == 1, "the earlier one has expired"

    scenario(story)
    assert appends.most <= 2, "one record of a statement, and the ends of queues"


@pytest.mark.parametrize("records", [1, *(pytest.param(more, marks=pytest.mark.slow) for more in (5, 9))])
def test_a_statement_that_its_leader_did_not_complete_counts_for_nothing(records: int) -> None:
    """The next leader, whose log begins behind the commits too, states all; a node without a disk gets every offset."""

    async def story(group: Group) -> None:
        await commit_many(group)
        await fill_files(group)
        leader = await group.master()
        for node in group.nodes:
            if node is not leader:
                await expire(node)
        store = up(leader).store
        before = kinds_of_events(leader).count(OFFSETS_COMMITTED)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.queue_ends.append, store.log.files()[-2].start)
            while kinds_of_events(leader).count(OFFSETS_COMMITTED) < before + records:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.001)
            assert TABLES_CARRIED not in kinds_of_events(leader)
            await leader.process.end(End.KILL)
            nursery.cancel_scope.cancel()

        new = await group.master()
        await group.nursery.start(leader.process.run)
        with trio.fail_after(30):
            while not tables_in(new).tables.stated_from:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
        empty = next(node for node in group.nodes if node is not new)
        await empty.process.end(End.KILL)
        with empty.machine.disk.no_faults():
            empty.machine.disk.remove_tree(empty.config.store_path_root_dir)
        await group.nursery.start(empty.process.run)
        with trio.fail_after(60):
            while offsets_of(empty) != offsets_of(new):  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.1)
        assert up(empty).store.log.min_offset > 0
        await check_all_know_the_offsets(group)

    scenario(story)


def test_a_statement_does_not_outlast_the_leadership_in_which_it_began() -> None:
    """What the node has dropped meanwhile may be missing in its first records."""

    async def story(group: Group) -> None:
        await commit_many(group)
        leader = await group.master()
        tables = tables_in(leader)
        refusals: list[str] = []

        async def state() -> None:
            with pytest.raises(NotWritable, match="does not lead any longer") as refused:
                await tables.state(up(leader).store.log.max_offset)
            refusals.append(str(refused.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(state)
            before = kinds_of_events(leader).count(OFFSETS_COMMITTED)
            while kinds_of_events(leader).count(OFFSETS_COMMITTED) < before + 3:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.001)
            tables.stop_leading()
            tables.lead()
        assert len(refusals) == 1
        assert not tables.tables.stated_from

    scenario(story)


def test_a_new_master_compares_offsets_with_the_ends_of_queues_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CallsPerTurn()
    monkeypatch.setattr(ReadSide, "max_offset", calls.counted(ReadSide.max_offset))

    async def story(group: Group) -> None:
        old = await group.master()
        for node in group.nodes:
            up(node).offsets.load({"offsetTable": {"Idle@g": {str(number): number for number in range(2 * SLICE_ITEMS)}}})
        trio.lowlevel.add_instrument(calls)
        await hand_over(group, up(old), new := next(node for node in group.nodes if node is not old))
        assert set(up(new).offsets.of("g", "Idle").values()) == {0}

    scenario(story)
    assert calls.most == SLICE_ITEMS
