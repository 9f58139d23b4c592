"""Reads one task in the process that Spark chose for it; used by batches and streams.

Processes that read files do not import what only brokers need.
"""

# ruff: noqa: PLC0415 - for this reason
from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import Any

import attrs
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from .batches import Batches
from .catalog import Catalog, StoreCatalog
from .columns import Column
from .errors import warn
from .options import ReadOptions, Stores
from .ranges import Task
from .segment_reader import Reader, read_segments
from .store_files import Store


class TaskPartition(InputPartition):
    """The ranges of one task."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


def open_catalog(options: ReadOptions) -> Catalog:
    """Open the store or the brokers that the options name; raises `BadOption` or `Unavailable`."""
    if isinstance(options.place, Stores):
        return StoreCatalog(options.place)
    from .broker_client import BrokerCatalog, BrokerClient

    return BrokerCatalog(BrokerClient(options.place), options.pulling, reports_gone=True)


def fields_of(schema: StructType) -> list[tuple[str, str]]:
    """Return the names and types of a Spark schema."""
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


@attrs.define(eq=False)
class TaskReader:
    """Reads tasks. It is pickled and sent to the workers."""

    options: ReadOptions
    columns: tuple[Column, ...]

    def read(self, task: Task) -> Iterator[Any]:
        """Read a task's messages as Arrow record batches."""
        _exclude_modules_from_collections()
        options = self.options
        reader = Reader(Batches(self.columns), options.content, options.fail_on_data_loss, warn)
        place = options.place
        if not isinstance(place, Stores):
            from .broker_client import BrokerClient
            from .broker_reader import BrokerReader

            yield from BrokerReader(BrokerClient(place), options.pulling, reader).read(task)
            return
        assert {each.queue.broker_name for each in task} <= {*place.broker_names}, "a task reads a broker without a store"
        for name, path in zip(place.broker_names, place.paths, strict=True):
            own = [each for each in task if each.queue.broker_name == name]
            if own:
                store = Store(path, name)
                store.check()
                yield from read_segments(store, own, reader)


@cache
def _exclude_modules_from_collections() -> None:
    """Exclude the objects that a worker has now, which are those of modules, from the collections of garbage.

    PySpark collects after each task, and these objects live as long as the worker does.
    """
    gc.freeze()
