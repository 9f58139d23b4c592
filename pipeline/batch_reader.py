"""The batch half of the source: plans what a query reads, and reads one task in a worker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from .catalog import batch_ranges
from .columns import Column, available
from .filters import Condition, Pruning
from .options import ReadOptions
from .ranges import QueueRange
from .reading import TaskPartition, TaskReader, open_catalog


class LedgermqReader(DataSourceReader):
    """Reads a batch."""

    def __init__(self, options: ReadOptions, columns: tuple[Column, ...]) -> None:
        self.options = options
        self.task_reader = TaskReader(options, columns)

    def partitions(self) -> list[InputPartition]:
        catalog = open_catalog(self.options)
        try:
            ranges = self.wanted(batch_ranges(catalog, self.options))
            tasks = catalog.plan(ranges, self.options)
        finally:
            catalog.close()
        return [TaskPartition(task) for task in tasks]

    def wanted(self, ranges: list[QueueRange]) -> list[QueueRange]:
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

    def wanted(self, ranges: list[QueueRange]) -> list[QueueRange]:
        return self.pruning.apply(ranges)
