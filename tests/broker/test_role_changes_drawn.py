"""A broker whose role changes again before the last change has ended, on a disk that syncs slowly or fails for a while."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio

from harness.stored_offsets import queue_offset_faults
from ledgermq.broker.broker import Broker
from ledgermq.broker.opening import open_broker
from ledgermq.broker.role import Role
from ledgermq.message.layout import encode_host
from ledgermq.message.message import IncomingMessage
from ledgermq.store.derived import events
from ledgermq.store.errors import StoreError
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.logs import logs_silenced
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import Machine

SEEDS = range(20)
CHANGES = 60
QUEUES = 3
ROLES = (Role.MASTER, Role.MASTER, Role.READ_ONLY, Role.SLAVE)


async def put(broker: Broker, rng: random.Random) -> None:
    """Put messages, and now and then delete their topic, as far as the role allows."""
    while True:
        await trio.sleep(rng.random() * 0.05)
        body, host = b"x" * rng.randrange(900), encode_host("10.0.0.1", 1)
        count = rng.choice((1, 1, 4))
        broker.store.put([IncomingMessage("T", rng.randrange(QUEUES), body, "", 0, 0, 1, host) for _ in range(count)])
        if rng.random() < 0.02:
            with suppress(StoreError, OSError):
                broker.store.delete_topic("T")


async def spoil(machine: Machine, rng: random.Random) -> None:
    """Let syncs and writes fail for a while, again and again."""
    while True:
        await trio.sleep(rng.random())
        machine.disk.faults.sync_error, machine.disk.faults.write_error = rng.choice((0.3, 1.0)), rng.choice((0.0, 0.1))
        await trio.sleep(rng.random())
        machine.disk.faults.calm()


async def change_roles(broker: Broker, rng: random.Random) -> None:
    """Change the role, and cancel most changes somewhere."""
    for _ in range(CHANGES):
        role = rng.choice(ROLES)
        with trio.move_on_after(rng.choice((0.0, 0.01, 0.3, 3.0)) * rng.random()), suppress(StoreError, OSError):
            await broker.role.change(role, 0 if role is Role.MASTER else 1, "drawn")
        await trio.sleep(rng.choice((0.0, 0.0, 0.5)) * rng.random())


async def lead(broker: Broker) -> None:
    """Become master for good, and take messages for every queue."""
    with trio.fail_after(60):
        while not broker.role.takes_puts:
            with suppress(StoreError, OSError):
                await broker.role.change(Role.MASTER, 0, "the end")
            await trio.sleep(0.5)
        before = {each: broker.store.next_offset("T", each) for each in range(QUEUES)}
        while any(broker.store.next_offset("T", each) == offset for each, offset in before.items()):  # noqa: ASYNC110
            await trio.sleep(0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_queue_offset_is_given_out_twice_however_roles_change(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next offsets are taken up from what is derived, so all of the log must be, also what is not synced yet."""
    monkeypatch.setattr(events, "QUEUES_DELETED_PER_TURN", 1)
    rng = random.Random(seed)
    machine = Machine.of("10.0.1.0", SimFabric(rng), rng)
    machine.worker_seconds_max = rng.choice((0.0, 0.3, 2.0))
    settings = {
        "listenPort": "10911",
        "brokerIP1": machine.host,
        "bindAddress": machine.host,
        "flushDiskType": rng.choice(("SYNC_FLUSH", "SYNC_FLUSH", "SYNC_FLUSH", "ASYNC_FLUSH")),
        "mappedFileSizeCommitLog": "16384",
        "maxMessageSize": "8192",
        "maxHashSlotNum": "10",
        "maxIndexNum": "1000",
        "messageIndexEnable": rng.choice(("true", "false")),
    }
    (config,) = broker_configs("store", "", mode="local", nodes=1, settings=settings)

    async def story() -> None:
        async with open_broker(config, machine.world()) as broker:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(put, broker, rng)
                with trio.CancelScope() as faults:
                    async with trio.open_nursery() as beside:
                        beside.start_soon(spoil, machine, rng)
                        await change_roles(broker, rng)
                        faults.cancel()
                machine.disk.faults.calm()
                await lead(broker)
                nursery.cancel_scope.cancel()
            with trio.fail_after(60):
                while broker.store.dispatch_behind_bytes:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.1)
            ends = [(broker.store.max_offset("T", each), broker.store.next_offset("T", each)) for each in range(QUEUES)]
            assert all(readable == following for readable, following in ends), ends

    with logs_silenced():
        seeded_run(story, seed=seed)
    assert queue_offset_faults(machine.disk, config.store_path_root_dir) == []
