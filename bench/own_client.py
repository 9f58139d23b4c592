"""LedgerMQ's own producer and consumer against Apache's benchmark programs, on the same broker, one after the other.

Columns are the brokers; each figure is given once for our client and once for Apache's. Our producer has many sends in
flight on one connection of one process, Apache's has 64 threads. Apache's consumer has 20 threads, ours is one
`async for`. Memory is the client's private pages: the largest sample, and the growth over the second half.
`--role asyncio` compares our clients for asyncio and for trio: lone sends, and 2,000 at once, each in turn.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from apache_client import start_consumer, start_producer
from drain import drain, write_backlog
from measuring import CpuMeter, Options, Report, Values, await_growth, others_stopped, started, take_turns, warm_up
from processes import Process, ProcessFailedError
from servers import QUEUES, TOPIC, Cluster, Side, ours_env

ASYNCIO_IN_FLIGHT = 2000
START_SECONDS = 60
"""How long a process may need beside its sends."""

_WORKER = Path(__file__).resolve().parent / "client_load.py"


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--in-flight", type=int, default=256, help="sends of our producer that wait for answers at once")
    parser.add_argument("--messages", type=int, default=1_000_000, help="backlog of the consumers (default 1,000,000)")
    parser.add_argument("--role", choices=["producer", "consumer", "both", "asyncio"], default="both", help="what to measure")


def main() -> None:
    options, found = Options.parse(__doc__ or "", seconds=12, warmup=20, extend=_extend)
    if found.role == "asyncio":
        _compare_loops(options)
    if found.role in ("producer", "both"):
        _compare_producers(options, found.in_flight)
    if found.role in ("consumer", "both"):
        _compare_consumers(options, found.messages)


def _compare_loops(options: Options) -> None:
    report = Report(f"sends: our client for asyncio and for trio, {ASYNCIO_IN_FLIGHT:,} in flight", options.json_path)

    def sends(cluster: Cluster, loop: str) -> dict[str, float]:
        arguments = ["--in-flight", str(ASYNCIO_IN_FLIGHT), "--seconds", str(options.seconds)]
        process = _start_own(cluster, f"send-{loop}", "bench_producer", *arguments)
        process.popen.wait(options.seconds + START_SECONDS)
        values: dict[str, float] = json.loads(process.output().splitlines()[-1])
        return values

    with started(("ours",)) as clusters:
        warm_up(clusters, options.warmup)
        for _ in range(options.runs):
            trio, asyncio = (sends(clusters["ours"], loop) for loop in ("trio", "asyncio"))
            report.add(
                "ours",
                {
                    **{f"trio {name}": value for name, value in trio.items()},
                    **{f"asyncio {name}": value for name, value in asyncio.items()},
                    "asyncio / trio, time of a lone send": asyncio["lone us"] / trio["lone us"],
                    "asyncio / trio, sends per second": asyncio["msg/s"] / trio["msg/s"],
                },
            )
    report.show()


def _compare_producers(options: Options, in_flight: int) -> None:
    report = Report(f"producers: ours with {in_flight} sends in flight, Apache's with 64 threads", options.json_path)

    def own_producer(cluster: Cluster) -> Process:
        return _start_own(cluster, "produce", "bench_producer", "--in-flight", str(in_flight))

    with started(options.sides) as clusters:
        warm_up(clusters, options.warmup)

        def measure(side: Side) -> Values:
            with others_stopped(side, clusters):
                own = _produce(clusters[side], options, own_producer)
                theirs = _produce(clusters[side], options, start_producer)
            return _side_by_side(own, theirs)

        take_turns(options, report, measure)
    report.show()


def _produce(cluster: Cluster, options: Options, start: Callable[[Cluster], Process]) -> dict[str, float]:
    producer = start(cluster)
    try:
        with cluster.connect() as connection:
            await_growth(connection, producer)
            time.sleep(options.warmup)
            meter = CpuMeter(producer)
            before = connection.message_count(TOPIC, QUEUES)
            meter.start()
            time.sleep(options.seconds / 2)
            halfway = producer.resident().anonymous_bytes
            time.sleep(options.seconds / 2)
            cpu, seconds = meter.stop()
            messages = connection.message_count(TOPIC, QUEUES) - before
        memory = producer.resident().anonymous_bytes
    finally:
        producer.kill()
    if not messages:
        raise ProcessFailedError(producer.name, f"stopped sending to the broker of {cluster.side}", producer.log)
    return {
        "msg/s": messages / seconds,
        "us/msg": cpu * 1e6 / messages,
        "memory MB": memory / 1e6,
        "memory growth MB": (memory - halfway) / 1e6,
    }


def _compare_consumers(options: Options, messages: int) -> None:
    path = options.json_path
    if path not in (None, "-"):
        path = path.removesuffix(".json") + "-consumers.json"
    report = Report(f"consumers: ours and Apache's, backlog of {messages:,} x 1 KiB", path)

    def own_consumer(cluster: Cluster, group: str) -> Process:
        return _start_own(cluster, "consume", group)

    with started(options.sides) as clusters:
        for cluster in clusters.values():
            write_backlog(cluster, messages)
            drain(cluster, messages, start_consumer)

        def measure(side: Side) -> Values:
            with others_stopped(side, clusters):
                own, theirs = (_consume(clusters[side], messages, start) for start in (own_consumer, start_consumer))
            return _side_by_side(own, theirs)

        take_turns(options, report, measure)
    report.show()


def _consume(cluster: Cluster, messages: int, start: Callable[[Cluster, str], Process]) -> dict[str, float]:
    drained = drain(cluster, messages, start)
    return {
        "msg/s": drained.rate,
        "us/msg": drained.consumer_us,
        "memory MB": drained.consumer_bytes_max / 1e6,
    }


def _side_by_side(own: dict[str, float], theirs: dict[str, float]) -> Values:
    pairs: dict[str, float] = {}
    for name, value in own.items():
        pairs[f"our client {name}"] = value
        pairs[f"Apache's client {name}"] = theirs[name]
    pairs["our client / Apache's, rate"] = own["msg/s"] / theirs["msg/s"]
    return pairs


def _start_own(cluster: Cluster, role: str, group: str, *arguments: str) -> Process:
    options = ["--namesrv", cluster.namesrv_address, "--topic", TOPIC, "--group", group, *arguments]
    command = [sys.executable, str(_WORKER), role, *options]
    return Process.start(f"own {role}", command, cluster.folder / f"own-{role}.log", ours_env())


if __name__ == "__main__":
    main()
