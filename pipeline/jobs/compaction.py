"""`compact` writes the newest message of every key, in place of those of the last run.

A run writes beside the directory and replaces it when it has succeeded, so a run that fails leaves the last result as it is. On
this machine the new result is on the medium before the last one is deleted.
The manifest in the directory says up to which offsets messages were read. What is missing in the next run is a loss.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Any

import attrs

from ..catalog import batch_offsets
from ..environment import signed
from ..errors import BadOption, CorruptFile
from ..offsets import Offsets, assignment, from_json, to_json
from ..options import read_options
from ..reading import open_catalog
from ..storage import local_path, sync
from .places import Source, locked, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MANIFEST = "_ledgermq.json"
"""The file that says what was read. It is written last, and Spark ignores names that begin with an underscore."""
_REPLACED = ("ending", "subscribe", "assign", "topic")
"""How the options begin that are replaced by the queues that were found and their ends."""
BROADCAST_MAX = 500_000
"""The most keys whose places are sent to all tasks, where they need about 200 bytes each. With more, bodies are shuffled."""


def compact(spark: SparkSession, source: Source, *, by: str = "keys") -> DataFrame:
    """Return the newest message of every key as a table. A key whose newest message is empty was deleted and is left out.

    There are two passes. The first, which runs at once, finds the newest messages without reading bodies; Spark keeps their
    places on disk until the session ends. The second reads bodies, and if there are not too many keys, keeps only those of the
    newest messages before anything is shuffled.

    Args:
        spark: a session.
        source: options of a batch read. If messages arrive meanwhile, set `endingOffsets`, so that both passes read the same.
        by: the column with the key.
    """
    from pyspark import StorageLevel  # noqa: PLC0415
    from pyspark.sql import functions  # noqa: PLC0415

    place = ("topic", "brokerName", "queueId", "queueOffset")
    narrow = read(spark, source, by, "storeTimestamp", "bodySize", *place).where(functions.col(by).isNotNull())
    order = functions.struct("storeTimestamp", "queueOffset", "brokerName", "queueId")
    newest = functions.max_by(functions.struct("bodySize", *place), order)
    winners = narrow.groupBy(by).agg(newest.alias("newest")).where("newest.bodySize > 0").select("newest.*").drop("bodySize")
    winners.persist(StorageLevel.DISK_ONLY)
    is_small = winners.count() <= BROADCAST_MAX
    return read(spark, source).join(functions.broadcast(winners) if is_small else winners, list(place), "left_semi")


def compact_to(spark: SparkSession, source: Source, to: str, *, by: str = "keys") -> int:
    """Write the newest message of every key as Parquet files, and return their number.

    Args:
        spark: a session.
        source: options of a batch read. Messages that arrive while it runs are left to the next run.
        to: a directory on any file system of Spark; what the last run has written there is replaced.
        by: the column with the key.

    Raises:
        BadOption: the directory holds something else, or another run writes to it.
        DataLoss: a queue that the last run read is missing or shorter now; the last result remains.
    """
    with _sole_writer(to):
        check_replaceable(to)
        directory = _Directory.of(spark, to)
        directory.finish()
        options = read_options(signed(source), streaming=False)
        with closing(open_catalog(options)) as catalog:
            _, end = batch_offsets(catalog, options, directory.read_up_to())
        others = {key: value for key, value in source.items() if not key.lower().startswith(_REPLACED if end else "ending")}
        bounded = {"endingOffsets": json.dumps(to_json(end)), **({"assign": assignment(end)} if end else {})}
        found = compact(spark, {**others, **bounded}, by=by)
        found.write.mode("overwrite").parquet(directory.next)
        directory.replace(end)
        return spark.read.parquet(to).count()


def _sole_writer(to: str) -> AbstractContextManager[None]:
    """Keep other runs away from a directory of this machine. The lock lies beside it, because it is replaced as a whole."""
    path = local_path(to)
    if path is None:
        return nullcontext()
    parent, name = os.path.split(os.path.abspath(path))
    refusal = "another run is compacting into this directory; nothing was written"
    return locked(os.path.join(parent, f".{name}.lock"), "to", to, refusal)


@attrs.frozen
class _Directory:
    """A directory that is replaced as a whole, on a file system of Hadoop."""

    path: str
    next: str
    """The directory beside it in which the next result is written."""
    files: Any
    """Hadoop's file system."""
    make_path: Any

    @classmethod
    def of(cls, spark: SparkSession, to: str) -> _Directory:
        context: Any = spark.sparkContext
        jvm, configuration = context._jvm, context._jsc.hadoopConfiguration()  # noqa: SLF001
        make_path = jvm.org.apache.hadoop.fs.Path
        path = make_path(to)
        files = path.getFileSystem(configuration)
        whole = files.makeQualified(path)
        return cls(whole.toString(), make_path(whole.getParent(), f".{whole.getName()}.next").toString(), files, make_path)

    def finish(self) -> None:
        """Put the last result into its place if the run that wrote it was ended just before, or while it did that."""
        if self.files.exists(self.make_path(self.next, MANIFEST)):
            self._put_in_place()

    def read_up_to(self) -> Offsets:
        """Return the end of each queue in the last run; nothing if there was none.

        Raises:
            CorruptFile: the manifest is not what was written.
        """
        path = self.make_path(self.path, MANIFEST)
        if not self.files.exists(path):
            return {}
        stream = self.files.open(path)
        try:
            raw = bytes(stream.readAllBytes())
        finally:
            stream.close()
        try:
            return from_json(json.loads(raw)["end"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(path.toString(), "the manifest of a compaction", repr(error)) from error

    def replace(self, end: Offsets) -> None:
        """Replace the directory by the next one, which is complete once it has a manifest."""
        unfinished = self.make_path(self.next, f"{MANIFEST}.tmp")
        stream = self.files.create(unfinished, True)
        try:
            stream.write(json.dumps({"end": to_json(end)}, sort_keys=True).encode())
        finally:
            stream.close()
        following = local_path(self.next)
        if following is not None:  # else the other file system sees to it that files outlast a power cut
            for name in os.listdir(following):
                sync(os.path.join(following, name))
        self._rename(unfinished, self.make_path(self.next, MANIFEST))
        self._put_in_place()

    def _put_in_place(self) -> None:
        following = local_path(self.next)
        if following is not None:
            sync(following)
        self.files.delete(self.make_path(self.path), True)
        self._rename(self.make_path(self.next), self.make_path(self.path))
        if following is not None:
            sync(os.path.dirname(os.path.abspath(following)))

    def _rename(self, old: Any, new: Any) -> None:
        if not self.files.rename(old, new):
            raise BadOption("to", self.path, f"the result is in {self.next} and could not be renamed")


_COMPACTED = re.compile(r"\.?(_SUCCESS|_temporary|part-.*|_ledgermq\.json)(\.crc)?")
"""The names of files that a compaction writes into its directory."""


def check_replaceable(to: str) -> None:
    """Check that a directory of this machine has only files of an earlier compaction, because all that is in it is deleted.

    Raises:
        BadOption: names what would be deleted.
    """
    path = local_path(to)
    if path is None or not os.path.lexists(path):
        return
    others = (
        sorted(name for name in os.listdir(path) if not _COMPACTED.fullmatch(name))
        if os.path.isdir(path)
        else [os.path.basename(path)]
    )
    if others:
        raise BadOption(
            "to",
            to,
            f"{others[0]!r} and all else there would be deleted, but no compaction has written it; name a new directory",
        )
