"""Foreign clients on a DLedger group of ours: they produce and consume through kill -9 of its master."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio

from ledgermq.client.admin import open_admin

from .driver import Call, Driver, Received, Sent
from .members import Group, Member, open_group, start_foreign
from .servers import Maker

pytestmark = pytest.mark.interop

TOPIC = "Orders"
SHARDS = 4
MESSAGES_BETWEEN_KILLS = 300
RESUME_SECONDS = 180.0
"""The Go client asks for routes every 30 s, and has no setting for it."""
KILLS = {"java": (1, 1, 1), "go": (2,)}
"""How many masters are killed one after the other, each before the client has to resume; a test takes less than a minute."""
SECRET = {"haSecret": "s"}


async def acknowledged_since(client: Driver, load: Call, before: int) -> None:
    """Wait until so many more sends of the load were acknowledged."""

    def enough() -> bool:
        return len(load.events) >= before + MESSAGES_BETWEEN_KILLS

    def complaint() -> str:
        return f"{len(load.events) - before} acknowledged since the kill"

    await trio.to_thread.run_sync(client.wait_until, enough, RESUME_SECONDS, complaint)


async def kill_masters(group: Group, members: list[Member], kills: int) -> None:
    """Kill so many masters, each once it has been elected, and start each again when the next one has been."""
    for _ in range(kills):
        master = await group.master_of(members)
        master.kill()
        await group.master_of([member for member in members if member is not master])
        await master.start()


def first_deliveries(received: Iterable[Received]) -> dict[int, list[Received]]:
    """Each message once, by queue, in the order in which it was delivered for the first time."""
    found: dict[int, dict[int, Received]] = defaultdict(dict)
    for each in received:
        found[each.queue_id].setdefault(each.queue_offset, each)
    return {queue_id: list(messages.values()) for queue_id, messages in found.items()}


def check(sent: list[Sent], received: list[Received]) -> None:
    """Nothing acknowledged is missing or elsewhere, queues have no gap, and each sender's messages come in its order."""
    queues = first_deliveries(received)
    places = {(queue_id, each.queue_offset): each.body for queue_id, found in queues.items() for each in found}
    assert {(each.queue_id, each.queue_offset): each.body for each in sent}.items() <= places.items()
    for found in queues.values():
        assert [each.queue_offset for each in found] == list(range(len(found)))
        numbers: dict[int, list[int]] = defaultdict(list)
        for each in found:
            number = int(each.body.split("-")[1])
            numbers[number % SHARDS].append(number)
        assert all(sender == sorted(sender) for sender in numbers.values())


@pytest.mark.parametrize("language", ["java", "go"])
async def test_foreign_clients_outlive_masters_of_a_dledger_group(tmp_path: Path, language: str) -> None:
    """Through several kills a producer and an orderly consumer resume by themselves; nothing acknowledged is lost."""
    async with open_group(tmp_path) as group:
        members = await group.form([Maker.OURS] * 3, SECRET)
        await group.master_of(members)
        async with open_admin(group.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=SHARDS)
        client = await start_foreign(language, group.namesrv, tmp_path / language)
        group.started.callback(client.close)
        with client.consuming("orderly", topic=TOPIC, group="reader") as consumer:
            load = client.begin("load", topic=TOPIC, threads=SHARDS, shards=SHARDS, pause=5, body="m-{i}")
            await acknowledged_since(client, load, 0)
            for kills in KILLS[language]:
                await kill_masters(group, members, kills)
                await acknowledged_since(client, load, len(load.events))
            await trio.to_thread.run_sync(lambda: client.run("stop", consumer=load.number))
            await trio.to_thread.run_sync(client.finish, load)
            sent = client.sent(load)
            wanted = {each.body for each in sent}

            def arrived() -> bool:
                return wanted <= {each.body for each in consumer.received()}

            await trio.to_thread.run_sync(client.wait_until, arrived, RESUME_SECONDS, lambda: "not all was consumed")
            received = consumer.received()

    assert {each.status for each in sent} == {"SEND_OK"}
    check(sent, received)
