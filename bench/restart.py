"""Restart after kill -9 with many segments: from the start of the process to the first acknowledged send.

The store is filled by the raw sender (10 GiB by default), the broker is killed while sends are still arriving, and the
same command is started again on the same store and ports. Every run adds some messages, kills and restarts.
"""

import argparse
import math
import re
import threading
import time

from measuring import Options, Report, Values, started, take_turns
from raw_sender import BODY_BYTES, RawSender
from servers import QUEUES, TOPIC, Cluster
from startup import first_send_acknowledged
from wire import PULL_MESSAGE, Connection

# How many bytes the commit log stores besides a body: the record's fields, the topic and the properties.
_RECORD_OVERHEAD_BYTES = 200
_LOAD_WINDOW = 64


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gib", type=float, default=10.0, help="size of the commitlog (default 10)")
    parser.add_argument("--body", type=int, default=BODY_BYTES, help="bytes of the bodies that fill the log (default 1024)")
    parser.add_argument("--load", type=float, default=3.0, help="seconds of sending before the kill (default 3)")


def main() -> None:
    options, found = Options.parse(__doc__ or "", extend=_extend)
    title = f"restart after kill -9 with {found.gib:g} GiB of messages of {found.body:,} bytes, under load of 1 KiB"
    report = Report(title, options.json_path)

    with started(options.sides) as clusters:
        for cluster in clusters.values():
            with RawSender(cluster.broker_address, body_bytes=found.body) as sender:
                sender.fill(int(found.gib * (1 << 30) / (found.body + _RECORD_OVERHEAD_BYTES)))
        take_turns(options, report, lambda side: _kill_and_restart(clusters[side], found.load))
        report.show()


def _kill_and_restart(cluster: Cluster, load_seconds: float) -> Values:
    acknowledged = [0]
    load = threading.Thread(target=_send_until_closed, args=(cluster, acknowledged))
    with cluster.connect() as connection:
        stored_before = connection.message_count(TOPIC, QUEUES)
    load.start()
    time.sleep(load_seconds)
    cluster.running_broker.kill()
    load.join()

    cluster.launch_broker()
    serving_seconds = first_send_acknowledged(cluster)
    with cluster.connect() as connection:
        stored = connection.message_count(TOPIC, QUEUES)
        readable_seconds = _last_message_readable(connection, cluster)
    return {
        "start to first acknowledged send s": serving_seconds,
        "start to last message readable s": readable_seconds,
        "records read back": _records_read_back(cluster),
        "acknowledged since the last run": acknowledged[0],
        "found of them": stored - 1 - stored_before,
        "commitlog GiB": sum(file.stat().st_blocks * 512 for file in (cluster.store / "commitlog").iterdir()) / (1 << 30),
    }


def _records_read_back(cluster: Cluster) -> float:
    """How many records our broker has read back, according to its log; NaN for Apache's, which does not log it."""
    found = re.findall(r'"records_read": ?(\d+)', cluster.running_broker.output())
    return float(found[-1]) if found else math.nan


def _send_until_closed(cluster: Cluster, acknowledged: list[int]) -> None:
    with RawSender(cluster.broker_address) as sender:
        try:
            while True:
                acknowledged[0] += sender.run(_LOAD_WINDOW, messages=_LOAD_WINDOW * 8).messages
        except OSError:
            return


def _last_message_readable(connection: Connection, cluster: Cluster) -> float:
    fields = {
        "consumerGroup": "bench_restart",
        "topic": TOPIC,
        "queueId": "1",
        "queueOffset": str(connection.max_offset(TOPIC, 1) - 1),
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    connection.request(PULL_MESSAGE, fields)
    return time.perf_counter() - cluster.running_broker.started_at


if __name__ == "__main__":
    main()
