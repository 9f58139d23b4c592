"""Brokers of Apache's and of ours in one DLedger group: leaders of either make, kills, and the same entries everywhere.

RocketMQ 4.9.7 has DLedger 0.3.1.2 inside, 5.5.0 has 0.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from ledgermq.client.admin import Admin, open_admin
from ledgermq.client.errors import ClientError
from ledgermq.ha.dledger.offline import all_log_files
from ledgermq.store.offline import verify
from ledgermq.world.disk import RealDisk

from .driver import Call, Driver, Received
from .ledgers import entries_of, transfer
from .members import SEGMENT_SIZE, Group, Member, becomes_equal, open_group, start_foreign
from .servers import Maker

pytestmark = pytest.mark.interop

TOPIC = "Mixed"
QUEUES = 2
BODY_SIZE = 3000
PATIENCE_SECONDS = 300.0
"""A group with nodes of Apache's takes some ten seconds to elect a leader, and its brokers as long to start."""

Acknowledged = dict[tuple[int, int], str]
"""The bodies of acknowledged messages, by queue and queue offset."""


async def acknowledged_more(client: Driver, load: Call, count: int) -> None:
    """Wait until so many more sends of the load were acknowledged."""
    before = len(load.events)

    def complaint() -> str:
        return f"{len(load.events) - before} of {count} were acknowledged"

    await trio.to_thread.run_sync(client.wait_until, lambda: len(load.events) >= before + count, PATIENCE_SECONDS, complaint)


async def read_all(client: Driver) -> list[Received]:
    """All messages of the topic from the present leader, once it serves them."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            received, problem = await trio.to_thread.run_sync(client.try_read_all, TOPIC)
            if not problem:
                return received
            await trio.sleep(0.5)


async def check_served(client: Driver, load: Call) -> None:
    """Whoever leads serves every message that was acknowledged before the question, each at the place that was answered."""
    wanted = {(each.queue_id, each.queue_offset): each.body for each in client.sent(load)}
    places = {(each.queue_id, each.queue_offset): each.body for each in await read_all(client)}
    assert wanted.items() <= places.items()


async def become_leader(group: Group, members: Sequence[Member], target: Member) -> None:
    """Let the target lead."""
    with trio.fail_after(PATIENCE_SECONDS):
        while (leader := await group.master_of(members)) is not target:
            await transfer(leader, target)
            await trio.sleep(1.0)


async def finish_load(client: Driver, load: Call) -> None:
    await trio.to_thread.run_sync(lambda: client.run("stop", consumer=load.number))
    await trio.to_thread.run_sync(client.finish, load)


async def check_equal_ledgers(admin: Admin, members: Sequence[Member], copies: Path) -> None:
    """All nodes hold the same entries, and `ledgermq store verify` finds ledger and queues of each make sound.

    They are killed, so that none of them elects and appends meanwhile. A node of Apache's that starts after a kill derives all
    of its ledger, and keeps in its queues what the next leader truncates; so its queues may have such entries.
    """
    await becomes_equal(admin, *members, seconds=PATIENCE_SECONDS)
    for member in members:
        member.kill()
    found = [entries_of(member.ledger, copies / member.dledger_id, SEGMENT_SIZE) for member in members]
    assert len(set(found)) == 1
    for member in members:
        store = str(member.folder / "store")
        report = verify(RealDisk(), store, files=all_log_files(RealDisk(), store))
        assert report.records > 0
        assert [one for one in report.problems if member.maker is Maker.OURS or " leads to " not in one] == []


@pytest.mark.parametrize("apache", [Maker.APACHE_55, Maker.APACHE_49], ids=lambda maker: maker.value)
async def test_a_broker_of_ours_leads_and_follows_brokers_of_apaches(tmp_path: Path, apache: Maker) -> None:
    """The leader of either make is killed under load; nothing acknowledged is lost, and each leader serves all of it."""
    async with open_group(tmp_path) as group, open_admin(group.namesrv) as admin:
        members = await group.form([Maker.OURS, apache, apache])
        await group.master_of(members)
        client = await start_foreign("java", group.namesrv, tmp_path / "java")
        group.started.callback(client.close)
        first = await group.master_of(members)
        await trio.to_thread.run_sync(lambda: client.run("create_topic", topic=TOPIC, broker=first.address, queues=QUEUES))
        load = client.begin("load", topic=TOPIC, threads=QUEUES, shards=QUEUES, pause=3, size=BODY_SIZE, body="m-{i}-")
        await acknowledged_more(client, load, 200)
        for target in members[:2]:
            await become_leader(group, members, target)
            await acknowledged_more(client, load, 500)
            await check_served(client, load)
            target.kill()
            await group.master_of([member for member in members if member is not target])
            await acknowledged_more(client, load, 500)
            await check_served(client, load)
            await target.start()
        await finish_load(client, load)
        await check_served(client, load)
        await check_equal_ledgers(admin, members, tmp_path / "copies")


async def caught_up(admin: Admin, leader: Member, member: Member) -> None:
    """Wait until the member has what the leader has now."""
    wanted = int((await admin.broker_runtime(leader.address))["commitLogMaxOffset"])
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            with suppress(ClientError):  # it may have been started only just now
                if int((await admin.broker_runtime(member.address))["commitLogMaxOffset"]) >= wanted:
                    return
            await trio.sleep(0.2)


async def test_a_group_of_apaches_becomes_one_of_ours_node_by_node(tmp_path: Path) -> None:
    """Under load: the leader last, after it has handed over. In the end the group goes on in the native dialect."""
    async with open_group(tmp_path) as group, open_admin(group.namesrv) as admin:
        members = await group.form([Maker.APACHE_55] * 3)
        first = await group.master_of(members)
        client = await start_foreign("java", group.namesrv, tmp_path / "java")
        group.started.callback(client.close)
        await trio.to_thread.run_sync(lambda: client.run("create_topic", topic=TOPIC, broker=first.address, queues=QUEUES))
        load = client.begin("load", topic=TOPIC, threads=QUEUES, shards=QUEUES, pause=3, size=BODY_SIZE, body="m-{i}-")
        await acknowledged_more(client, load, 200)
        first = await group.master_of(members)
        followers = [member for member in members if member is not first]
        for member in (*followers, first):
            if member is first:
                await become_leader(group, members, followers[0])
            await member.stop()
            member.maker = Maker.OURS
            await acknowledged_more(client, load, 100)
            await member.start()
            await caught_up(admin, await group.master_of(members), member)
        await acknowledged_more(client, load, 200)
        await check_served(client, load)

        for member in members:
            await member.stop()
            member.config |= {"raftDialect": "native", "haSecret": "s"}
        async with trio.open_nursery() as nursery:
            for member in members:
                nursery.start_soon(member.start)
        await acknowledged_more(client, load, 200)
        await finish_load(client, load)
        await check_served(client, load)
        await check_equal_ledgers(admin, members, tmp_path / "copies")
