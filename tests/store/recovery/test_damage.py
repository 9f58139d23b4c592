"""Every file of a store is damaged at rest, in every way, after every kind of exit.

The next start either has everything that was acknowledged, or refuses with an error of the store that names a file or directory
and what can be done. It never ends with another exception, and never leaves something out in silence.
"""

from __future__ import annotations

import random
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from ledgermq.message.layout import decode_record
from ledgermq.store.errors import StoreError
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.real import World

from ..stores import incoming, small_config

ROOT = "store"
COUNT = 60
"""Messages; each segment of the log holds seven, each file of a queue ten, each file of the index nineteen keys."""
DELETED = 3
"""The first ones, whose topic is deleted then."""

KINDS = {
    "commitlog": f"{ROOT}/commitlog",
    "consumequeue": f"{ROOT}/consumequeue/Kept/0",
    "index": f"{ROOT}/index",
    "checkpoint": f"{ROOT}/checkpoint",
    "deletedQueues.json": f"{ROOT}/deletedQueues.json",
    "queuePlaces.json": f"{ROOT}/queuePlaces.json",
}
PLACES = {"first": 0, "middle": None, "last": -1}
DAMAGES = ("removed", "emptied", "truncated", "older copy", "corrupted")


@attrs.frozen
class Left:
    """The disk that a store leaves, and older copies of its files."""

    disk: SimDisk
    older: dict[str, bytes]


def world_on(disk: SimDisk) -> World:
    return World(disk, SimFabric().machine("10.0.0.1"), SimClock(), random.Random(1), SimWorkers(random.Random(2)))


def contents(disk: SimDisk) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for kind in KINDS.values():
        for path in [kind] if not disk.is_directory(kind) else [f"{kind}/{name}" for name in disk.list_directory(kind)]:
            if disk.exists(path):
                file = disk.open(path, read_only=True)
                found[path] = file.read(0, file.size)
                file.close()
    return found


def open_it(disk: SimDisk) -> AbstractAsyncContextManager[MessageStore]:
    config = small_config(Path(ROOT), flush_disk_type="SYNC_FLUSH", mapped_file_size_consume_queue=200)
    return open_message_store(world_on(disk), config)


async def leave(end: str) -> Left:
    """Run a store in which everything is acknowledged, and end it."""
    disk, older = SimDisk(random.Random(5), count(1).__next__), dict[str, bytes]()
    async with open_it(disk) as store:
        for number in range(DELETED):
            await put(store, number, "Gone")
        await store.event_done(store.delete_topic("Gone"))
        await trio.sleep(10)
        for number in range(DELETED, COUNT):
            await put(store, number, "Kept")
            if number == COUNT * 2 // 3:
                await trio.sleep(10)
                older = contents(disk)
        await trio.sleep(10 if end == "power" else 1.5)
        if end != "clean":
            disk = disk.kill() if end == "kill" else disk.power_cut(3)
    return Left(disk, older)


async def put(store: MessageStore, number: int, topic: str) -> None:
    message = incoming(b"%d;" % number + bytes(400), topic=topic, queue_id=0, properties=f"KEYS\x01k{number}\x02")
    assert (await store.put_one(message)).status is PutStatus.PUT_OK


def path_of(disk: SimDisk, kind: str, place: str) -> str | None:
    path = KINDS[kind]
    if not disk.is_directory(path):
        return path if disk.exists(path) and place == "first" else None
    names = disk.list_directory(path)
    at = PLACES[place]
    return f"{path}/{names[len(names) // 2 if at is None else at]}"


def damage(left: Left, path: str, how: str) -> bool:
    """Do it; False where it would change nothing."""
    disk = left.disk
    before = contents(disk)[path]
    if how == "removed":
        disk.remove(path)
        return True
    if how == "older copy" and (path not in left.older or left.older[path] == before):
        return False
    after = {
        "emptied": b"",
        "truncated": before[: len(before) // 2],
        "older copy": left.older.get(path, b""),
        "corrupted": random.Random(7).randbytes(64) + before[64:],
    }[how]
    disk.remove(path)
    file = disk.open(path, create_size=len(after))
    file.write(after, 0)
    file.close()
    return True


def found_in(store: MessageStore) -> tuple[list[int], list[int]]:
    """Numbers of the messages that consumers get, and of those that their key finds."""
    by_offset: list[int] = []
    for topic in ("Gone", "Kept"):
        offset, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
        while offset < high:
            result = store.get(topic, 0, offset, 32)
            by_offset += [int(decode_record(record).body.partition(b";")[0]) for record in result.slices]
            offset = max(result.next_offset, offset + 1)
    by_key: list[int] = []
    for number in range(COUNT):
        for topic in ("Gone", "Kept"):
            records = store.query(topic, f"k{number}", 64, 0, 1 << 60).slices
            by_key += [int(decode_record(record).body.partition(b";")[0]) for record in records]
    return by_offset, by_key


@pytest.mark.parametrize("end", ["clean", "power", pytest.param("kill", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_damaged_file_is_recovered_from_or_named(
    autojump_clock: trio.testing.MockClock, kind: str, place: str, how: str, end: str
) -> None:
    """See the module."""
    left = await leave(end)
    path = path_of(left.disk, kind, place)
    if path is None or not damage(left, path, how):
        return
    refusals = list[str]()
    for _ in range(2):  # a service manager starts a broker again that has refused
        try:
            async with open_it(left.disk) as store:
                by_offset, by_key = found_in(store)
        except* StoreError as group:
            (error,) = group.exceptions
            assert ROOT in str(error)
            assert path.rpartition("/")[2] in str(error) or KINDS[kind] in str(error)
            refusals.append(str(error))
        else:
            expected = list(range(DELETED, COUNT))
            assert (by_offset, by_key) == (expected, expected)
    assert refusals in ([], refusals[:1] * 2)
