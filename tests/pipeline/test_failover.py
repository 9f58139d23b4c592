"""Nodes that are killed for good, or for a while, while their group goes on: nothing is lost and nothing comes twice.

The nodes are processes that get SIGKILL. A DLedger group elects another leader, a slave serves readers in the place of its
master, and what reads or writes through the pipeline goes on there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
import trio

from harness.processes.dledger import GroupOfProcesses, open_group
from harness.processes.servers import running_broker, running_namesrv
from ledgermq import Message, open_admin, open_producer
from ledgermq.client.errors import ClientError, NoRoute
from ledgermq.pipeline.catalog import batch_ranges
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.options import read_options, write_options
from ledgermq.pipeline.outgoing import Rows
from ledgermq.pipeline.reading import TaskReader, open_catalog
from ledgermq.pipeline.sender import Sender
from ledgermq.pipeline.sink import begin
from ledgermq.testing.ports import reserved_ports

from .brokers import all_bodies, create_topic, numbered, send
from .test_stream import Engine

pytestmark = pytest.mark.slow
COUNT = 2000
SECONDS_MAX = 240
PATIENT = {"failoverTimeoutMs": "60000", "pullTimeoutMs": "1000"}


@attrs.define(eq=False)
class Job:
    """Work in a thread, and how far it is."""

    work: Callable[[Job], None]
    done: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def run(self) -> None:
        await trio.to_thread.run_sync(self.work, self)
        self.ended.set()

    async def reach(self, count: int) -> None:
        with trio.fail_after(SECONDS_MAX * 2):
            while self.done < count:
                assert not self.ended.is_set(), "the work ended before anything was killed"
                await trio.sleep(0.005)


def writing(address: str) -> Callable[[Job], None]:
    """Write numbered rows as a task of Spark does."""

    def work(job: Job) -> None:
        given = {"nameServer": address, "topic": "T", "sendBatchBytes": "3000", "failoverTimeoutMs": "60000"}
        written = write_options({**given, "sendTimeoutMs": "1000"})
        sender = Sender(written, begin(written), "q.0.0")
        rows = Rows({"body": "body"}, "T", 1000, allow_null_body=False)
        for low in range(0, COUNT, 20):
            batch = pa.RecordBatch.from_pydict({"body": [b"%06d" % number for number in range(low, low + 20)]})
            sender.add(rows.messages(batch, "here"))
            sender.flush()
            job.done = sender.sent

    return work


def reading(address: str, found: list[bytes]) -> Callable[[Job], None]:
    """Read everything as a task of Spark does."""

    def work(job: Job) -> None:
        options = read_options({"nameServer": address, "subscribe": "T", "pullMaxMessages": "5", **PATIENT}, streaming=False)
        task = tuple(batch_ranges(open_catalog(options), options))
        for batch in TaskReader(options, chosen(options.content)).read(task):
            found.extend(batch.column("body").to_pylist())
            job.done = len(found)

    return work


async def create_topics(address: str, *topics: str) -> None:
    """Create topics, as soon as the name server knows a master."""
    with trio.fail_after(SECONDS_MAX):
        async with open_admin(address) as admin:
            for topic in topics:
                while True:
                    try:
                        await admin.create_topic(topic, queues=3)
                        break
                    except NoRoute:
                        await trio.sleep(0.05)


async def kill_leader(group: GroupOfProcesses) -> int:
    async with open_admin(group.namesrv) as admin:
        leader = await group.leader(admin)
    await group.kill(leader)
    return leader


async def test_a_leader_killed_while_tasks_write_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two leaders of one group are killed, one under a task that writes and one under a task that reads."""
    monkeypatch.setattr("ledgermq.pipeline.broker_reader.BATCH_ROWS", 50)  # rows come while it still reads
    found: list[bytes] = []
    async with open_group(tmp_path) as group:
        await create_topics(group.namesrv, "T")
        for work in (writing(group.namesrv), reading(group.namesrv, found)):
            job = Job(work)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(job.run)
                await job.reach(500)
                killed = await kill_leader(group)
                with trio.fail_after(SECONDS_MAX):
                    await job.ended.wait()
            await group.start(killed)
        stored_bodies = await trio.to_thread.run_sync(all_bodies, group.namesrv, "T")

    assert stored_bodies == numbered(range(COUNT))
    assert sorted(found) == numbered(range(COUNT))


async def test_files_of_a_node_show_only_what_is_committed(tmp_path: Path) -> None:
    """A leader without its followers stores a message that nobody has acknowledged; its files hold it, and it is not shown."""
    async with open_group(tmp_path) as group:
        await create_topics(group.namesrv, "T")
        await trio.to_thread.run_sync(send, group.namesrv, "T", 30)
        async with open_admin(group.namesrv) as admin:
            leader = await group.leader(admin)
        store = tmp_path / f"node-{leader}" / "store"
        with trio.fail_after(SECONDS_MAX):
            while len(shown(store)) < 30:  # noqa: ASYNC110 - another process writes the files
                await trio.sleep(0.02)
        for number in set(group.servers) - {leader}:
            await group.kill(number)
        async with open_producer(group.namesrv, "p", send_timeout_seconds=3.0, retries=0) as producer:
            with pytest.raises(ClientError):
                await producer.send(Message("T", b"nobody has it"))
        files = [path.read_bytes() for path in sorted(store.glob("dledger-*/data/*"))]
        after = await trio.to_thread.run_sync(shown, store)

    assert any(b"nobody has it" in content for content in files)
    assert sorted(after) == numbered(range(30))


def shown(store: Path) -> list[bytes]:
    """The bodies that a store's files show."""
    options = read_options({"storePath": str(store), "subscribe": "T"}, streaming=False)
    task = tuple(batch_ranges(open_catalog(options), options))
    return [
        body for batch in TaskReader(options, chosen(options.content)).read(task) for body in batch.column("body").to_pylist()
    ]


async def test_a_slave_takes_over_when_its_master_is_killed_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that reads goes on from the slave, and so does a stream of several batches that began with the master."""
    monkeypatch.setattr("ledgermq.pipeline.broker_reader.BATCH_ROWS", 50)
    found: list[bytes] = []
    streamed: list[tuple[int, int]] = []
    engine = Engine()
    async with AsyncExitStack() as stack:
        (ha_port,) = stack.enter_context(reserved_ports("127.0.0.1", 1))
        namesrv = await stack.enter_async_context(running_namesrv(tmp_path / "namesrv"))
        address = str(namesrv.address)
        shared = {"namesrvAddr": address, "haSecret": "secret", "slaveReadEnable": "true"}
        master_keys = {**shared, "brokerRole": "SYNC_MASTER", "brokerId": 0, "haListenPort": ha_port}
        slave_keys = {**shared, "brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": f"127.0.0.1:{ha_port}"}
        master = await stack.enter_async_context(running_broker(tmp_path / "master" / "store", master_keys))
        await stack.enter_async_context(running_broker(tmp_path / "slave" / "store", slave_keys))
        await trio.to_thread.run_sync(create_topic, address, "T", 3)
        await trio.to_thread.run_sync(send, address, "T", COUNT)
        given: dict[str, Any] = {"nameServer": address, "subscribe": "T", "maxOffsetsPerTrigger": "150", **PATIENT}

        def stream(job: Job) -> None:
            engine.on_batch = lambda rows: setattr(job, "done", job.done + len(rows))
            streamed.extend(row for _, batch in engine(**given) for row in batch)

        jobs = [Job(reading(address, found)), Job(stream)]
        async with trio.open_nursery() as nursery:
            for job in jobs:
                nursery.start_soon(job.run)
            for job in jobs:
                await job.reach(300)
            await master.kill()
            with trio.fail_after(SECONDS_MAX):
                for job in jobs:
                    await job.ended.wait()

    assert sorted(found) == numbered(range(COUNT))
    assert len(streamed) == len(set(streamed)) == COUNT
