"""The judge of queue offsets reads the log itself: queues and clients may know nothing of a message that is hidden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.stored_offsets import queue_offset_faults
from ledgermq.message.flags import TRANSACTION_PREPARED
from ledgermq.message.layout import encode_host
from ledgermq.message.message import IncomingMessage
from ledgermq.store.config import StoreConfig
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.world.real import real_world


def put_one(store: MessageStore, sys_flag: int = 0) -> int:
    """Put a message, and return where it lies."""
    message = IncomingMessage("T", 1, b"body", "", 0, sys_flag, 1, encode_host("127.0.0.1", 1))
    return store.put([message]).physical_offsets[0]


def give_again(store: MessageStore) -> str:
    first = put_one(store)
    store.next_offsets["T", 1] -= 1
    return f"T queue 1: the records at {first} and {put_one(store)} both have offset 0"


def leave_out(store: MessageStore) -> str:
    put_one(store)
    store.next_offsets["T", 1] += 1
    return f"T queue 1: the record at {put_one(store)} has offset 2, 1 was next"


def delete_and_prepare(store: MessageStore) -> None:
    put_one(store)
    store.delete_topic("T")
    for _ in range(2):
        put_one(store, TRANSACTION_PREPARED)
    put_one(store)


@pytest.mark.parametrize("do", [give_again, leave_out, delete_and_prepare])
async def test_only_offsets_that_do_not_rise_by_one_are_faults(
    tmp_path: Path, do: Callable[[MessageStore], str | None]
) -> None:
    """Half messages have none, and a queue whose topic was deleted goes on where it was."""
    async with open_message_store(real_world(), StoreConfig(store_path_root_dir=str(tmp_path))) as store:
        expected = do(store)

    assert queue_offset_faults(real_world().disk, str(tmp_path)) == ([] if expected is None else [expected])
