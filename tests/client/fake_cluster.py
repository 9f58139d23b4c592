"""A cluster to test clients against: real remoting servers on an in-memory network, queues in lists, scripted faults."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing
from trio.abc import Listener

from ledgermq.message.batch import decode_batch
from ledgermq.message.errors import JsonError
from ledgermq.message.flags import PULL_COMMIT_OFFSET, PULL_SUSPEND
from ledgermq.message.json import dumps, dumps_strict, loads
from ledgermq.message.layout import decode_record, encode_host, encode_record
from ledgermq.message.message import DLQ_PREFIX, RETRY_PREFIX, MessageId
from ledgermq.message.properties import RETRY_TOPIC, decode_properties, encode_properties
from ledgermq.message.units import PhysicalOffset
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.server import RemotingServer, ServerConnection
from ledgermq.world.network import Address, PlainStream, Stream
from ledgermq.world.real import RealDisk, World
from ledgermq.world.workers import ThreadWorkers

NAMESRV = "10.0.0.9:9876"
CLIENT_HOST = "10.0.0.5"
PULL_MAX = 32


@attrs.frozen
class TrioClock:
    """Both clocks are the event loop's, which tests mock."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + round(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()


@attrs.define(eq=False)
class _Listener(Listener[Stream]):
    address: Address
    receive: trio.MemoryReceiveChannel[Stream]

    async def accept(self) -> Stream:
        return await self.receive.receive()

    async def aclose(self) -> None:
        await self.receive.aclose()


class FakeStream(PlainStream):
    """A memory stream that can lose whatever is sent."""

    forgotten = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.forgotten:
            await trio.lowlevel.checkpoint()
        else:
            await super().send_all(data)


@attrs.define(eq=False)
class FakeNetwork:
    """Memory streams between addresses."""

    listeners: dict[Address, trio.MemorySendChannel[Stream]] = attrs.field(
        factory=dict[Address, trio.MemorySendChannel[Stream]]
    )
    refusing: set[Address] = attrs.field(factory=set[Address])
    """Connections to them are refused."""
    unreachable: set[Address] = attrs.field(factory=set[Address])
    """Connections to them neither come about nor fail."""
    silent: set[Address] = attrs.field(factory=set[Address])
    """They take connections and never read them."""
    stalled: set[Address] = attrs.field(factory=set[Address])
    """What is sent to them does not go out."""
    opened: list[Address] = attrs.field(factory=list[Address])
    tried: list[Address] = attrs.field(factory=list[Address])
    """Every attempt to connect."""
    connect_seconds: dict[Address, float] = attrs.field(factory=dict[Address, float])
    """How long it takes until a connection comes about."""
    _open: dict[Address, list[FakeStream]] = attrs.field(factory=lambda: dict[Address, list[FakeStream]]())  # noqa: PLW0108

    async def open_stream(self, address: Address) -> Stream:
        await trio.sleep(self.connect_seconds.get(address, 0))
        self.tried.append(address)
        if address in self.unreachable:
            await trio.sleep_forever()
        if address not in self.listeners or address in self.refusing:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = trio.testing.memory_stream_pair()
        if address in self.stalled:
            ours.send_stream.send_all_hook = trio.sleep_forever
        self.opened.append(address)
        client = Address(CLIENT_HOST, 40000)
        near, far = FakeStream(ours, client, address), FakeStream(theirs, address, client)
        self._open.setdefault(address, []).extend((near, far))
        if address not in self.silent:
            await self.listeners[address].send(far)
        return near

    def forget(self, address: Address) -> None:
        """Lose what is sent from now on over the connections to `address`, in both directions, and tell nobody."""
        for stream in self._open.pop(address, ()):
            stream.forgotten = True

    async def open_listeners(self, host: str, port: int) -> Sequence[Listener[Stream]]:
        address = Address(host, port)
        send, receive = trio.open_memory_channel[Stream](100)
        self.listeners[address] = send
        return [_Listener(address, receive)]

    def own_host(self) -> str:
        return CLIENT_HOST

    def listener_port(self, listener: Listener[Stream]) -> int:
        assert isinstance(listener, _Listener)
        return listener.address.port


Script = Callable[[RemotingCommand], RemotingCommand | None]
"""Stands in for a handler once; returns the answer, None for none."""


@attrs.define(eq=False)
class FakeBroker:
    """A broker that keeps its queues in lists."""

    cluster: FakeCluster
    name: str
    broker_id: int
    address: Address
    server: RemotingServer
    queues: dict[tuple[str, int], list[bytes]] = attrs.field(factory=dict[tuple[str, int], list[bytes]])
    offsets: dict[tuple[str, str, int], int] = attrs.field(factory=dict[tuple[str, str, int], int])
    requests: list[RemotingCommand] = attrs.field(factory=list[RemotingCommand])
    locks: dict[tuple[str, int], str] = attrs.field(factory=dict[tuple[str, int], str])
    members: dict[str, ServerConnection] = attrs.field(factory=dict[str, ServerConnection])
    suggest: int = 0
    extra_members: list[str] = attrs.field(factory=list[str])
    scripts: dict[int, deque[Script]] = attrs.field(factory=dict[int, deque[Script]])
    held: list[tuple[ServerConnection, RemotingCommand]] = attrs.field(factory=list[tuple[ServerConnection, RemotingCommand]])

    def script(self, code: int, *scripts: Script) -> None:
        """Let the next requests with `code` be answered by `scripts`, in turn."""
        self.scripts.setdefault(code, deque()).extend(scripts)

    def refuse(self, code: int, answer: int, times: int = 1) -> None:
        """Let the next requests with `code` be refused."""

        def refuse(request: RemotingCommand) -> RemotingCommand:
            return request.response(answer, remark="scripted")

        self.script(code, *[refuse] * times)

    def requests_of(self, code: int) -> list[RemotingCommand]:
        return [request for request in self.requests if request.code == code]

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: dict[str, str] | None = None,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> int:
        """Store a message; returns its queue offset."""
        queue = self.queues.setdefault((topic, queue_id), [])
        physical = 100_000 * queue_id + 1000 * len(queue) + sum(map(len, topic))
        record = encode_record(
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=len(queue),
            body=body,
            properties=encode_properties(properties or {}).encode(),
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=1,
            born_host=encode_host(CLIENT_HOST, 40000),
            store_timestamp=TrioClock().wall_ms(),
            store_host=encode_host(self.address.host, self.address.port),
            reconsume_times=reconsume_times,
            physical_offset=physical,
        )
        queue.append(record)
        held, self.held = self.held, []
        for connection, request in held:
            self._pull(connection, request)
        return len(queue) - 1

    def bodies(self, topic: str) -> list[bytes]:
        return [
            decode_record(record).body for (name, _), queue in sorted(self.queues.items()) if name == topic for record in queue
        ]

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> int:
        for request in requests:
            self.requests.append(request)
            scripts = self.scripts.get(request.code)
            if scripts:
                answer = scripts.popleft()(request)
                if answer is not None and not request.is_oneway:
                    connection.push(encode_frame(answer))
            else:
                self._handle(connection, request)
        return len(requests)

    def connection_closed(self, connection: ServerConnection) -> None:
        self.members = {client_id: each for client_id, each in self.members.items() if each is not connection}
        self.held = [(each, request) for each, request in self.held if each is not connection]

    def _handle(self, connection: ServerConnection, request: RemotingCommand) -> None:
        ext, code = request.ext, request.code
        key = (ext.get("consumerGroup", ""), ext.get("topic", ""), int(ext.get("queueId", 0)))
        if code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            self.store(connection, request)
        elif code == RequestCode.PULL_MESSAGE:
            if int(ext["sysFlag"]) & PULL_COMMIT_OFFSET:
                self.offsets[key] = int(ext["commitOffset"])
            self._pull(connection, request)
        elif code == RequestCode.HEART_BEAT:
            self.members[loads(request.body)["clientID"]] = connection
            connection.answer(request)
        elif code == RequestCode.UNREGISTER_CLIENT:
            self.members.pop(ext["clientID"], None)
            connection.answer(request)
        elif code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            connection.answer(request, body=dumps({"consumerIdList": [*self.members, *self.extra_members]}))
        elif code == RequestCode.QUERY_CONSUMER_OFFSET:
            if key in self.offsets:
                connection.answer(request, ext={"offset": self.offsets[key]})
            else:
                connection.answer(request, ResponseCode.QUERY_NOT_FOUND)
        elif code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.offsets[key] = int(ext["commitOffset"])
            connection.answer(request)
        elif code in (RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
            connection.answer(request, ext={"offset": len(self.queues.get(key[1:], ()))})
        elif code == RequestCode.GET_MIN_OFFSET:
            connection.answer(request, ext={"offset": 0})
        elif code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            self._lock(connection, request)
        elif code == RequestCode.CONSUMER_SEND_MSG_BACK:
            self._send_back(connection, request)
        else:
            connection.answer(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    def store(self, connection: ServerConnection, request: RemotingCommand) -> None:
        """Store what a request sends, and answer it."""
        ext = request.ext
        topic, queue_id = ext["b"], int(ext["e"])
        times = int(ext.get("j", 0))
        if topic.startswith(RETRY_PREFIX) and times > int(ext.get("l", 16)):
            topic, queue_id = topic.replace(RETRY_PREFIX, DLQ_PREFIX), 0
        if ext["m"] == "true":
            items = [(body, decode_properties(properties.decode())) for _, body, properties in decode_batch(request.body)]
        else:
            items = [(request.body, decode_properties(ext["i"]))]
        offsets = [
            self.put(topic, queue_id, body, properties, sys_flag=int(ext["f"]), flag=int(ext["h"]), reconsume_times=times)
            for body, properties in items
        ]
        host, port = self.address.host, self.address.port
        ids = [str(MessageId(host, port, PhysicalOffset(offset))) for offset in offsets]
        connection.answer(request, ext={"msgId": ",".join(ids), "queueId": queue_id, "queueOffset": offsets[0]})

    def _pull(self, connection: ServerConnection, request: RemotingCommand) -> None:
        answer = self.answer_pull(request)
        if answer is None:
            self.held.append((connection, request))
        else:
            connection.push(encode_frame(answer))

    def answer_pull(self, request: RemotingCommand) -> RemotingCommand | None:
        """The answer to a pull; None if it is held until there is something to read."""
        ext = request.ext
        queue = self.queues.get((ext["topic"], int(ext["queueId"])), [])
        at, count = int(ext["queueOffset"]), min(PULL_MAX, int(ext["maxMsgNums"]))
        fields = {"suggestWhichBrokerId": self.suggest, "nextBeginOffset": at, "minOffset": 0, "maxOffset": len(queue)}
        if at > len(queue):
            fields["nextBeginOffset"] = len(queue)
            return request.response(ResponseCode.PULL_OFFSET_MOVED, fields)
        if at == len(queue):
            held = int(ext["sysFlag"]) & PULL_SUSPEND
            return None if held else request.response(ResponseCode.PULL_NOT_FOUND, fields)
        records = queue[at : at + count]
        fields["nextBeginOffset"] = at + len(records)
        return request.response(ext=fields, body=b"".join(records))

    def _lock(self, connection: ServerConnection, request: RemotingCommand) -> None:
        body = loads(request.body)
        held: list[dict[str, object]] = []
        for item in body["mqSet"]:
            key = (item["topic"], int(item["queueId"]))
            if request.code == RequestCode.UNLOCK_BATCH_MQ:
                if self.locks.get(key) == body["clientId"]:
                    del self.locks[key]
            elif self.locks.setdefault(key, body["clientId"]) == body["clientId"]:
                held.append(item)
        connection.answer(request, body=dumps({"lockOKMQSet": held}))

    def _send_back(self, connection: ServerConnection, request: RemotingCommand) -> None:
        for queue in list(self.queues.values()):
            for stored in queue:
                record = decode_record(stored)
                if str(record.physical_offset) == request.ext["offset"]:
                    properties = {**record.properties, RETRY_TOPIC: request.ext["originTopic"]}
                    times = record.reconsume_times + 1
                    self.put(RETRY_PREFIX + request.ext["group"], 0, record.body, properties, reconsume_times=times)
                    connection.answer(request)
                    return
        connection.answer(request, ResponseCode.SYSTEM_ERROR, remark="no such message")


@attrs.define(eq=False)
class FakeCluster:
    """Brokers, and a name server that knows what the test registers."""

    world: World
    network: FakeNetwork
    nursery: trio.Nursery
    brokers: list[FakeBroker] = attrs.field(factory=list[FakeBroker])
    topics: dict[str, dict[str, int]] = attrs.field(factory=dict[str, dict[str, int]])
    """Topic to broker name to number of queues."""
    perms: dict[str, int] = attrs.field(factory=dict[str, int])
    requests: list[RemotingCommand] = attrs.field(factory=list[RemotingCommand])
    route_seconds: float = 0.0
    """How long name servers take over a route."""
    connections: list[RemotingServer] = attrs.field(factory=list[RemotingServer])
    started: int = 0
    """How many brokers were started; each has an address of its own."""

    async def start_name_server(self, address: str = NAMESRV, *, empty: bool = False) -> None:
        """Start a name server; one that is `empty` knows no topic."""
        dispatcher = Dispatcher(nursery=self.nursery)
        if empty:
            dispatcher.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, _no_route)
        else:
            dispatcher.register_waiting(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        dispatcher.register(RequestCode.GET_BROKER_CLUSTER_INFO, self._cluster)
        await self._serve(Address.parse(address), RemotingServer(dispatcher, self.network, self.world.clock))

    async def start_broker(self, name: str, broker_id: int = 0) -> FakeBroker:
        self.started += 1
        address = Address(f"10.0.{self.started}.1", 10911)
        # The handler is the broker itself, which needs its server: the placeholder is replaced at once.
        server = RemotingServer(Dispatcher(), self.network, self.world.clock)
        broker = FakeBroker(self, name, broker_id, address, server)
        server.handler = broker
        await self._serve(address, server)
        self.brokers.append(broker)
        return broker

    def create(self, topic: str, queues: int = 1, *brokers: FakeBroker) -> None:
        names = {broker.name for broker in brokers or self.brokers}
        self.topics[topic] = dict.fromkeys(sorted(names), queues)

    def kill(self, broker: FakeBroker) -> None:
        """Close all connections of a broker and refuse new ones."""
        self.network.refusing.add(broker.address)
        for connection in list(broker.server.connections):
            broker.server.close_connection(connection)

    def forget(self, broker: FakeBroker) -> None:
        """Let the name server drop the broker."""
        self.brokers.remove(broker)
        if not any(each.name == broker.name for each in self.brokers):
            for queues in self.topics.values():
                queues.pop(broker.name, None)

    def open_connections(self) -> int:
        return sum(len(server.connections) for server in self.connections)

    async def _serve(self, address: Address, server: RemotingServer) -> None:
        listeners = list(await self.network.open_listeners(address.host, address.port))
        self.connections.append(server)
        await self.nursery.start(server.serve, listeners)

    async def _route(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        self.requests.append(request)
        await trio.sleep(self.route_seconds)
        topic = request.ext["topic"]
        queues = self.topics.get(topic)
        if not queues:
            return request.response(ResponseCode.TOPIC_NOT_EXIST, remark="scripted")
        perm = self.perms.get(topic, 6)
        body: dict[str, object] = {
            "brokerDatas": [each for each in self._broker_datas() if each["brokerName"] in queues],
            "queueDatas": [
                {"brokerName": name, "perm": perm, "readQueueNums": count, "writeQueueNums": count, "topicSysFlag": 0}
                for name, count in queues.items()
            ],
            "filterServerTable": {},
        }
        return request.response(body=dumps_strict(body))

    def _cluster(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        table = {each["brokerName"]: each for each in self._broker_datas()}
        return request.response(body=dumps({"brokerAddrTable": table, "clusterAddrTable": {"c": list(table)}}))

    def _broker_datas(self) -> list[dict[str, object]]:
        by_name: dict[str, dict[int, str]] = {}
        for broker in self.brokers:
            by_name.setdefault(broker.name, {})[broker.broker_id] = str(broker.address)
        return [{"brokerName": name, "cluster": "c", "brokerAddrs": addresses} for name, addresses in by_name.items()]


def _no_route(connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
    return request.response(ResponseCode.TOPIC_NOT_EXIST, remark="this name server knows nothing")


@asynccontextmanager
async def open_cluster(seed: int = 1) -> AsyncGenerator[FakeCluster]:
    """A cluster with a name server and no broker."""
    network = FakeNetwork()
    world = World(RealDisk(), network, TrioClock(), random.Random(seed), ThreadWorkers())
    async with trio.open_nursery() as nursery:
        cluster = FakeCluster(world, network, nursery)
        await cluster.start_name_server()
        yield cluster
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until `condition` holds; under a mock clock this costs no time."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - conditions of all kinds, and virtual time
            await trio.sleep(0.01)


def readable(body: bytes) -> bool:
    """Whether a body is JSON as peers read it."""
    try:
        loads(body)
    except JsonError:
        return False
    return True
