"""One controller on the wire: every request code, and the answers to what cannot be carried out."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from ledgermq.ha.controller import service as controller_service
from ledgermq.ha.controller.protocol import (
    REPLICAS_MAX,
    BrokerHeartbeat,
    BrokerReplicasInfo,
    CleanBrokerDataRequest,
    ElectMasterBody,
    ElectMasterRequest,
    Mastership,
    RegisterBrokerRequest,
)
from ledgermq.ha.controller.state import IdApplied
from ledgermq.message.json import dumps_strict
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.java_properties import read_properties

from .controllers import CLUSTER, NAME, SHARED_BY_ALL, CallsInTurns, Group, Node, scenario, serving


async def config_of(group: Group, node: Node) -> dict[str, str]:
    return read_properties((await group.ask(node, RequestCode.GET_CONTROLLER_CONFIG)).body.decode())


async def update(group: Group, text: str) -> RemotingCommand:
    return await group.ask(group.nodes[0], RequestCode.UPDATE_CONTROLLER_CONFIG, body=text.encode())


def test_an_administrator_sees_and_names_masters() -> None:
    async def story(group: Group) -> None:
        await serving(group)

        named = ElectMasterRequest(cluster_name=CLUSTER, broker_name=NAME, broker_id=2, designate_elect=True)
        answer = await group.asked(RequestCode.CONTROLLER_ELECT_MASTER, named)
        assert Mastership.of(answer).master_broker_id == 2
        assert ElectMasterBody.of(answer.body).sync_state_set == {1, 2}

        data = await group.ask(group.nodes[0], RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["b1","b9"]')
        (one,) = BrokerReplicasInfo.of(data.body).replicas_info_table.values()
        assert (one.master_broker_id, one.master_epoch) == (2, 2)
        assert [(replica.broker_id, replica.alive) for replica in one.in_sync_replicas] == [(1, True), (2, True)]

        again = await group.asked(RequestCode.CONTROLLER_ELECT_MASTER, named)
        assert (again.code, Mastership.of(again).master_broker_id) == (ResponseCode.CONTROLLER_MASTER_STILL_EXIST, 2)

    scenario(story, nodes=1)


@pytest.mark.slow
def test_the_replicas_of_all_names_are_written_in_turns_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger may register thousands, whose names take twelve bytes a character in ASCII."""
    turns = CallsInTurns(monkeypatch, controller_service, "replicas_info")

    async def story(group: Group) -> None:
        await group.leader()
        (node,) = group.nodes
        for number in range(86):
            name = f"{number:03}" + "\N{GRINNING FACE}" * 252
            for broker_id in range(1, REPLICAS_MAX + 1):
                event = IdApplied(cluster="c", name=name, broker_id=broker_id, address="h:1", check_code="h:1;1")
                node.up.node.state.apply(event)
        trio.lowlevel.add_instrument(turns)
        names = sorted(node.up.node.state.sets)

        refused = await group.ask(node, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b"[]")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "the replicas of 86 broker names take more than 16711680 bytes; ask for fewer names" in (refused.remark or "")
        some = await group.ask(node, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=dumps_strict(names[::-2]))
        assert list(BrokerReplicasInfo.of(some.body).replicas_info_table) == names[1::2]
        assert max(turns.turns) * REPLICAS_MAX == controller_service.REPLICAS_PER_TURN

    scenario(story, nodes=1)


def test_a_replica_is_forgotten_with_what_was_heard_of_it() -> None:
    async def story(group: Group) -> None:
        replicas = await serving(group)
        clean = CleanBrokerDataRequest(broker_name=NAME, broker_controller_ids_to_clean="2")
        refused = await group.asked(RequestCode.CLEAN_BROKER_DATA, clean)
        assert refused.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA

        replicas[1].die()
        await group.until(lambda: group.nodes[0].up.node.situation.is_dead(group.nodes[0].set, 2))
        assert (await group.asked(RequestCode.CLEAN_BROKER_DATA, clean)).code == ResponseCode.SUCCESS

        assert group.nodes[0].set.replicas.keys() == {1}
        assert group.nodes[0].up.node.liveness.last(NAME, 2) is None

    scenario(story, nodes=1)


@pytest.mark.parametrize("broker_id", [None, 9])
def test_a_heartbeat_of_an_unknown_replica_is_refused(broker_id: int | None) -> None:
    async def story(group: Group) -> None:
        await serving(group)
        beat = BrokerHeartbeat(cluster_name=CLUSTER, broker_name=NAME, broker_addr="h:1", broker_id=broker_id)
        answer = await group.ask(group.nodes[0], RequestCode.BROKER_HEARTBEAT, beat)
        assert answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED

    scenario(story, nodes=1)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_controller_that_has_not_applied_its_log_yet_calls_no_replica_unknown(nodes: int) -> None:
    """The replica would register once more, and be taken for a new process that may have lost something."""

    async def story(group: Group) -> None:
        (replica,) = await serving(group, 1)
        replica.die()
        for node in group.nodes:
            await node.power_cut()
        for node in group.nodes:
            node.machine.slow_down(1.0)
            await node.start()
        beat = BrokerHeartbeat(cluster_name=CLUSTER, broker_name=NAME, broker_addr=replica.address, broker_id=1)
        codes = set[int]()
        while ResponseCode.SUCCESS not in codes:
            for node in group.nodes:
                codes.add((await group.ask(node, RequestCode.BROKER_HEARTBEAT, beat)).code)

        assert codes <= {ResponseCode.SUCCESS, ResponseCode.CONTROLLER_NOT_LEADER}

    scenario(story, nodes=nodes)


def test_the_answer_to_a_heartbeat_says_the_epochs_of_the_master_and_of_the_set() -> None:
    """So that a broker asks at once that no notice has reached."""

    async def story(group: Group) -> None:
        address = (await serving(group))[0].address
        beat = BrokerHeartbeat(cluster_name=CLUSTER, broker_name=NAME, broker_addr=address, broker_id=1)

        newest = Mastership.of(await group.ask(group.nodes[0], RequestCode.BROKER_HEARTBEAT, beat))

        assert newest == Mastership(master_epoch=1, sync_state_set_epoch=2)

    scenario(story, nodes=1)


def test_a_controller_that_does_not_lead_hears_a_heartbeat_and_says_that_it_does_not_lead() -> None:
    """A former leader whose process lives keeps its connections, and its brokers must reach the next one in time."""

    async def story(group: Group) -> None:
        address = (await serving(group))[0].address
        leader = await group.leader()
        beat = BrokerHeartbeat(cluster_name=CLUSTER, broker_name=NAME, broker_addr=address, broker_id=1)
        for node in group.nodes:
            await group.until(lambda node=node: NAME in node.up.node.state.sets)
            answer = await group.ask(node, RequestCode.BROKER_HEARTBEAT, beat)

            assert answer.code == (ResponseCode.SUCCESS if node is leader else ResponseCode.CONTROLLER_NOT_LEADER)
            assert node.up.node.situation.is_alive(node.set, 1)

    scenario(story, nodes=3)


def test_a_request_that_cannot_be_read_is_refused() -> None:
    async def story(group: Group) -> None:
        for code in (
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            RequestCode.CONTROLLER_ELECT_MASTER,
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            RequestCode.CLEAN_BROKER_DATA,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            RequestCode.BROKER_HEARTBEAT,
        ):
            answer = await group.ask(group.nodes[0], code)
            assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST, code
            assert "nothing was done" in (answer.remark or "")

    scenario(story, nodes=1)


def test_settings_are_shown_without_the_secret_and_some_are_changed() -> None:
    """A change is used at once, and after a restart."""

    async def story(group: Group) -> None:
        replicas = await serving(group, 1)
        await group.replica(2)
        (node,) = group.nodes
        shown = await config_of(group, node)
        assert shown["enableElectUncleanMaster"] == "false"
        assert SHARED_BY_ALL not in str(shown)
        replicas[0].die()
        await group.until(lambda: node.up.node.situation.is_dead(node.set, 1))

        answer = await update(group, "enableElectUncleanMaster=true\nscanNotActiveBrokerInterval=50")
        assert answer.code == ResponseCode.SUCCESS
        await group.until(lambda: node.set.master_id == 2)

        await node.kill()
        await node.start()
        assert (await config_of(group, node))["enableElectUncleanMaster"] == "true"
        assert node.up.config.scan_not_active_broker_interval == 50

    scenario(story, nodes=1, config_store_path="controller.properties")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("listenPort=1", ResponseCode.NO_PERMISSION),
        ("haSecret=x", ResponseCode.NO_PERMISSION),
        ("tls.enable=false", ResponseCode.NO_PERMISSION),
        ("noSuchKey=1", ResponseCode.INVALID_PARAMETER),
        ("enableElectUncleanMaster=perhaps", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_fixed_and_unknown_keys_and_wrong_values_are_refused(text: str, code: ResponseCode) -> None:
    async def story(group: Group) -> None:
        before = await config_of(group, group.nodes[0])
        assert (await update(group, text)).code == code
        assert await config_of(group, group.nodes[0]) == before

    scenario(story, nodes=1)


def test_a_registration_of_a_new_process_is_a_sign_of_life() -> None:
    async def story(group: Group) -> None:
        (replica,) = await serving(group, 1)
        (node,) = group.nodes
        replica.die()
        await group.until(lambda: node.up.node.situation.is_dead(node.set, 1))
        request = RegisterBrokerRequest(
            cluster_name=CLUSTER, broker_name=NAME, broker_id=1, broker_address=replica.address, max_offset=5
        )

        answer: Any = Mastership.of(await group.asked(RequestCode.CONTROLLER_REGISTER_BROKER, request))

        assert (answer.master_broker_id, answer.master_epoch) == (1, 2)

    scenario(story, nodes=1)
