"""Lets Spark find the format `ledgermq` by itself: it imports every top-level module whose name begins with `pyspark_`."""

from ledgermq.pipeline.source import LedgermqDataSource as DefaultSource

__all__ = ["DefaultSource"]
