"""The data source `ledgermq` of PySpark's Python Data Source API: thin classes around planning, reading and writing.

Spark imports this in every planner and worker process, so nothing here or below imports trio or a server. What tasks need
travels inside their partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from .catalog import batch_ranges
from .columns import Column, check_writable, chosen, ddl, projected
from .errors import BadOption
from .options import ReadOptions, WriteOptions, read_content, read_options, write_options
from .outgoing import Rows
from .reading import TaskPartition, TaskReader, fields_of, open_catalog
from .sink import LedgermqStreamWriter, LedgermqWriter
from .stream import LedgermqStreamReader

FORMAT = "ledgermq"


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
        return ddl(chosen(read_content(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        return LedgermqReader(options, projected(options.content, fields_of(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name is Spark's
        options = read_options(self.options, streaming=True)
        return LedgermqStreamReader(options, projected(options.content, fields_of(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options, rows = self._writing(schema)
        if overwrite:
            raise BadOption("mode", "overwrite", "messages of a topic cannot be replaced; write with mode 'append'")
        return LedgermqWriter(options, rows)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        options, rows = self._writing(schema)
        if overwrite:
            raise BadOption("outputMode", "complete", "messages of a topic cannot be replaced; write with output mode 'append'")
        return LedgermqStreamWriter(options, rows)

    def _writing(self, schema: StructType) -> tuple[WriteOptions, Rows]:
        options = write_options(self.options)
        columns = check_writable(fields_of(schema), has_topic=options.topic is not None)
        return options, Rows(columns, options.topic, options.message_bytes_max, options.allow_null_body)
