"""The data source `ledgermq` of PySpark's Python Data Source API: thin classes around planning, reading and writing.

Spark imports this module in every planner and worker process, so neither it nor what it imports uses trio or a server.
Everything that a task needs is in its partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from .catalog import Bounds, Catalog, batch_ranges
from .columns import Column, available, check_writable, chosen, ddl, projected
from .errors import BadOption
from .filters import Condition, Pruning
from .options import ReadOptions, WriteOptions, read_content, read_options, write_options
from .outgoing import Rows
from .ranges import QueueRange
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
            ranges = self.wanted(catalog, batch_ranges(catalog, self.options))
            tasks = catalog.plan(ranges, self.options)
        finally:
            catalog.close()
        return [TaskPartition(task) for task in tasks]

    def wanted(self, catalog: Catalog, ranges: list[QueueRange]) -> list[QueueRange]:  # noqa: ARG002 - see below
        """Return the ranges to read: all of them."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:  # Spark replaces an empty plan by one partition without a value
            return iter(())
        return self.task_reader.read(partition.value)


class PruningReader(LedgermqReader):
    """Reads a batch and uses the query's conditions to read less.

    It is a separate class because Spark refuses every reader with the method `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is set.
    """

    pruning = Pruning()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - the name is Spark's
        names = {column.name.lower() for column in available(self.options.content)}
        given: list[tuple[Any, str]] = [(each, type(each).__name__) for each in filters]
        conditions = [
            Condition(each.attribute[0], kind, each.value)
            for each, kind in given
            if hasattr(each, "value") and len(each.attribute) == 1
        ]
        self.pruning = Pruning.of(each for each in conditions if each.column.lower() in names)
        content = self.options.content
        if self.pruning.tags and not content.tags:
            self.options = attrs.evolve(self.options, content=attrs.evolve(content, tags=self.pruning.tags))
            self.task_reader = attrs.evolve(self.task_reader, options=self.options)
        return filters

    def wanted(self, catalog: Catalog, ranges: list[QueueRange]) -> list[QueueRange]:
        def offset_at(each: QueueRange, timestamp_ms: int) -> int:
            return catalog.offset_at(each.queue, timestamp_ms, Bounds(each.start, each.end))

        return self.pruning.apply(ranges, offset_at)


class LedgermqDataSource(DataSource):
    """Topics of RocketMQ and LedgerMQ as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return ddl(chosen(read_content(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options, streaming=False)
        kind = PruningReader if options.push_filters and options.content.style == "ledgermq" else LedgermqReader
        return kind(options, projected(options.content, fields_of(schema)))

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
