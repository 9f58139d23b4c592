"""The data pipeline on two cores, as ratios within one run: scans against Spark's own Parquet, brokers, archives, streams.

The data are records with bodies of 256 to 1024 bytes in 8 interleaved queues, in the page cache. No two bodies are alike, so
Parquet must store and copy each of them, as a reader of segments must. Both sides read the same rows with the same columns, all
default ones, and make the rows that Spark's `noop` sink takes.

Every figure is the best of a few alternating runs, so that other load on the machine affects both sides. Each ratio is given
twice: of wall times, which is what a user waits for, and of processor times of Spark and its workers, which other load changes
less. Figures are printed as they are found, each with the value that is wanted.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

from ledgermq import Message, blocking
from ledgermq.message.layout import encode_host, encode_record
from ledgermq.message.strings import string_hash
from ledgermq.pipeline.jobs.archive import archive
from ledgermq.pipeline.session import session
from ledgermq.store.derived.consumequeue import UNIT_SIZE
from ledgermq.testing.embedded import start_embedded

QUEUES = 8
SEGMENT = 512 * 1024 * 1024
BODY_MIN, BODY_MAX = 256, 1024
SHORT_BODY = 100
LARGE_BODY = 4 * 1024 * 1024
LARGE_COUNT = 100
SMALL_COUNT = 100
TEXT_BYTES = 16 * 1024 * 1024
"""The size of the text that bodies are cut from, each from another place."""
SAMPLE_SECONDS = 0.01
SAMPLES_PER_SEARCH = 50
"""The interval at which the memory of workers is looked up, and how often before workers are searched for again."""
AT_LEAST = {
    "scan / Parquet read": 0.6,
    "scan / Parquet read, maps": 0.6,
    "scan / Parquet read, 100 bytes": 0.6,
    "scan / broker path": 2.0,
    "archive / Parquet writer": 3.0,
}
AT_MOST = {
    "session start s": 5.0,
    "first job s": 2.6,
    "first table s": 4.7,
    "worker MiB": 300.0,
    "worker MiB, 4 MiB records": 300.0,
    "stream p50 ms": 250.0,
}


def show(figures: dict[str, float]) -> dict[str, float]:
    """Print figures with the values that are wanted; returns them."""
    for name, value in figures.items():
        least, most = AT_LEAST.get(name), AT_MOST.get(name)
        wanted = f"   (at least {least:g})" if least is not None else f"   (at most {most:g})" if most is not None else ""
        print(f"{name:<32} {value:>12,.2f}{wanted}", flush=True)
    return figures


def missed(figures: dict[str, float]) -> list[str]:
    """Return the names of the figures that are wanted and not reached or not measured."""
    low = [name for name, least in AT_LEAST.items() if not figures.get(name, 0) >= least]
    return [*low, *(name for name, most in AT_MOST.items() if not figures.get(name, most + 1) <= most)]


def write_store(root: Path, sizes: Iterable[int]) -> int:
    """Write the files of a store with bodies of the given sizes; returns the size of its log in bytes."""
    draw = random.Random(1)  # noqa: S311 - draws places in a text
    unit = struct.Struct(">qiq")
    log, files, position = bytearray(), 0, 0
    queues = [bytearray() for _ in range(QUEUES)]
    tags = ("new", "paid", "shipped")
    text = random.Random(2).randbytes(TEXT_BYTES // 2).hex().encode()  # noqa: S311
    host = encode_host("127.0.0.1", 10911)
    (root / "commitlog").mkdir(parents=True)

    def close(at: int) -> None:
        path = root / "commitlog" / f"{at:020d}"
        path.write_bytes(log)
        os.truncate(path, SEGMENT)

    for number, size in enumerate(sizes):
        tag = tags[number % 3]
        properties = f"TAGS\x01{tag}\x02KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02".encode()
        begin = draw.randrange(TEXT_BYTES - size)
        record = encode_record(
            b"benchmark",
            number % QUEUES,
            number // QUEUES,
            text[begin : begin + size],
            properties,
            0,
            0,
            1_700_000_000_000 + number,
            host,
            1_700_000_000_003 + number,
            host,
            physical_offset=position,
        )
        if len(log) + len(record) + 8 > SEGMENT:
            left = SEGMENT - len(log)
            log += struct.pack(">iI", left, 0xCBD43194)
            close(files * SEGMENT)
            files, log = files + 1, bytearray()
            position = files * SEGMENT
            record = record[:28] + struct.pack(">q", position) + record[36:]
        queues[number % QUEUES] += unit.pack(position, len(record), string_hash(tag))
        log += record
        position += len(record)
    close(files * SEGMENT)
    (root / "checkpoint").write_bytes(bytes(4096))  # as Apache's brokers write it, without a recovery mark
    for queue_id, units in enumerate(queues):
        directory = root / "consumequeue" / "benchmark" / str(queue_id)
        directory.mkdir(parents=True)
        size = 300_000 * UNIT_SIZE
        for at in range(0, len(units), size):
            path = directory / f"{at:020d}"
            path.write_bytes(units[at : at + size])
            os.truncate(path, size)
    return position


@attrs.frozen
class Cost:
    """The wall time and the processor time of an action."""

    seconds: float
    cpu_seconds: float

    def over(self, other: Cost, name: str) -> dict[str, float]:
        """By what factor `other` was faster, by wall time and by processor time."""
        return {name: self.seconds / other.seconds, f"{name}, CPU": self.cpu_seconds / other.cpu_seconds}


def processor_seconds() -> float:
    """Processor time of this process and all its descendants, including ended ones that were waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")


def timed(action: Callable[[], object]) -> Cost:
    began, before = time.perf_counter(), processor_seconds()
    action()
    return Cost(time.perf_counter() - began, processor_seconds() - before)


def best_of(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, Cost]:
    """Run the actions in turn for some rounds; returns the least costs of each."""
    costs: dict[str, list[Cost]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            costs[name].append(timed(action))
    return {
        name: Cost(min(each.seconds for each in found), min(each.cpu_seconds for each in found))
        for name, found in costs.items()
    }


def workers() -> list[Path]:
    """Find the Python workers of Spark's tasks, in `/proc`."""
    found: list[Path] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"pyspark.worker" in (entry / "cmdline").read_bytes():
                found.append(entry)
        except OSError:
            continue
    return found


def private_kib(process: Path) -> int:
    """Return the memory of a process without pages of mapped files."""
    try:
        status = (process / "status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)


def worker_mib(*actions: Callable[[], object]) -> float:
    """Return the largest private memory that a worker has while it does some work."""
    largest = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal largest
        found: list[Path] = []
        for number in itertools.count():
            if done.wait(SAMPLE_SECONDS):
                return
            if number % SAMPLES_PER_SEARCH == 0:
                found = workers()
            largest = max(largest, *map(private_kib, found), 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for action in actions:
            action()
    finally:
        done.set()
        watcher.join()
    return largest / 1024


@attrs.frozen
class Bench:
    """The stores and the session of one run."""

    spark: Any
    work: Path
    rounds: int

    def read(self, **options: str) -> Any:
        return self.spark.read.format("ledgermq").options(**{"subscribe": "benchmark", **options}).load()

    def source(self, properties: str = "string", store: str = "store") -> dict[str, str]:
        return {"storePath": str(self.work / store), "subscribe": "benchmark", "includeProperties": properties}

    def write_parquet(self, properties: str, store: str = "store") -> str:
        path = str(self.work / f"parquet-{properties}")
        self.read(**self.source(properties, store)).write.mode("overwrite").option("compression", "snappy").parquet(path)
        return path

    def write_archive(self, store: str = "store") -> None:
        shutil.rmtree(self.work / "archive", ignore_errors=True)
        archive(self.spark, self.source(store=store), str(self.work / "archive"), compression="snappy")

    def scans(self, count: int) -> dict[str, float]:
        """Compare scans of the store with Spark's own reads of the same rows from Parquet."""
        figures: dict[str, float] = {}
        for store, properties, ending in (
            ("store", "string", ""),
            ("store", "map", ", maps"),
            ("short", "string", ", 100 bytes"),
        ):
            parquet = self.write_parquet(properties, store)
            frames = {"scan": self.read(**self.source(properties, store)), "parquet": self.spark.read.parquet(parquet)}
            if frames["scan"].dtypes != frames["parquet"].dtypes:
                raise AssertionError("both sides must read the same columns")
            found = best_of({name: discard(frame) for name, frame in frames.items()}, self.rounds)
            shutil.rmtree(parquet)
            figures |= show({f"scan rows/s{ending}": count / found["scan"].seconds})
            figures |= show(found["parquet"].over(found["scan"], f"scan / Parquet read{ending}"))
        return figures

    def writes(self, count: int) -> dict[str, float]:
        """Compare archives with Spark's own Parquet writer."""
        actions: dict[str, Callable[[], object]] = {
            "archive": self.write_archive,
            "writer": lambda: self.write_parquet("string"),
        }
        found = best_of(actions, max(self.rounds - 3, 1))
        shutil.rmtree(self.work / "parquet-string")
        return show(
            {
                "archive rows/s": count / found["archive"].seconds,
                **found["writer"].over(found["archive"], "archive / Parquet writer"),
            }
        )

    def memory(self) -> dict[str, float]:
        """Find the memory of workers that scan and archive small records and records of 4 MiB."""
        figures: dict[str, float] = {}
        for store, ending in (("store", ""), ("large", ", 4 MiB records")):
            scan, to_archive = discard(self.read(**self.source(store=store))), functools.partial(self.write_archive, store)
            figures |= show({f"worker MiB{ending}": worker_mib(scan, to_archive)})
        return figures


def discard(frame: Any) -> Callable[[], object]:
    """Return an action that makes all rows of a frame."""
    return lambda: frame.write.format("noop").mode("overwrite").save()


def through_broker(bench: Bench, count: int) -> dict[str, float]:
    """Read the same messages from the broker and from its files, and measure the delay of a stream."""
    store = bench.work / "broker"
    settings = {
        "maxTransferCountOnMessageInMemory": "1024",
        "maxTransferBytesOnMessageInMemory": str(2 << 20),
        "mappedFileSizeCommitLog": str(1 << 28),
        "mappedFileSizeConsumeQueue": "6000000",
    }
    with (
        start_embedded(store=str(store), settings=settings) as broker,
        blocking.open_producer(broker.namesrv, group="bench") as producer,
    ):
        with blocking.open_admin(broker.namesrv) as admin:
            admin.call(lambda each: each.create_topic("benchmark", queues=QUEUES))
            admin.call(lambda each: each.create_topic("stream", queues=1))
        body = random.Random(2).randbytes(640)  # noqa: S311
        for _ in range(0, count, 200):
            producer.send_batch([Message("benchmark", body, tag="new", keys=["k"]) for _ in range(200)])
        places = {"files": {"storePath": str(store / "0")}, "broker": {"nameServer": broker.namesrv}}
        frames = {name: bench.read(includeProperties="string", **place) for name, place in places.items()}
        found = best_of({name: discard(frame) for name, frame in frames.items()}, bench.rounds)
        figures = show({"broker rows/s": count / found["broker"].seconds})
        figures |= show(found["broker"].over(found["files"], "scan / broker path"))
        delays = stream_delays(bench.spark, broker.namesrv, producer, bench.work)
    quantiles = {"stream p50 ms": statistics.median(delays), "stream p95 ms": statistics.quantiles(delays, n=20)[-1]}
    return figures | show(quantiles)


def committed_offset(checkpoint: Path) -> int:
    """The queue offset up to which the sink has committed, from the checkpoint of a query over one queue."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    if not done:
        return 0
    offsets = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[-1]
    return int(next(iter(json.loads(offsets)["stream"].values()))["0"])


def stream_delays(spark: Any, namesrv: str, producer: Any, work: Path) -> list[float]:
    """Measure the milliseconds from the acknowledgement of a send until the sink has committed the message's batch."""
    checkpoint = work / "checkpoint"
    rows = spark.readStream.format("ledgermq").options(nameServer=namesrv, subscribe="stream", columns="body").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    delays: list[float] = []
    try:
        for _ in range(60):
            offset = producer.send(Message("stream", b"a message")).queue_offset
            sent = time.perf_counter()
            while committed_offset(checkpoint) <= offset and time.perf_counter() < sent + 60:
                time.sleep(0.002)
            delays.append(1000 * (time.perf_counter() - sent))
            time.sleep(0.05)
    finally:
        query.stop()
    return delays[10:]


def start_up(store: str) -> None:
    """Start a session as the commands do, and print how long it, its first job and its first table take."""
    began = time.perf_counter()
    spark = session("local[2]", name="bench")
    started = time.perf_counter()
    first_job = timed(lambda: spark.range(10).count()).seconds
    first_table = timed(lambda: spark.read.format("ledgermq").options(storePath=store, subscribe="benchmark").load().collect())
    print(json.dumps({"session start s": started - began, "first job s": first_job, "first table s": first_table.seconds}))
    spark.stop()


def started(store: Path, rounds: int) -> dict[str, float]:
    """Return the shortest times of some starts, each in a process of its own."""
    command = [sys.executable, __file__, "--start-up", str(store)]
    outputs = [subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout for _ in range(rounds)]
    found: list[dict[str, float]] = [json.loads(output) for output in outputs]
    return show({name: min(each[name] for each in found) for name in found[0]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the data")
    parser.add_argument("--messages", type=int, metavar="N", help="this many instead of 1,500,000")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--no-apache", action="store_true", help="changes nothing: Spark is what is compared with")
    parser.add_argument("--no-ours", action="store_true", help="measure nothing")
    parser.add_argument("--starts", type=int, default=0, metavar="N", help="measure only N starts")
    parser.add_argument("--start-up", metavar="STORE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start_up:
        start_up(arguments.start_up)
        return
    if arguments.no_ours:
        return
    count, rounds = (300_000, 3) if arguments.quick else (1_500_000, 5)
    count = arguments.messages or count
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as directory:
        work = Path(directory)
        draw = random.Random(3)  # noqa: S311
        write_store(work / "small", itertools.repeat(BODY_MAX, SMALL_COUNT))
        if arguments.starts:
            started(work / "small", arguments.starts)
            return
        write_store(work / "store", (draw.randrange(BODY_MIN, BODY_MAX) for _ in range(count)))
        write_store(work / "short", itertools.repeat(SHORT_BODY, count))
        write_store(work / "large", itertools.repeat(LARGE_BODY, LARGE_COUNT))
        figures = started(work / "small", 2)
        spark = session("local[2]", name="bench", memory="2g", short=False, conf={"spark.sql.shuffle.partitions": "2"})
        bench = Bench(spark, work, rounds)
        try:
            figures |= bench.scans(count)
            figures |= bench.writes(count)
            figures |= bench.memory()
            figures |= through_broker(bench, count // 5)
        finally:
            spark.stop()
    if arguments.json:
        arguments.json.parent.mkdir(exist_ok=True)
        arguments.json.write_text(json.dumps(figures))
    failed = missed(figures)
    print(f"not reached: {', '.join(failed)}" if failed else "all wanted figures are reached")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
