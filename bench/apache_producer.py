"""Apache's benchmark producer, 1 KiB bodies: rate, and CPU of broker and client per message.

By default 64 threads send synchronously. With --async (`-y true`) they send without waiting and without a limit, and the
figure is the broker's behaviour second by second: rate, failed sends, resident memory. On two cores the client fails before
the broker is loaded: one thread per core passes more sends to the client's only network thread than it can process, so that
it neither writes nor reads and everything expires unsent; `instant_responder.py` shows the same without a broker. With
--back-pressure the program uses Apache's client library with its back-pressure enabled and no other limit: that client
works, and the result depends on the broker.
With --pair the broker is a SYNC_MASTER with one slave, and a send is answered once the slave has it (Apache's is configured
with inSyncReplicas=2, because its default of 1 waits for no slave).
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Generator, Sequence

from apache_client import failures, producer_lines, start_producer
from measuring import CpuMeter, Options, Report, Values, await_growth, others_stopped, started, take_turns, warm_up
from processes import Process, ProcessFailedError
from servers import QUEUES, TOPIC, Cluster, Side
from slaves import await_in_sync, started_pairs
from wire import Connection

_FIRST_SECONDS_MAX = 20


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=64, help="sending threads (default 64)")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="send asynchronously, without limit")
    parser.add_argument(
        "--back-pressure", action="store_true", help="send asynchronously, with the client's own back-pressure on"
    )
    parser.add_argument("--pair", action="store_true", help="send to a SYNC_MASTER with one slave")
    parser.add_argument("--flush", choices=["async", "sync"], default="async", help="the broker's flush mode")


def main() -> None:
    options, found = Options.parse(__doc__ or "", seconds=15, warmup=25, extend=_extend)
    mode = "asynchronous without limit" if found.asynchronous else "synchronous"
    if found.back_pressure:
        mode = "asynchronous with the client's own back-pressure"
    flush = f"{found.flush.upper()}_FLUSH"
    brokers = "a SYNC_MASTER with one slave" if found.pair else "a lone broker"
    program = "Apache's client library" if found.back_pressure else "Apache's benchmark producer"
    title = f"{program}, {found.threads} threads, {mode}, 1 KiB bodies, 8 queues, {brokers}, {flush}"
    report = Report(title, options.json_path)

    with _started(options.sides, flush, pair=found.pair) as (clusters, slaves):

        def measure(side: Side) -> Values:
            with others_stopped(side, clusters, slaves), clusters[side].connect() as connection:
                if side in slaves:
                    await_in_sync(clusters[side], slaves[side])
                if found.asynchronous or found.back_pressure:
                    producer = start_producer(
                        clusters[side], threads=found.threads, asynchronous=True, back_pressure=found.back_pressure
                    )
                    return _flood(clusters[side], producer, connection, options, report)
                return steady(clusters[side], slaves.get(side), connection, options, found.threads)

        warm_up(clusters, options.warmup)
        take_turns(options, report, measure)
    report.show()


@contextlib.contextmanager
def _started(sides: Sequence[Side], flush: str, *, pair: bool) -> Generator[tuple[dict[Side, Cluster], dict[Side, Cluster]]]:
    settings = {"flushDiskType": flush}
    if pair:
        with started_pairs(sides, settings) as pairs:
            yield pairs
    else:
        with started(sides, settings) as clusters:
            yield clusters, {}


def steady(cluster: Cluster, slave: Cluster | None, connection: Connection, options: Options, threads: int) -> Values:
    producer = start_producer(cluster, threads=threads)
    try:
        await_growth(connection, producer)
        _wait(producer, options.warmup)
        broker, client = CpuMeter(cluster.running_broker), CpuMeter(producer)
        follower = CpuMeter(slave.running_broker) if slave else None
        before, failed_before = connection.message_count(TOPIC, QUEUES), failures(producer)
        for meter in filter(None, (broker, client, follower)):
            meter.start()
        _wait(producer, options.seconds)
        broker_cpu, seconds = broker.stop()
        client_cpu, _ = client.stop()
        follower_cpu = follower.stop()[0] if follower else 0.0
        messages = connection.message_count(TOPIC, QUEUES) - before
        lines, failed = producer_lines(producer), failures(producer) - failed_before
    finally:
        producer.kill()
    if not messages:
        raise ProcessFailedError(producer.name, f"stopped sending to the broker of {cluster.side}", producer.log)
    return {
        "msg/s": messages / seconds,
        "broker us/msg": broker_cpu * 1e6 / messages,
        "client us/msg": client_cpu * 1e6 / messages,
        **({"slave us/msg": follower_cpu * 1e6 / messages} if slave else {}),
        "cores busy": (broker_cpu + client_cpu + follower_cpu) / seconds,
        "client's own msg/s": lines[-1].rate if lines else 0,
        "failed sends": failed,
    }


def _flood(cluster: Cluster, producer: Process, connection: Connection, options: Options, report: Report) -> Values:
    """Sample warm-up and measurement in the same way, because the figure is the rate over time."""
    rates: list[float] = []
    resident_before = cluster.running_broker.resident().anonymous_bytes
    resident_max = resident_before
    try:
        # A client that is overloaded before it sends its first message has a rate of 0.
        with contextlib.suppress(ProcessFailedError):
            await_growth(connection, producer, timeout=_FIRST_SECONDS_MAX)
        broker, client = CpuMeter(cluster.running_broker), CpuMeter(producer)
        broker.start()
        client.start()
        count, at = connection.message_count(TOPIC, QUEUES), time.perf_counter()
        end = at + options.warmup + options.seconds
        while at < end:
            _wait(producer, 1)
            count_now, now = connection.message_count(TOPIC, QUEUES), time.perf_counter()
            rates.append((count_now - count) / (now - at))
            count, at = count_now, now
            resident_max = max(resident_max, cluster.running_broker.resident().anonymous_bytes)
        broker_cpu, seconds = broker.stop()
        client_cpu, _ = client.stop()
        failed = failures(producer)
    finally:
        producer.kill()
    report.note(f"{cluster.side}, thousands a second: " + " ".join(f"{rate / 1000:.1f}" for rate in rates))
    window = rates[-max(1, int(options.seconds)) :]
    return {
        "msg/s": statistics.mean(window),
        "slowest second msg/s": min(window),
        "failed sends": failed,
        "client cores busy": client_cpu / seconds,
        "broker cores busy": broker_cpu / seconds,
        "broker memory MB before": resident_before / 1e6,
        "broker memory MB at most": resident_max / 1e6,
    }


def _wait(producer: Process, seconds: float) -> None:
    time.sleep(seconds)
    if producer.popen.poll() is not None:
        raise ProcessFailedError(producer.name, "ended by itself", producer.log)


if __name__ == "__main__":
    main()
