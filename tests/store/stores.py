"""A store in a temporary folder with a clock that tests set, and messages to put into it."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from ledgermq.message.layout import encode_host
from ledgermq.message.message import IncomingMessage
from ledgermq.store.config import StoreConfig
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.disk import Disk, RealDisk
from ledgermq.world.network import TcpNetwork
from ledgermq.world.real import World
from ledgermq.world.workers import ThreadWorkers

BORN_HOST = encode_host("127.0.0.1", 54321)
STORE_HOST = ("127.0.0.1", 10911)


@attrs.define
class SetClock:
    """Stands where it is put."""

    wall: int = 1_700_000_000_000
    seconds: float = 100.0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds


def small_world(clock: SetClock | None = None, disk: Disk | None = None) -> World:
    return World(disk or RealDisk(), TcpNetwork(), clock or SetClock(), random.Random(1), ThreadWorkers())


def sim_world(disk: SimDisk) -> World:
    """A world without threads, for tests on virtual time."""
    return attrs.evolve(small_world(disk=disk), workers=SimWorkers(random.Random(1)))


def small_config(path: Path, **changes: object) -> StoreConfig:
    """Files so small that a handful of messages fills them (the sizes of the bytes seen from RocketMQ)."""
    config = StoreConfig(
        store_path_root_dir=str(path),
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=10,
        max_index_num=20,
    )
    return attrs.evolve(config, **changes)  # type: ignore[arg-type]


@asynccontextmanager
async def small_store(
    path: Path, clock: SetClock | None = None, disk: Disk | None = None, **changes: object
) -> AsyncGenerator[MessageStore]:
    async with open_message_store(small_world(clock, disk), small_config(path, **changes), store_host=STORE_HOST) as store:
        yield store


def incoming(
    body: bytes = b"body", *, topic: str = "TopicTest", queue_id: int = 1, properties: str = "", sys_flag: int = 0
) -> IncomingMessage:
    return IncomingMessage(topic, queue_id, body, properties, 0, sys_flag, 1_600_000_000_123, BORN_HOST)


def derive_all(store: MessageStore) -> None:
    """Bring queues and index up to the log, without waiting for the task that does it."""
    while store.dispatch_behind_bytes and store.dispatcher.round():
        pass
