"""What PUT_OK promises, and what it costs to wait for it: over real stores on simulated disks, in virtual time."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from ledgermq.message.message import IncomingMessage
from ledgermq.store.statuses import PutStatus

from ..nodes import JoinByHand, Joined, Lines, OpenNode, Running

SEGMENT = 16 * 1024
DIALECTS = ["ledgermq", "rocketmq"]


def message(size: int = 100) -> IncomingMessage:
    return IncomingMessage("T", 0, random.Random(size).randbytes(size), "", 0, 0, 1_700_000_000_000, bytes(8))


async def timed(master: Running) -> tuple[PutStatus, float]:
    """Put one message; return what became of it, and how long that took."""
    started = trio.current_time()
    result = await master.store.put_one(message())
    return result.status, trio.current_time() - started


def put_waiting(master: Running) -> tuple[int, list[PutStatus]]:
    """Append a message whose answer waits; return where it ends, and where its status will be."""
    statuses: list[PutStatus] = []
    end = master.put()
    master.store.log.when_stored(end, statuses.append)
    return end, statuses


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_a_slave_that_begins_empty_while_a_put_waits_holds_its_message_when_it_is_answered(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined, protocol: str
) -> None:
    """The log has gone on to another segment meanwhile: beginning there, the slave would seem to hold all before it."""
    async with (
        open_node("m", protocol=protocol, sync_master=True) as master,
        open_node("one", slave=True, protocol=protocol, broker_id=1),
    ):
        await joined(master)
        lines.lines[0].stalled = True
        end, statuses = put_waiting(master)
        while master.put(size=1000) < 2 * SEGMENT:
            pass

        async with open_node("two", slave=True, protocol=protocol, broker_id=2) as two:
            await master.until(lambda: bool(statuses))

            assert statuses == [PutStatus.PUT_OK]
            assert two.store.log.min_offset < end <= two.store.log.max_offset


async def test_a_put_ends_at_its_deadline_however_often_something_happens(
    autojump_clock: MockClock, open_node: OpenNode, join_by_hand: JoinByHand
) -> None:
    """Hundreds of reports that do not cover it, and puts of others, neither shorten nor prolong its wait."""
    async with open_node("m", sync_master=True) as master, trio.open_nursery() as nursery:
        slave = await join_by_hand()

        async def disturb() -> None:
            for _ in range(500):
                await trio.sleep(0.01)
                await slave.report()
                put_waiting(master)

        nursery.start_soon(disturb)
        await trio.sleep(0.1)
        status, elapsed = await timed(master)
        nursery.cancel_scope.cancel()

    assert status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert elapsed == pytest.approx(3.0, abs=0.05)


async def test_a_connection_of_the_same_node_is_not_another_copy(
    autojump_clock: MockClock, open_node: OpenNode, join_by_hand: JoinByHand
) -> None:
    """Three copies take two nodes, however often one of them connects and says what it holds."""
    async with open_node("m", sync_master=True, in_sync_replicas=3) as master:
        for _ in range(2):
            await join_by_hand(b"one")
            await trio.sleep(8)  # so long silent, it is not the second one of two that live
        await (await join_by_hand(b"one")).follow(master.put())
        assert (await timed(master))[0] is PutStatus.SLAVE_NOT_AVAILABLE

        await join_by_hand(b"two")
        assert (await timed(master))[0] is PutStatus.FLUSH_SLAVE_TIMEOUT


async def test_a_slave_as_far_behind_as_the_gap_allows_is_not_waited_for(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """Behind by haMaxGapNotInSync it does not count, and the status says so; once it has caught up it does."""
    async with open_node("m", sync_master=True, gap_max=2000) as master, open_node("s", slave=True) as slave:
        await joined(master)
        assert await timed(master) == (PutStatus.PUT_OK, pytest.approx(0, abs=0.1))
        lines.lines[0].stalled = True
        size = master.put() - slave.store.log.max_offset
        while master.store.log.max_offset + size - slave.store.log.max_offset < 2000:
            assert [one.in_sync for one in master.service.slaves()] == [True]
            master.put()

        assert await timed(master) == (PutStatus.SLAVE_NOT_AVAILABLE, pytest.approx(0, abs=0.1))
        assert [one.in_sync for one in master.service.slaves()] == [False]

        lines.lines[0].release()
        await slave.caught_up(master)
        assert (await timed(master))[0] is PutStatus.PUT_OK


async def test_of_three_slaves_that_lag_differently_the_best_answers_and_each_comes_to_the_end(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """One is near, one has not moved for a while, one for longer: each lag is reported, and none delays the others."""
    async with (
        open_node("m", sync_master=True) as master,
        open_node("one", slave=True, broker_id=1) as one,
        open_node("two", slave=True, broker_id=2) as two,
        open_node("three", slave=True, broker_id=3) as three,
    ):
        await joined(master, 3)
        slaves = [one, two, three]
        ends: list[int] = []
        for line in (2, 1):
            assert (await timed(master))[0] is PutStatus.PUT_OK
            for slave in slaves[: line + 1]:
                await slave.caught_up(master)
            await master.until(lambda: min(each.lag_bytes for each in master.service.slaves()) == 0)
            lines.lines[line].stalled = True
            ends.append(master.store.log.max_offset)
        for _ in range(20):
            assert await timed(master) == (PutStatus.PUT_OK, pytest.approx(0, abs=0.1))

        end = master.store.log.max_offset
        lags = {each.broker_id: each.lag_bytes for each in master.service.slaves()}
        assert lags == {1: 0, 2: end - ends[1], 3: end - ends[0]}
        assert 0 < lags[2] < lags[3]
        for slave in slaves:
            assert master.content().startswith(slave.content())

        for line in lines.lines:
            line.release()
        for slave in slaves:
            await slave.caught_up(master)
            assert slave.content() == master.content()


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_a_slave_that_stalls_for_minutes_costs_other_slaves_and_producers_nothing(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined, protocol: str
) -> None:
    """Every connection it makes stands still; when they move again it has everything within seconds."""
    async with (
        open_node("m", protocol=protocol, sync_master=True, from_first=True) as master,
        open_node("one", slave=True, protocol=protocol, broker_id=1),
    ):
        await joined(master)
        async with open_node("two", slave=True, protocol=protocol, broker_id=2) as two:
            await joined(master, 2)
            lines.stalled = lines.lines[1].stalled = True
            held = two.store.log.max_offset
            for _ in range(300):
                assert await timed(master) == (PutStatus.PUT_OK, pytest.approx(0, abs=0.1))
                await trio.sleep(1)
            assert len(lines.lines) > 5, "it has tried again and again"
            assert two.store.log.max_offset == held

            lines.stalled = False
            for line in lines.lines[1:]:
                line.release()
            with trio.fail_after(30):
                await two.caught_up(master)
            assert two.content() == master.content()


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_a_master_killed_between_the_write_and_the_acknowledgement_promised_nothing(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined, protocol: str
) -> None:
    """No producer was answered PUT_OK for what the slave lacks; what was written is there when it is back, and is sent."""
    async with open_node("s", slave=True, protocol=protocol) as slave:
        async with open_node("m", protocol=protocol, sync_master=True) as master:
            await joined(master)
            assert (await timed(master))[0] is PutStatus.PUT_OK
            lines.lines[-1].half_open = True
            end, statuses = put_waiting(master)
            await trio.sleep(1)
            disk = master.disk.kill()
            assert statuses == []
            held = slave.store.log.max_offset
            assert held < end
        assert PutStatus.PUT_OK not in statuses

        async with open_node("m", protocol=protocol, sync_master=True, disk=disk) as master:
            assert master.store.log.max_offset == end
            await slave.caught_up(master)
            assert slave.content() == master.content()
            assert (await timed(master))[0] is PutStatus.PUT_OK


async def test_too_few_copies_refuse_puts_of_a_sync_master_only(autojump_clock: MockClock, open_node: OpenNode) -> None:
    """`minInSyncReplicas` is no promise of an ASYNC_MASTER, whose puts wait for nobody."""
    async with open_node("m", min_in_sync_replicas=2, in_sync_replicas=2) as master:
        assert await timed(master) == (PutStatus.PUT_OK, pytest.approx(0, abs=0.1))
