"""A whole broker: start, service over sockets, stop."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.broker.opening import open_broker, start_broker
from ledgermq.message.json import loads
from ledgermq.message.layout import decode_records
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.remoting.channel import Channel, connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, wire_fields
from ledgermq.store.errors import StoreInUse
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.ports import BROKER_PORTS, reserved_ports
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.network import Address
from ledgermq.world.real import real_world

from .desk import BORN, desk_config, open_desk, until

NETWORK = real_world().network


async def send(channel: Channel, topic: str, body: bytes) -> RemotingCommand:
    fields = {"a": "pg", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": BORN, "h": 0, "i": "", "m": False}
    return await channel.call(RemotingCommand(RequestCode.SEND_MESSAGE_V2, wire_fields(fields), body), 5)


async def pull(channel: Channel, topic: str, offset: int = 0) -> RemotingCommand:
    fields = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 6,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 0,
    }
    return await channel.call(RemotingCommand(RequestCode.PULL_MESSAGE, wire_fields(fields)), 20)


async def route(channel: Channel, topic: str) -> RemotingCommand:
    return await channel.call(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}), 5)


async def test_a_message_goes_round(tmp_path: Path) -> None:
    """Sent over one connection, it answers the pull that waits on another; the name server knows the way at once."""
    namesrv_config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
    async with open_namesrv(namesrv_config, real_world()) as namesrv:
        address = Address("127.0.0.1", namesrv.port)
        async with (
            open_desk(tmp_path / "store", namesrv_addr=str(address)) as desk,
            connected(address, network=NETWORK) as names,
            connected(Address.parse(desk.broker.address), network=NETWORK) as producer,
            connected(Address.parse(desk.broker.address), network=NETWORK) as consumer,
        ):
            assert (await route(names, "TBW102")).code == ResponseCode.SUCCESS
            assert (await send(producer, "T1", b"first")).code == ResponseCode.SUCCESS
            await until(lambda: namesrv.routes.route("T1") is not None)
            found = await route(names, "T1")
            (broker,) = loads(found.body)["brokerDatas"]
            assert broker["brokerAddrs"] == {"0": desk.broker.address}

            await until(lambda: desk.broker.store.max_offset("T1", 0) == 1)
            answers: list[RemotingCommand] = []

            async def wait_for_second() -> None:
                answers.append(await pull(consumer, "T1", 1))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_second)
                await until(lambda: len(desk.broker.pulls.holds) == 1)
                await send(producer, "T1", b"second")
            assert [message.body for message in decode_records(answers[0].body)] == [b"second"]

        async with connected(address, network=NETWORK) as names:
            assert (await route(names, "T1")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_the_vip_port_serves_the_same(tmp_path: Path) -> None:
    """Old clients send to the listen port less two."""
    with reserved_ports("127.0.0.1", 1, BROKER_PORTS) as (port,):
        async with open_desk(tmp_path, listen_port=port) as desk:
            assert desk.broker.address == f"127.0.0.1:{port}"
            async with connected(Address("127.0.0.1", port - 2), network=NETWORK) as channel:
                assert (await send(channel, "T1", b"x")).code == ResponseCode.SUCCESS


async def test_a_taken_port_leaves_nothing_open(tmp_path: Path) -> None:
    """The error says what is wrong, and the other port is free again."""
    with reserved_ports("127.0.0.1", 1, BROKER_PORTS) as (port,):
        with socket.create_server(("127.0.0.1", port - 2)), pytest.raises(OSError, match="in use"):
            async with open_desk(tmp_path, listen_port=port):
                pass
        async with open_desk(tmp_path, listen_port=port):
            pass


async def test_two_brokers_do_not_share_a_store(tmp_path: Path) -> None:
    """The second is refused, the first goes on."""
    async with open_desk(tmp_path) as desk:
        with pytest.raises(StoreInUse):
            async with open_desk(tmp_path):
                pass

        assert desk.peer().send("T1").code == ResponseCode.SUCCESS


async def test_messages_and_progress_survive_a_restart(tmp_path: Path) -> None:
    """What was acknowledged and committed is there again, under the same offsets."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        ids = [peer.send("T1", b"%d" % number).ext["queueOffset"] for number in range(3)]
        await desk.settled()
        peer.pull("T1", 2, sysFlag=5, commitOffset=2)

    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        assert ids == ["0", "1", "2"]
        assert [message.body for message in peer.pulled("T1")] == [b"0", b"1", b"2"]
        asked = {"consumerGroup": "g", "topic": "T1", "queueId": 0}
        assert peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "2"}
        assert peer.send("T1").ext["queueOffset"] == "3"


async def test_a_cancelled_broker_stops_in_order(autojump_clock: MockClock) -> None:
    """Cancelling the scope around a broker writes its tables and closes its store, in under a second."""
    began, world = 0.0, sim_world(1)
    with trio.CancelScope() as scope:
        async with open_desk("store", world, bind_address="") as desk:
            desk.peer().send("T1", b"kept")
            desk.broker.offsets.commit("g", "T1", 0, 1)
            began = trio.current_time()
            scope.cancel()
            await trio.sleep_forever()
    assert trio.current_time() - began < 1

    assert not world.disk.exists("store/abort")
    async with open_desk("store", world, bind_address="") as desk:
        assert [message.body for message in desk.peer().pulled("T1")] == [b"kept"]
        assert desk.broker.offsets.query("g", "T1", 0) == 1


async def test_sends_that_wait_for_the_medium_are_answered_before_a_stop(tmp_path: Path) -> None:
    """SYNC_FLUSH: whoever was taken before the stop gets an answer."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        address = Address.parse(desk.broker.address)
        answers: list[RemotingCommand] = []
        async with trio.open_nursery() as nursery, connected(address, network=NETWORK) as channel:
            await send(channel, "T1", b"creates the topic")
            end = desk.broker.store.log.max_offset

            async def send_one() -> None:
                answers.append(await send(channel, "T1", b"x"))

            nursery.start_soon(send_one)
            await until(lambda: desk.broker.store.log.max_offset > end)
            await desk.broker.stop()
            await until(lambda: answers)

        assert answers[0].code == ResponseCode.SUCCESS
        assert desk.peer().send("T1").code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_unknown_requests_are_answered_as_not_supported(tmp_path: Path) -> None:
    """Code 3 with a remark, and the connection goes on."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        answer = peer.ask(9999)

        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark
        assert peer.send("T1").code == ResponseCode.SUCCESS


async def test_slaves_are_answered_with_the_tables(tmp_path: Path) -> None:
    """Topics, groups and offsets as RocketMQ's slaves read them."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        peer.heartbeat("g", "T1")
        peer.send("T1", DELAY="1")
        desk.broker.offsets.commit("g", "T1", 3, 9)

        topics = loads(peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body)
        groups = loads((await peer.ask_waiting(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)
        offsets = (await peer.ask_waiting(RequestCode.GET_ALL_CONSUMER_OFFSET)).body
        delays = loads(peer.ask(RequestCode.GET_ALL_DELAY_OFFSET).body)
        status = loads(peer.ask(RequestCode.GET_BROKER_HA_STATUS).body)

        assert topics["topicConfigTable"].keys() == desk.broker.topics.topics.keys()
        assert topics["dataVersion"] == desk.broker.topics.version.to_json()
        assert "g" in groups["subscriptionGroupTable"]
        assert b'"T1@g":{3:9}' in offsets
        assert delays["offsetTable"].keys() == {str(level) for level in range(1, 19)}
        assert delays["tablesAppended"] is True
        assert delays["tablesLogOffset"] == desk.broker.store.dispatcher.dispatched_offset
        assert status["master"] is True
        assert status["masterCommitLogMaxOffset"] == desk.broker.store.log.max_offset


async def test_the_address_is_the_machines_unless_it_is_given(tmp_path: Path) -> None:
    """Without brokerIP1 the broker finds an address; with a name, message ids still carry a number."""
    async with open_broker(desk_config(tmp_path / "a", broker_ip1="")) as broker:
        assert broker.host == NETWORK.own_host()
    async with start_broker(desk_config(tmp_path / "b", broker_ip1="localhost")) as broker:
        assert broker.address == f"localhost:{broker.port}"
        assert len(broker.store.store_host) == 8


@pytest.mark.parametrize("given", ["fe80::7", "[fe80::7]"])
async def test_an_ipv6_address_is_given_out_in_brackets(tmp_path: Path, given: str) -> None:
    """RocketMQ writes it so, in its configuration too."""
    async with open_broker(desk_config(tmp_path, broker_ip1=given)) as broker:
        assert broker.address == f"[fe80::7]:{broker.port}"
        assert broker.ha_address.startswith("[fe80::7]:")
        assert len(broker.store.store_host) == 20


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"bind_address": ""}, True),
        ({"bind_address": "127.0.0.1"}, False),
        ({"bind_address": "", "authentication_enabled": True}, False),
    ],
)
async def test_a_broker_that_everybody_may_reach_and_use_says_so(
    tmp_path: Path, settings: dict[str, Any], *, warns: bool
) -> None:
    with capture_logs() as logs:
        async with open_desk(tmp_path, **settings):
            pass

    assert [line["event"] for line in logs].count("access_not_controlled") == warns
