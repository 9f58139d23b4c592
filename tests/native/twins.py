"""Two brokers, of which one runs the compiled path and the other the Python path, which is the specification."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import trio.testing

from ledgermq import native
from ledgermq.broker.broker import Broker
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.properties import encode_properties
from ledgermq.remoting.command import RemotingCommand, Wire, encode_frame
from ledgermq.remoting.errors import RemoteProtocolError
from ledgermq.remoting.metrics import Latencies
from ledgermq.remoting.server import ServerConnection, ServerLimits
from ledgermq.store.derived.dispatch import Derivable
from ledgermq.testing.embedded import open_virtual
from ledgermq.world.network import Address, PlainStream

BORN = 1_700_000_000_000
TOPICS = ("T", "Orders_created")
QUEUES = 4


def send(
    *, opaque: int = 1, wire: Wire = Wire.JSON, flag: int = 0, code: int = 310, body: bytes = b"hello", **fields: Any
) -> bytes:
    """The frame of a send as clients write it; fields by their letters, None leaves one out."""
    given: dict[str, Any] = {
        "a": "pg",
        "b": "T",
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": BORN,
        "h": 0,
        "i": encode_properties({"UNIQ_KEY": f"7F0000010000{opaque:020X}", "WAIT": "true"}),
        "j": 0,
        "k": "false",
        "m": "false",
        **fields,
    }
    ext = {name: str(value) for name, value in given.items() if value is not None}
    return encode_frame(RemotingCommand(code, ext, body, opaque, flag, language="JAVA", wire=wire))


def answers_of(connection: ServerConnection) -> bytes:
    """Take what waits to be sent to a peer."""
    answers = b"".join(connection._outgoing)  # pyright: ignore[reportPrivateUsage]
    connection._outgoing.clear()  # pyright: ignore[reportPrivateUsage]
    return answers


@attrs.define(eq=False)
class Twin:
    """One of the two brokers, and what it has been seen to do."""

    broker: Broker
    scan: native.ScanSends | None
    runs: int = 0
    """How many runs were found in received bytes."""
    arrived: list[Derivable] = attrs.field(factory=list[Derivable])
    latencies: Latencies = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.latencies = self.broker.dispatcher.latencies = Latencies(self.broker.world.clock)

    @contextmanager
    def connected(self) -> Generator[ServerConnection]:
        """A new peer's connection."""
        ours, _ = trio.testing.memory_stream_pair()
        remote = Address("10.0.0.9", 40_000)
        stream = PlainStream(ours, remote, remote)
        connection = ServerConnection(stream, remote, self.broker.world.clock, ServerLimits(), scan=self.scan)
        connection._sending = True  # pyright: ignore[reportPrivateUsage] # so that answers gather
        yield connection
        connection.mark_closed()
        self.broker.dispatcher.connection_closed(connection)

    def give(self, connection: ServerConnection, pieces: Sequence[bytes]) -> str:
        """Let the peer send pieces; returns what was malformed."""
        for piece in pieces:
            try:
                requests = connection.receive(piece)
            except RemoteProtocolError as error:
                return str(error)
            self.runs += connection.sends is not None
            while requests or connection.sends is not None:
                requests = requests[self.broker.dispatcher.handle(connection, requests) :]
        return ""

    def connect(self, pieces: Sequence[bytes]) -> tuple[bytes, int, str]:
        """Let a new peer send pieces; returns what it is answered, the size of an incomplete frame, and what was malformed."""
        with self.connected() as connection:
            malformed = self.give(connection, pieces)
            return answers_of(connection), connection.partial_bytes, malformed

    def state(self) -> dict[str, Any]:
        """Everything that sends change: log, queues, index, offsets and counters."""
        store = self.broker.store
        store.catch_up()
        assert store.index is not None
        store.index.flush()
        index = [
            bytes(file.view[:40]) + bytes(file.view[file.entries_at : file.entries_at + file.next_entry * 20])
            for file in store.index.files
        ]
        slots = [[file.newest_entry(slot) for slot in range(0, file.slot_count, 99_991)] for file in store.index.files]
        log = store.log
        return {
            "log": b"".join(bytes(log.slice_from(file.start, file.end - file.start)) for file in log.files()),
            "queues": {key: store.queues.of(*key).units(0, 1 << 20) for key in store.next_offsets},
            "index": index,
            "slots": slots,
            "next offsets": dict(store.next_offsets),
            "arrived": self.arrived,
            "topics": sorted(self.broker.topics.topics),
            "requests measured": {code: sum(histogram.counts) for code, histogram in self.latencies.by_code.items()},
            "totals": attrs.evolve(self.broker.stats.totals(), at_ms=0),
        }


@attrs.define(eq=False)
class Twins:
    """Both brokers, with the topics `TOPICS`."""

    compiled: Twin
    python: Twin

    def check(self, pieces: Sequence[bytes]) -> tuple[bytes, int, str]:
        """Let a peer send the same pieces to both; what either does must be the same."""
        specified, found = self.python.connect(pieces), self.compiled.connect(pieces)

        assert found == specified
        return found

    def check_state(self) -> dict[str, Any]:
        """Compare all that is stored."""
        specified, found = self.python.state(), self.compiled.state()

        for name, value in specified.items():
            assert found[name] == value, name
        return found


@asynccontextmanager
async def open_twins(**settings: str) -> AsyncGenerator[Twins]:
    """Run both brokers on simulated machines."""
    async with open_virtual(settings=settings) as first, open_virtual(settings=settings) as second:
        twins = Twins(Twin(first.brokers[0], native.scan_sends), Twin(second.brokers[0], None))
        python = twins.python.broker.store
        assert python.index is not None
        python.dispatcher.group_records = python.index.hash_keys = None
        for twin in (twins.compiled, twins.python):
            for topic in TOPICS:
                twin.broker.topics.put(TopicConfig(topic, QUEUES, QUEUES))
            # The first message of each queue makes its file, which is left to the Python path.
            twin.connect([send(b=topic, e=queue) for topic in TOPICS for queue in range(QUEUES)])
            twin.broker.store.dispatcher.on_arrival.append(twin.arrived.extend)
        yield twins
