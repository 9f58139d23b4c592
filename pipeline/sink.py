"""The writing half of the source, which writes a batch exactly once, however often Spark runs it or parts of it.

Before a batch is first written, the driver notes where the destination ends, in a file inside Spark's checkpoint directory. If
the file exists already, if a task is repeated, or if a broker knows the task, some rows may have been stored. Then the tasks
read the destination from the noted offsets on and send only the missing rows. Each message has its query, batch and partition
in the property `SPARK_TXN`. Spark does not say that a stage is repeated, whose attempts are counted from 0 again (SPARK-24552),
so only brokers that know the task make that certain.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NoReturn

import attrs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ..message.message import MessageQueue
from ..message.numbers import is_digits
from .broker_client import BrokerCatalog, BrokerClient
from .errors import BadOption, NotWritten, Replaced
from .offsets import from_json, to_json
from .options import WriteOptions
from .outgoing import Rows
from .sender import Began, Sender
from .storage import open_files, sync

NOTES = "ledgermq-sink"
"""The directory of notes inside a checkpoint."""
_JOB_FILE = "job.json"
"""The note of the batch job that writes with a checkpoint."""
REPLACED_SECONDS = 600.0
"""How long an attempt that was replaced waits to be ended. Then it fails, so that it does not hold a core for ever."""


@attrs.define
class Written(WriterCommitMessage):
    """The result that a task reports to the driver."""

    sent: int
    skipped: int


def begin(options: WriteOptions) -> Began:
    """Return the present ends of the destination queues; if each row names its topic, the brokers instead."""
    ends: Mapping[MessageQueue, int] = {}
    brokers: Iterable[str] = ()
    if options.exactly_once:
        client = BrokerClient(options.servers)
        if options.topic is None:
            brokers = client.brokers()
        else:
            catalog = BrokerCatalog(client)
            ends = catalog.ends(catalog.queues([options.topic])[options.topic])
    return Began(ends, time.time_ns() // 1_000_000, tuple(sorted(brokers)))


def _job_of(options: WriteOptions, rows: Rows) -> str:
    """What distinguishes a batch job from another one: where it writes, and from which columns."""
    columns = ",".join(f"{name}={target}" for name, target in sorted(rows.columns.items()))
    return f"{options.topic or ''} from {columns}"


@attrs.define(eq=False)
class TaskWriter:
    """Writes the rows of a task."""

    options: WriteOptions
    rows: Rows
    began: Began
    may_be_repeated: bool

    def write(self, batches: Iterator[Any], transaction: str, context: Any) -> Written:
        """Send all rows, except those that an earlier attempt has stored."""
        partition = context.partitionId()
        sender = Sender(
            self.options,
            self.began,
            f"{transaction}.{partition}" if self.options.exactly_once else None,
            partition,
        )
        if self.may_be_repeated or context.attemptNumber() > 0:
            sender.look_before_sending()
        try:
            for batch in batches:
                # All rows of a batch are checked before the first one is sent.
                sender.add(list(self.rows.messages(batch, f"partition {partition}")))
            sender.flush()
        except Replaced:
            # Spark ends this attempt once the other one has succeeded. If it failed now, Spark would count a failure, and
            # speculation would soon begin a third attempt, which would replace the second.
            time.sleep(REPLACED_SECONDS)
            raise
        return Written(sender.sent, sender.skipped)


class LedgermqWriter(DataSourceArrowWriter):
    """Writes a batch job; a task that is retried writes nothing twice."""

    def __init__(self, options: WriteOptions, rows: Rows) -> None:
        if options.checkpoint is None or not options.exactly_once:
            self.job, began, repeated = uuid.uuid4().hex[:16], begin(options), False
        else:  # with a checkpoint, the same job may be started again after an interruption
            notes = Notes.of(options)
            notes.check_job(_job_of(options, rows))
            try:
                began, repeated = notes.begin(0, lambda: begin(options))
            except BaseException:  # Spark aborts no job whose writer was not made
                notes.stop_job()
                raise
            self.job = blake2b(notes.checkpoint.encode(), digest_size=8).hexdigest()
        self.task_writer = TaskWriter(options, rows, began, repeated)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return self.task_writer.write(iterator, self.job, context)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - the name is Spark's
        """Note that the job has ended: the rows that tasks have sent are stored."""
        options = self.task_writer.options
        if options.checkpoint is not None and options.exactly_once:
            Notes.of(options).end_job()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Note that the job does not run any more: its rows that were stored remain, and it may be started again."""
        options = self.task_writer.options
        if options.checkpoint is not None and options.exactly_once:
            Notes.of(options).stop_job()


class LedgermqStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a stream; Spark creates one for each batch."""

    def __init__(self, options: WriteOptions, rows: Rows) -> None:
        self.checkpoint = options.checkpoint
        self.batch = -1
        began, repeated = Began({}, 0), False
        if options.exactly_once:
            notes = Notes.of(options)
            self.batch = notes.batch()
            began, repeated = notes.begin(self.batch, lambda: begin(options))
        self.task_writer = TaskWriter(options, rows, began, repeated)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch, query = context.getLocalProperty("streaming.sql.batchId"), context.getLocalProperty("sql.streaming.queryId")
        if self.batch >= 0 and batch is not None and int(batch) != self.batch:
            raise NotWritten(
                f"Spark writes batch {batch}, but the checkpoint {self.checkpoint} is at batch {self.batch}: another query "
                "uses it. Nothing of this batch was sent"
            )
        return self.task_writer.write(iterator, f"{str(query).replace('-', '')[:16]}.{batch}", context)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - the names are Spark's
        if self.task_writer.options.exactly_once:
            Notes.of(self.task_writer.options).forget_before(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: rows that were stored remain, and are recognised when the batch is written again."""


@attrs.define(eq=False)
class Notes:
    """The notes of where batches began: one small file for each, inside Spark's checkpoint directory."""

    files: Any
    """A PyArrow file system."""
    checkpoint: str

    @classmethod
    def of(cls, options: WriteOptions) -> Notes:
        """Open the notes of a query.

        Raises:
            BadOption: no checkpoint is given, or Python cannot reach it.
        """
        if options.checkpoint is None:
            raise BadOption(
                "checkpointLocation",
                None,
                "it must be given to the writer itself for exactly-once writing; or set 'deliveryGuarantee' to 'at-least-once'",
            )
        return cls(*open_files("checkpointLocation", options.checkpoint))

    def batch(self) -> int:
        """Return the number of the batch that is being written: the last one in Spark's log of offsets.

        Raises:
            BadOption: the log does not exist.
        """
        found = self._numbers("offsets")
        if not found:
            raise BadOption("checkpointLocation", self.checkpoint, "it has no log of offsets; name the query's own checkpoint")
        return max(found)

    def begin(self, batch: int, now: Any) -> tuple[Began, bool]:
        """Return where a batch began, and whether it had been noted before."""
        name = f"{batch}.json"
        note = f"{self.checkpoint}/{NOTES}/{name}"
        noted = self._read(name)
        if noted is not None:
            brokers = tuple(noted.get("brokers", ()))  # older versions noted none
            return Began(from_json(noted["ends"]), int(noted["timestamp_ms"]), brokers, note), True
        began: Began = now()
        content = {"ends": to_json(began.ends), "timestamp_ms": began.timestamp_ms, "brokers": began.brokers}
        self._write(name, content)
        return attrs.evolve(began, note=note), False

    def _read(self, name: str) -> Mapping[str, Any] | None:
        """The content of a note; None if there is none."""
        from pyarrow import fs  # noqa: PLC0415

        path = f"{self.checkpoint}/{NOTES}/{name}"
        if self.files.get_file_info(path).type != fs.FileType.File:
            return None
        with self.files.open_input_stream(path) as stream:
            content: Mapping[str, Any] = json.loads(stream.read())
        return content

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        from pyarrow import fs  # noqa: PLC0415

        path, text = f"{self.checkpoint}/{NOTES}/{name}", json.dumps(content).encode()
        self.files.create_dir(f"{self.checkpoint}/{NOTES}", recursive=True)
        if isinstance(self.files, fs.LocalFileSystem):
            _write_durably(path, text)
        else:
            with self.files.open_output_stream(path) as stream:
                stream.write(text)

    def check_job(self, job: str) -> None:
        """Note which job writes with this checkpoint, before it writes anything.

        Raises:
            BadOption: another job has begun with it, or it still runs, or a job has ended; a row that it wrote would not be
                written again.
        """
        with self._locked_job():
            found = self._read(_JOB_FILE)
            driver = None if found is None else found.get("driver")
            if found is not None and (found["ended"] or found["job"] != job):
                what = "a job has ended" if found["ended"] else "another job, with another topic or other columns, has begun"
                self._refuse(f"{what} with this checkpoint: give each job its own")
            if driver is not None and _is_running(driver):
                self._refuse(f"the job of process {driver['pid']} is writing with this checkpoint")
            self._write(_JOB_FILE, {"job": job, "ended": False, "driver": _this_driver()})

    def _refuse(self, reason: str) -> NoReturn:
        raise BadOption("checkpointLocation", self.checkpoint, f"{reason}. Nothing was written")

    @contextmanager
    def _locked_job(self) -> Generator[None]:
        """Let one job after the other look at the note of jobs, if the checkpoint is on this machine."""
        from pyarrow import fs  # noqa: PLC0415

        if not isinstance(self.files, fs.LocalFileSystem):
            yield
            return
        self.files.create_dir(f"{self.checkpoint}/{NOTES}", recursive=True)
        with open(f"{self.checkpoint}/{NOTES}/job.lock", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _change_job(self, **changes: Any) -> None:
        found = self._read(_JOB_FILE)
        if found is not None:
            self._write(_JOB_FILE, {**found, **changes})

    def end_job(self) -> None:
        """Note that the job with this checkpoint has written everything."""
        self._change_job(ended=True, driver=None)

    def stop_job(self) -> None:
        """Note that the job with this checkpoint has failed, and writes no more."""
        self._change_job(driver=None)

    def reopen_job(self) -> None:
        """Let the same job run again with this checkpoint, because its input only grows: it sends what is new."""
        self._change_job(ended=False)

    def forget_before(self, batch: int) -> None:
        """Delete the notes of batches that Spark will not write again."""
        for number in self._numbers(NOTES):
            if number < batch - 1:
                self.files.delete_file(f"{self.checkpoint}/{NOTES}/{number}.json")

    def _numbers(self, directory: str) -> list[int]:
        from pyarrow import fs  # noqa: PLC0415

        selector = fs.FileSelector(f"{self.checkpoint}/{directory}", allow_not_found=True)
        names = [info.base_name.removesuffix(".json") for info in self.files.get_file_info(selector)]
        return [int(name) for name in names if is_digits(name)]


def _this_driver() -> dict[str, Any] | None:
    """What distinguishes the JVM of this driver, which starts the process that plans a write; None if it is not found."""
    process = os.getpid()
    try:
        while process > 1:
            with open(f"/proc/{process}/stat", "rb") as file:
                name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
            fields = rest.split()
            if name == b"java":
                return {"host": socket.gethostname(), "pid": process, "started": int(fields[19])}
            process = int(fields[1])
    except OSError:
        pass  # there is no such directory on other systems than Linux
    return None


def _is_running(driver: Mapping[str, Any]) -> bool:
    """Whether a driver runs on this machine. Nothing is known about drivers on other machines."""
    if driver["host"] != socket.gethostname():
        return False
    try:
        with open(f"/proc/{driver['pid']}/stat", "rb") as file:
            return bool(int(file.read().rpartition(b")")[2].split()[19]) == driver["started"])
    except OSError:
        return False


def _write_durably(path: str, text: bytes) -> None:
    """Write a file atomically. After a power cut, half a note would hide rows that were written after it."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(text)
    sync(temporary)
    os.replace(temporary, path)
    sync(os.path.dirname(path))
