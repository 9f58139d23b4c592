"""A classic log that the nodes of a group had before DLedger was enabled, equal on all and served until it expires."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ledgermq.broker.tables.persistence import OFFSETS_FILE
from ledgermq.message.layout import body_size_of, span_of
from ledgermq.message.message import IncomingMessage
from ledgermq.store.json_file import JsonFile
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.world.disk import Disk

from .scene import Node

TOPIC, QUEUES = "Older", 2
_HOST = bytes(8)


def copy_tree(source: Disk, target: Disk, directory: str, to: str = "") -> None:
    """Copy a directory from one machine to another, durably; `to` is the same path by default."""
    to = to or directory
    target.make_directories(to)
    for name in source.list_directory(directory):
        path = f"{directory}/{name}"
        if source.is_directory(path):
            copy_tree(source, target, path, f"{to}/{name}")
            continue
        read = source.open(path, read_only=True)
        written = target.open(f"{to}/{name}", create_size=read.size)
        written.write(read.read(0, read.size), 0)
        written.sync()
        read.close()
        written.close()
    target.sync_directory(to)


def _body(number: int) -> bytes:
    return b"%d;" % number + random.Random(number).randbytes(number * 37 % 900)  # noqa: S311 - never secrets


async def leave_older_log(nodes: Sequence[Node], messages: int) -> None:
    """Give every node a copy of a classic broker's store with this many messages."""
    first = nodes[0]
    async with open_message_store(first.machine.world(), first.config.store_config()) as store:
        for number in range(messages):
            put = await store.put_one(IncomingMessage(TOPIC, number % QUEUES, _body(number), "", 0, 0, 0, _HOST))
            assert put.queue_offset == number // QUEUES
    for node in nodes[1:]:
        root, own = first.config.store_path_root_dir, node.config.store_path_root_dir
        copy_tree(first.machine.disk, node.machine.disk, f"{root}/commitlog", f"{own}/commitlog")


def leave_older_offsets(nodes: Sequence[Node], offsets: int) -> None:
    """Give every node the file of a classic broker with this many consumer offsets."""
    table = {
        f"{TOPIC}@idle{first}": {str(at): 0 for at in range(first, min(first + 100, offsets))}
        for first in range(0, offsets, 100)
    }
    for node in nodes:
        JsonFile(node.machine.disk, f"{node.config.store_path_root_dir}/config/{OFFSETS_FILE}").save({"offsetTable": table})


def check_older_log(host: str, store: MessageStore, messages: int) -> None:
    """Check that every message that has not expired is at its offset, and that queues end after all of them."""
    for queue_id in range(QUEUES):
        end = (messages - queue_id + QUEUES - 1) // QUEUES
        found = store.max_offset(TOPIC, queue_id)
        assert found == end, f"{host}: {TOPIC} {queue_id} ends at {found}, {end} was expected"
        for offset in range(store.min_offset(TOPIC, queue_id), end):
            unit = store.unit(TOPIC, queue_id, offset)
            assert unit is not None, f"{host}: {TOPIC} {queue_id} lacks offset {offset}"
            record = store.log.record(unit[0], unit[1])
            span = span_of(record, 0, len(record)) if record is not None else None
            assert record is not None, f"{host}: the record of {TOPIC} {queue_id} offset {offset} is not in the log"
            assert span is not None, f"{host}: the record of {TOPIC} {queue_id} offset {offset} is damaged"
            body = bytes(record[span.body_at : span.body_at + body_size_of(record, span)])
            assert body == _body(QUEUES * offset + queue_id), f"{host}: another message at {TOPIC} {queue_id} offset {offset}"
