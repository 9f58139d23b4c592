"""The common part of all jobs: the options of their source, progress reports, and reading a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "ledgermq"

Source = Mapping[str, str]
"""Options of the data source, such as `nameServer` or `storePath` and `subscribe`."""
Report = Callable[[int, int], None]
"""A function that is called while a job runs, with the amounts of finished and of all work."""


def no_report(_done: int, _of: int) -> None:
    """Ignore progress."""


def read(spark: SparkSession, source: Source, *columns: str) -> DataFrame:
    """Read messages as a table of these columns, or of the default ones. Conditions of a query are pushed to the reader."""
    reader = spark.read.format(FORMAT).options(**source)
    if columns:
        reader = reader.option("columns", ",".join(columns))
    if spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true":
        reader = reader.option("pushFilters", "true")
    return reader.load()
