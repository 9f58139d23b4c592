"""The common part of all jobs: the options of their source, the number of tasks, reading a table, and locks of directories."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...world.disk import RealDisk
from ..environment import signed
from ..errors import BadOption
from ..storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "ledgermq"

LOCKS = "ledgermq-sink"
"""The directory of the lock inside a checkpoint, where the sink's notes are too."""
TASKS = 16
"""How many tasks send messages again, unless another number is given. It must be the same when an interrupted job is run again,
because what a task has sent is recognised by the number of the task, whatever queues or messages there are by then."""

TASKS_PER_CORE = 4
"""The least tasks for each core where there is enough work, so that cores do not wait for each other in the end."""

Source = Mapping[str, str]
"""Options of the data source, such as `nameServer` or `storePath` and `subscribe`."""


def read(spark: SparkSession, source: Source, *columns: str) -> DataFrame:
    """Read messages as a table of these columns, or of the default ones. Conditions of a query are pushed to the reader."""
    reader = spark.read.format(FORMAT).options(**source)
    if columns:
        reader = reader.option("columns", ",".join(columns))
    if spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true":
        reader = reader.option("pushFilters", "true")
    return reader.load()


@contextmanager
def sole_user(checkpoint: str | None) -> Generator[None]:
    """Exclude other runs with the same checkpoint, which would take each other's messages for missing ones.

    A checkpoint on another file system than this machine's is not locked.

    Raises:
        BadOption: another run uses the checkpoint.
    """
    path = local_path(checkpoint or "")
    if not path:
        yield
        return
    with locked(os.path.join(path, LOCKS), "checkpoint", path, "another run uses this checkpoint; nothing was read or written"):
        yield


@contextmanager
def send_again(target: Mapping[str, str]) -> Generator[None]:
    """Exclude other runs with the checkpoint of a target, and let a job that has ended with it send what is new since then.

    Raises:
        BadOption: another run uses the checkpoint.
    """
    from ..options import write_options  # noqa: PLC0415
    from ..sink import Notes  # noqa: PLC0415 - it imports Spark

    checkpoint = target.get("checkpointLocation")
    with sole_user(checkpoint):
        if checkpoint is not None:
            Notes.of(write_options(signed(target))).reopen_job()
        yield


@contextmanager
def locked(directory: str, option: str, value: str, refusal: str) -> Generator[None]:
    """Hold the lock of a directory, which is created if it does not exist.

    Raises:
        BadOption: another run holds it; names the option and its value, with the refusal.
    """
    os.makedirs(directory, exist_ok=True)
    try:
        lock = RealDisk().lock(f"{directory}/lock")
    except BlockingIOError as error:
        raise BadOption(option, value, refusal) from error
    try:
        yield
    finally:
        lock.release()
