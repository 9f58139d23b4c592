"""Groups of three brokers in DLedger mode, ours and Apache's, figure by figure: `python bench/dledger.py FIGURE`.

raw-socket: sends from one socket to the leader, rate for windows of 64 and 256, and the latency of a lone send.
producer: Apache's benchmark producer, 64 threads that send synchronously.
failover: repeated kill -9 of the leader under load: seconds to the next acknowledged send of a prober that knows all
addresses. --runs is the number of kills; Apache's leader is killed --apache-kills times, as its elections take seconds.
catch-up: a follower that was down receives what was sent meanwhile (--mib), once without other sends and once under load.
idle: CPU of three brokers without clients.
restart: a follower with --gib GiB is killed under load and started again: seconds until its log is as long as the leader's.

Ours acknowledge a message when it is on the medium of a majority; Apache's acknowledge before they sync.
"""

import argparse
import contextlib
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator

import attrs
from apache_producer import steady
from catch_up import bare_copy_seconds
from dledger_groups import Group, as_tables, ended, started_groups
from measuring import (
    CpuMeter,
    Options,
    Report,
    Values,
    back_free_memory,
    cpu_percents,
    memory_filler,
    others_stopped,
    take_turns,
    warm_up,
)
from raw_sender import RawSender
from servers import Cluster, Side, new_store
from sync_master import send_rates

_LOAD_WINDOW = 64
_LOAD_PIECE_SECONDS = 0.2
_POLL_SECONDS = 0.01
_SECONDS_MAX = 600
_RECORD_OVERHEAD_BYTES = 250
"""How many bytes a ledger stores besides the body: the entry's header, the record's fields, topic and properties."""
_BUCKETS = (0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8, 16)
"""Upper bounds of the histogram of failovers, in seconds."""


@attrs.frozen
class Figure:
    """One measurement, and its default options."""

    title: str
    measure: Callable[[Group, Options, argparse.Namespace], Values]
    runs: int = 3
    seconds: float = 8
    warmup: float = 20


def _raw_socket(group: Group, options: Options, found: argparse.Namespace) -> Values:
    leader = group.leader()
    nodes = {"leader": leader}
    nodes |= {f"follower {number}": node for number, node in enumerate(group.followers(leader), 1)}
    with memory_filler(wanted=found.fill_memory) as fill:
        fill()
        return send_rates(nodes, options.seconds, [int(window) for window in found.windows.split(",")], found.lone)


def _producer(group: Group, options: Options, found: argparse.Namespace) -> Values:
    leader = group.leader()
    with leader.connect() as connection:
        return steady(leader, group.followers(leader)[0], connection, options, found.threads)


def _failover(group: Group, _: Options, found: argparse.Namespace) -> Values:
    leader = group.leader()
    with _load_on(leader) as load:
        time.sleep(found.load * random.uniform(0.5, 1.5))  # noqa: S311 - a moment, not a secret
        killed_at = time.perf_counter()
        group.kill(leader)
        _, acknowledged_at = group.await_acknowledged()
        acknowledged = load.acknowledged
    leader.start_broker()
    group.await_following(leader)
    return {"kill to next acknowledged send s": acknowledged_at - killed_at, "acknowledged before": acknowledged}


def _catch_up(group: Group, options: Options, found: argparse.Namespace) -> Values:
    with memory_filler(wanted=found.fill_memory) as fill:
        return _caught_up(group, options, found, fill)


def _caught_up(group: Group, options: Options, found: argparse.Namespace, fill: Callable[[], None]) -> Values:
    copied = (size := found.mib << 20) / bare_copy_seconds(size) / 1e6
    folder = new_store()
    try:
        fill()
        written = size / bare_copy_seconds(size, folder / "copy") / 1e6
    finally:
        shutil.rmtree(folder)
    quiet = _follow_again(group, found, None, fill)
    leader = group.leader()
    with _load_on(leader) as load:
        time.sleep(1)
        alone = load.rate_during(lambda: time.sleep(options.seconds))
        loaded = _follow_again(group, found, load, fill)
    return {
        "catch-up MB/s": quiet["MB/s"],
        "bare copy MB/s": copied,
        "share of a bare copy": quiet["MB/s"] / copied,
        "bare copy to a file MB/s": written,
        "share of a bare copy to a file": quiet["MB/s"] / written,
        "leader CPU ms/MiB": quiet["leader CPU ms/MiB"],
        "follower CPU ms/MiB": quiet["follower CPU ms/MiB"],
        "send rate alone msg/s": alone,
        "send rate meanwhile msg/s": loaded["msg/s"],
        "share of the send rate": loaded["msg/s"] / alone,
        "catch-up under load MB/s": loaded["MB/s"],
    }


def _follow_again(group: Group, found: argparse.Namespace, load: "_Load | None", fill: Callable[[], None]) -> dict[str, float]:
    """Let a follower miss messages, restart it, and measure from its first new bytes until it has what the leader had then."""
    leader = group.leader()
    node = group.followers(leader)[0]
    had = ended(node)
    group.kill(node)
    with RawSender(leader.broker_address, body_bytes=found.body) as sender:
        sender.fill((found.mib << 20) // (found.body + _RECORD_OVERHEAD_BYTES))
    back_free_memory(found.mib << 20)
    fill()
    end = ended(leader)
    node.launch_broker()
    while (first := ended(node)) <= had:
        _pause(node)
    meters = CpuMeter(leader.running_broker), CpuMeter(node.running_broker)
    for meter in meters:
        meter.start()
    began, answered = time.perf_counter(), load.acknowledged if load is not None else 0
    while ended(node) < end:
        _pause(node)
    elapsed = time.perf_counter() - began
    mebibytes = (end - first) / (1 << 20)
    leader_cpu, follower_cpu = (meter.stop()[0] * 1000 / mebibytes for meter in meters)
    return {
        "MB/s": (end - first) / elapsed / 1e6,
        "msg/s": (load.acknowledged - answered) / elapsed if load is not None else 0,
        "leader CPU ms/MiB": leader_cpu,
        "follower CPU ms/MiB": follower_cpu,
    }


def _idle(group: Group, options: Options, _: argparse.Namespace) -> Values:
    leader = group.leader()
    time.sleep(options.warmup)
    nodes = [leader, *group.followers(leader)]
    shares = cpu_percents([node.running_broker for node in nodes], options.seconds)
    return {"leader CPU %": shares[0], "busiest follower CPU %": max(shares[1:]), "all three CPU %": sum(shares)}


def _restart(group: Group, _: Options, found: argparse.Namespace) -> Values:
    leader = group.leader()
    missing = int(found.gib * (1 << 30)) - ended(leader)
    if missing > 0:
        with RawSender(leader.broker_address, body_bytes=found.body) as sender:
            sender.fill(missing // (found.body + _RECORD_OVERHEAD_BYTES))
    node = group.followers(leader)[0]
    with _load_on(leader):
        time.sleep(found.load)
        group.kill(node)
        time.sleep(found.load)
    end = ended(leader)
    started_at = time.perf_counter()
    node.launch_broker()
    while ended(node) < 0:
        _pause(node)
    answering = time.perf_counter() - started_at
    while ended(node) < end:
        _pause(node)
    return {
        "start to its first answer s": answering,
        "start to following s": time.perf_counter() - started_at,
        "ledger GiB": end / (1 << 30),
    }


def _pause(node: Cluster) -> None:
    broker = node.running_broker
    if broker.popen.poll() is not None or time.perf_counter() > broker.started_at + _SECONDS_MAX:
        raise TimeoutError(f"{broker.name} does not follow; see {broker.log}")
    time.sleep(_POLL_SECONDS)


@attrs.define
class _Load:
    """Sends in the background, and counts acknowledged messages."""

    sender: RawSender
    acknowledged: int = 0
    ended: bool = False

    def run(self) -> None:
        with contextlib.suppress(OSError):  # the broker was killed
            while not self.ended:
                self.acknowledged += self.sender.run(_LOAD_WINDOW, seconds=_LOAD_PIECE_SECONDS).messages

    def rate_during(self, action: Callable[[], None]) -> float:
        began, before = time.perf_counter(), self.acknowledged
        action()
        return (self.acknowledged - before) / (time.perf_counter() - began)


@contextlib.contextmanager
def _load_on(leader: Cluster) -> Generator[_Load]:
    with RawSender(leader.broker_address) as sender:
        load = _Load(sender)
        thread = threading.Thread(target=load.run)
        thread.start()
        try:
            yield load
        finally:
            load.ended = True
            thread.join()


_FIGURES = {
    "raw-socket": Figure("raw socket to the leader, 1 KiB bodies, 8 queues", _raw_socket),
    "producer": Figure("Apache's benchmark producer, 64 threads, synchronous, 1 KiB bodies", _producer, seconds=15, warmup=40),
    "failover": Figure("kill -9 of the leader under load", _failover, runs=20, warmup=10),
    "catch-up": Figure("a follower that was away", _catch_up, runs=1, seconds=5, warmup=10),
    "idle": Figure("three idle brokers", _idle, runs=1, seconds=60, warmup=20),
    "restart": Figure("a follower is killed under load and started again", _restart, warmup=5),
}


def _extend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("figure", choices=_FIGURES, help="what to measure")
    parser.add_argument("--windows", default="64,256", help="raw-socket: sends in flight, separated by commas")
    parser.add_argument("--lone", type=int, default=2000, help="raw-socket: lone sends of each measurement (0: none)")
    parser.add_argument("--threads", type=int, default=64, help="producer: sending threads")
    parser.add_argument("--apache-kills", type=int, default=3, help="failover: kills of Apache's leader (default 3)")
    parser.add_argument("--load", type=float, default=2.0, help="failover, restart: seconds of sending around a kill")
    parser.add_argument("--mib", type=int, default=512, help="catch-up: what the follower misses (default 512 MiB)")
    parser.add_argument(
        "--fill-memory", action="store_true", help="raw-socket, catch-up: fill free memory first, see `memory_filler`"
    )
    parser.add_argument("--gib", type=float, default=1.0, help="restart: size of the ledger (default 1 GiB)")
    parser.add_argument(
        "--body", type=int, default=16 << 10, help="catch-up, restart: bytes of the bodies that fill the ledger"
    )


def main() -> None:
    name = next((word for word in sys.argv[1:] if word in _FIGURES), "raw-socket")
    figure = _FIGURES[name]
    options, found = Options.parse(
        __doc__ or "", runs=figure.runs, seconds=figure.seconds, warmup=figure.warmup, extend=_extend
    )
    report = Report(f"{figure.title}; DLedger groups of three", options.json_path)
    with started_groups(options.sides) as groups:

        def measure(side: Side) -> Values:
            with others_stopped(side, *as_tables(groups)):
                return figure.measure(groups[side], options, found)

        if name != "idle":
            for side, group in groups.items():
                with others_stopped(side, *as_tables(groups)):
                    warm_up({side: group.leader()}, options.warmup)
        if name == "failover":
            apache = attrs.evolve(options, sides=("apache",), runs=min(options.runs, found.apache_kills))
            for turns in (apache, attrs.evolve(options, sides=("ours",))):
                if set(turns.sides) <= set(options.sides):
                    take_turns(turns, report, measure)
            _note_histogram(report)
        else:
            take_turns(options, report, measure)
    report.show()


def _note_histogram(report: Report) -> None:
    for side, metrics in report.runs.items():
        seconds = sorted(metrics["kill to next acknowledged send s"])
        counts = [sum(low < one <= high for one in seconds) for low, high in zip((0, *_BUCKETS), _BUCKETS, strict=False)]
        shown = "  ".join(f"<= {high:g} s: {count}" for high, count in zip(_BUCKETS, counts, strict=True) if count)
        report.note(
            f"{side}, {len(seconds)} kills, median {statistics.median(seconds):.2f} s, most {seconds[-1]:.2f} s: {shown}"
        )


if __name__ == "__main__":
    main()
