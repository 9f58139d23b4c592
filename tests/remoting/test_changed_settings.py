"""Settings that administrators change through the network."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from ledgermq.remoting.changed_settings import open_kept_file, read_changes, requested_changes
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RequestRefused
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.files import read_file
from ledgermq.world.memory_disk import MemoryDisk
from ledgermq.world.real import real_world

KEYS = ("port", "pace", "fixed")


def requested(text: bytes) -> dict[str, str]:
    request = RemotingCommand(RequestCode.UPDATE_NAMESRV_CONFIG, body=text)
    return requested_changes(request, "server", KEYS, ("pace", "fixed"), "fixed; ")


def test_settings_that_may_be_changed_are_read_from_a_request() -> None:
    assert requested(b"pace = 5\n") == {"pace": "5"}


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [
        (b"\xff", ResponseCode.SYSTEM_ERROR, "not properties text"),
        (b"port=1\npace=5", ResponseCode.NO_PERMISSION, "port cannot be changed"),
        (b"fixed=1", ResponseCode.NO_PERMISSION, "fixed cannot be changed"),
        (b"tls.enable=true", ResponseCode.NO_PERMISSION, "tls.enable cannot be changed"),
        (b"other=1", ResponseCode.INVALID_PARAMETER, "this server has no setting other"),
    ],
)
def test_other_requests_are_refused(text: bytes, code: ResponseCode, found: str) -> None:
    with pytest.raises(RequestRefused, match=found) as refused:
        requested(text)
    assert refused.value.code == code


async def test_what_was_saved_is_read_at_the_next_start() -> None:
    """Of keys that may be changed; others were put there by somebody else."""
    world = attrs.evolve(sim_world(1), disk=MemoryDisk())
    for path in ("d/changes", ""):
        async with open_kept_file(world, "key", path) as file:
            await file.save(world, b"pace=5\nport=1\n")

    with capture_logs() as logs:
        assert read_changes(world.disk, "d/changes", ("pace",)) == {"pace": "5"}
        assert read_changes(world.disk, "none", ("pace",)) == read_changes(world.disk, "", ("pace",)) == {}
    assert [line["event"] for line in logs] == ["config_changes_read"]


async def test_a_disk_that_fails_refuses_the_request() -> None:
    world = attrs.evolve(sim_world(1), disk=MemoryDisk())
    world.disk.make_directories("d/changes")
    async with open_kept_file(world, "key", "d/changes") as file:
        with pytest.raises(RequestRefused, match=r"d/changes: .*; nothing was changed"):
            await file.save(world, b"pace=5")


async def test_the_second_server_with_one_file_changes_nothing_until_it_is_started_again() -> None:
    """It may have read what the first one has replaced since."""
    world = attrs.evolve(sim_world(1), disk=MemoryDisk())
    async with open_kept_file(world, "thePath", "d/changes") as first:
        with capture_logs() as logs:
            async with open_kept_file(world, "thePath", "d/changes") as second:
                pass
        assert [(line["event"], line["path"]) for line in logs] == [("config_file_in_use", "d/changes")]
        await first.save(world, b"pace=5")
    with pytest.raises(
        RequestRefused, match=r"d/changes was in use by another server .* nothing was changed: .* another thePath"
    ):
        await second.save(world, b"pace=6")
    assert read_file(world.disk, "d/changes") == b"pace=5"

    async with open_kept_file(world, "thePath", "d/changes") as again:
        await again.save(world, b"pace=6")
    assert read_file(world.disk, "d/changes") == b"pace=6"


async def test_a_file_that_cannot_be_locked_is_read(tmp_path: Path) -> None:
    """As one on a read-only disk; a change of it fails by itself."""
    (tmp_path / "file").write_bytes(b"")
    with capture_logs() as logs:
        async with open_kept_file(real_world(), "key", f"{tmp_path}/file/changes") as file:
            with pytest.raises(RequestRefused, match="nothing was changed"):
                await file.save(real_world(), b"pace=5")
    assert [line["event"] for line in logs] == ["config_file_not_locked", "config_not_saved"]
