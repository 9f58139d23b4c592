"""Who may ask a controller: with `authenticationEnabled` only those who have the secret of its nodes."""

from __future__ import annotations

import attrs
import pytest
import trio

from ledgermq.ha.classic.table_proofs import node_credentials
from ledgermq.ha.controller.protocol import ANY_BROKER, CleanBrokerDataRequest, ElectMasterRequest
from ledgermq.ha.controller.server import open_controller
from ledgermq.ha.errors import WrongHaSetting
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.signature import Credentials
from ledgermq.testing.logs import capture_logs
from ledgermq.world.memory_disk import MemoryDisk
from ledgermq.world.real import World

from .test_server import CONFIG, sim_world

SECRET = "s3cret"  # noqa: S105 - of the test


@pytest.fixture
def world() -> World:
    return attrs.evolve(sim_world(1), disk=MemoryDisk())


@pytest.mark.parametrize(
    ("credentials", "is_taken"),
    [
        (None, False),
        (node_credentials(b"guess"), False),
        (Credentials("admin", "guess"), False),
        (node_credentials(SECRET.encode()), True),
    ],
    ids=["unsigned", "wrong secret", "a user", "a node"],
)
async def test_only_who_has_the_secret_elects_forgets_and_changes_settings(
    world: World, autojump_clock: trio.testing.MockClock, credentials: Credentials | None, is_taken: bool
) -> None:
    config = attrs.evolve(CONFIG, ha_secret=SECRET, authentication_enabled=True)
    requests = [
        RemotingCommand(RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterRequest(broker_name="b", broker_id=ANY_BROKER).ext()),
        RemotingCommand(RequestCode.CLEAN_BROKER_DATA, CleanBrokerDataRequest(broker_name="b").ext()),
        RemotingCommand(RequestCode.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true\n"),
        RemotingCommand(RequestCode.CONTROLLER_GET_METADATA_INFO),
    ]
    with capture_logs() as logs:
        async with open_controller(config, world) as controller:
            with trio.fail_after(30):
                while not controller.node.knows_all:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.1)
            async with connected(controller.address, network=world.network, credentials=credentials) as channel:
                codes = [(await channel.call(request, 5)).code for request in requests]

            assert [code != ResponseCode.NO_PERMISSION for code in codes] == [is_taken] * len(requests)
            assert controller.config.enable_elect_unclean_master is is_taken
    assert ("controller_request_refused" in [entry["event"] for entry in logs]) is not is_taken


async def test_without_a_secret_it_is_refused_at_the_start(world: World) -> None:
    """A controller that takes requests of nobody would elect no master."""
    with pytest.raises(WrongHaSetting, match="authenticationEnabled"):
        async with open_controller(attrs.evolve(CONFIG, ha_secret="", authentication_enabled=True), world):
            pass
