"""The data source `ledgermq` of PySpark's Python Data Source API: it checks options and schema, and makes readers and writers.

Spark imports this module in every planner and worker process, one after the other when a session reads its first table. So each
method imports what it needs, and nothing here or there uses trio or a server. Everything that a task needs is in its partition.
"""

# ruff: noqa: PLC0415 - for this reason
from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .options import WriteOptions
    from .outgoing import Rows

FORMAT = "ledgermq"


class LedgermqDataSource(DataSource):
    """Topics of RocketMQ and LedgerMQ as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        from .columns import chosen, ddl
        from .options import read_content

        return ddl(chosen(read_content(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch_reader import LedgermqReader, PruningReader
        from .columns import projected
        from .environment import signed
        from .options import read_options
        from .reading import fields_of

        options = read_options(signed(self.options), streaming=False)
        kind = PruningReader if options.push_filters and options.content.style == "ledgermq" else LedgermqReader
        return kind(options, projected(options.content, fields_of(schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name is Spark's
        from .columns import projected
        from .environment import signed
        from .options import read_options
        from .reading import fields_of
        from .stream import LedgermqStreamReader

        options = read_options(signed(self.options), streaming=True)
        return LedgermqStreamReader(options, projected(options.content, fields_of(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from .errors import BadOption
        from .sink import LedgermqWriter

        options, rows = self._writing(schema)
        if overwrite:
            raise BadOption("mode", "overwrite", "messages of a topic cannot be replaced; write with mode 'append'")
        return LedgermqWriter(options, rows)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from .errors import BadOption
        from .sink import LedgermqStreamWriter

        options, rows = self._writing(schema)
        if overwrite:
            raise BadOption("outputMode", "complete", "messages of a topic cannot be replaced; write with output mode 'append'")
        return LedgermqStreamWriter(options, rows)

    def _writing(self, schema: StructType) -> tuple[WriteOptions, Rows]:
        from .columns import check_writable
        from .environment import signed
        from .options import write_options
        from .outgoing import Rows
        from .reading import fields_of

        options = write_options(signed(self.options))
        columns = check_writable(fields_of(schema), has_topic=options.topic is not None)
        return options, Rows(columns, options.topic, options.message_bytes_max, options.allow_null_body)
