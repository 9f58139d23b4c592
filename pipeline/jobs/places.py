"""What all jobs are told about where messages come from, and how a job reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "ledgermq"

Source = Mapping[str, str]
"""Options of the data source, such as `nameServer` or `storePath` and `subscribe`."""
Report = Callable[[int, int], None]
"""Called as a job gets on: how much is done, and of how much."""


def nobody(_done: int, _of: int) -> None:
    """Nobody watches."""


def read(spark: SparkSession, source: Source, *columns: str) -> DataFrame:
    """Read messages as a table of these columns alone, or of all default ones; filters of queries reach the reader."""
    reader = spark.read.format(FORMAT).options(**source)
    if columns:
        reader = reader.option("columns", ",".join(columns))
    if spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true":
        reader = reader.option("pushFilters", "true")
    return reader.load()
