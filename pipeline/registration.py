"""Makes the format `ledgermq` known to any session of Spark, and topics known to its SQL."""

# ruff: noqa: PLC0415 - workers import this package, and must not import more than they need
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .errors import NoSpark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format `ledgermq` known to a session, whoever started it.

    Spark finds the format by itself only if the Python that is first on the `PATH` has this package. Workers on this machine
    are started with the Python that runs now, unless `PYSPARK_PYTHON` names another one. A server of Spark Connect, and the
    machines of a cluster, need the package in their own Python.

    The session becomes the active one of the thread that calls this. Spark looks for the format of a write in the active
    session of the thread that writes, not in the session of the rows, and a thread that Python started has none.

    Raises:
        NoSpark: the extra `spark` is not installed.
    """
    check_installed()
    from .python import python_for_workers
    from .source import LedgermqDataSource

    context: Any = getattr(spark, "sparkContext", None)  # a session of Spark Connect has none
    if context is not None and "PYSPARK_PYTHON" not in os.environ and context.master.startswith("local"):
        context.pythonExec = python_for_workers()
    spark.dataSource.register(LedgermqDataSource)
    if context is not None:
        classic: Any = spark
        classic._jvm.SparkSession.setActiveSession(classic._jsparkSession)  # noqa: SLF001 - which no public name does


def register_views(spark: SparkSession, source: Mapping[str, str], pattern: str = ".*") -> list[str]:
    """Make topics known to SQL under their names, as in `SELECT * FROM orders`, until the session ends.

    Args:
        spark: a session.
        source: options of a batch read without a subscription, such as `nameServer` or `storePath`.
        pattern: a regular expression for the whole names of topics. System topics never match.

    Returns: the names of the topics. In SQL those with other characters than letters, digits and `_` are put between backticks.

    Raises:
        NoSpark: the extra `spark` is not installed.
        BadOption, Unavailable: as a read does.
    """
    register(spark)
    from .catalog import is_system_topic
    from .columns import chosen, ddl
    from .environment import signed
    from .options import read_options
    from .reading import open_catalog

    options = read_options(signed({**source, "subscribePattern": pattern}), streaming=False)
    catalog = open_catalog(options)
    try:
        topics = [each for each in catalog.topics() if not is_system_topic(each) and re.fullmatch(pattern, each)]
    finally:
        catalog.close()
    schema = ddl(chosen(options.content))
    for topic in topics:
        reader = spark.read.format("ledgermq").schema(schema).options(**{**source, "subscribe": topic})
        reader.load().createOrReplaceTempView(f"`{topic}`")
    return topics


def check_installed() -> None:
    """Raise `NoSpark` if a package of the extra `spark` is missing."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise NoSpark(missing)


_PACKAGES = ("pyspark", "pyarrow", "numpy", "matplotlib")
