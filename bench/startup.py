"""Cold start to serving, memory when idle, time of a clean stop, and how long `ledgermq --version` takes.

Every run starts with an empty store. "Serving" is the time from the start of the broker's process, while its name server
already runs, to the first acknowledged send of a raw socket; for both together it is counted from the name server's start.
"""

import argparse
import statistics
import subprocess
import sys
import time

from measuring import Options, Report, Values, take_turns
from processes import ProcessFailedError
from servers import TOPIC, Cluster, Side, ours_env
from wire import Connection, RequestRefusedError

_SERVING_SECONDS_MAX = 120.0


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--idle", type=float, default=5.0, help="seconds of idling before memory is read (default 5)")


def main() -> None:
    options, found = Options.parse(__doc__ or "", runs=5, extend=_extend)
    report = Report("start, idle, stop", options.json_path)

    def measure(side: Side) -> Values:
        cluster = Cluster.prepare(side)
        try:
            return _life(cluster, found.idle)
        finally:
            cluster.discard()

    take_turns(options, report, measure)
    if "ours" in options.sides:
        report.note(_version_note())
    report.show()


def _life(cluster: Cluster, idle_seconds: float) -> Values:
    namesrv_seconds = cluster.start_namesrv()
    broker = cluster.launch_broker()
    serving_seconds = first_send_acknowledged(cluster)
    ready_seconds = broker.wait_for_output("boot success", _SERVING_SECONDS_MAX)
    namesrv = cluster.namesrv
    if namesrv is None:
        raise AssertionError("the name server was started above")
    time.sleep(idle_seconds)
    resident, namesrv_resident = broker.resident(), namesrv.resident()
    broker_stop, namesrv_stop = broker.stop(), namesrv.stop()
    mebibyte = 1 << 20
    return {
        "broker start to first acknowledged send s": serving_seconds,
        "broker start to its ready line s": ready_seconds,
        "name server start to its ready line s": namesrv_seconds,
        "broker idle resident MiB": resident.total_bytes / mebibyte,
        "broker idle anonymous MiB": resident.anonymous_bytes / mebibyte,
        "name server idle resident MiB": namesrv_resident.total_bytes / mebibyte,
        "broker clean stop s": broker_stop,
        "name server clean stop s": namesrv_stop,
    }


def first_send_acknowledged(cluster: Cluster) -> float:
    """Send until the broker acknowledges; return the seconds since its process was started."""
    broker = cluster.running_broker
    while True:
        if broker.popen.poll() is not None or time.perf_counter() > broker.started_at + _SERVING_SECONDS_MAX:
            raise ProcessFailedError(broker.name, "does not serve", broker.log)
        try:
            with Connection(cluster.broker_address) as connection:
                connection.send(TOPIC, 0, b"first", unique_key="7F" * 16, born_ms=time.time_ns() // 1_000_000)
                return time.perf_counter() - broker.started_at
        except (OSError, RequestRefusedError):
            time.sleep(0.002)


def _version_note(repetitions: int = 20) -> str:
    command = [sys.executable, "-m", "ledgermq.cli.main", "--version"]
    seconds: list[float] = []
    for _ in range(repetitions):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env={**ours_env()})
        seconds.append(time.perf_counter() - began)
    middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"ledgermq --version: {middle:.3f} s ({least:.3f}..{most:.3f}), {repetitions} runs"


if __name__ == "__main__":
    main()
