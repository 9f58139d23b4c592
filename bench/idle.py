"""The cost of an idle broker: many connections with held pulls, and many topics.

Each topic has one queue and one message, so that each has a queue on disk. Every connection then has one held pull
(PULL_MESSAGE with the suspend bit) at the end of a topic's queue and pulls again after every empty answer, as a consumer
does. CPU is counted over a window with whole intervals of registrations (30 s) and of expiring pulls; during the warm-up the
broker finishes syncing the new topics.
"""

import argparse
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Self

from measuring import CpuMeter, Options, Report, Values, take_turns
from servers import Cluster, Side
from wire import PULL_MESSAGE, SEND_MESSAGE_V2, SYSTEM_BUSY, Connection, encode, send_fields

_SUSPEND, _SUBSCRIPTION_INCLUDED = 2, 4
_HOLD_MS = 15_000


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=1000, help="connections with one held pull each")
    parser.add_argument("--topics", type=int, default=10_000, help="topics of one queue")


def main() -> None:
    options, found = Options.parse(__doc__ or "", runs=1, seconds=60, warmup=45, extend=_extend)
    _allow_open_files(found.connections + 500)
    title = f"idle: {found.connections:,} connections with held pulls, {found.topics:,} topics"
    report = Report(title, options.json_path)
    report.note(f"every pull may be held for {_HOLD_MS // 1000} s, is answered empty a little later, and asks again at once")

    def measure(side: Side) -> Values:
        with Cluster.prepare(side) as cluster:
            return _measure(cluster, options, found.topics, found.connections)

    take_turns(options, report, measure)
    report.show()


def _measure(cluster: Cluster, options: Options, topics: int, connections: int) -> Values:
    broker = cluster.running_broker
    meter = CpuMeter(broker)
    time.sleep(3)
    empty = broker.resident()
    began = time.perf_counter()
    with cluster.connect() as connection:
        _create_topics(connection, topics)
    creation_seconds = time.perf_counter() - began
    time.sleep(5)
    with_topics = broker.resident()
    with _HeldPulls(cluster.broker_address, topics, connections) as pulls:
        pulls.keep_holding(options.warmup)
        with_connections = broker.resident()
        meter.start()
        answered = pulls.keep_holding(options.seconds)
        cpu, seconds = meter.stop()
    return {
        "broker CPU %": 100 * cpu / seconds,
        "pulls answered a second": answered / seconds,
        "KiB per connection, anonymous": (with_connections.anonymous_bytes - with_topics.anonymous_bytes) / connections / 1024,
        "KiB per topic, anonymous": (with_topics.anonymous_bytes - empty.anonymous_bytes) / topics / 1024,
        "KiB per topic, resident": (with_topics.total_bytes - empty.total_bytes) / topics / 1024,
        "broker resident MiB": with_connections.total_bytes / (1 << 20),
        "topics created a second": topics / creation_seconds,
    }


def _topic(index: int) -> str:
    return f"Idle-{index:05d}"


def _create_topics(connection: Connection, topics: int) -> None:
    """Create every topic by a send to it; the broker creates it from its template, with one queue."""
    born_ms = time.time_ns() // 1_000_000
    for index in range(topics):
        fields = send_fields(_topic(index), 0, unique_key=f"7F000001{index:024X}", born_ms=born_ms, queues=1)
        # Apache's broker is slow at this and refuses requests that waited too long in its queue; clients retry, and so do we.
        while (reply := connection.ask(SEND_MESSAGE_V2, fields, b"one")).code == SYSTEM_BUSY:
            time.sleep(0.05)
        if reply.code:
            raise ConnectionError(f"a send that creates its topic was answered {reply.code}: {reply.remark}")


class _HeldPulls:
    """Connections that each have one held pull, all driven by one selector."""

    def __init__(self, address: tuple[str, int], topics: int, connections: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._requests: dict[socket.socket, bytes] = {}
        for index in range(connections):
            link = socket.create_connection(address, 30)
            self._requests[link] = _pull_request(_topic(index % topics), index)
            self._selector.register(link, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        for link, request in self._requests.items():
            link.sendall(request)
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._requests:
            link.close()
        self._selector.close()

    def keep_holding(self, seconds: float) -> int:
        """Pull again on every connection that gets an answer; return the number of answers."""
        deadline = time.perf_counter() + seconds
        answered = 0
        while (left := deadline - time.perf_counter()) > 0:
            for link in self._ready(left):
                if not link.recv(1 << 16):
                    raise ConnectionError("the broker closed a connection with a held pull")
                link.sendall(self._requests[link])
                answered += 1
        return answered

    def _ready(self, timeout: float) -> Iterator[socket.socket]:
        for key, _ in self._selector.select(timeout):
            if isinstance(key.fileobj, socket.socket):
                yield key.fileobj


def _pull_request(topic: str, opaque: int) -> bytes:
    fields = {
        "consumerGroup": f"idle_{opaque % 100}",
        "topic": topic,
        "queueId": "0",
        "queueOffset": "1",
        "maxMsgNums": "32",
        "sysFlag": str(_SUSPEND | _SUBSCRIPTION_INCLUDED),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(_HOLD_MS),
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return encode(PULL_MESSAGE, fields, opaque=opaque)


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))


if __name__ == "__main__":
    main()
