"""A running broker, asked through its dispatcher without a socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

from ledgermq.broker.broker import Broker
from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.opening import open_broker
from ledgermq.broker.subscription import Subscription
from ledgermq.broker.tables.clients import Member
from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.json import dumps, loads
from ledgermq.message.layout import encode_host
from ledgermq.message.message import IncomingMessage
from ledgermq.message.properties import encode_properties
from ledgermq.remoting.command import RemotingCommand, decode_command
from ledgermq.remoting.frame import FrameReader
from ledgermq.remoting.server import ServerConnection, ServerLimits
from ledgermq.world.network import Address, PlainStream
from ledgermq.world.real import real_world


@attrs.define(eq=False)
class RecordedConnection(ServerConnection):
    """A connection whose peer is the test."""

    frames: list[bytes] = attrs.field(factory=list[bytes])
    pushed: trio.Event = attrs.field(factory=trio.Event)

    def push(self, frame: bytes) -> None:
        self.frames.append(frame)
        self.pushed.set()


@attrs.define(eq=False)
class Desk:
    """A broker and one administrator's connection to it."""

    broker: Broker
    connection: RecordedConnection

    def ask(self, code: int, ext: Mapping[str, Any] | None = None, body: Any = None) -> RemotingCommand:
        """Send a request through the dispatcher; its answer must come at once."""
        request = RemotingCommand(code, {name: str(value) for name, value in (ext or {}).items()}, opaque=7)
        request.body = body if isinstance(body, bytes) else b"" if body is None else dumps(body)
        self.broker.dispatcher.handle(self.connection, [request])
        (answer,) = sent(self.connection)
        assert answer.opaque == 7
        return answer

    async def ask_waiting(self, code: int, ext: Mapping[str, Any] | None = None) -> RemotingCommand:
        """Send a request that is answered by a task of its own."""
        request = RemotingCommand(code, {name: str(value) for name, value in (ext or {}).items()}, opaque=7)
        self.broker.dispatcher.handle(self.connection, [request])
        return await next_sent(self.connection)

    def read(self, code: int, ext: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """The JSON of an answer that must be a success."""
        answer = self.ask(code, ext, body)
        assert answer.code == 0, answer.remark
        return loads(answer.body)

    async def read_waiting(self, code: int, ext: Mapping[str, Any] | None = None) -> Any:
        """The JSON of an answer that comes from a task of its own and must be a success."""
        answer = await self.ask_waiting(code, ext)
        assert answer.code == 0, answer.remark
        return loads(answer.body)

    def put(self, topic: str, *, queue_id: int = 0, body: bytes = b"hello", **properties: str) -> int:
        """Store a message; return its physical offset. It is in its queue after `settled`."""
        message = IncomingMessage(
            topic, queue_id, body, encode_properties(properties), 0, 0, 1_700_000_000_000, encode_host("127.0.0.1", 40000)
        )
        batch = self.broker.store.put([message])
        assert batch.statuses[0].stored, batch.remark
        return batch.physical_offsets[0]

    async def settled(self) -> None:
        """Let the store put what it was given into queues and index."""
        await trio.testing.wait_all_tasks_blocked()
        assert self.broker.store.dispatch_behind_bytes == 0

    def consumer(
        self, group: str, *topics: str, client_id: str = "client-1", language: str = "JAVA", port: int = 50000
    ) -> RecordedConnection:
        """Let a consumer appear."""
        connection = connection_from(port)
        member = Member(connection, client_id, language, 409, 0.0, 1_700_000_000_000)
        self.broker.consumers.register(group, member, [Subscription.parse(topic, "TagA", 5) for topic in topics])
        return connection


def connection_from(port: int) -> RecordedConnection:
    """A connection without a network."""
    ours, _ = trio.testing.memory_stream_pair()
    remote = Address("127.0.0.1", port)
    return RecordedConnection(PlainStream(ours, remote, remote), remote, real_world().clock, ServerLimits())


def sent(connection: RecordedConnection) -> list[RemotingCommand]:
    """What was sent to a peer since the last look."""
    frames, connection.frames = b"".join(connection.frames), []
    connection.pushed = trio.Event()
    return [decode_command(*frame) for frame in FrameReader().feed(frames)]


async def next_sent(connection: RecordedConnection) -> RemotingCommand:
    """Wait for the next thing that is sent to a peer."""
    with trio.fail_after(60):
        await connection.pushed.wait()
    (command,) = sent(connection)
    return command


@asynccontextmanager
async def open_desk(directory: str, **settings: Any) -> AsyncGenerator[Desk, None]:
    """Run a broker b1 of the cluster c1 with its store in `directory`, a topic T1 of two queues and a group g1."""
    config = BrokerConfig(
        broker_name="b1",
        broker_cluster_name="c1",
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        store_path_root_dir=directory,
        mapped_file_size_commit_log=1 << 20,
        max_hash_slot_num=1000,
        max_index_num=4000,
        **settings,
    )
    async with open_broker(config) as broker:
        broker.topics.put(TopicConfig("T1", 2, 2))
        broker.groups.put(GroupConfig("g1"))
        yield Desk(broker, connection_from(40000))
