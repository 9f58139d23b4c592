"""Scenarios that the simulator drew once, each as a test of its own."""

from __future__ import annotations

import random

import attrs
import trio

from ledgermq.message.layout import BLANK, MAGIC_BLANK, decode_record, encode_host
from ledgermq.message.message import IncomingMessage
from ledgermq.store.config import StoreConfig
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import Machine

SEGMENT = 4096
CONFIG = StoreConfig(
    store_path_root_dir="store",
    mapped_file_size_commit_log=SEGMENT,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=10,
    max_index_num=100,
    flush_disk_type="ASYNC_FLUSH",
)
HOST = encode_host("10.0.0.1", 4711)


def _message(size: int) -> IncomingMessage:
    return IncomingMessage("A", 0, bytes(b"x" * size), "", 0, 0, 1, HOST)


def _offsets(store: MessageStore, count: int = 100) -> list[int]:
    found: list[int] = []
    while len(found) < count and (slices := store.get("A", 0, len(found), count).slices):
        found += [decode_record(record).queue_offset for record in slices]
    return found


def test_a_filler_that_a_power_cut_brings_back_ends_the_log() -> None:
    """Behind it lie records whose predecessors in the queue it hides: serving them would leave a gap."""
    machine = Machine.of("10.0.0.1", SimFabric(), random.Random(1))

    async def before() -> int:
        async with open_message_store(machine.world(), CONFIG) as store:
            store.put([_message(500), _message(500)])
            await trio.sleep(8)  # the recovery mark stands behind these
            hidden = store.put([_message(500), _message(500)])
            behind = store.put([_message(3000)])
            assert behind.physical_offsets == [SEGMENT]
            await trio.sleep(0.6)  # flushed, but the mark has not moved
            machine.power_cut()
            return hidden.physical_offsets[0]

    async def after() -> tuple[list[int], int]:
        async with open_message_store(machine.world(), CONFIG) as store:
            put = await store.put_one(_message(100))
            assert put.status is PutStatus.PUT_OK
            while store.dispatch_behind_bytes:  # noqa: ASYNC110 - looked at from outside
                await trio.sleep(0.01)
            return _offsets(store), put.queue_offset

    hidden_at = seeded_run(before, seed=1)
    file = machine.disk.open(f"store/commitlog/{0:020d}")
    file.write(BLANK.codec.pack(SEGMENT - hidden_at, MAGIC_BLANK), hidden_at)
    file.sync()

    offsets, given = seeded_run(after, seed=2)

    assert offsets == [0, 1, 2]
    assert given == 2


def test_a_message_that_fits_no_segment_is_refused_before_anything_is_written() -> None:
    """A filler written for it and taken back could outlast the records that come in its place."""
    machine = Machine.of("10.0.0.1", SimFabric(), random.Random(1))

    async def run() -> None:
        async with open_message_store(machine.world(), CONFIG) as store:
            store.put([_message(500)])
            end = store.log.max_offset
            alone = store.put([_message(SEGMENT)])
            batch = store.put([_message(2000), _message(2500)], together=True)
            assert {*alone.statuses, *batch.statuses} == {PutStatus.MESSAGE_ILLEGAL}
            assert store.log.max_offset == end
            assert not any(machine.disk.open(f"store/commitlog/{0:020d}").read(end, SEGMENT))
            assert machine.disk.list_directory("store/commitlog") == [f"{0:020d}"]
            machine.kill()

    seeded_run(run, seed=1)


def test_a_unit_of_which_a_power_cut_left_one_sector_is_derived_again() -> None:
    """Unit 102 lies across two sectors; with the first one lost it points to the beginning of the log."""
    machine = Machine.of("10.0.0.1", SimFabric(), random.Random(1))
    config = attrs.evolve(CONFIG, mapped_file_size_consume_queue=20_000)

    async def before() -> None:
        async with open_message_store(machine.world(), config) as store:
            store.put([_message(20)] * 102)
            await trio.sleep(8)
            store.put([_message(20)] * 20)
            await trio.sleep(0.6)
            for queue in store.queues.table.values():
                queue.sync()
            machine.power_cut()

    async def after() -> list[int]:
        async with open_message_store(machine.world(), config) as store:
            return _offsets(store, 122)

    seeded_run(before, seed=1)
    file = machine.disk.open(f"store/consumequeue/A/0/{0:020d}")
    file.write(bytes(8), 102 * 20)
    file.sync()

    assert seeded_run(after, seed=2) == list(range(122))
