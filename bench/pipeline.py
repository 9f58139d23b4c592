"""The data pipeline on two cores, as ratios within one run: scans against Spark's own Parquet, brokers, archives, streams.

The data are records with bodies of 256 to 1024 bytes in 8 interleaved queues, in the page cache. Every figure is the best of a
few alternating runs, so that other load on the machine affects both sides. Each ratio is given twice: of wall times, which is
what a user waits for, and of processor times of Spark and its workers, which other load changes less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from ledgermq import Message, blocking
from ledgermq.message.layout import encode_host, encode_record
from ledgermq.message.strings import string_hash
from ledgermq.pipeline.jobs.archive import archive
from ledgermq.pipeline.session import session
from ledgermq.store.consumequeue import UNIT_SIZE
from ledgermq.testing.embedded import start_embedded

QUEUES = 8
SEGMENT = 512 * 1024 * 1024
AT_LEAST = {
    "scan / Parquet read": 0.6,
    "scan / broker path": 2.0,
    "archive / Parquet writer": 3.0,
}
AT_MOST = {
    "session start s": 6.0,
    "first job s": 3.0,
    "worker MiB": 300.0,
    "stream p50 ms": 250.0,
}


def write_store(root: Path, count: int) -> int:
    """Write the files of a store; returns the size of its log in bytes."""
    draw = random.Random(1)  # noqa: S311 - draws sizes
    unit = struct.Struct(">qiq")
    log, files, position = bytearray(), 0, 0
    queues = [bytearray() for _ in range(QUEUES)]
    tags = ("new", "paid", "shipped")
    body = random.Random(2).randbytes(1024)  # noqa: S311
    host = encode_host("127.0.0.1", 10911)
    (root / "commitlog").mkdir(parents=True)

    def close(at: int) -> None:
        path = root / "commitlog" / f"{at:020d}"
        path.write_bytes(log)
        os.truncate(path, SEGMENT)

    for number in range(count):
        tag = tags[number % 3]
        properties = f"TAGS\x01{tag}\x02KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02".encode()
        record = encode_record(
            b"benchmark",
            number % QUEUES,
            number // QUEUES,
            body[: draw.randrange(256, 1024)],
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


def worker_memory_mib() -> float:
    """The largest private memory of this session's Python workers."""
    largest = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"pyspark.worker" in (entry / "cmdline").read_bytes():
                status = (entry / "status").read_text()
                largest = max(largest, next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")))
        except (OSError, StopIteration):
            continue
    return largest / 1024


def scans(spark: Any, root: Path, work: Path, count: int, rounds: int) -> dict[str, float]:
    def read(**options: str) -> Any:
        given = {"storePath": str(root), "subscribe": "benchmark", "includeProperties": "string", **options}
        return spark.read.format("ledgermq").options(**given).load()

    def discard(frame: Any) -> Callable[[], object]:
        return lambda: frame.write.format("noop").mode("overwrite").save()

    parquet = str(work / "parquet")
    read().write.option("compression", "snappy").parquet(parquet)
    found = best_of({"scan": discard(read()), "parquet": discard(spark.read.parquet(parquet))}, rounds)
    source = {"storePath": str(root), "subscribe": "benchmark", "includeProperties": "string"}

    def to_archive() -> None:
        shutil.rmtree(work / "archive", ignore_errors=True)
        archive(spark, source, str(work / "archive"), compression="snappy")

    def to_parquet() -> None:
        shutil.rmtree(parquet)
        read().write.option("compression", "snappy").parquet(parquet)

    writes = best_of({"archive": to_archive, "writer": to_parquet}, max(rounds - 2, 1))
    memory = worker_memory_mib()
    return {
        "scan rows/s": count / found["scan"].seconds,
        **found["parquet"].over(found["scan"], "scan / Parquet read"),
        "archive rows/s": count / writes["archive"].seconds,
        **writes["writer"].over(writes["archive"], "archive / Parquet writer"),
        "worker MiB": memory,
    }


def through_broker(spark: Any, work: Path, count: int, rounds: int) -> dict[str, float]:
    """Read the same messages from the broker and from its files, and measure the delay of a stream."""
    store = work / "broker"
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

        def read(**place: str) -> Callable[[], object]:
            frame = spark.read.format("ledgermq").options(subscribe="benchmark", includeProperties="string", **place).load()
            return lambda: frame.write.format("noop").mode("overwrite").save()

        found = best_of({"files": read(storePath=str(store / "0")), "broker": read(nameServer=broker.namesrv)}, rounds)
        delays = stream_delays(spark, broker.namesrv, producer, work)
    return {
        "broker rows/s": count / found["broker"].seconds,
        **found["broker"].over(found["files"], "scan / broker path"),
        "stream p50 ms": statistics.median(delays),
        "stream p95 ms": statistics.quantiles(delays, n=20)[-1],
    }


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the data")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--no-apache", action="store_true", help="changes nothing: Spark is what is compared with")
    parser.add_argument("--no-ours", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    if arguments.no_ours:
        return
    count, rounds = (300_000, 3) if arguments.quick else (1_500_000, 5)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-pipeline-") as directory:
        work = Path(directory)
        write_store(work / "store", count)
        began = time.perf_counter()
        spark = session("local[2]", name="bench", memory="2g", short=False, conf={"spark.sql.shuffle.partitions": "2"})
        figures["session start s"] = time.perf_counter() - began
        figures["first job s"] = timed(lambda: spark.range(10).count()).seconds
        try:
            figures |= scans(spark, work / "store", work, count, rounds)
            figures |= through_broker(spark, work, count // 5, rounds)
        finally:
            spark.stop()
    if arguments.json:
        arguments.json.parent.mkdir(exist_ok=True)
        arguments.json.write_text(json.dumps(figures))
    missed = False
    for name, value in figures.items():
        least, most = AT_LEAST.get(name), AT_MOST.get(name)
        missed |= (least is not None and value < least) or (most is not None and value > most)
        wanted = f"   (at least {least:g})" if least is not None else f"   (at most {most:g})" if most is not None else ""
        print(f"{name:<32} {value:>12,.2f}{wanted}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
