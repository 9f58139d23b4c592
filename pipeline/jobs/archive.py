"""`archive`: writes topics to Parquet files by topic and day. Each run continues where the last one ended.

Workers write the files with PyArrow from the batches that the reader yields, so messages do not pass through the JVM. The plan
of a round is stored before the round starts, so an interrupted round is repeated exactly. The name of a file follows from its
ranges, so a repeated file replaces the first one. Each finished round has a manifest that lists its files.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from ...message.checksum import crc32
from ...message.message import MessageQueue
from ...message.numbers import is_digits
from ..catalog import Catalog, Losses, look_up, report_losses, resolve
from ..columns import Column, chosen
from ..environment import signed
from ..errors import BadOption, CorruptFile
from ..offsets import Offsets, from_json, to_json
from ..options import ReadOptions, Stores, read_options
from ..ranges import QueueRange, Task, ranges_between
from ..reading import TaskReader, open_catalog
from ..storage import open_files, sync
from .places import TASKS_PER_CORE, Source, locked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFESTS = "_ledgermq"
"""The directory of manifests. Spark and others ignore names that begin with an underscore."""
ROUND_BYTES = 4 * 1024 * 1024 * 1024
"""The most bytes of one round, and so the most that is repeated after an interruption; on a large cluster a round has more."""
GROUP_ROWS, GROUP_BYTES = 64 * 1024, 32 * 1024 * 1024
"""The limits of a row group, after which it is written. Each open file has one in memory."""
WRITERS_MAX = 16
"""The most open files of one task. With more topics and days, the file that was used least recently is closed."""
NARROW = (
    "brokerName", "queueId", "queueOffset", "tags", "flag", "sysFlag", "reconsumeTimes", "bornTimestamp", "storeTimestamp",
)  # fmt: skip
LOOK_SECONDS, WATCH_SECONDS, WATCH_BYTES = 1.0, 60.0, 128 * 1024 * 1024
"""How often a run that watches looks for messages, and after what time or with how many bytes it begins the next round. Each
round writes at least one file for each topic, and a manifest."""


@attrs.frozen
class Archived:
    """The result of an archive run."""

    rounds: int
    rows: int
    files: int
    bytes: int


@attrs.frozen
class FileWritten:
    """One Parquet file of a round."""

    path: str
    rows: int
    bytes: int


def archive(spark: SparkSession, source: Source, to: str, *, watch: bool = False, compression: str = "zstd") -> Archived:
    """Write the new messages of topics to Parquet files.

    Args:
        spark: a session.
        source: options of a batch read; its start is used by the first run only.
        to: a directory that driver and workers reach, as a path or as a URI that PyArrow supports.
        watch: continue with new messages until interrupted.
        compression: zstd, snappy or none.

    Raises:
        BadOption, UnknownTopic, Unavailable, DataLoss: as a read does. Finished rounds remain; the next run continues.
        BadOption: another run is writing to the directory, or an interrupted round reads other stores than these.
    """
    if compression not in ("zstd", "snappy", "none"):
        raise BadOption("compression", compression, "zstd, snappy or none is expected")
    options = read_options(signed(source), streaming=False)
    total = Archived(0, 0, 0, 0)
    place = Destination.of(to)
    place.check(options)
    with place.locked(), closing(open_catalog(options)) as catalog:
        pending = place.pending()
        if pending is not None:
            _check_pending(pending[3], options)
            place.remove_unfinished()
        reported: Losses = {}
        round_bytes = max(ROUND_BYTES, TASKS_PER_CORE * spark.sparkContext.defaultParallelism * options.split.bytes_max)
        due = 0.0
        while True:
            least_bytes = WATCH_BYTES if time.monotonic() < due else 0
            planned = pending or _plan(catalog, options, place, reported, least_bytes, round_bytes)
            pending = None
            if planned is None:
                if not watch:
                    return total
                time.sleep(LOOK_SECONDS)
                continue
            if watch:
                due = time.monotonic() + WATCH_SECONDS
            number, start, end, tasks = planned
            place.write_pending(number, start, end, tasks)
            files = _run(spark, options, tasks, to, compression)
            place.write_manifest(number, start, end, files)
            total = Archived(
                total.rounds + 1,
                total.rows + sum(each.rows for each in files),
                total.files + len(files),
                total.bytes + sum(each.bytes for each in files),
            )


Round = tuple[int, Offsets, Offsets, list[Task]]


def _check_pending(tasks: Sequence[Task], options: ReadOptions) -> None:
    """Check that the stores of this run are those of the interrupted round.

    Raises:
        BadOption: a queue of the round is in none of them.
    """
    if isinstance(options.place, Stores):
        for each in (each for task in tasks for each in task):
            if each.queue.broker_name not in options.place.broker_names:
                raise BadOption(
                    "brokerName",
                    ",".join(options.place.broker_names),
                    f"the last run was interrupted while it read {each.queue}, and no store of this run has that name; "
                    "name the store so, and the run continues",
                )


def _plan(
    catalog: Catalog, options: ReadOptions, place: Destination, reported: Losses, least_bytes: int, round_bytes: int
) -> Round | None:
    """Plan the next round from the end of the last one; None if there are no new messages, or too few.

    What is lost and not yet in `reported` is reported and added to it.
    """
    number, done = place.last()
    stores = options.place.broker_names if isinstance(options.place, Stores) else None
    found = look_up(
        catalog, options, {queue: end for queue, end in done.items() if stores is None or queue.broker_name in stores}
    )
    bounds, losses = found.bounds, found.losses
    first = resolve(catalog, options.starting, found, strict_timestamps=options.strict_timestamps, is_end=False)
    start = {queue: done.get(queue, first[queue]) for queue in bounds}
    end = resolve(catalog, options.ending, found, strict_timestamps=options.strict_timestamps, is_end=True)
    for queue, offset in start.items():
        oldest, latest = bounds[queue].min, bounds[queue].max
        if offset < oldest:
            losses[queue] = f"it is archived up to offset {offset}, the oldest message has offset {oldest} now"
            start[queue] = oldest
        elif offset > latest:
            losses[queue] = f"it is archived up to offset {offset}, and ends at offset {latest} now"
    report_losses({each: reason for each, reason in losses.items() if each not in reported}, options)
    reported |= losses
    ranges = ranges_between(start, end)
    if not ranges:
        return None
    size = catalog.range_bytes(ranges)
    if size < least_bytes:
        return None
    if size > round_bytes:
        share = round_bytes / size
        ranges = [QueueRange(each.queue, each.start, each.start + max(1, int(each.count * share))) for each in ranges]
    reached = {**done, **{each.queue: each.end for each in ranges}}
    return number + 1, {each.queue: each.start for each in ranges}, reached, catalog.plan(ranges, options)


def _run(spark: SparkSession, options: ReadOptions, tasks: Sequence[Task], to: str, compression: str) -> list[FileWritten]:
    work = TaskArchiver(options, to, compression)
    results = spark.sparkContext.parallelize(list(tasks), len(tasks)).map(work).collect()
    return [file for written in results for file in written]


@attrs.frozen
class TaskArchiver:
    """Writes the messages of one task. It is pickled and sent to the workers."""

    options: ReadOptions
    to: str
    compression: str

    def __call__(self, task: Task) -> list[FileWritten]:
        columns = chosen(self.options.content)
        name = _name_of(task)
        files = _Files(Destination.of(self.to), name, columns, self.compression)
        try:
            for batch in TaskReader(self.options, columns).read(task):
                files.add(batch)
            return files.finish()
        finally:
            files.abandon()


def _name_of(task: Task) -> str:
    """Return a name that is the same for the same ranges."""
    text = json.dumps([[*attrs.astuple(each.queue), each.start, each.end] for each in task])
    first = task[0]
    return f"{first.queue.broker_name}-{first.queue.queue_id}-{first.start}-{blake2b(text.encode(), digest_size=6).hexdigest()}"


@attrs.define(eq=False)
class _OpenFile:
    """A Parquet file that is being written, under a temporary name."""

    path: str
    temporary: str
    stream: Any
    writer: Any
    waiting: list[Any]
    waiting_rows: int = 0
    waiting_bytes: int = 0
    rows: int = 0

    def close(self) -> None:
        self.writer.close()
        self.stream.close()  # the writer leaves it open, and an object of an object store exists only then


@attrs.define(eq=False)
class _Files:
    """The files of one task, by topic and day."""

    place: Destination
    name: str
    columns: tuple[Column, ...]
    compression: str
    _open: dict[tuple[str, str], _OpenFile] = attrs.field(factory=dict[tuple[str, str], _OpenFile])
    _parts: dict[tuple[str, str], int] = attrs.field(factory=dict[tuple[str, str], int])
    _written: list[FileWritten] = attrs.field(factory=list[FileWritten])

    def add(self, batch: Any) -> None:
        for topic, day, rows in _by_topic_and_day(batch):
            file = self._file(topic, day, rows.schema)
            file.waiting.append(rows)
            file.waiting_rows += rows.num_rows
            file.waiting_bytes += rows.nbytes
            if file.waiting_rows >= GROUP_ROWS or file.waiting_bytes >= GROUP_BYTES:
                _write_group(file)

    def _file(self, topic: str, day: str, schema: Any) -> _OpenFile:
        key = (topic, day)
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= WRITERS_MAX:
                self._close(next(iter(self._open)))
            part = self._parts[key] = self._parts.get(key, -1) + 1
            directory = f"topic={_escaped(topic)}/dt={day}"
            path = f"{directory}/{self.name}-{part}.parquet"
            temporary = f"{directory}/.{self.name}-{part}.{uuid.uuid4().hex[:8]}.tmp"
            dictionary = [name for name in ("brokerName", "queueId", "tags") if name in schema.names]
            narrow = [name for name in NARROW if name in schema.names]
            stream = self.place.open_output(temporary)
            writer: Any = pq.ParquetWriter(
                stream,
                schema,
                compression=self.compression,
                compression_level=1 if self.compression == "zstd" else None,
                use_dictionary=dictionary,  # pyright: ignore[reportArgumentType] - names of columns are documented
                write_statistics=narrow,  # pyright: ignore[reportArgumentType] - the same
            )
            file = _OpenFile(path, temporary, stream, writer, [])
        self._open[key] = file  # the file that was used last is at the end
        return file

    def _close(self, key: tuple[str, str]) -> None:
        file = self._open.pop(key)
        _write_group(file)
        file.close()
        self.place.publish(file.temporary, file.path)
        self._written.append(FileWritten(file.path, file.rows, self.place.size(file.path)))

    def finish(self) -> list[FileWritten]:
        for key in list(self._open):
            self._close(key)
        return self._written

    def abandon(self) -> None:
        """Remove files that an error has left unfinished."""
        for file in self._open.values():
            file.close()
            self.place.remove(file.temporary)
        self._open.clear()


def _write_group(file: _OpenFile) -> None:
    if file.waiting:
        file.writer.write_table(pa.Table.from_batches(file.waiting))
        file.rows += file.waiting_rows
        file.waiting, file.waiting_rows, file.waiting_bytes = [], 0, 0


def _by_topic_and_day(batch: Any) -> Iterator[tuple[str, str, Any]]:
    """Divide a batch by topic and by the UTC day of its store time. The topic becomes a part of the path."""
    rest = batch.drop_columns(["topic"])
    days = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // 86_400_000_000
    if days[0] == days[-1] and (days == days[0]).all() and len(batch.column("topic").unique()) == 1:
        yield batch.column("topic")[0].as_py(), _day(int(days[0])), rest
        return
    topics = batch.column("topic").dictionary_encode()
    for code, topic in enumerate(topics.dictionary.to_pylist()):
        of_topic = topics.indices.to_numpy() == code
        for day in sorted(set(days[of_topic].tolist())):
            yield topic, _day(day), rest.filter(pa.array(of_topic & (days == day)))


def _day(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * 86_400))


def _escaped(topic: str) -> str:
    """Return a topic as a part of a path, escaped as in Hive and Spark."""
    return "".join(each if each.isalnum() or each in "-_." else f"%{ord(each):02X}" for each in topic)


@attrs.define(eq=False)
class Destination:
    """The directory of an archive, on any file system of PyArrow."""

    files: Any
    root: str

    @classmethod
    def of(cls, to: str) -> Destination:
        """Open a directory.

        Raises:
            BadOption: PyArrow has no file system for it.
        """
        return cls(*open_files("to", to))

    @property
    def _is_local(self) -> bool:
        from pyarrow import fs  # noqa: PLC0415

        return isinstance(self.files, fs.LocalFileSystem)

    def open_output(self, path: str) -> Any:
        self.files.create_dir(f"{self.root}/{path.rpartition('/')[0]}", recursive=True)
        return self.files.open_output_stream(f"{self.root}/{path}")

    def publish(self, temporary: str, path: str) -> None:
        """Rename a finished file; it replaces an earlier file of the same ranges.

        On a local file system it outlasts a power cut from then on, so a manifest names nothing that may be gone.
        """
        if self._is_local:
            sync(f"{self.root}/{temporary}")
        self.files.move(f"{self.root}/{temporary}", f"{self.root}/{path}")
        if self._is_local:
            directory = path
            while directory:
                directory = directory.rpartition("/")[0]
                sync(f"{self.root}/{directory}")
            sync(os.path.dirname(self.root))

    def remove(self, path: str) -> None:
        self.files.delete_file(f"{self.root}/{path}")

    def size(self, path: str) -> int:
        return int(self.files.get_file_info(f"{self.root}/{path}").size)

    def check(self, options: ReadOptions) -> None:
        """Check that every row has the columns by which rows are divided."""
        names = {column.name for column in chosen(options.content)}
        for name in ("topic", "storeTimestamp"):
            if name not in names:
                raise BadOption("columns", ",".join(sorted(names)), f"an archive is divided by {name!r}; add it")
        if options.content.mode == "PERMISSIVE":
            raise BadOption(
                "mode",
                "PERMISSIVE",
                "an archive is divided by topic and day, which damaged records do not have; use DROPMALFORMED",
            )

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other runs out of the directory, if it is on a local file system.

        Raises:
            BadOption: another run is writing to it.
        """
        if not self._is_local:
            yield
            return
        refusal = "another run is archiving into this directory; nothing was written"
        with locked(f"{self.root}/{MANIFESTS}", "to", self.root, refusal):
            yield

    def remove_unfinished(self) -> None:
        """Remove the files that a killed run was writing. The interrupted round writes them again."""
        from pyarrow import fs  # noqa: PLC0415

        for info in self.files.get_file_info(fs.FileSelector(self.root, recursive=True)):
            if info.base_name.startswith(".") and info.base_name.endswith(".tmp"):
                self.files.delete_file(info.path)

    def _numbers(self) -> list[int]:
        from pyarrow import fs  # noqa: PLC0415

        found = self.files.get_file_info(fs.FileSelector(f"{self.root}/{MANIFESTS}", allow_not_found=True))
        names = [info.base_name.removesuffix(".json") for info in found]
        return sorted(int(name) for name in names if is_digits(name))

    def last(self) -> tuple[int, Offsets]:
        """Return number and end of the last finished round."""
        numbers = self._numbers()
        if not numbers:
            return 0, {}
        return numbers[-1], from_json(self._read(f"{numbers[-1]:08d}.json")["end"])

    def pending(self) -> Round | None:
        """Return the round that was started and not finished, if there is one."""
        from pyarrow import fs  # noqa: PLC0415

        if self.files.get_file_info(f"{self.root}/{MANIFESTS}/pending.json").type != fs.FileType.File:
            return None
        noted = self._read("pending.json")
        if noted["number"] <= self.last()[0]:
            return None
        tasks = [tuple(_range(each) for each in task) for task in noted["tasks"]]
        return noted["number"], from_json(noted["start"]), from_json(noted["end"]), tasks

    def write_pending(self, number: int, start: Offsets, end: Offsets, tasks: Sequence[Task]) -> None:
        planned = [[[*attrs.astuple(each.queue), each.start, each.end] for each in task] for task in tasks]
        self._write("pending.json", {"number": number, "start": to_json(start), "end": to_json(end), "tasks": planned})

    def write_manifest(self, number: int, start: Offsets, end: Offsets, files: Sequence[FileWritten]) -> None:
        listed = [attrs.asdict(file) for file in files]
        self._write(
            f"{number:08d}.json",
            {"start": to_json(start), "end": to_json(end), "rows": sum(file.rows for file in files), "files": listed},
        )

    def _write(self, name: str, value: dict[str, Any]) -> None:
        text = json.dumps(value, sort_keys=True)
        temporary = f"{MANIFESTS}/.{name}.{uuid.uuid4().hex[:8]}.tmp"
        with self.open_output(temporary) as stream:
            stream.write(json.dumps({"crc": crc32(text.encode()), "content": text}).encode())
        self.publish(temporary, f"{MANIFESTS}/{name}")

    def _read(self, name: str) -> dict[str, Any]:
        path = f"{self.root}/{MANIFESTS}/{name}"
        with self.files.open_input_stream(path) as stream:
            raw = stream.read()
        try:
            outer = json.loads(raw)
            text: str = outer["content"]
            sound = crc32(text.encode()) == outer["crc"]
        except (ValueError, KeyError, TypeError):
            text, sound = "", False
        if not sound:
            raise CorruptFile(path, "a manifest of the archive", "its checksum is another one")
        content: dict[str, Any] = json.loads(text)
        return content


def _range(values: Sequence[Any]) -> QueueRange:
    topic, broker, queue_id, start, end = values
    return QueueRange(MessageQueue(topic, broker, queue_id), start, end)
