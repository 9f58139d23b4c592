from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from ledgermq.ha.classic.commitlog import classic_log
from ledgermq.ha.classic.settings import HaSettings
from ledgermq.store.append_log import AppendLog
from ledgermq.store.commitlog import LocalLog
from ledgermq.store.config import StoreConfig
from ledgermq.store.opening import open_message_store
from ledgermq.testing.contracts import LOG_CHECKS, OpenLog, check_append_log
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.real import World, real_world

Wrap = Callable[[LocalLog, World], AppendLog]
MODES = ("ASYNC_FLUSH", "SYNC_FLUSH")


def unwrapped(local: LocalLog, _: World) -> AppendLog:
    return local


def asynchronous_master(local: LocalLog, world: World) -> AppendLog:
    return classic_log(local, HaSettings(), world.clock)


def master_of_a_prompt_slave(local: LocalLog, world: World) -> AppendLog:
    """A SYNC_MASTER whose slave holds at once what it is sent."""
    log = classic_log(local, HaSettings(sync_master=True), world.clock)
    log.on_grown = lambda: log.acks.hold("slave", log.max_offset)
    log.acks.hold("slave", 0)
    return log


def logs_of_a_store(world: Callable[[], World], root: str, mode: str, wrap: Wrap = unwrapped) -> Callable[[], OpenLog]:
    """The log as a message store opens it; one directory for each log."""
    made = 0

    def new_log() -> OpenLog:
        nonlocal made
        made += 1
        used, config = world(), attrs.evolve(CONFIG, store_path_root_dir=f"{root}/{made}", flush_disk_type=mode)

        @asynccontextmanager
        async def open_log() -> AsyncGenerator[AppendLog]:
            async with open_message_store(used, config, wrap_log=lambda local: wrap(local, used)) as store:
                yield store.log

        return open_log

    return new_log


CONFIG = StoreConfig(
    store_path_root_dir="",
    mapped_file_size_commit_log=8192,
    max_hash_slot_num=10,
    max_index_num=40,
    flush_interval_commit_log=20,
)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("check", LOG_CHECKS, ids=lambda check: check.__name__)
async def test_the_local_log_keeps_the_contract_on_a_real_disk(
    check: Callable[[OpenLog], object], mode: str, tmp_path: Path
) -> None:
    async def only(new_log: Callable[[], OpenLog]) -> None:
        await check(new_log())  # type: ignore[misc]

    await only(logs_of_a_store(real_world, str(tmp_path), mode))


@pytest.mark.parametrize("mode", MODES)
def test_the_local_log_keeps_the_contract_on_a_simulated_disk(mode: str) -> None:
    seeded_run(check_append_log, logs_of_a_store(lambda: sim_world(1), "store", mode), seed=1)


@pytest.mark.parametrize("wrap", [asynchronous_master, master_of_a_prompt_slave])
@pytest.mark.parametrize("mode", MODES)
def test_the_log_of_a_master_keeps_the_contract(mode: str, wrap: Wrap) -> None:
    seeded_run(check_append_log, logs_of_a_store(lambda: sim_world(1), "store", mode, wrap), seed=1)
