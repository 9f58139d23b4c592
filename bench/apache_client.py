"""Apache's own benchmark programs, run from its published `example` jar against either broker.

They print one line per report interval whose rate is an average over the last ten seconds, so figures count messages at
the broker instead; the lines are read only for failures and, for the record, the rate that the client reports.
They choose the binary header of RocketMQ remoting (serialize type 1), whereas clients write JSON by default.
"""

import re
from pathlib import Path

import attrs
from processes import Process
from servers import TOPIC, Cluster, apache_env, apache_java

_BENCHMARK = "org.apache.rocketmq.example.benchmark"
_MEMORY = ("-Xms1g", "-Xmx1g")
_BACK_PRESSURE = Path(__file__).resolve().parent / "AsyncProducer.java"
_PRODUCER_LINE = re.compile(r"Send TPS: (\d+) .*Send Failed: (\d+) \| Response Failed: (\d+)")


@attrs.frozen
class ProducerLine:
    rate: int
    send_failed: int
    response_failed: int


def start_producer(cluster: Cluster, *, threads: int = 64, asynchronous: bool = False, back_pressure: bool = False) -> Process:
    """Start the benchmark producer; it sends until it is stopped.

    With `back_pressure` it is our program on Apache's client library that sends as the asynchronous benchmark does, but
    with the library's back-pressure enabled, for which the benchmark has no option.
    """
    if back_pressure:
        return _start(
            cluster,
            "AsyncProducer",
            str(_BACK_PRESSURE),
            [cluster.namesrv_address, TOPIC, "1024", str(threads)],
            ("-Drocketmq.serialize.type=ROCKETMQ",),
        )
    arguments = ["-n", cluster.namesrv_address, "-t", TOPIC, "-s", "1024", "-w", str(threads), "-ri", "1000"]
    if asynchronous:
        arguments += ["-y", "true"]
    return _start(cluster, "Producer", f"{_BENCHMARK}.Producer", arguments)


def start_consumer(cluster: Cluster, group: str) -> Process:
    """Start the benchmark consumer: 20 threads, from the offsets of its group, until it is stopped."""
    return _start(
        cluster, "Consumer", f"{_BENCHMARK}.Consumer", ["-n", cluster.namesrv_address, "-t", TOPIC, "-g", group, "-ri", "2000"]
    )


def producer_lines(process: Process) -> list[ProducerLine]:
    found = _PRODUCER_LINE.findall(process.output())
    return [ProducerLine(int(rate), int(send), int(response)) for rate, send, response in found]


def failures(process: Process) -> int:
    """How many failed sends a producer has reported so far; the first sends may expire while its JVM is cold."""
    lines = producer_lines(process)
    return lines[-1].send_failed + lines[-1].response_failed if lines else 0


def _start(cluster: Cluster, name: str, program: str, arguments: list[str], flags: tuple[str, ...] = ()) -> Process:
    """Run a main class, or a source file, which the `java` command compiles itself."""
    home = cluster.folder / "client"
    command = apache_java(program, arguments, home, (*_MEMORY, *flags))
    return Process.start(f"benchmark {name}", command, cluster.folder / f"{name}.log", apache_env(home))
