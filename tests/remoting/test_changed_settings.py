"""Settings that administrators change through the network."""

from __future__ import annotations

import attrs
import pytest

from ledgermq.remoting.changed_settings import read_changes, requested_changes, save_changes
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RequestRefused
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.memory_disk import MemoryDisk

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
    await save_changes(world, "d/changes", {"pace": "5", "port": "1"})
    await save_changes(world, "", {"pace": "6"})

    with capture_logs() as logs:
        assert read_changes(world.disk, "d/changes", ("pace",)) == {"pace": "5"}
        assert read_changes(world.disk, "none", ("pace",)) == read_changes(world.disk, "", ("pace",)) == {}
    assert [line["event"] for line in logs] == ["config_changes_read"]


async def test_a_disk_that_fails_refuses_the_request() -> None:
    world = attrs.evolve(sim_world(1), disk=MemoryDisk())
    world.disk.make_directories("d/changes")
    with pytest.raises(RequestRefused, match=r"d/changes: .*; nothing was changed"):
        await save_changes(world, "d/changes", {"pace": "5"})
