from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from ledgermq.store.append_log import AppendLog
from ledgermq.store.config import StoreConfig
from ledgermq.store.opening import open_message_store
from ledgermq.testing.contracts import LOG_CHECKS, OpenLog, check_append_log
from ledgermq.testing.scheduler import seeded_run
from ledgermq.testing.sim_world import sim_world
from ledgermq.world.real import World, real_world

MODES = ("ASYNC_FLUSH", "SYNC_FLUSH")


def logs_of_a_store(world: Callable[[], World], root: str, mode: str) -> Callable[[], OpenLog]:
    """The log as a message store opens it; one directory for each log."""
    made = 0

    def new_log() -> OpenLog:
        nonlocal made
        made += 1
        used, config = world(), attrs.evolve(CONFIG, store_path_root_dir=f"{root}/{made}", flush_disk_type=mode)

        @asynccontextmanager
        async def open_log() -> AsyncGenerator[AppendLog]:
            async with open_message_store(used, config) as store:
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
