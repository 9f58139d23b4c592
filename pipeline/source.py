"""The data source `ledgermq` of PySpark's Python Data Source API: thin classes around planning and reading.

Spark imports this in every planner and worker process, so nothing here or below imports trio or a server. What tasks need
travels inside their partitions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import attrs
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .batches import Batches
from .catalog import Catalog, StoreCatalog, batch_ranges
from .columns import Column, chosen, ddl, projected
from .options import ReadOptions, Stores, read_options
from .ranges import Task
from .segment_reader import Reader, read_segments
from .store_files import Store

FORMAT = "ledgermq"


class TaskPartition(InputPartition):
    """The ranges of one task."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


def warn(text: str) -> None:
    """Report what a read goes on without; standard error of a worker ends up in its log."""
    sys.stderr.write(f"ledgermq: {text}\n")


def open_catalog(options: ReadOptions) -> Catalog:
    """Reach what the options name; raises `BadOption` or `Unavailable`."""
    assert isinstance(options.place, Stores)
    return StoreCatalog(options.place)


def fields_of(schema: StructType) -> list[tuple[str, str]]:
    """Names and types of a Spark schema."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


@attrs.define(eq=False)
class TaskReader:
    """Reads tasks, in whichever process."""

    options: ReadOptions
    columns: tuple[Column, ...]

    def read(self, task: Task) -> Iterator[Any]:
        """Read a task's messages as Arrow record batches."""
        options = self.options
        reader = Reader(Batches(self.columns), options.content, options.fail_on_data_loss, warn)
        place = options.place
        assert isinstance(place, Stores)
        for name, path in zip(place.broker_names, place.paths, strict=True):
            own = [each for each in task if each.queue.broker_name == name]
            if own:
                store = Store(path, name)
                store.check()
                yield from read_segments(store, own, reader)


class LedgermqReader(DataSourceReader):
    """Reads a batch."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.task_reader = TaskReader(options, columns)

    def partitions(self) -> list[InputPartition]:
        catalog = open_catalog(self.options)
        try:
            tasks = catalog.plan(batch_ranges(catalog, self.options), self.options)
        finally:
            catalog.close()
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:  # what Spark makes of an empty plan
            return iter(())
        return self.task_reader.read(partition.value)


class LedgermqDataSource(DataSource):
    """Topics of RocketMQ's kind as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ddl(chosen(read_options(self.options, streaming=False).content))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        return LedgermqReader(options, projected(options.content, fields_of(schema)))
