"""Who counts as a slave, and how master and slave find each other again: real stores on simulated disks, in virtual time."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.ha.classic.layout import BARE_REPORT, TAG, encode_report
from ledgermq.ha.classic.master import STRANGERS_MAX
from ledgermq.message.message import IncomingMessage
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.world.network import Address, Stream

from ..nodes import JoinByHand, Joined, Lines, OpenNode, Running

MASTER = Address("master", 10912)
DIALECTS = ["ledgermq", "rocketmq"]


def message(size: int = 100) -> IncomingMessage:
    return IncomingMessage("T", 0, random.Random(size).randbytes(size), "", 0, 0, 1_700_000_000_000, bytes(8))


async def put_status(master: Running) -> PutStatus:
    status: PutStatus = (await master.store.put_one(message())).status
    return status


def names_of(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs]


async def test_a_node_that_comes_back_over_a_new_connection_counts_once(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """The old, half-open connection is replaced at once, not after 20 s, and its end takes nothing from the new one."""
    async with open_node("m", sync_master=True) as master:
        service = master.service
        async with open_node("s", slave=True) as slave:
            await joined(master)
            assert await put_status(master) is PutStatus.PUT_OK
            lines.lines[0].half_open = True
            disk = slave.disk.kill()
        assert service.acks.slave_count == 1, "the master has not noticed"
        with capture_logs() as logs:
            async with open_node("s", slave=True, disk=disk) as slave:
                await slave.until(lambda: slave.client.joined_at is not None, 5)
                await trio.sleep(1)
                assert "slave_connection_replaced" in names_of(logs)
                assert len(service.connections) == len(service.slaves()) == service.acks.slave_count == 1
                for _ in range(3):
                    assert await put_status(master) is PutStatus.PUT_OK
                    await trio.sleep(25)


async def test_of_two_slaves_with_one_identity_the_second_is_refused(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """A copied store: the two would take each other's place for ever. The refusal names both."""
    async with open_node("m", sync_master=True) as master, open_node("s", slave=True) as slave:
        await joined(master)
        with capture_logs() as logs:
            async with open_node("s", slave=True) as twin:
                await trio.sleep(60)
                assert await put_status(master) is PutStatus.PUT_OK
                joined_now = [node.client.joined_at is not None for node in (slave, twin)]

    assert sorted(joined_now) == [False, True]
    assert names_of(logs).count("slave_connection_replaced") <= 2
    (reason, *_) = {entry["reason"] for entry in logs if entry["event"] == "ha_connection_refused"}
    assert "have one identity" in reason
    assert reason.count("slave:") == 2


async def test_a_first_report_that_is_late_makes_no_second_slave(
    autojump_clock: MockClock, open_node: OpenNode, join_by_hand: JoinByHand
) -> None:
    """Two connections of one node cross: whichever is heard of last is the node's, and the other one ends."""
    async with open_node("m", sync_master=True, in_sync_replicas=3, from_first=True) as master:
        service = master.service
        early = await join_by_hand(first_report=False)
        late = await join_by_hand()
        assert service.acks.slave_count == 1
        await early.stream.send_all(encode_report(0, 0))
        await trio.sleep(0.1)

        assert service.acks.slave_count == len(service.connections) == 1
        master.put()
        with trio.fail_after(1):
            while await late.stream.receive_some(1000):
                pass  # a heartbeat of before
        await early.follow(master.store.log.max_offset)
        await master.until(lambda: service.slaves()[0].lag_bytes == 0)


async def test_strangers_neither_acknowledge_nor_keep_slaves_out(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """Random bytes, forged reports and silence on the HA port, hundreds of times, before a slave comes and while it follows."""
    rng = random.Random(3)
    strangers: list[Stream] = []

    async def annoy() -> None:
        for number in range(400):
            stream = await lines.open_stream(MASTER)
            strangers.append(stream)
            noise = [
                rng.randbytes(rng.randrange(200)),
                BARE_REPORT.pack(offset=1 << 60),
                TAG + encode_report(1 << 60, 0),
                b"",
            ]
            await stream.send_all(noise[number % 4])
        await trio.sleep(0.5)

    async with open_node("m", sync_master=True) as master:
        service = master.service
        await annoy()
        assert await put_status(master) is PutStatus.SLAVE_NOT_AVAILABLE
        assert STRANGERS_MAX / 2 < len(service.connections) <= STRANGERS_MAX

        async with open_node("s", slave=True) as slave:
            await joined(master)
            joined_at = slave.client.joined_at
            assert await put_status(master) is PutStatus.PUT_OK
            await annoy()
            assert await put_status(master) is PutStatus.PUT_OK
            assert slave.client.joined_at == joined_at, "its connection is the oldest, and is kept"
            assert len(service.connections) <= STRANGERS_MAX + 1
        await trio.sleep(30)
        assert not service.connections


async def test_a_bare_forger_is_not_believed_beyond_the_log(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines
) -> None:
    """RocketMQ counts a report of 2^60; ours refuses it even in the bare dialect."""
    async with open_node("m", protocol="rocketmq", sync_master=True) as master:
        master.put()
        stream = await lines.open_stream(MASTER)
        await stream.send_all(BARE_REPORT.pack(offset=1 << 60))
        await trio.sleep(0.5)
        assert await put_status(master) is PutStatus.SLAVE_NOT_AVAILABLE


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_a_slave_whose_connection_is_lost_comes_back_after_every_put(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined, protocol: str
) -> None:
    """What it was sent within the turn of a put counts as sent: nothing of it is taken for another master's bytes."""
    async with (
        open_node("m", protocol=protocol, sync_master=True) as master,
        open_node("s", slave=True, protocol=protocol) as slave,
    ):
        for _ in range(5):
            await joined(master)
            await trio.sleep(1)
            assert await put_status(master) is PutStatus.PUT_OK
            await lines.lines[-1].cut()
            await joined(master, 0)
            assert slave.client.refusal is None
        await joined(master)


async def test_a_slave_that_may_not_join_asks_less_and_less_often(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines
) -> None:
    """Every five seconds in the end, as RocketMQ's; and it says why."""
    async with open_node("m"), open_node("s", slave=True, secret=b"another") as slave:
        await trio.sleep(60)
        assert 12 <= len(lines.lines) <= 18
        assert "haSecret" in (slave.client.refusal or "")
        lines.unreachable = True
        await trio.sleep(10)
        assert slave.client.refusal is None, "nobody is there to refuse it any more"


async def test_without_a_secret_the_master_says_that_anybody_may_join(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """And with one it does not."""
    for secret, said in ((b"", True), (b"secret", False)):
        with capture_logs() as logs:
            async with open_node("m", secret=secret) as master, open_node("s", slave=True, secret=secret):
                await joined(master)
        assert ("ha_secret_not_set" in names_of(logs)) is said


async def test_a_master_that_cannot_be_reached_is_tried_again(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines
) -> None:
    """Also where attempts to connect neither come about nor fail; it is said once."""
    lines.unreachable = True
    async with open_node("m") as master, open_node("s", slave=True) as slave:
        master.put()
        with capture_logs() as logs:
            await trio.sleep(60)
        assert names_of(logs) == ["master_unreachable"]

        lines.unreachable = False
        with trio.fail_after(10):
            await slave.caught_up(master)


async def test_another_address_of_the_master_counts_from_the_next_connection_on(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """As RocketMQ's slave has it: a name server's word does not end what works."""
    async with open_node("s", slave=True) as slave:
        async with open_node("m") as master:
            await joined(master)
            slave.node.set_master(Address("master", 20912))
            await trio.sleep(30)
            master.put()
            await slave.caught_up(master)
            assert len(lines.lines) == 1
            disk = master.disk.kill()
        async with open_node("m", disk=disk, listen_port=20912) as master:
            master.put()
            await slave.caught_up(master)
