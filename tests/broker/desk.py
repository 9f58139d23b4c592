"""A whole broker over a real store, asked through its dispatcher without a socket, or through one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing

from ledgermq.broker.broker import Broker
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.opening import open_broker
from ledgermq.ha.classic.node import ClassicNode
from ledgermq.message.json import dumps
from ledgermq.message.layout import decode_records, encode_host
from ledgermq.message.message import IncomingMessage, StoredMessage
from ledgermq.message.properties import encode_properties
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, decode_command
from ledgermq.remoting.frame import FrameReader
from ledgermq.remoting.server import ServerConnection, ServerLimits
from ledgermq.remoting.signature import Credentials, sign
from ledgermq.world.network import Address, PlainStream
from ledgermq.world.real import World, real_world

BORN = 1_700_000_000_000


@attrs.define(eq=False)
class Peer:
    """One client's end of a connection that exists only in memory."""

    broker: Broker
    connection: ServerConnection
    credentials: Credentials | None = None
    """What signs the requests."""
    _opaque: int = 0
    _answers: dict[int, RemotingCommand] = attrs.field(factory=dict[int, RemotingCommand])
    _requests: list[RemotingCommand] = attrs.field(factory=list[RemotingCommand])

    def post(self, code: int, ext: Mapping[str, Any] | None = None, body: Any = None, version: int = 409) -> int:
        """Send a request; return its opaque."""
        self._opaque += 1
        request = RemotingCommand(code, {name: str(value) for name, value in (ext or {}).items()}, opaque=self._opaque)
        request.version = version
        request.body = body if isinstance(body, bytes) else b"" if body is None else dumps(body)
        if self.credentials is not None:
            sign(request, self.credentials)
        self.broker.dispatcher.handle(self.connection, [request])
        return self._opaque

    def answer(self, opaque: int) -> RemotingCommand | None:
        """The answer to a request, None while there is none."""
        frames = b"".join(self.connection._outgoing)  # pyright: ignore[reportPrivateUsage]
        self.connection._outgoing.clear()  # pyright: ignore[reportPrivateUsage]
        for frame in FrameReader().feed(frames):
            command = decode_command(*frame)
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self._requests.append(command)
        return self._answers.get(opaque)

    def ask(self, code: int, ext: Mapping[str, Any] | None = None, body: Any = None, version: int = 409) -> RemotingCommand:
        """Send a request whose answer comes at once."""
        answer = self.answer(self.post(code, ext, body, version))
        assert answer is not None, f"request {code} was not answered"
        return answer

    async def ask_waiting(self, code: int, ext: Mapping[str, Any] | None = None, body: Any = None) -> RemotingCommand:
        """Send a request that is answered by a task of its own."""
        opaque = self.post(code, ext, body)
        await until(lambda: self.answer(opaque) is not None)
        return self._answers[opaque]

    def received(self) -> list[RemotingCommand]:
        """The requests and notifications that the broker has sent this client since the last look."""
        self.answer(0)
        requests, self._requests = self._requests, []
        return requests

    def send(self, topic: str, body: bytes = b"hello", queue_id: int = 0, **properties: str) -> RemotingCommand:
        """Send one message."""
        return self.ask(RequestCode.SEND_MESSAGE_V2, self._fields_of_send(topic, queue_id, properties), body)

    async def send_waiting(self, topic: str, body: bytes = b"hello", queue_id: int = 0, **properties: str) -> RemotingCommand:
        """Send one message, whose answer waits until the name servers know its topic if that is new."""
        return await self.ask_waiting(RequestCode.SEND_MESSAGE_V2, self._fields_of_send(topic, queue_id, properties), body)

    def _fields_of_send(self, topic: str, queue_id: int, properties: Mapping[str, str]) -> Mapping[str, Any]:
        return {
            "a": "pg",
            "b": topic,
            "c": "TBW102",
            "d": 4,
            "e": queue_id,
            "f": 0,
            "g": BORN,
            "h": 0,
            "i": encode_properties(properties),
            "j": 0,
            "k": "false",
            "m": "false",
        }

    def pull(self, topic: str, offset: int = 0, group: str = "g", **fields: Any) -> int:
        """Send a pull that carries its subscription; return its opaque."""
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
            **fields,
        }
        return self.post(RequestCode.PULL_MESSAGE, ext)

    def pulled(self, topic: str, offset: int = 0, group: str = "g", **fields: Any) -> list[StoredMessage]:
        """Pull messages that are there."""
        answer = self.answer(self.pull(topic, offset, group, **fields))
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return list(decode_records(answer.body))

    def heartbeat(self, group: str, *topics: str, client_id: str = "c1", **settings: Any) -> RemotingCommand:
        """Announce a consumer."""
        subscriptions: list[dict[str, Any]] = [
            {"topic": topic, "subString": "*", "expressionType": "TAG", "subVersion": 5, "codeSet": [], "tagsSet": []}
            for topic in topics
        ]
        consumer: dict[str, Any] = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
            **settings,
        }
        body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": [{"groupName": "pg"}]}
        return self.ask(RequestCode.HEART_BEAT, None, body)

    def close(self) -> None:
        """End the connection."""
        self.connection.mark_closed()
        self.broker.dispatcher.connection_closed(self.connection)


@attrs.define(eq=False)
class Desk:
    """A broker that runs, and clients at hand."""

    broker: Broker
    _port: int = 50_000

    def peer(self, credentials: Credentials | None = None) -> Peer:
        """A new client, which signs with these credentials."""
        self._port += 1
        ours, _ = trio.testing.memory_stream_pair()
        remote = Address("127.0.0.1", self._port)
        stream = PlainStream(ours, remote, remote)
        return Peer(self.broker, ServerConnection(stream, remote, self.broker.world.clock, ServerLimits()), credentials)

    def put(self, topic: str, body: bytes = b"hello", queue_id: int = 0, **properties: str) -> int:
        """Store a message past all checks; return its physical offset."""
        message = IncomingMessage(
            topic, queue_id, body, encode_properties(properties), 0, 0, BORN, encode_host("127.0.0.1", 40_000)
        )
        batch = self.broker.store.put([message])
        assert batch.statuses[0].stored, batch.remark
        return batch.physical_offsets[0]

    async def settled(self) -> None:
        """Let the store put what it was given into queues, and listeners hear of it."""
        await until(lambda: not self.broker.store.dispatch_behind_bytes)


def classic_node(broker: Broker) -> ClassicNode:
    """The node of a broker that is a master with slaves, or a slave."""
    node = broker.replication.node
    assert isinstance(node, ClassicNode)
    return node


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other tasks bring about; fails after a minute."""
    with trio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - a condition of any kind has no event
            await trio.sleep(0.001)


def desk_config(directory: Path | str, **settings: Any) -> BrokerConfig:
    """Small files in `directory`, a free port, no name server."""
    given: dict[str, Any] = {
        "broker_name": "b1",
        "broker_cluster_name": "c1",
        "broker_ip1": "127.0.0.1",
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        "store_path_root_dir": str(directory),
        "mapped_file_size_commit_log": 1 << 20,
        "max_hash_slot_num": 1000,
        "max_index_num": 4000,
        **settings,
    }
    return BrokerConfig(**given)


@asynccontextmanager
async def open_desk(directory: Path | str, world: World | None = None, **settings: Any) -> AsyncGenerator[Desk]:
    """Run a broker over a store in `directory`."""
    async with open_broker(desk_config(directory, **settings), world or real_world()) as broker:
        yield Desk(broker)
