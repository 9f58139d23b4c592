"""Apache's own benchmark programs, run from its published `example` jar against either broker.

They print a line per report interval whose rate is an average over the last ten seconds, so figures count messages at
the broker instead; from the lines come only failures and, for the record, the rate that the client claims.
They choose the binary header of RocketMQ remoting (serialize type 1), whereas clients by default write JSON.
"""

import re

import attrs
from processes import Process
from servers import TOPIC, Cluster, apache_env, apache_java

_MEMORY = ("-Xms1g", "-Xmx1g")
_PRODUCER_LINE = re.compile(r"Send TPS: (\d+) .*Send Failed: (\d+) \| Response Failed: (\d+)")


@attrs.frozen
class ProducerLine:
    rate: int
    send_failed: int
    response_failed: int


def start_producer(cluster: Cluster, *, threads: int = 64, asynchronous: bool = False) -> Process:
    """Start the benchmark producer; it sends until it is stopped."""
    arguments = ["-n", cluster.namesrv_address, "-t", TOPIC, "-s", "1024", "-w", str(threads), "-ri", "1000"]
    if asynchronous:
        arguments += ["-y", "true"]
    return _start(cluster, "Producer", arguments)


def start_consumer(cluster: Cluster, group: str) -> Process:
    """Start the benchmark consumer: 20 threads, from the offsets of its group, until it is stopped."""
    return _start(cluster, "Consumer", ["-n", cluster.namesrv_address, "-t", TOPIC, "-g", group, "-ri", "2000"])


def producer_lines(process: Process) -> list[ProducerLine]:
    found = _PRODUCER_LINE.findall(process.output())
    return [ProducerLine(int(rate), int(send), int(response)) for rate, send, response in found]


def _start(cluster: Cluster, program: str, arguments: list[str]) -> Process:
    home = cluster.folder / "client"
    command = apache_java(f"org.apache.rocketmq.example.benchmark.{program}", arguments, home, _MEMORY)
    return Process.start(f"benchmark {program}", command, cluster.folder / f"{program}.log", apache_env(home))
