"""`python -m harness.processes.spark`: what real executors of Spark write exactly once while their stages are repeated.

Each round writes rows that come out of a shuffle to a topic of its own, in a batch job or in a stream, on a cluster of two
executors on this machine. When some of the rows are stored, the broker is suspended and a fault happens: an executor is killed,
the files of the shuffle are deleted, or the broker just stays suspended for longer than clients wait. Spark counts attempts
from 0 again in a repeated stage. In the end each row must be in the topic once. With `--unfenced` the broker fences no
producers, and the rows of repeated stages must be found twice.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyspark
import trio

from ledgermq import Message, SendResult, blocking, open_admin
from ledgermq.client.admin import Admin
from ledgermq.pipeline.registration import register
from ledgermq.pipeline.session import session

from .report import Report, close_directory, drawn_seed, print_line
from .servers import ServerProcess, running_broker, running_namesrv

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1200
BODY_BYTES = 64 * 1024
"""A task gathers 8 MiB before it sends, and must not have read all of its shuffle by then."""
MAPS, TASKS = 6, 3
STORED = (60, 500)
"""How many rows are stored when the fault happens; the bounds of a draw."""
CALL_SECONDS, FAILOVER_SECONDS = 1, 3
"""How long a task waits for an answer, and how long it repeats a request."""
PAUSE_SECONDS = 5.0
ROUND_SECONDS = 300.0
MASTER = "local-cluster[2,1,1024]"
SETTINGS = {
    "spark.executor.memory": "1024m",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": str(TASKS),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",
    # A task fetches a little of its shuffle at a time, so that it still needs what is lost in the middle of it.
    "spark.shuffle.compress": "false",
    "spark.reducer.maxSizeInFlight": "2m",
    "spark.reducer.maxReqsInFlight": "1",
    "spark.task.maxFailures": "12",
    "spark.stage.maxConsecutiveAttempts": "12",
    "spark.excludeOnFailure.enabled": "false",
}


@attrs.frozen
class Fault:
    """A kind of fault, and whether Spark then repeats a whole stage."""

    name: str
    repeats_stage: bool


DELETED = Fault("shuffle files deleted", repeats_stage=True)
KILLED = Fault("executor killed", repeats_stage=True)
PAUSED = Fault("broker suspended", repeats_stage=False)
FAULTS = {"delete": DELETED, "kill": KILLED, "pause": PAUSED}


def _cluster_home(directory: Path) -> Path:
    """A directory of Spark as it is installed, in which a cluster may write the directories of its workers."""
    home = directory / "spark"
    home.mkdir()
    for entry in Path(pyspark.__path__[0]).iterdir():
        (home / entry.name).symlink_to(entry)
    return home


def _children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


def _body(number: Any) -> str:
    return f"concat(lpad({number}, 8, '0'), repeat('x', {BODY_BYTES - 8}))"


def _numbers(namesrv: str, topic: str) -> Counter[int]:
    """The numbers of all rows of a topic, as the plain client reads them."""
    found: Counter[int] = Counter()
    with blocking.open_pull_consumer(namesrv, "checker") as consumer, blocking.open_admin(namesrv) as admin:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_beginning(queue)
        ends = {queue: admin.call(lambda each, queue=queue: each.queue_range(queue))[1] for queue in queues}  # type: ignore[misc]
        deadline = time.monotonic() + ROUND_SECONDS
        while any(consumer.position(queue) < end for queue, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} was not read to its end")
            found.update(int(message.body[:8]) for message in consumer.poll(timeout_seconds=1))
    return found


async def _stored(admin: Admin, topic: str) -> int:
    return sum(status.max_offset - status.min_offset for status in (await admin.topic_stats(topic)).values())


@attrs.define(eq=False)
class Rounds:
    """One cluster, one broker, and the rounds on them."""

    spark: SparkSession
    directory: Path
    namesrv: str
    broker: ServerProcess
    rng: random.Random
    report: Report
    violations: list[str] = attrs.field(factory=list[str])
    repeated_stages: int = 0
    """The rounds in which Spark has repeated the stage that writes."""
    repeated_rows: int = 0
    _round: int = 0

    async def run(self, fault: Fault, *, is_stream: bool) -> None:
        """Write all rows while a fault happens, and check them."""
        self._round += 1
        topic, group = f"to-{self._round}", f"round-{self._round}"
        threshold = self.rng.randint(*STORED)
        async with open_admin(self.namesrv) as admin, trio.open_nursery() as nursery:
            await admin.create_topic(topic, queues=4)
            ended = trio.Event()

            async def write() -> None:
                with trio.fail_after(ROUND_SECONDS):
                    await trio.to_thread.run_sync(self._write, topic, group, is_stream)
                ended.set()

            nursery.start_soon(write)
            while not ended.is_set() and await _stored(admin, topic) < threshold:  # noqa: ASYNC110 - executors store them
                await trio.sleep(0.01)
            if not ended.is_set():
                await self._strike(fault)
            await ended.wait()
        attempts = self._stage_attempts(group)
        found = await trio.to_thread.run_sync(_numbers, self.namesrv, topic)
        kind = "stream" if is_stream else "batch"
        self.report(f"round {self._round}: {kind}, {fault.name} at {threshold} rows: {attempts} attempts of the stage")
        self.repeated_stages += attempts > 1
        self.judge(found, f"round {self._round} ({kind}, {fault.name})")

    def judge(self, found: Counter[int], where: str) -> None:
        """Compare the numbers that were found in a topic with those that were written."""
        lost, strange = len(set(range(ROWS)) - found.keys()), len(found.keys() - set(range(ROWS)))
        twice = found.total() - len(found)
        self.repeated_rows += twice
        if lost or twice or strange:
            self.violations.append(f"{where}: {lost} rows lost, {twice} repeated, {strange} never written")

    def _write(self, topic: str, group: str, is_stream: bool) -> None:
        spark: Any = self.spark
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - a write looks for it in its thread
        target = {
            "nameServer": self.namesrv, "topic": topic, "checkpointLocation": str(self.directory / group),
            "sendTimeoutMs": str(CALL_SECONDS * 1000), "failoverTimeoutMs": str(FAILOVER_SECONDS * 1000),
        }  # fmt: skip
        if is_stream:
            source = {
                "nameServer": self.namesrv, "subscribe": "from", "startingOffsets": "earliest", "minPartitions": str(MAPS)
            }  # fmt: skip
            read = self.spark.readStream.format("ledgermq").options(**source).load()
            rows = read.selectExpr("cast(decode(body, 'US-ASCII') as int) id")
            query = (
                _shuffled(rows).writeStream.format("ledgermq").options(**target).queryName(group).trigger(availableNow=True)
            ).start()  # fmt: skip
            self._groups[group] = str(query.runId)
            query.awaitTermination()
        else:
            self.spark.sparkContext.setJobGroup(group, group)
            _shuffled(self.spark.range(0, ROWS, 1, MAPS)).write.format("ledgermq").mode("append").options(**target).save()

    _groups: dict[str, str] = attrs.field(factory=dict[str, str])
    """The job groups of streams."""

    def _stage_attempts(self, group: str) -> int:
        """The most attempts of a stage that writes, which is the last one of its job."""
        tracker = self.spark.sparkContext.statusTracker()
        attempts = 0
        for job in tracker.getJobIdsForGroup(self._groups.get(group, group)):
            found: Any = tracker.getJobInfo(job)
            info = None if found is None else tracker.getStageInfo(max(found.stageIds))
            attempts = max(attempts, 0 if info is None else info.currentAttemptId + 1)
        return attempts

    async def _strike(self, fault: Fault) -> None:
        """Let a fault happen while the broker is suspended, so that tasks are in the middle of their rows."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.broker.pause, PAUSE_SECONDS if fault is PAUSED else CALL_SECONDS)
            if fault is KILLED:
                os.kill(self.rng.choice(self._executors()), signal.SIGKILL)
            elif fault is DELETED:
                for file in self.directory.glob("local/**/shuffle_*.data"):
                    file.unlink(missing_ok=True)

    def _executors(self) -> list[int]:
        context: Any = self.spark.sparkContext
        found = _children(context._gateway.proc.pid)  # noqa: SLF001 - which no public name tells
        executors = [each for each in found if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{each}/cmdline").read_bytes()]
        assert executors, "a cluster has executors"
        return executors


def _shuffled(rows: DataFrame) -> DataFrame:
    """Rows of `BODY_BYTES` after a shuffle."""
    return rows.selectExpr("id", f"{_body('id')} body").repartition(TASKS, "id").select("body")


def _send_numbers(namesrv: str) -> None:
    """Fill the topic that streams read."""
    with blocking.open_admin(namesrv) as admin:
        admin.call(lambda each: each.create_topic("from", queues=MAPS))
    with blocking.open_producer(namesrv, group="checker", send_timeout_seconds=60) as producer:
        sent = producer.send_many(Message("from", b"%d" % number) for number in range(ROWS))
    assert all(isinstance(each, SendResult) for each in sent), sent


@contextlib.contextmanager
def _cluster(directory: Path, conf: Mapping[str, str]) -> Generator[SparkSession]:
    """A master and two executors, whose files are in `directory`."""
    os.environ["SPARK_HOME"] = str(_cluster_home(directory))
    settings = {**SETTINGS, "spark.local.dir": str(directory / "local"), **conf}
    spark = session(MASTER, name="rounds", memory="512m", conf=settings, log_path=str(directory / "spark.log"))
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


async def _run_rounds(spark: SparkSession, directory: Path, faults: Sequence[Fault], arguments: argparse.Namespace) -> Rounds:
    """Run rounds until there were enough, and return what was found."""
    rng = random.Random(arguments.seed)  # noqa: S311 - a seeded generator is the point
    module = "harness.processes.unfenced" if arguments.unfenced else "ledgermq.cli.main"
    async with running_namesrv(directory / "namesrv") as namesrv:
        address = str(namesrv.address)
        async with running_broker(directory / "broker" / "store", {"namesrvAddr": address}, module=module) as broker:
            rounds = Rounds(spark, directory, address, broker, rng, print_line)
            await trio.to_thread.run_sync(_send_numbers, address)
            deadline = trio.current_time() + arguments.seconds
            for number in itertools.count():
                if number >= arguments.rounds and trio.current_time() >= deadline:
                    break
                await rounds.run(faults[number % len(faults)], is_stream=number // len(faults) % 2 == 1)
    return rounds


def verdicts(rounds: Rounds, faults: Sequence[Fault], *, unfenced: bool) -> list[str]:
    """What a run has found: lost or repeated rows, and that it has not tried what it was to try."""
    found = [] if unfenced else list(rounds.violations)
    if unfenced and not rounds.repeated_rows:
        found.append("without fences no row was found twice, so these rounds would find no fault")
    if any(fault.repeats_stage for fault in faults) and not rounds.repeated_stages:
        found.append("Spark has repeated no stage that writes")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status, which is 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m harness.processes.spark", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.0, help="begin rounds for this long")
    parser.add_argument("--rounds", type=int, default=len(FAULTS) * 2, help="run at least this many rounds")
    parser.add_argument("--faults", default=",".join(FAULTS), help="the kinds of faults, in turn: %(default)s")
    parser.add_argument("--seed", type=int, help="the seed of what is drawn")
    parser.add_argument("--unfenced", action="store_true", help="run a broker that fences no producers")
    found = parser.parse_args(arguments)
    found.seed = drawn_seed(found.seed)
    faults = [FAULTS[name] for name in found.faults.split(",")]
    directory = Path(tempfile.mkdtemp(prefix="ledgermq-spark-"))
    print_line(f"seed {found.seed}, files in {directory}")
    with _cluster(directory, {}) as spark:
        rounds = trio.run(_run_rounds, spark, directory, faults, found)
    violations = verdicts(rounds, faults, unfenced=found.unfenced)
    for line in violations:
        print_line(line)
    return close_directory(directory, violations)


if __name__ == "__main__":
    sys.exit(main())
