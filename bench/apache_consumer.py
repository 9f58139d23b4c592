"""Apache's benchmark consumer draining a backlog: rate, and broker CPU per message.

The backlog is written once per side by the raw sender. Before each run the group's offsets are set back to zero, so
every run reads the same messages; the client is a fresh JVM each time. Progress is counted in the bytes that the
consumer's sockets have acknowledged; the first quarter of the backlog is the JVM's warm-up, the last twentieth its
tail: what lies between is the figure, the whole drain stands beside it.
"""

import argparse
import time

from apache_client import consumer_rates, start_consumer
from harness import CpuMeter, Options, Report, Values, started, take_turns
from raw_sender import RawSender
from servers import QUEUES, TOPIC, Cluster
from tcp_acked import bytes_acknowledged

_GROUP = "bench_consumer"
_MEASURED_FROM, _MEASURED_TO = 0.25, 0.95
_QUIET_SECONDS = 3.0
_DRAIN_SECONDS_MAX = 300.0


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=2_000_000, help="size of the backlog (default 2,000,000)")


def main() -> None:
    options, found = Options.parse(__doc__ or "", extend=_extend)
    title = f"Apache's benchmark consumer, backlog of {found.messages:,} x 1 KiB, 8 queues"
    report = Report(title, options.json_path)

    with started(options.sides) as clusters:
        for cluster in clusters.values():
            with RawSender(cluster.broker_address) as sender:
                rate = sender.fill(found.messages)
            report.note(f"{cluster.side}: backlog written at {rate:,.0f} msg/s")
            with cluster.connect() as connection:
                connection.create_group(_GROUP)
            _drain(cluster, found.messages)
        take_turns(options, report, lambda side: _drain(clusters[side], found.messages))
    report.show()


def _drain(cluster: Cluster, messages: int) -> Values:
    with cluster.connect() as connection:
        for queue_id in range(QUEUES):
            connection.commit_offset(_GROUP, TOPIC, queue_id, 0)
    consumer = start_consumer(cluster, _GROUP)
    meter = CpuMeter(cluster.running_broker)
    # Each sample: seconds, bytes taken by the consumer, CPU seconds of the broker.
    samples: list[tuple[float, int, float]] = []
    try:
        meter.start()
        growth_at = time.perf_counter()
        deadline = growth_at + _DRAIN_SECONDS_MAX
        while time.perf_counter() < deadline:
            time.sleep(0.1)
            taken = bytes_acknowledged(cluster.broker_port)
            cpu, seconds = meter.stop()
            # Heartbeats and held pulls go on for ever: growth means a backlog's worth of bytes.
            if not samples or taken > samples[-1][1] + 100_000:
                growth_at = time.perf_counter()
            samples.append((seconds, taken, cpu))
            if taken > messages * 1024 and time.perf_counter() > growth_at + _QUIET_SECONDS:
                break
        else:
            raise TimeoutError(f"{cluster.side}: no end of the backlog; the consumer printed\n{consumer.output()[-1500:]}")
        rates = consumer_rates(consumer)
    finally:
        # A clean end would commit the offsets late, into the next run.
        consumer.kill()
    total = samples[-1][1]
    begin = next(sample for sample in samples if sample[1] >= total * _MEASURED_FROM)
    end = next(sample for sample in samples if sample[1] >= total * _MEASURED_TO)
    first = next(sample for sample in samples if sample[1] > 1_000_000)
    last = next(sample for sample in samples if sample[1] >= total * 0.999)
    share = (end[1] - begin[1]) / total * messages
    return {
        "msg/s": share / (end[0] - begin[0]),
        "broker us/msg": (end[2] - begin[2]) * 1e6 / share,
        "whole drain msg/s": messages / (last[0] - first[0]),
        "whole drain broker us/msg": last[2] * 1e6 / messages,
        "client's best msg/s": max(rates, default=0),
        "MB per thousand": total / messages / 1000,
    }


if __name__ == "__main__":
    main()
