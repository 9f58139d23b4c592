"""The common part of all figures: options, measuring both sides in turn, and the report.

One side is measured, then the other, run after run (A B A B), with only one of them loaded at any time and dirty pages
written back in between. Run i of ours is compared with run i of Apache's: the spread of a ratio is that of these pairs,
so a slow minute of the whole machine does not affect it.
"""

import argparse
import contextlib
import json
import mmap
import os
import platform
import shlex
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import attrs
from processes import Process, ProcessFailedError, end_in_order, machine_cpu_seconds, own_cpu_seconds
from raw_sender import RawSender
from servers import APACHE_VERSION, QUEUES, TOPIC, Cluster, Side, new_store
from wire import Connection

Values = Mapping[str, float]

# How many cores processes outside the benchmark used during a run; a high value makes the run doubtful.
OTHERS = "cores used by others"
_SETTLE_SECONDS = 2.0
"""The pause after servers continue from SIGSTOP, in which they send delayed heartbeats and registrations."""
_WARMUP_WINDOW = 64
_FILLER_PIECE_BYTES = 4 << 20


@attrs.define
class Options:
    """The options that every figure understands."""

    runs: int
    seconds: float
    warmup: float
    sides: tuple[Side, ...]
    json_path: str | None

    @classmethod
    def parse(
        cls,
        description: str,
        *,
        runs: int = 3,
        seconds: float = 10,
        warmup: float = 20,
        extend: Callable[[argparse.ArgumentParser], None] | None = None,
    ) -> tuple["Options", argparse.Namespace]:
        """Read the command line; `extend` adds the figure's own options, which are in the returned namespace."""
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--runs", type=int, default=runs, help=f"measurements of each side (default {runs})")
        parser.add_argument("--seconds", type=float, default=seconds, help=f"of each measurement (default {seconds})")
        parser.add_argument("--warmup", type=float, default=warmup, help=f"seconds discarded (default {warmup})")
        flag = argparse.BooleanOptionalAction
        parser.add_argument("--apache", action=flag, default=True, help="measure Apache RocketMQ 5.5.0")
        parser.add_argument("--ours", action=flag, default=True, help="measure LedgerMQ")
        parser.add_argument("--json", metavar="FILE", help="write every run to FILE (- is standard output)")
        if extend is not None:
            extend(parser)
        found = parser.parse_args()
        end_in_order()
        sides: list[Side] = []
        if found.apache:
            sides.append("apache")
        if found.ours:
            sides.append("ours")
        if not sides:
            parser.error("nothing is left to measure")
        return cls(found.runs, found.seconds, found.warmup, tuple(sides), found.json), found


@attrs.define
class Report:
    """All runs of a figure; `runs` maps side and metric to one value per run."""

    title: str
    json_path: str | None
    runs: dict[Side, dict[str, list[float]]] = attrs.field(factory=dict[Side, dict[str, list[float]]])
    notes: list[str] = attrs.field(factory=list[str])

    def add(self, side: Side, values: Values) -> None:
        metrics = self.runs.setdefault(side, {})
        for name, value in values.items():
            metrics.setdefault(name, []).append(value)
        shown = "  ".join(f"{name}={_short(value)}" for name, value in values.items())
        print(f"  {side:>6}: {shown}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"  {text}", file=sys.stderr, flush=True)

    def ratios(self, metric: str) -> list[float]:
        """Return ours / Apache's, run by run."""
        ours = self.runs.get("ours", {}).get(metric, [])
        apache = self.runs.get("apache", {}).get(metric, [])
        return [mine / theirs for mine, theirs in zip(ours, apache, strict=False) if theirs]

    def show(self) -> None:
        """Print the table, and write the JSON file if one was requested."""
        metrics = list(dict.fromkeys(metric for side in self.runs.values() for metric in side))
        rows = [["", *self.runs, "ours / apache"]] if len(self.runs) > 1 else [["", *self.runs]]
        for metric in metrics:
            row = [metric, *(_spread(side.get(metric, [])) for side in self.runs.values())]
            if len(self.runs) > 1:
                row.append(_spread(self.ratios(metric)))
            rows.append(row)
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        print(f"\n{self.title}")
        for row in rows:
            first, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join([first, *others]).rstrip())
        for note in (python_text(), *self.notes):
            print(f"note: {note}")
        if self.json_path is not None:
            self._write_json(self.json_path, metrics)

    def _write_json(self, path: str, metrics: Sequence[str]) -> None:
        text = json.dumps(
            {
                "title": self.title,
                "runs": self.runs,
                "medians": {
                    side: {metric: statistics.median(values) for metric, values in found.items()}
                    for side, found in self.runs.items()
                },
                "ratios": {metric: ratios for metric in metrics if (ratios := self.ratios(metric))},
                "notes": self.notes,
                "command": shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
                "versions": {"ours": version("ledgermq"), "apache": APACHE_VERSION},
                "machine": {"cores": os.cpu_count(), "load_average": os.getloadavg(), "python": python_text()},
            },
            indent=1,
        )
        if path == "-":
            print(text)
        else:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text + "\n")


def python_text() -> str:
    """Name the interpreter, because the build of Python has more effect on figures than most changes."""
    return f"{platform.python_implementation()} {platform.python_version()}, {Path(sys.executable).resolve()}"


def _short(value: float) -> str:
    if value and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = _short(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_short(min(values))}..{_short(max(values))})"


@contextlib.contextmanager
def started(sides: Sequence[Side], settings: Mapping[str, str] | None = None) -> Generator[dict[Side, Cluster]]:
    """Run one fresh cluster of each side, with the benchmark's topic."""
    with contextlib.ExitStack() as stack:
        clusters: dict[Side, Cluster] = {}
        for side in sides:
            clusters[side] = stack.enter_context(Cluster.prepare(side, settings))
            clusters[side].create_topic()
            with clusters[side].connect() as connection:
                await_route(clusters[side], connection)
        yield clusters


def await_route(cluster: Cluster, broker: Connection, topic: str = TOPIC, timeout: float = 180) -> None:
    """Wait until the name server has the route of the topic, without which the Java client fails."""
    get_route_info_by_topic = 105
    host, _, port = cluster.namesrv_address.partition(":")
    deadline = time.perf_counter() + timeout
    with Connection((host, int(port))) as namesrv:
        while namesrv.ask(get_route_info_by_topic, {"topic": topic, "acceptStandardJsonOnly": "true"}).code:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"no route to {topic} within {timeout:.0f} s")
            broker.create_topic(topic, QUEUES)
            time.sleep(0.2)


def warm_up(clusters: Mapping[Side, Cluster], seconds: float) -> None:
    """Load each broker in turn without measuring, so that a JVM compiles the send path."""
    for cluster in clusters.values():
        with RawSender(cluster.broker_address) as sender:
            sender.run(_WARMUP_WINDOW, seconds=seconds)


def await_growth(connection: Connection, producer: Process, timeout: float = 180) -> None:
    """Wait until a producer's first messages arrive, when the warm-up begins, however long its process took to start."""
    before, deadline = connection.message_count(TOPIC, QUEUES), time.perf_counter() + timeout
    while connection.message_count(TOPIC, QUEUES) == before:
        if producer.popen.poll() is not None or time.perf_counter() > deadline:
            raise ProcessFailedError(producer.name, "sent nothing", producer.log)
        time.sleep(0.1)


@contextlib.contextmanager
def others_stopped(side: Side, *tables: Mapping[Side, Cluster]) -> Generator[None]:
    """Suspend the servers of the other sides for the block, because even idle ones wake up and displace caches."""
    others = [cluster for clusters in tables for other, cluster in clusters.items() if other != side]
    servers = [server for cluster in others for server in (cluster.namesrv, cluster.broker) if server is not None]
    for server in servers:
        server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            server.signal(signal.SIGCONT)
        if servers:
            time.sleep(_SETTLE_SECONDS)


def back_free_memory(size: int = 640 << 20) -> None:
    """Make the host back free memory with real pages for a while, by touching this many pages and freeing them.

    The host of a virtual machine may reclaim the guest's free memory. Then each fresh page costs the host up to 20 us, which
    the guest counts as its own time: half of what a message takes, from when a store exceeds the memory free at the start.

    Args:
        size: bytes; more than all brokers together store in a measurement, and too little for the host to reclaim it at once.
    """
    with mmap.mmap(-1, size) as pages:
        pages[:: mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))


@contextlib.contextmanager
def memory_filler(*, wanted: bool = True) -> Generator[Callable[[], None]]:
    """Yield a function that fills the free memory with cached pages, so that the host backs it with real pages.

    `back_free_memory` helps for 2 s if the guest reports its free pages to the host. Cached pages are not free, and new files
    take their place, so whatever is written to files after a call finds real pages. The host may need 3 s per GiB.

    Args:
        wanted: whether the function does anything.
    """
    folder = new_store()
    try:
        with (folder / "filler").open("wb+", buffering=0) as file:
            file.truncate(os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE)
            piece = bytearray(_FILLER_PIECE_BYTES)

            def fill() -> None:
                file.seek(0)
                while wanted and file.readinto(piece):
                    pass

            yield fill
    finally:
        shutil.rmtree(folder)


def take_turns(options: Options, report: Report, measure: Callable[[Side], Values]) -> None:
    """Measure each side in turn, `options.runs` times."""
    for run in range(options.runs):
        print(f"run {run + 1} of {options.runs}", file=sys.stderr, flush=True)
        for side in options.sides:
            # Dirty pages of the other side must not be written back during this measurement.
            os.sync()
            began, others = time.perf_counter(), machine_cpu_seconds() - own_cpu_seconds()
            values = measure(side)
            others = machine_cpu_seconds() - own_cpu_seconds() - others
            report.add(side, {**values, OTHERS: others / (time.perf_counter() - began)})


@attrs.define
class CpuMeter:
    """CPU seconds that a process uses between `start` and `stop`."""

    process: Process
    _cpu: float = 0.0
    _began: float = 0.0

    def start(self) -> None:
        self._cpu, self._began = self.process.cpu_seconds(), time.perf_counter()

    def stop(self) -> tuple[float, float]:
        """Return CPU seconds and wall seconds since `start`."""
        return self.process.cpu_seconds() - self._cpu, time.perf_counter() - self._began


def cpu_percents(processes: Iterable[Process], seconds: float) -> list[float]:
    """Wait for `seconds`; returns the CPU that each process used meanwhile, in percent of a core."""
    meters = [CpuMeter(process) for process in processes]
    for meter in meters:
        meter.start()
    time.sleep(seconds)
    return [100 * cpu / elapsed for cpu, elapsed in (meter.stop() for meter in meters)]
