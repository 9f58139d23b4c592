"""How name servers come to know the broker, and stop knowing it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledgermq.broker import registration
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.client.producer import open_producer
from ledgermq.message.json import loads
from ledgermq.message.message import Message
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.server import RemotingServer, ServerConnection
from ledgermq.testing.embedded import open_virtual
from ledgermq.testing.logs import capture_logs
from ledgermq.world.network import Address
from ledgermq.world.real import real_world

from .desk import open_desk, until


@attrs.define(eq=False)
class Register:
    """A name server that records the requests that it receives."""

    port: int = 0
    requests: list[RemotingCommand] = attrs.field(factory=list[RemotingCommand])
    refuse: int = 0
    """So many registrations are refused."""
    answer_ext: dict[str, str] = attrs.field(factory=dict[str, str])
    answer_body: bytes = b""
    changed: bool = False
    is_silent: bool = False
    """Whether requests get no answer, until `speak` is called."""
    unanswered: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    news: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    gone: trio.Event = attrs.field(factory=trio.Event)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def handle(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
        self.requests.append(request)
        self.news.set()
        self.news = trio.Event()
        if self.is_silent:
            self.unanswered.append(lambda: connection.answer(request))
            return None
        if request.code == RequestCode.QUERY_DATA_VERSION:
            return request.response(ext={"changed": self.changed})
        if request.code == RequestCode.REGISTER_BROKER and self.refuse:
            self.refuse -= 1
            return request.response(ResponseCode.SYSTEM_ERROR, remark="no")
        return request.response(ext=self.answer_ext, body=self.answer_body)

    def speak(self) -> None:
        """Answer what has been asked, and all that follows."""
        self.is_silent = False
        for answer in self.unanswered:
            answer()

    async def requests_received(self, count: int) -> list[RemotingCommand]:
        """Wait until it has received this number of requests."""
        with trio.fail_after(60):
            while len(self.requests) < count:
                await self.news.wait()
        return self.requests

    async def serve(self, port: int = 0, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        world = real_world()
        dispatcher = Dispatcher()
        for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.QUERY_DATA_VERSION):
            dispatcher.register(code, self.handle)
        (listener,) = await world.network.open_listeners("127.0.0.1", port)
        self.port = world.network.listener_port(listener)
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(RemotingServer(dispatcher, world.network, world.clock).serve, [listener])
                task_status.started()
        self.gone.set()


@asynccontextmanager
async def open_register(**settings: Any) -> AsyncGenerator[Register]:
    register = Register(**settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(register.serve)
        yield register
        nursery.cancel_scope.cancel()


def topics_of(request: RemotingCommand) -> set[str]:
    wrapper = loads(request.body)["topicConfigSerializeWrapper"]
    return set(wrapper["topicConfigTable"])


async def test_a_broker_that_serves_is_registered(tmp_path: Path) -> None:
    """When `open_broker` returns, every name server knows who, where and which topics."""
    async with open_register() as first, open_register() as second:
        addresses = f"{first.address};{second.address}"
        async with open_desk(tmp_path, namesrv_addr=addresses, broker_ip2="10.1.1.1") as desk:
            for register in (first, second):
                (request,) = register.requests

                assert request.ext == {
                    "brokerName": "b1",
                    "brokerAddr": desk.broker.address,
                    "clusterName": "c1",
                    "haServerAddr": f"10.1.1.1:{desk.broker.node.port}",
                    "brokerId": "0",
                    "bodyCrc32": str(zlib.crc32(request.body) & 0x7FFFFFFF),
                    "compressed": "false",
                    "enableActingMaster": "false",
                }
                assert topics_of(request) == desk.broker.topics.topics.keys()


async def test_a_stop_takes_the_broker_off_the_routes(tmp_path: Path) -> None:
    """Unregistering is the first thing a stop does."""
    async with open_register() as register:
        async with open_desk(tmp_path, namesrv_addr=register.address) as desk:
            address = desk.broker.address

        last = register.requests[-1]
        assert last.code == RequestCode.UNREGISTER_BROKER
        assert last.ext["brokerAddr"] == address


async def test_a_new_topic_is_registered_at_once_and_alone(tmp_path: Path) -> None:
    """Changes of one moment go together; the version tells that the table is new."""
    async with open_register() as register, open_desk(tmp_path, namesrv_addr=register.address) as desk:
        desk.broker.topics.put(TopicConfig("T1"))
        desk.broker.topics.put(TopicConfig("T2"))

        _, change = await register.requests_received(2)

        assert topics_of(change) == {"T1", "T2"}
        version = loads(change.body)["topicConfigSerializeWrapper"]["dataVersion"]
        assert version == desk.broker.topics.version.to_json()


TOPIC = {"topic": "T1", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
SEND = {"a": "p", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0", "k": "false"}
BATCH = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + struct.pack(">h", 0)


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (RequestCode.SEND_MESSAGE_V2, SEND, b"message"),
        (RequestCode.SEND_BATCH_MESSAGE, {**SEND, "m": "true"}, BATCH),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC, b""),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, {"topicConfigList": [{**TOPIC, "topicName": "T1"}]}),
    ],
)
async def test_who_creates_a_topic_is_answered_once_it_has_a_route(
    tmp_path: Path, code: int, fields: Mapping[str, Any], body: Any
) -> None:
    """A consumer that starts right after the answer finds the topic."""
    async with open_register() as register, open_desk(tmp_path, namesrv_addr=register.address) as desk:
        peer = desk.peer()
        register.is_silent = True

        opaque = peer.post(code, fields, body)
        _, change = await register.requests_received(2)

        assert topics_of(change) == {"T1"}
        assert peer.answer(opaque) is None
        register.speak()
        await until(lambda: peer.answer(opaque))


async def test_a_name_server_that_hangs_holds_no_answer_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is stored, and its sender has a deadline; sends to topics that exist are answered at once."""
    monkeypatch.setattr(registration, "KNOWN_SECONDS", 0.01)
    async with open_register() as register, open_desk(tmp_path, namesrv_addr=register.address) as desk:
        peer = desk.peer()
        register.is_silent = True

        opaque = peer.post(RequestCode.SEND_MESSAGE_V2, SEND, b"message")
        await register.requests_received(2)
        assert peer.send("T1").code == ResponseCode.SUCCESS

        await until(lambda: peer.answer(opaque))


async def test_a_name_server_that_is_lost_holds_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows no broker any more, so there is nothing to wait for."""
    monkeypatch.setattr(registration, "KNOWN_SECONDS", 3600)
    async with open_register() as register, open_desk(tmp_path, namesrv_addr=register.address) as desk:
        peer = desk.peer()
        register.is_silent = True
        opaque = peer.post(RequestCode.SEND_MESSAGE_V2, SEND, b"message")
        await register.requests_received(2)

        register.scope.cancel()

        with trio.fail_after(60):
            await until(lambda: peer.answer(opaque))


async def test_a_name_server_that_wants_everything_gets_it(tmp_path: Path) -> None:
    """A refused part is followed by the whole."""
    async with open_register() as register, open_desk(tmp_path, namesrv_addr=register.address) as desk:
        register.refuse = 1
        desk.broker.topics.put(TopicConfig("T1"))

        requests = await register.requests_received(3)

        assert topics_of(requests[1]) == {"T1"}
        assert topics_of(requests[2]) == desk.broker.topics.topics.keys()


async def test_a_name_server_that_comes_back_gets_the_whole_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted name server has forgotten all; what changed meanwhile is in the new registration."""
    monkeypatch.setattr(registration, "FIRST_PAUSE_SECONDS", 0.02)
    register, again = Register(), Register()
    async with trio.open_nursery() as nursery:
        await nursery.start(register.serve)
        async with open_desk(tmp_path, namesrv_addr=register.address) as desk:
            register.scope.cancel()
            await register.gone.wait()
            desk.broker.topics.put(TopicConfig("T1"))

            await nursery.start(again.serve, register.port)

            assert "T1" in topics_of((await again.requests_received(1))[0])
        again.scope.cancel()


async def test_a_new_role_is_registered_with_a_lost_name_server_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long outage the pauses take half a minute, and clients would not find an elected master for as long."""
    monkeypatch.setattr(registration, "FIRST_PAUSE_SECONDS", 3600)
    register, again = Register(), Register()
    async with trio.open_nursery() as nursery:
        await nursery.start(register.serve)
        async with open_desk(tmp_path, namesrv_addr=register.address) as desk:
            register.scope.cancel()
            await register.gone.wait()
            await nursery.start(again.serve, register.port)

            with trio.fail_after(60):
                while not again.requests:
                    desk.broker.registration.register_again()
                    await trio.sleep(0.01)
                await again.requests_received(1)
        again.scope.cancel()


async def test_a_dead_name_server_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The living one is registered with while the other is tried in vain; neither start nor stop waits as long as it may."""
    monkeypatch.setattr(registration, "START_SECONDS", 3600)
    monkeypatch.setattr(registration, "STOP_SECONDS", 3600)
    with trio.fail_after(60):
        async with (
            open_register() as register,
            open_desk(tmp_path, namesrv_addr=f"127.0.0.1:1;{register.address}") as desk,
        ):
            assert [str(address) for address in desk.broker.registration.registered_with] == [register.address]


async def test_a_slave_learns_where_its_master_is(tmp_path: Path) -> None:
    """The answer to its registration says so; observers are notified once."""
    answer = {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    async with (
        open_register(answer_ext=answer) as register,
        open_desk(tmp_path, namesrv_addr=register.address, broker_role="SLAVE", broker_id=2) as desk,
    ):
        assert register.requests[0].ext["brokerId"] == "2"
        assert (desk.broker.role.master_address, desk.broker.role.master_ha_address) == ("10.0.0.1:10911", "10.0.0.1:10912")


async def test_the_order_configuration_is_taken_over(tmp_path: Path) -> None:
    """Topics that the name server lists become ordered, and are registered as such."""
    async with open_register() as register, open_desk(tmp_path, namesrv_addr=register.address) as desk:
        register.answer_body = b'{"table":{"T1":"b1:4"}}'
        register.refuse = 1
        desk.broker.topics.put(TopicConfig("T1"))  # refused, so that a whole registration follows

        requests = await register.requests_received(4)

        assert desk.broker.topics.topics["T1"].order
        wrapper = loads(requests[3].body)["topicConfigSerializeWrapper"]
        assert wrapper["topicConfigTable"]["T1"]["order"] is True


async def test_a_broker_that_may_not_be_written_says_so_in_its_topics(tmp_path: Path) -> None:
    """`brokerPermission=4` drains a broker: producers see no writable queue."""
    async with (
        open_register() as register,
        open_desk(tmp_path, namesrv_addr=register.address, broker_permission=4) as desk,
    ):
        wrapper = loads(register.requests[0].body)["topicConfigSerializeWrapper"]

        assert {topic["perm"] for topic in wrapper["topicConfigTable"].values()} == {4, 5}
        desk.broker.topics.put(TopicConfig("T1"))
        _, change = await register.requests_received(2)
        desk.broker.registration.register_again()
        *_, again = await register.requests_received(3)
        assert topics_of(change) == {"T1"}
        assert topics_of(again) == desk.broker.topics.topics.keys()
        assert desk.broker.topics.topics["BenchmarkTest"].perm == 6


async def test_slave_that_hears_of_another_lowest_id_asks_who_is_master(tmp_path: Path) -> None:
    """It believes its name servers, not whoever sent the notice; notices about other names are none of its business."""
    answer = {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    async with (
        open_register(answer_ext=answer) as register,
        open_desk(tmp_path, namesrv_addr=register.address, broker_role="SLAVE", broker_id=2) as desk,
    ):
        found: list[str] = []
        learned = trio.Event()

        def learn(address: str, _ha_address: str) -> None:
            found.append(address)
            learned.set()

        desk.broker.role.on_master.append(learn)
        register.answer_ext = {"masterAddr": "10.9.9.9:10911", "haServerAddr": "10.9.9.9:10912"}
        notice = {"brokerName": desk.broker.config.broker_name, "minBrokerId": 0, "minBrokerAddr": "10.6.6.6:10911"}

        desk.peer().ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, {**notice, "brokerName": "another"})
        with trio.move_on_after(0.2):
            await learned.wait()
        assert found == []
        answered = desk.peer().ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)
        with trio.fail_after(60):
            await learned.wait()

        assert answered.code == ResponseCode.SUCCESS
        assert found == ["10.9.9.9:10911"]


async def test_notices_of_strangers_cost_one_registration_a_second(tmp_path: Path) -> None:
    """Anybody may send them, and a slave answers each with all of its topics."""
    async with (
        open_register(answer_ext={"masterAddr": "10.0.0.1:10911"}) as register,
        open_desk(tmp_path, namesrv_addr=register.address, broker_role="SLAVE", broker_id=2) as desk,
    ):
        notice = {"brokerName": desk.broker.config.broker_name}
        before = len(register.requests)
        desk.peer().ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)
        await register.requests_received(before + 1)

        for _ in range(20):
            desk.peer().ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)
            await trio.testing.wait_all_tasks_blocked(0.01)

        assert len(register.requests) == before + 1
        await register.requests_received(before + 2)


async def test_a_refused_registration_is_no_registration(tmp_path: Path) -> None:
    """The log does not say that the broker is registered, and the name server is asked again."""
    with capture_logs() as logs:
        async with open_register(refuse=100) as register, open_desk(tmp_path, namesrv_addr=register.address) as desk:
            assert desk.broker.registration.registered_with == []

    events = [entry["event"] for entry in logs]
    assert "registration_refused" in events
    assert "broker_registered" not in events


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("masterAddr", "garbage"),
        ("masterAddr", "a..b:1"),
        ("masterAddr", "h:99999"),
        ("masterAddr", "h:1;x"),
        ("haServerAddr", "h"),
    ],
)
async def test_a_slave_refuses_an_address_that_is_none(tmp_path: Path, field: str, text: str) -> None:
    """It is logged, the slave runs on, and the next answer may name a better one."""
    answer = {"masterAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2", field: text}
    with capture_logs() as logs:
        async with (
            open_register(answer_ext=answer) as register,
            open_desk(tmp_path, namesrv_addr=register.address, broker_role="SLAVE", broker_id=1) as desk,
        ):
            assert desk.broker.role.master_address == ""
            register.answer_ext = {"masterAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2"}
            await until(lambda: desk.broker.role.master_address)

    assert "master_address_refused" in [entry["event"] for entry in logs]


async def test_a_broker_that_takes_another_one_s_name_says_so(tmp_path: Path) -> None:
    """Two masters of one name: clients are sent to whoever registered last."""
    with capture_logs() as logs:
        async with (
            open_register(answer_ext={"replacedBrokerAddr": "10.0.0.9:1"}) as register,
            open_desk(tmp_path, namesrv_addr=register.address),
        ):
            pass

    (entry,) = [entry for entry in logs if entry["event"] == "other_broker_has_our_name"]
    assert (entry["broker"], entry["broker_id"], entry["replaced_address"]) == ("b1", 0, "10.0.0.9:1")


@pytest.mark.parametrize("forced", ["true", "false"])
async def test_a_topic_created_again_during_its_deletion_has_a_route_soon(autojump_clock: MockClock, forced: str) -> None:
    """A producer sends between its deletion at the broker and that at the name server, and its message is acknowledged."""
    async with (
        open_virtual(settings={"forceRegister": forced}) as cluster,
        open_producer(cluster.namesrv, "p", world=cluster.world) as producer,
        connected(Address.parse(cluster.namesrv), network=cluster.world.network) as to_namesrv,
        connected(Address.parse(await cluster.master()), network=cluster.world.network) as to_broker,
    ):
        await producer.send(Message("T", b"1"))
        await to_broker.call(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}), 3)
        await producer.send(Message("T", b"2"))
        await to_namesrv.call(RemotingCommand(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}), 3)

        async def has_route() -> bool:
            answer = await to_namesrv.call(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}), 3)
            return answer.code == ResponseCode.SUCCESS

        assert not await has_route()
        with trio.fail_after(2):
            while not await has_route():  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.1)
