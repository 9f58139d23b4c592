"""Starting a controller: what cannot work is refused, and leaves nothing open."""

from __future__ import annotations

import attrs
import pytest
import trio

from ledgermq.ha.controller.config import ControllerConfig
from ledgermq.ha.controller.errors import BadControllerConfig
from ledgermq.ha.controller.server import open_controller
from ledgermq.ha.errors import WrongHaSetting
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.store.errors import StoreInUse
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.files import replace_file
from ledgermq.world.memory_disk import MemoryDisk
from ledgermq.world.real import World

HOST = "10.0.0.1"
CONFIG = ControllerConfig(
    bind_address=HOST,
    peers=f"n0-{HOST}:9877",
    store_path="controller",
    config_store_path="changes",
    allow_empty_ha_secret=True,
)


@pytest.fixture
def world() -> World:
    return attrs.evolve(sim_world(1), disk=MemoryDisk())


async def test_a_free_port_is_taken_and_told_to_the_others(world: World, autojump_clock: trio.testing.MockClock) -> None:
    async with open_controller(attrs.evolve(CONFIG, listen_port=0), world) as controller:
        assert controller.address.port > 0
        assert repr(controller) == f"<Controller at {controller.address}>"
        assert controller.node.served_at(controller.node.replica.settings.self_id) == str(controller.address)


async def test_a_port_in_use_is_an_error_that_leaves_the_other_port_free(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    for taken, other in ((9877, 19876), (19876, 9877)):
        (listener,) = await world.network.open_listeners(HOST, taken)
        with pytest.RaisesGroup(OSError, allow_unwrapped=True, flatten_subgroups=True):
            async with open_controller(CONFIG, world):
                pass
        await listener.aclose()
        (free,) = await world.network.open_listeners(HOST, other)
        await free.aclose()


async def test_settings_that_cannot_work_are_refused_before_anything_is_opened(world: World) -> None:
    with pytest.raises(WrongHaSetting, match="haSecret is empty"):
        async with open_controller(attrs.evolve(CONFIG, allow_empty_ha_secret=False), world):
            pass
    assert not world.disk.exists("controller")


@pytest.mark.parametrize("content", [b"\xff", b"enableElectUncleanMaster=perhaps"])
async def test_a_damaged_file_of_changes_is_refused(world: World, content: bytes) -> None:
    replace_file(world.disk, "changes", content)
    with pytest.raises(BadControllerConfig):
        async with open_controller(CONFIG, world):
            pass


async def test_a_second_controller_in_one_directory_is_refused(world: World, autojump_clock: trio.testing.MockClock) -> None:
    """On ports of its own, too: two that wrote one log would each lead."""
    elsewhere = attrs.evolve(CONFIG, listen_port=29876, peers=f"n0-{HOST}:29877")
    async with open_controller(CONFIG, world):
        with pytest.RaisesGroup(StoreInUse, allow_unwrapped=True, flatten_subgroups=True):
            async with open_controller(elsewhere, world):
                pass
    async with open_controller(CONFIG, world):
        pass  # it is free again


async def test_of_two_controllers_with_one_file_of_changes_the_first_changes_it(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Each would replace what the other has saved; the second one serves, because the default path is that of the user."""
    elsewhere = attrs.evolve(CONFIG, listen_port=29876, peers=f"n0-{HOST}:29877", store_path="other")
    change = RemotingCommand(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true")
    async with open_controller(CONFIG, world) as first, open_controller(elsewhere, world) as second:
        answers: list[RemotingCommand] = []
        for controller in (second, first):
            async with connected(controller.address, network=world.network) as channel:
                answers.append(await channel.call(change, 5.0))

        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS]
        assert "changes was in use by another server" in (answers[0].remark or "")
        assert first.config.enable_elect_unclean_master
        assert not second.config.enable_elect_unclean_master
