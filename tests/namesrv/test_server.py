"""A whole name server on the wire, over in-memory connections."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from ledgermq.message.errors import JsonError
from ledgermq.message.json import dumps, loads
from ledgermq.namesrv.bounds import KV_CHARACTERS_MAX
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.errors import BadNamesrvConfig
from ledgermq.namesrv.server import Namesrv, open_namesrv
from ledgermq.remoting.channel import Channel, connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, decode_command
from ledgermq.remoting.frame import FrameReader
from ledgermq.remoting.registration import CHANGED_TOPICS_ALONE
from ledgermq.testing.logs import capture_logs
from ledgermq.world.clock import Clock
from ledgermq.world.network import Network
from ledgermq.world.real import World, real_world
from ledgermq.world.workers import Workers

TOPICS = {
    "TBW102": {"perm": 7, "readQueueNums": 8, "writeQueueNums": 8, "topicSysFlag": 0},
    "Unit": {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 1},
    "Sub": {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 2},
    "Both": {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 3},
}
VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1700000000000}


@attrs.frozen
class AtOnce:
    """Runs blocking work in place: under the mock clock no thread may hold time up."""

    async def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


@pytest.fixture
def world(network: Network, clock: Clock) -> World:
    workers: Workers = AtOnce()
    return attrs.evolve(real_world(), network=network, clock=clock, workers=workers)


@asynccontextmanager
async def connected_namesrv(world: World, **config: Any) -> AsyncGenerator[tuple[Namesrv, Channel]]:
    async with (
        open_namesrv(NamesrvConfig(**config), world) as namesrv,
        connected(namesrv.address, network=world.network) as channel,
    ):
        yield namesrv, channel


async def ask(
    channel: Channel, code: int, body: bytes = b"", version: int = 409, ext: Mapping[str, object] | None = None, **more: object
) -> RemotingCommand:
    fields = {name: str(value) for name, value in {**(ext or {}), **more}.items()}
    return await channel.call(RemotingCommand(code, fields, body, version=version), 3)


async def register(channel: Channel, name: str = "b1", broker_id: int = 0, port: int = 10911, **ext: object) -> RemotingCommand:
    body = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": VERSION, "topicConfigTable": TOPICS}}).encode()
    fields: dict[str, object] = {
        "brokerName": name,
        "brokerId": broker_id,
        "brokerAddr": f"10.0.0.1:{port}",
        "clusterName": "c1",
        "haServerAddr": f"10.0.0.1:{port + 1}",
        "compressed": "false",
        "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
        **ext,
    }
    return await ask(channel, RequestCode.REGISTER_BROKER, body, ext=fields)


async def topic_list(channel: Channel, code: int, **ext: object) -> list[str]:
    answer = await ask(channel, code, ext=ext)
    assert answer.code == ResponseCode.SUCCESS
    topics: list[str] = loads(answer.body)["topicList"]
    return topics


@pytest.mark.parametrize(
    ("version", "ext", "addresses"),
    [
        (317, {}, b'"brokerAddrs":{0:"10.0.0.1:10911"}'),
        (399, {}, b'"brokerAddrs":{0:"10.0.0.1:10911"}'),
        (399, {"acceptStandardJsonOnly": "true"}, b'"brokerAddrs":{"0":"10.0.0.1:10911"}'),
        (401, {}, b'"brokerAddrs":{"0":"10.0.0.1:10911"}'),
    ],
)
async def test_a_route_comes_in_the_json_that_the_client_s_version_reads(
    world: World, version: int, ext: dict[str, str], addresses: bytes
) -> None:
    """Go says 317 and reads bare keys; from V4_9_4 on clients take strict JSON only."""
    async with connected_namesrv(world) as (_, channel):
        await register(channel)

        answer = await ask(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, version=version, topic="TBW102", ext=ext)

    assert answer.code == ResponseCode.SUCCESS
    assert addresses in answer.body
    route = loads(answer.body)
    assert route["filterServerTable"] == {}
    assert route["queueDatas"] == [{"brokerName": "b1", "perm": 7, "readQueueNums": 8, "topicSysFlag": 0, "writeQueueNums": 8}]
    assert b"null" not in answer.body


async def test_a_strict_route_is_ascii(world: World) -> None:
    """Names of brokers in any script are escaped for strict readers."""
    async with connected_namesrv(world) as (_, channel):
        await register(channel, name="läufer")

        answer = await ask(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")

    assert answer.body.isascii()
    assert json.loads(answer.body)["brokerDatas"][0]["brokerName"] == "läufer"


async def test_an_unknown_topic_is_answered_17_without_a_body(world: World) -> None:
    """Producers then ask for TBW102, consumers wait."""
    async with connected_namesrv(world) as (_, channel):
        await register(channel)

        answer = await ask(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T9")

    assert (answer.code, answer.body) == (ResponseCode.TOPIC_NOT_EXIST, b"")
    assert answer.remark is not None
    assert "T9" in answer.remark


async def test_a_slave_learns_its_master_from_the_answer(world: World) -> None:
    """The addresses ride in the header of the answer."""
    async with connected_namesrv(world) as (_, channel):
        assert (await register(channel)).ext == {}

        answer = await register(channel, broker_id=1, port=10921)

    assert answer.ext == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    assert answer.body == b""


async def test_a_wrong_checksum_registers_nothing(world: World) -> None:
    """The broker reads a system error that says why."""
    async with connected_namesrv(world) as (_, channel):
        answer = await register(channel, bodyCrc32=1)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("crc32 not match")
        assert await topic_list(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []


async def test_the_cluster_is_always_answered_with_bare_keys(world: World) -> None:
    """The tools of every version expect it so."""
    async with connected_namesrv(world) as (_, channel):
        await register(channel)

        answer = await ask(channel, RequestCode.GET_BROKER_CLUSTER_INFO, version=493)

    assert answer.body == (
        b'{"brokerAddrTable":{"b1":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b1","cluster":"c1",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"c1":["b1"]}}'
    )


async def test_a_broker_goes_when_it_says_goodbye_or_its_connection_ends(world: World) -> None:
    """The route vanishes at once in both cases."""
    async with connected_namesrv(world) as (namesrv, channel):
        await register(channel)
        await ask(
            channel,
            RequestCode.UNREGISTER_BROKER,
            brokerName="b1",
            brokerAddr="10.0.0.1:10911",
            clusterName="c1",
            brokerId=0,
        )
        assert await topic_list(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []

        with capture_logs() as logs:
            async with connected(namesrv.address, network=world.network) as broker:
                await register(broker)
                assert len(await topic_list(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == len(TOPICS)
            await trio.testing.wait_all_tasks_blocked()

        assert await topic_list(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []
        assert [entry["event"] for entry in logs] == ["broker_registered", "broker_lost"]


@pytest.mark.parametrize(
    ("timeout_ms", "alive_code"), [(None, RequestCode.QUERY_DATA_VERSION), (20_000, RequestCode.BROKER_HEARTBEAT)]
)
async def test_a_silent_broker_is_forgotten_and_its_connection_closed(
    world: World, autojump_clock: trio.testing.MockClock, timeout_ms: int | None, alive_code: int
) -> None:
    """Signs of life keep it; without them it goes after its timeout, within one scan."""
    seconds = (timeout_ms or 120_000) / 1000
    async with connected_namesrv(world) as (namesrv, _), connected(namesrv.address, network=world.network) as broker:
        await register(broker, heartbeatTimeoutMillis=timeout_ms or 120_000)
        for _ in range(5):
            await trio.sleep(seconds * 0.9)
            body = json.dumps(VERSION).encode()
            fields = {"brokerName": "b1", "brokerAddr": "10.0.0.1:10911", "clusterName": "c1", "brokerId": 0}
            assert (await ask(broker, alive_code, body, ext=fields)).code == ResponseCode.SUCCESS
        assert namesrv.routes.route("TBW102") is not None

        await trio.sleep(seconds)
        assert namesrv.routes.route("TBW102") is not None
        await trio.sleep(5.1)

        assert namesrv.routes.route("TBW102") is None
        assert broker.closed


async def test_a_broker_asks_whether_its_topics_are_known(world: World) -> None:
    """It registers in full only if some name server says changed."""
    fields = {"brokerName": "b1", "brokerAddr": "10.0.0.1:10911", "clusterName": "c1", "brokerId": 0}
    same, other = json.dumps(VERSION).encode(), json.dumps({**VERSION, "counter": 2}).encode()
    without_state = json.dumps({"counter": 1, "timestamp": VERSION["timestamp"]}).encode()
    async with connected_namesrv(world) as (_, channel):
        unknown = await ask(channel, RequestCode.QUERY_DATA_VERSION, same, ext=fields)
        await register(channel)
        known = [await ask(channel, RequestCode.QUERY_DATA_VERSION, body, ext=fields) for body in (same, without_state, other)]
        broken = await ask(channel, RequestCode.QUERY_DATA_VERSION, b"[]", ext=fields)

    assert (unknown.ext, unknown.body) == ({"changed": "true"}, b"")
    assert [answer.ext["changed"] for answer in known] == ["false", "false", "true"]
    assert loads(known[2].body) == VERSION
    assert broken.code == ResponseCode.SYSTEM_ERROR


async def test_topic_lists(world: World) -> None:
    """All, by cluster, by unit flags, and the system's own with an address for the rest."""
    async with connected_namesrv(world) as (_, channel):
        await register(channel)

        assert await topic_list(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == sorted(TOPICS)
        assert await topic_list(channel, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c1") == sorted(TOPICS)
        assert await topic_list(channel, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="c9") == []
        assert await topic_list(channel, RequestCode.GET_UNIT_TOPIC_LIST) == ["Both", "Unit"]
        assert await topic_list(channel, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["Both", "Sub"]
        assert await topic_list(channel, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["Sub"]
        system = loads((await ask(channel, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)).body)
        assert system == {"brokerAddr": "10.0.0.1:10911", "topicList": ["b1", "c1"]}


async def test_topic_lists_can_be_switched_off(world: World) -> None:
    """RocketMQ's switches enableAllTopicList and enableTopicList."""
    async with connected_namesrv(world, enable_all_topic_list=False, enable_topic_list=False) as (_, channel):
        for code in (206, 224, 311, 312, 313):
            answer = await ask(channel, code, cluster="c1")
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")


async def test_members_and_single_topics_of_5_x_brokers(world: World) -> None:
    """The group of a broker name, and a topic registered on its own."""
    async with connected_namesrv(world) as (_, channel):
        await register(channel)
        route = b'{"brokerDatas":[],"queueDatas":[{"brokerName":"b1","perm":6,"readQueueNums":1,"writeQueueNums":2}]}'

        registered = await ask(channel, RequestCode.REGISTER_TOPIC_IN_NAMESRV, route, topic="Single")
        refused = await ask(channel, RequestCode.REGISTER_TOPIC_IN_NAMESRV, b'{"queueDatas":[{"perm":6}]}', topic="Broken")
        members = await ask(channel, RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="c1", brokerName="b1")

        assert registered.code == ResponseCode.SUCCESS
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "Single" in await topic_list(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert loads(members.body)["brokerMemberGroup"]["brokerAddrs"] == {"0": "10.0.0.1:10911"}


async def test_administrators_take_and_give_write_permission_and_delete_topics(world: World) -> None:
    """The counts in the answers are those of the broker's topics."""
    async with connected_namesrv(world) as (namesrv, channel):
        await register(channel)

        wiped = await ask(channel, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="b1")
        added = await ask(channel, RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="b1")
        await ask(channel, RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="Unit")

        assert wiped.ext == {"wipeTopicCount": str(len(TOPICS))}
        assert added.ext == {"addTopicCount": str(len(TOPICS))}
        assert namesrv.routes.route("Unit") is None


async def test_kv_configuration_survives_a_restart_and_reaches_brokers_and_routes(world: World, tmp_path: Path) -> None:
    """Order configuration goes to brokers when they register, and into routes where the name server is configured so."""
    path = f"{tmp_path}/namesrv/kvConfig.json"
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TBW102"}
    async with connected_namesrv(world, kv_config_path=path) as (_, channel):
        for value in ("b1:2", "b1:4"):
            assert (await ask(channel, RequestCode.PUT_KV_CONFIG, ext=order, value=value)).code == ResponseCode.SUCCESS
        await ask(channel, RequestCode.PUT_KV_CONFIG, namespace="other", key="k", value="v")
        await ask(channel, RequestCode.DELETE_KV_CONFIG, namespace="other", key="k")

    async with connected_namesrv(world, kv_config_path=path, order_message_enable=True) as (_, channel):
        got = await ask(channel, RequestCode.GET_KV_CONFIG, ext=order)
        listed = await ask(channel, RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
        absent = await ask(channel, RequestCode.GET_KV_CONFIG, namespace="other", key="k")
        unknown = await ask(channel, RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="nowhere")
        incomplete = await ask(channel, RequestCode.PUT_KV_CONFIG, key="k", value="v")
        registered = await register(channel)
        route = loads((await ask(channel, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")).body)

    assert got.ext == {"value": "b1:4"}
    assert listed.body == registered.body == b'{"table":{"TBW102":"b1:4"}}'
    assert absent.code == unknown.code == ResponseCode.QUERY_NOT_FOUND
    assert incomplete.code == ResponseCode.SYSTEM_ERROR
    assert route["orderTopicConf"] == "b1:4"


async def test_a_damaged_kv_configuration_is_replaced_by_its_backup_or_refused(world: World, tmp_path: Path) -> None:
    """A name server never starts with an empty configuration over a file that it cannot read."""
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"\0" * 10)
    with pytest.raises(FileNotFoundError):
        async with open_namesrv(NamesrvConfig(kv_config_path=str(path)), world):
            pass

    (tmp_path / "kvConfig.json.bak").write_bytes(b'{"configTable":{"ns":{"k":"v"}}}')
    async with connected_namesrv(world, kv_config_path=str(path)) as (_, channel):
        assert (await ask(channel, RequestCode.GET_KV_CONFIG, namespace="ns", key="k")).ext == {"value": "v"}

    (tmp_path / "kvConfig.json.bak").write_bytes(b"{")
    with pytest.raises(JsonError):
        async with open_namesrv(NamesrvConfig(kv_config_path=str(path)), world):
            pass


async def test_a_key_that_fastjson_resolves_is_refused_and_one_that_a_file_has_is_a_key(world: World, tmp_path: Path) -> None:
    """A file that an earlier version wrote with such a key must not keep the name server from starting."""
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b'{"configTable":{"ORDER_TOPIC_CONFIG":{"$ref":"x"}}}')
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "$ref"}

    async with connected_namesrv(world, kv_config_path=str(path)) as (_, channel):
        got = await ask(channel, RequestCode.GET_KV_CONFIG, ext=order)
        put = await ask(channel, RequestCode.PUT_KV_CONFIG, ext=order, value="y")
        named = await ask(channel, RequestCode.PUT_KV_CONFIG, namespace="$ref", key="k", value="y")
        await ask(channel, RequestCode.DELETE_KV_CONFIG, ext=order)

    assert got.ext == {"value": "x"}
    assert put.code == named.code == ResponseCode.SYSTEM_ERROR
    assert path.read_bytes() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{}}}'


async def test_the_configuration_is_read_and_changed_through_the_network(world: World, tmp_path: Path) -> None:
    """Good keys take effect and are kept for the next start; the others are refused, and nothing of the request is done."""
    path = tmp_path / "namesrv.properties"
    async with connected_namesrv(world, config_store_path=str(path)) as (namesrv, channel):
        changed = await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
        bad = await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, b"enableTopicList=many\n")
        unknown = await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, b"enableTopicList=false\nmine=1\n")
        fixed = await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, b"listenPort=1\n")
        binary = await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, b"\xff")
        path_change = await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, b"kvConfigPath=/etc/passwd\n")
        shown = await ask(channel, RequestCode.GET_NAMESRV_CONFIG)

        assert changed.code == ResponseCode.SUCCESS
        assert bad.code == binary.code == ResponseCode.SYSTEM_ERROR
        assert path_change.code == fixed.code == ResponseCode.NO_PERMISSION
        assert unknown.code == ResponseCode.INVALID_PARAMETER
        assert namesrv.config.enable_topic_list
        assert namesrv.config.order_message_enable
        assert b"orderMessageEnable=true\n" in shown.body
    assert path.read_bytes() == b"orderMessageEnable=true\n"
    path.write_bytes(path.read_bytes() + b"listenPort=1\n")
    async with connected_namesrv(world, config_store_path=str(path)) as (namesrv, channel):
        assert namesrv.config.order_message_enable
        await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, b"supportActingMaster=true\n")
    assert path.read_bytes() == b"orderMessageEnable=true\nsupportActingMaster=true\n"
    path.write_bytes(b"orderMessageEnable=perhaps\n")
    with pytest.raises(BadNamesrvConfig, match="true or false"):
        async with connected_namesrv(world, config_store_path=str(path)):
            pass


async def test_what_cannot_be_written_is_not_served(world: World, tmp_path: Path) -> None:
    """On a full disk neither a value nor a setting changes: after a restart it would be gone again."""
    (tmp_path / "file").write_bytes(b"")
    paths = {"kv_config_path": f"{tmp_path}/file/kv.json", "config_store_path": f"{tmp_path}/file/namesrv.properties"}
    async with connected_namesrv(world, **paths) as (namesrv, channel):
        with capture_logs() as logs:
            put = await ask(channel, RequestCode.PUT_KV_CONFIG, namespace="ns", key="k", value="v")
            got = await ask(channel, RequestCode.GET_KV_CONFIG, namespace="ns", key="k")
            changed = await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")

        assert (put.code, got.code, changed.code) == (
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.QUERY_NOT_FOUND,
            ResponseCode.SYSTEM_ERROR,
        )
        assert "nothing was changed" in (put.remark or "")
        assert not namesrv.config.order_message_enable
    assert [entry["event"] for entry in logs] == ["config_not_saved", "config_not_saved"]


@pytest.mark.parametrize("key", ["kv_config_path", "config_store_path"])
async def test_of_two_name_servers_with_one_file_the_first_changes_it(world: World, tmp_path: Path, key: str) -> None:
    """Each would replace what the other has saved; both serve, because name servers of one user have one default path."""
    path = tmp_path / "file"
    answers: list[RemotingCommand] = []
    async with (
        connected_namesrv(world, **{key: str(path)}) as (_, first),
        connected_namesrv(world, **{key: str(path)}) as (namesrv, second),
    ):
        for channel, name, setting in ((first, "a", "orderMessageEnable"), (second, "b", "supportActingMaster")):
            if key == "kv_config_path":
                answers.append(await ask(channel, RequestCode.PUT_KV_CONFIG, namespace="ns", key=name, value="v"))
            else:
                answers.append(await ask(channel, RequestCode.UPDATE_NAMESRV_CONFIG, f"{setting}=true\n".encode()))
        assert (await ask(second, RequestCode.GET_KV_CONFIG, namespace="ns", key="b")).code == ResponseCode.QUERY_NOT_FOUND
        assert not namesrv.config.support_acting_master
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
    assert f"{path} was in use by another server" in (answers[1].remark or "")
    assert path.read_bytes() in (b'{"configTable":{"ns":{"a":"v"}}}', b"orderMessageEnable=true\n")


async def test_values_and_names_that_no_answer_can_carry_are_refused(world: World) -> None:
    """Brokers are registered on, whatever strangers put: what they put must not make an answer to a broker too large."""
    async with connected_namesrv(world) as (_, channel):
        order = {"namespace": "ORDER_TOPIC_CONFIG"}
        refused = [
            await ask(channel, RequestCode.PUT_KV_CONFIG, ext=order, key="k", value="v" * 200_000),
            await ask(channel, RequestCode.PUT_KV_CONFIG, ext=order, key="k" * 300, value="v"),
            await ask(channel, RequestCode.PUT_KV_CONFIG, namespace="n\x1b[2J", key="k", value="v"),
            await register(channel, brokerName="b" * 300),
            await register(channel, clusterName=""),
            await register(channel, brokerAddr="garbage"),
            await register(channel, brokerAddr="a..b:1"),
            await register(channel, haServerAddr="a:99999"),
            await register(channel, brokerId="9" * 40),
            await register(channel, brokerId="-1"),
            await register(channel, heartbeatTimeoutMillis="9" * 40),
        ]
        registered = await register(channel)
        topic: dict[str, list[dict[str, Any]]] = {
            "queueDatas": [{"brokerName": "b1", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}]
        }
        refused.append(await ask(channel, RequestCode.REGISTER_TOPIC_IN_NAMESRV, dumps(topic), topic="t" * 600))
        topic["queueDatas"][0]["perm"] = 10**18
        refused.append(await ask(channel, RequestCode.REGISTER_TOPIC_IN_NAMESRV, dumps(topic), topic="t"))

        assert [answer.code for answer in refused] == [ResponseCode.SYSTEM_ERROR] * len(refused)
        assert registered.code == ResponseCode.SUCCESS
        assert (await ask(channel, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == ResponseCode.SUCCESS


async def test_a_thousand_values_still_fit_the_answer_to_a_broker(world: World) -> None:
    """All namespaces together are bounded; what is taken is served."""
    async with connected_namesrv(world) as (_, channel):
        codes = [
            (
                await ask(channel, RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key=f"k{n}", value="v" * 32_000)
            ).code
            for n in range(100)
        ]
        answer = await register(channel)

        assert codes.count(ResponseCode.SUCCESS) == KV_CHARACTERS_MAX // 32_010
        assert answer.code == ResponseCode.SUCCESS
        assert len(loads(answer.body)["table"]) == codes.count(ResponseCode.SUCCESS)


async def test_two_brokers_with_one_name_and_id_are_logged(world: World) -> None:
    """The name server finds it, and the answer to the one that comes later says whose place it takes."""
    async with connected_namesrv(world) as (_, channel):
        await register(channel)
        with capture_logs() as logs:
            same = await register(channel)
            other = await register(channel, brokerAddr="10.0.0.9:10911")

        assert "replacedBrokerAddr" not in same.ext
        assert other.ext["replacedBrokerAddr"] == "10.0.0.1:10911"
        assert [entry["replaced_address"] for entry in logs if entry["event"] == "broker_replaced"] == ["10.0.0.1:10911"]


async def test_a_registration_without_a_field_names_it(world: World) -> None:
    """The connection goes on after the refusal."""
    async with connected_namesrv(world) as (_, channel):
        answer = await ask(channel, RequestCode.REGISTER_BROKER, brokerName="b1")

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert "clusterName" in answer.remark
        assert (await register(channel)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("notifies", [True, False])
async def test_brokers_hear_on_their_own_port_that_the_lowest_id_changed(notifies: bool) -> None:
    """A oneway request to each of the others, if `notifyMinBrokerIdChanged` says so; a dead one delays nobody."""
    world = real_world()
    (listener,) = await world.network.open_listeners("127.0.0.1", 0)
    slave = f"127.0.0.1:{world.network.listener_port(listener)}"
    config = {"listen_port": 0, "bind_address": "127.0.0.1", "notify_min_broker_id_changed": notifies}
    async with listener, connected_namesrv(world, **config) as (_, channel):
        await register(channel, broker_id=2, port=1, brokerAddr="127.0.0.1:1", enableActingMaster="true")
        await register(channel, broker_id=1, brokerAddr=slave, enableActingMaster="true")
        with capture_logs() as logs, trio.move_on_after(5 if notifies else 0.2):
            await register(channel, broker_id=0, enableActingMaster="true")
            stream = await listener.accept()
            received = b""
            while piece := await stream.receive_some():
                received += piece
            await stream.aclose()
            (command,) = [decode_command(*frame) for frame in FrameReader().feed(received)]
            assert (command.code, command.is_oneway) == (RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, True)
            assert command.ext == {
                "minBrokerId": "0",
                "brokerName": "b1",
                "minBrokerAddr": "10.0.0.1:10911",
                "haBrokerAddr": "10.0.0.1:10912",
            }
        assert ("broker_not_notified" in [entry["event"] for entry in logs]) == notifies


async def test_changed_topics_alone_do_not_delete_the_others(world: World) -> None:
    """Our brokers register what changes as soon as it does, and `deleteTopicWithBrokerRegistration` is for whole tables."""
    async with connected_namesrv(world, delete_topic_with_broker_registration=True) as (namesrv, channel):
        await register(channel)
        before = set(namesrv.routes.all_topics())
        table = {"New": {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}}
        body = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": VERSION, "topicConfigTable": table}}).encode()
        fields = {"brokerName": "b1", "brokerId": 0, "brokerAddr": "10.0.0.1:10911", "clusterName": "c1", "compressed": "false"}

        await ask(channel, RequestCode.REGISTER_BROKER, body, ext={**fields, CHANGED_TOPICS_ALONE: "true"})
        with_new = set(namesrv.routes.all_topics())
        await ask(channel, RequestCode.REGISTER_BROKER, body, ext=fields)

        assert with_new == before | {"New"}
        assert set(namesrv.routes.all_topics()) == {"New"}
