"""How much processor time each optimisation saves that makes code harder to read, measured against the plain way.

Each shortcut and its plain way do the same work in short alternating rounds, and the least time of each counts. The last column
is the saving as a share of a broker's time for a message of 1 KiB (measured in the same run), or of the work that is named.
A shortcut that saves less than 3 % should be removed.
"""

import argparse
import gc
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs
import trio
import trio.testing
from measuring import python_text
from put_path import batches
from servers import TOPIC

from ledgermq.broker.config import config_of
from ledgermq.broker.opening import open_broker
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.sending import result_of
from ledgermq.message.layout import derived_parts, encode_host, encode_records, properties_of, span_of, topic_field, topic_of
from ledgermq.message.message import IncomingMessage, Message
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.remoting import binary_header
from ledgermq.remoting.command import Wire
from ledgermq.remoting.frame import FrameReader
from ledgermq.remoting.server import ServerConnection
from ledgermq.store.derived.index_keys import KeyHashes, key_hash
from ledgermq.world.network import Address, Stream, TcpStream
from ledgermq.world.real import real_world
from ledgermq.world.threads import opened_in_thread
from ledgermq.world.workers import ThreadWorkers

_COUNT = 2048
"""How many messages one round has."""
_BATCH = 64


@attrs.frozen
class Shortcut:
    """Two ways of doing the same work; each returns its time in seconds per message or call."""

    name: str
    of: str
    """The work of which the last column is a share."""
    short: Callable[[], float]
    plain: Callable[[], float]
    base: Callable[[], float]


def timed(work: Callable[[], object], count: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / count


# ---------------------------------------------------------------- the compared work


class _NoShapes(dict[int, Any]):
    def __setitem__(self, key: int, value: Any) -> None:
        pass


def _headers() -> list[bytes]:
    frames = b"".join(batches(Wire.BINARY, _BATCH, 0)[: _COUNT // _BATCH])
    return [bytes(header) for _, header, _ in FrameReader().feed(frames)]


def binary_headers(headers: list[bytes], *, shapes: bool) -> float:
    kept = binary_header._shapes  # noqa: SLF001
    binary_header._shapes = kept if shapes else _NoShapes()  # noqa: SLF001
    try:
        return timed(lambda: [binary_header.decode_header(header) for header in headers], len(headers))
    finally:
        binary_header._shapes = kept  # noqa: SLF001


def _keys() -> list[str]:
    return [f"7F000001{at % 997:014X}{at:010X}" for at in range(_COUNT)]


def hashes_together(keys: list[str], hashes: KeyHashes) -> float:
    entries = [(TOPIC, key, "", at, 0) for at, key in enumerate(keys)]
    return timed(lambda: hashes.batch_of(entries, 0).hashes(), len(keys))


def hashes_one_by_one(keys: list[str]) -> float:
    entries = [(TOPIC, key, "", at, 0) for at, key in enumerate(keys)]

    def work() -> None:
        found: list[tuple[int, int, int]] = []
        for topic, key, _, offset, timestamp in entries:
            if offset >= 0 and key:
                found.append((key_hash(topic, key), offset, timestamp))

    return timed(work, len(keys))


def _log() -> bytes:
    host = encode_host("127.0.0.1", 10911)
    properties = "UNIQ_KEY\x017F00000100000000000000000000\x02WAIT\x01true\x02"
    message = IncomingMessage(TOPIC, 1, b"x" * 1024, properties, 0, 0, 1_700_000_000_000, host)
    (record,) = encode_records([message], [topic_field(TOPIC.encode())], [7], 1_700_000_000_000, host)
    return bytes(record) * _COUNT


def parts_at_once(log: bytes) -> float:
    view, size = memoryview(log), len(log) // _COUNT
    return timed(lambda: [derived_parts(view, at, len(log)) for at in range(0, len(log), size)], _COUNT)


def parts_by_span(log: bytes) -> float:
    view, size = memoryview(log), len(log) // _COUNT

    def work() -> None:
        found: list[object] = []
        for at in range(0, len(log), size):
            span = span_of(view, at, len(log))
            assert span is not None
            found.append(
                (
                    span.size,
                    span.queue_id,
                    span.queue_offset,
                    span.physical_offset,
                    span.sys_flag,
                    span.store_timestamp,
                    topic_of(view, span),
                    properties_of(view, span),
                )
            )

    return timed(work, _COUNT)


def echo(*, ours: bool) -> float:
    """The time of one receive and one send, as a server needs them for a client that waits for each answer."""

    async def work() -> float:
        left, right = socket.socketpair()
        with left, right:
            right.setblocking(False)
            left.setblocking(True)
            stream = TcpStream(right) if ours else trio.SocketStream(trio.socket.from_stdlib_socket(right))
            began = time.process_time()
            for _ in range(_COUNT):
                left.send(b"x" * 100)
                await stream.send_all(await stream.receive_some(65536))
                left.recv(65536)
            return (time.process_time() - began) / _COUNT

    return trio.run(work)


def switches(*, ours: bool) -> float:
    """The time of one call in a worker thread, as one sync needs it."""

    async def work() -> float:
        workers = ThreadWorkers()
        call: Callable[[Callable[[], None]], Any] = workers.run if ours else trio.to_thread.run_sync
        count = _COUNT // 4
        began = time.process_time()
        for _ in range(count):
            await call(lambda: None)
        return (time.process_time() - began) / count

    return trio.run(work)


async def _general_send(producer: Producer, message: Message) -> object:
    """Do what `Producer.send` does, but with the functions that batches and retries use."""
    transmitter = producer._transmitter  # noqa: SLF001
    seconds = producer.options.send_timeout_seconds
    publication = await transmitter.publications.find(message.topic, seconds)
    unique_id = producer._new_id(message)  # noqa: SLF001
    outgoing = producer._encode(message, unique_id, None)  # noqa: SLF001
    answer, target = await transmitter.send(publication, outgoing, transmitter.next_target(publication), seconds, None)
    return result_of(answer, unique_id, target.queue, target.address)


def sends(name_server: str, *, inlined: bool) -> float:
    """The time of a send of one producer with 256 in flight; its broker runs in another thread, which is not counted."""
    send = Producer.send if inlined else _general_send
    message, left = Message(topic=TOPIC, body=b"x" * 1024), 2 * _COUNT

    async def work() -> float:
        async with open_producer(namesrv=name_server, group="bench") as producer:
            await producer.send(message)

            async def send_on() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    await send(producer, message)

            began = time.thread_time()
            async with trio.open_nursery() as nursery:
                for _ in range(256):
                    nursery.start_soon(send_on)
            return (time.thread_time() - began) / (2 * _COUNT)

    return trio.run(work)


@asynccontextmanager
async def _opened_cluster() -> AsyncGenerator[str]:
    with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as store:
        async with open_namesrv(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"), real_world()) as name_server:
            address = f"127.0.0.1:{name_server.port}"
            keys = {"storePathRootDir": str(Path(store) / "store"), "listenPort": "0", "brokerIP1": "127.0.0.1"}
            async with open_broker(config_of({"brokerName": "bench", "namesrvAddr": address, **keys})) as broker:
                broker.topics.put(TopicConfig(TOPIC, 8, 8))
                await trio.testing.wait_all_tasks_blocked(0.1)
                yield address


# ---------------------------------------------------------------- the work of a broker


class _Reader:
    async def send_all(self, _data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    def send_now(self, _data: bytes) -> int:
        return 0


def put(wire: Wire) -> float:
    """The time of a broker for one send without sockets, until the message is in log, queue and key index."""

    async def work() -> float:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as store:
            keys = {"storePathRootDir": str(Path(store) / "store"), "listenPort": "0", "brokerIP1": "127.0.0.1"}
            async with open_broker(config_of({"brokerName": "bench", **keys})) as broker:
                broker.topics.put(TopicConfig(TOPIC, 8, 8))
                connection = ServerConnection(
                    cast("Stream", _Reader()), Address("127.0.0.1", 1), broker.world.clock, broker.server.limits
                )
                sends = batches(wire, _BATCH, 0)
                began = time.process_time()
                for batch in sends:
                    await connection.handle(broker.dispatcher.handle, connection.receive(batch))
                while broker.store.dispatch_behind_bytes:
                    await trio.lowlevel.checkpoint()
                return (time.process_time() - began) / (len(sends) * _BATCH)

    return trio.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="of both ways (default 50)")
    options = parser.parse_args()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    with opened_in_thread(_opened_cluster, "broker") as (name_server, _):
        _compare(options.rounds, _shortcuts(name_server))


def _shortcuts(name_server: str) -> tuple[Shortcut, ...]:
    headers, keys, hashes, log = _headers(), _keys(), KeyHashes(), _log()
    costs = {wire: min(put(wire) for _ in range(2)) for wire in Wire}
    return (
        Shortcut(
            "Shape of a binary header",
            "a put",
            partial(binary_headers, headers, shapes=True),
            partial(binary_headers, headers, shapes=False),
            lambda: costs[Wire.BINARY],
        ),
        Shortcut(
            "hashes of a batch of keys",
            "a put",
            partial(hashes_together, keys, hashes),
            partial(hashes_one_by_one, keys),
            lambda: costs[Wire.JSON],
        ),
        Shortcut("derived_parts", "itself", partial(parts_at_once, log), partial(parts_by_span, log), lambda: 0.0),
        Shortcut("TcpStream", "itself", partial(echo, ours=True), partial(echo, ours=False), lambda: 0.0),
        Shortcut("ThreadWorkers", "itself", partial(switches, ours=True), partial(switches, ours=False), lambda: 0.0),
        Shortcut(
            "Producer.send, inlined",
            "itself",
            partial(sends, name_server, inlined=True),
            partial(sends, name_server, inlined=False),
            lambda: 0.0,
        ),
    )


def _compare(rounds: int, shortcuts: tuple[Shortcut, ...]) -> None:
    print(f"{'microseconds':28}{'shortcut':>10}{'plain way':>12}{'saves':>9}  of")
    for one in shortcuts:
        short = plain = float("inf")
        for _ in range(rounds):
            short, plain = min(short, one.short()), min(plain, one.plain())
        base = one.base() + plain - short if one.base() else plain
        print(f"{one.name:28}{short * 1e6:10.2f}{plain * 1e6:12.2f}{(plain - short) / base:9.0%}  {one.of}")
    print(f"note: {python_text()}")


if __name__ == "__main__":
    main()
