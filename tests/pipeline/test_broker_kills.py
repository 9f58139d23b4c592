"""A broker that is killed in the middle of reading or writing: the task goes on when it is back, and nothing happens twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from harness.processes.servers import running_broker, running_namesrv
from ledgermq.pipeline.catalog import batch_ranges
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.options import read_options, write_options
from ledgermq.pipeline.outgoing import Rows
from ledgermq.pipeline.reading import TaskReader, open_catalog
from ledgermq.pipeline.sender import Sender
from ledgermq.pipeline.sink import begin

from .brokers import all_bodies, create_topic, numbered

pytestmark = pytest.mark.slow
COUNT = 4000


async def test_a_broker_killed_while_a_task_writes_and_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started again on the same store, as an operator's supervisor does."""
    monkeypatch.setattr("ledgermq.pipeline.broker_reader.BATCH_ROWS", 50)  # rows come while it still reads
    store = tmp_path / "store"
    async with running_namesrv(tmp_path / "namesrv") as namesrv:
        address = str(namesrv.address)
        settings = {"namesrvAddr": address}
        written = write_options(
            {
                "nameServer": address,
                "topic": "T",
                "sendBatchBytes": "3000",
                "failoverTimeoutMs": "60000",
                "sendTimeoutMs": "1000",
            }
        )
        sent, read = trio.Event(), trio.Event()
        senders: list[Sender] = []
        rows: list[dict[str, Any]] = []

        async def write() -> None:
            def send() -> None:
                sender = Sender(written, begin(written), "q.0.0")
                senders.append(sender)
                batch = pa.RecordBatch.from_pydict({"body": [b"%06d" % number for number in range(COUNT)]})
                for message in Rows({"body": "body"}, "T", 1000, allow_null_body=False).messages(batch, "here"):
                    sender.add([message])
                    if len(next(iter(sender.pending.values()), ())) >= 20:
                        sender.flush()
                sender.flush()

            await trio.to_thread.run_sync(send)
            sent.set()

        async def read_all() -> None:
            def collect() -> None:
                options = read_options(
                    {"nameServer": address, "subscribe": "T", "pullMaxMessages": "5", "failoverTimeoutMs": "60000"},
                    streaming=False,
                )
                task = tuple(batch_ranges(open_catalog(options), options))
                for batch in TaskReader(options, chosen(options.content)).read(task):
                    rows.extend(batch.to_pylist())

            await trio.to_thread.run_sync(collect)
            read.set()

        async def killed_and_started_again(nursery: trio.Nursery, job: Any, done: trio.Event, begun: Any) -> None:
            async with running_broker(store, settings) as broker:
                if job is write:
                    await trio.to_thread.run_sync(create_topic, address, "T", 3)
                nursery.start_soon(job)
                while not begun():  # noqa: ASYNC110 - a thread makes it true
                    await trio.sleep(0.005)
                await broker.kill()
            async with running_broker(store, settings):
                with trio.fail_after(120):
                    await done.wait()

        async with trio.open_nursery() as nursery:
            await killed_and_started_again(nursery, write, sent, lambda: senders and senders[0].sent > 500)
        async with trio.open_nursery() as nursery:
            await killed_and_started_again(nursery, read_all, read, lambda: len(rows) > 500)
        async with running_broker(store, settings):
            stored = await trio.to_thread.run_sync(all_bodies, address, "T")

    assert stored == numbered(range(COUNT))
    assert sorted(row["body"] for row in rows) == numbered(range(COUNT))
