"""A real broker on a real file system that fills up."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Generator
from pathlib import Path

import attrs
import pytest
import trio

from harness.processes.load import PULL_SETTINGS, QUEUES, Load
from harness.processes.servers import running_broker
from ledgermq.remoting.channel import Channel, connected
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.checkers import check_history
from ledgermq.testing.history import End, History

DISK_BYTES = 8 << 20
SETTINGS = {
    "mappedFileSizeCommitLog": 256 << 10,
    "flushDiskType": "SYNC_FLUSH",
    "cleanResourceInterval": 200,
    "cleanFileForciblyEnable": "false",
    **PULL_SETTINGS,
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of a few MiB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"no small disk: {error}")
    if mounted.returncode:
        pytest.skip(f"no small disk, which takes the right to mount one: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


async def send_until(load: Load, channel: Channel, *, stored: bool) -> RemotingCommand:
    """Send one message after the other until one is stored, or until one is not."""
    with trio.fail_after(60):
        while True:
            answer = await load.send(channel, load.numbered(load.rng.choice(QUEUES)))
            if (answer.code == ResponseCode.SUCCESS) is stored:
                return answer
            if stored:
                await trio.sleep(0.05)


def fill(path: Path) -> None:
    """Take all that is left of the file system, less than a page."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


@pytest.mark.parametrize(
    "from_within", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["by messages", "by somebody else"]
)
async def test_a_full_disk_refuses_puts_serves_consumers_and_recovers(small_disk: Path, from_within: bool) -> None:
    """The producer's error gives the reason, nothing acknowledged is lost, and puts go on by themselves when there is space.

    What the broker writes to standard error goes to the same disk.
    """
    ballast = small_disk / "ballast"
    load = Load(History(sync_flush=True), random.Random(8), body_bytes_max=20_000)
    ballast.write_bytes(bytes(DISK_BYTES // 2))
    async with running_broker(small_disk / "store", SETTINGS) as broker:
        async with connected(broker.address, network=load.network) as channel:
            await send_until(load, channel, stored=True)
            if not from_within:
                fill(small_disk / "more ballast")

            refusal = await send_until(load, channel, stored=False)
            assert refusal.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "disk is full" in (refusal.remark or "") or "No space left on device" in (refusal.remark or "")
            reading = await load.look(broker.address)
            assert await load.read_to_the_end(broker.address, reading) == []

            ballast.unlink()
            (small_disk / "more ballast").unlink(missing_ok=True)
            await send_until(load, channel, stored=True)
        assert await broker.stop() == 0
    load.history.ends.append(End.CLEAN)

    async with running_broker(small_disk / "store", SETTINGS) as broker:
        snapshot = await load.look(broker.address)
        missed = await load.read_to_the_end(broker.address, snapshot)

    assert check_history(attrs.evolve(load.history, snapshots=[snapshot])) == []
    assert missed == load.skipped == []
