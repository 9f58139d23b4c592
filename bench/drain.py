"""Measure how a consumer in a separate process drains a backlog.

Before each drain the group's offsets are set to zero, so every run reads the same messages. Progress is counted in the
bytes that the consumer's sockets have acknowledged, which works for every client from its first second on. The first
quarter of the backlog is warm-up and the last twentieth the tail; the figure is the part between, and the rate of the whole
drain is reported too.
"""

import time
from collections.abc import Callable

import attrs
from measuring import CpuMeter
from processes import Process, ProcessFailedError
from raw_sender import RawSender
from servers import QUEUES, TOPIC, Cluster
from tcp_acked import bytes_acknowledged

GROUP = "bench_consumer"
_MEASURED_FROM, _MEASURED_TO = 0.25, 0.95
_SAMPLE_SECONDS = 0.1
# Heartbeats and held pulls never end; a sample with fewer bytes than this does not count as progress of the drain.
_SAMPLE_BYTES_MIN = 50_000
_QUIET_SECONDS = 3.0
_DRAIN_SECONDS_MAX = 600.0


@attrs.frozen
class _Sample:
    seconds: float
    taken_bytes: int
    broker_cpu: float
    consumer_cpu: float


@attrs.frozen
class Drained:
    """The result of a drain: rates in messages a second, CPU in microseconds per message, memory in bytes."""

    rate: float
    broker_us: float
    consumer_us: float
    whole_rate: float
    whole_broker_us: float
    consumer_bytes_max: int


def write_backlog(cluster: Cluster, messages: int) -> float:
    """Store this many messages of 1 KiB and create the group; return the rate in messages a second."""
    with RawSender(cluster.broker_address) as sender:
        rate = sender.fill(messages)
    with cluster.connect() as connection:
        connection.create_group(GROUP)
    return rate


def drain(cluster: Cluster, messages: int, start_consumer: Callable[[Cluster, str], Process]) -> Drained:
    """Start a consumer on the whole backlog, wait until it has received everything, and kill it."""
    with cluster.connect() as connection:
        for queue_id in range(QUEUES):
            connection.commit_offset(GROUP, TOPIC, queue_id, 0)
    consumer = start_consumer(cluster, GROUP)
    try:
        samples, consumer_bytes_max = _watch(cluster, consumer, messages)
    finally:
        # After a clean stop the offsets would be committed late, during the next run.
        consumer.kill()
    total = samples[-1].taken_bytes
    first = next(sample for sample in samples if sample.taken_bytes > _SAMPLE_BYTES_MIN)
    begin, end, last = (
        next(sample for sample in samples if sample.taken_bytes >= total * share)
        for share in (_MEASURED_FROM, _MEASURED_TO, 0.999)
    )
    measured = (end.taken_bytes - begin.taken_bytes) / total * messages
    return Drained(
        rate=measured / (end.seconds - begin.seconds),
        broker_us=(end.broker_cpu - begin.broker_cpu) * 1e6 / measured,
        consumer_us=(end.consumer_cpu - begin.consumer_cpu) * 1e6 / measured,
        whole_rate=messages / (last.seconds - first.seconds),
        whole_broker_us=last.broker_cpu * 1e6 / messages,
        consumer_bytes_max=consumer_bytes_max,
    )


def _watch(cluster: Cluster, consumer: Process, messages: int) -> tuple[list[_Sample], int]:
    broker_meter, consumer_meter = CpuMeter(cluster.running_broker), CpuMeter(consumer)
    broker_meter.start()
    consumer_meter.start()
    samples: list[_Sample] = []
    consumer_bytes_max = 0
    grown_at = began = time.perf_counter()
    while time.perf_counter() < began + _DRAIN_SECONDS_MAX and consumer.popen.poll() is None:
        time.sleep(_SAMPLE_SECONDS)
        taken = bytes_acknowledged(cluster.broker_port)
        consumer_bytes_max = max(consumer_bytes_max, consumer.resident().anonymous_bytes)
        broker_cpu, seconds = broker_meter.stop()
        if not samples or taken > samples[-1].taken_bytes + _SAMPLE_BYTES_MIN:
            grown_at = time.perf_counter()
        samples.append(_Sample(seconds, taken, broker_cpu, consumer_meter.stop()[0]))
        if taken > messages * 1024 and time.perf_counter() > grown_at + _QUIET_SECONDS:
            return samples, consumer_bytes_max
    raise ProcessFailedError(consumer.name, f"did not drain the backlog of {cluster.side}", consumer.log)
