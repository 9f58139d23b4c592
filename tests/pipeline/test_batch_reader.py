"""The batch half of the source, without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledgermq.message.properties import encode_properties
from ledgermq.pipeline import batches
from ledgermq.pipeline.batch_reader import LedgermqReader
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.options import read_options

from .stores import StoreFiles, interleaved

COUNT = 300


def test_only_wanted_columns_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies and properties are not copied out of the log unless a column needs them."""
    StoreFiles(tmp_path / "broker-a").append(interleaved(COUNT))
    copied: list[int] = []
    gather = batches.gather

    def counted(piece: Any, starts: Any, sizes: Any) -> Any:
        copied.append(int(sizes.sum()))
        return gather(piece, starts, sizes)

    monkeypatch.setattr(batches, "gather", counted)

    def copied_for(columns: str) -> int:
        copied.clear()
        options = read_options({"storePath": str(tmp_path / "broker-a"), "subscribe": "T", "columns": columns}, streaming=False)
        reader = LedgermqReader(options, chosen(options.content))
        assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == COUNT
        return sum(copied)

    bodies = sum(len(message.body) for message in interleaved(COUNT))
    properties = sum(len(encode_properties(message.properties)) for message in interleaved(COUNT))

    assert copied_for("topic,queueId,queueOffset,storeTimestamp,bodySize,storeHost") == 0
    assert copied_for("queueId,body") == bodies
    assert copied_for("tags,keys,msgId") == properties
    assert copied_for("body,properties,tags") == bodies + properties


def test_processes_of_spark_import_only_what_they_need(tmp_path: Path) -> None:
    """To find the source they need none of its parts, and to plan and read files nothing that speaks to brokers or writes.

    The package itself exports `register`, which imports Spark only when it is called.
    """
    StoreFiles(tmp_path / "broker-a").append(interleaved(1))
    program = f"""
import sys
from pyspark.sql.types import StructType
from pyspark_ledgermq import DefaultSource
def names(): return {{name.removeprefix("ledgermq.pipeline.") for name in sys.modules if name.startswith("ledgermq.pipeline.")}}
found = names()
source = DefaultSource({{"storePath": {str(tmp_path / "broker-a")!r}, "subscribe": "T"}})
reader = source.reader(StructType().add("body", "binary"))
rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
print(sorted(found), rows, sorted(names() & {{"broker_client", "broker_reader", "link", "sender", "sink", "stream"}}))
"""

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said == "['errors', 'registration', 'source'] 1 []\n"
