"""Messages by key and position, and queue entries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from ledgermq.broker.admin import queries
from ledgermq.message.layout import decode_records
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.derived.index import IndexSearch

from ...turns import counted
from .desk import Desk, connection_from, open_desk

LONG_MAX = 2**63 - 1


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(str(tmp_path)) as desk:
        yield desk


def by_key(key: str, **more: str) -> dict[str, str | int]:
    return {"topic": "T1", "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": LONG_MAX, **more}


async def test_messages_are_found_by_each_of_their_keys(desk: Desk) -> None:
    """Every word of KEYS finds the message; the answer tells how far the index is."""
    desk.put("T1", body=b"one", KEYS="k1 k2")
    last = desk.put("T1", body=b"two", KEYS="k2")
    await desk.settled()

    one = await desk.ask_waiting(RequestCode.QUERY_MESSAGE, by_key("k1"))
    both = await desk.ask_waiting(RequestCode.QUERY_MESSAGE, by_key("k2"))

    assert [message.body for message in decode_records(one.body)] == [b"one"]
    assert {message.body for message in decode_records(both.body)} == {b"one", b"two"}
    assert int(both.ext["indexLastUpdatePhyoffset"]) == last
    assert int(both.ext["indexLastUpdateTimestamp"]) > 0


async def test_unique_key_is_found(desk: Desk) -> None:
    """`_UNIQUE_KEY_QUERY` asks for the producer's id, with the broker's own limit."""
    desk.put("T1", UNIQ_KEY="U1")
    await desk.settled()

    answer = await desk.ask_waiting(RequestCode.QUERY_MESSAGE, by_key("U1", _UNIQUE_KEY_QUERY="true") | {"maxNum": 0})

    assert [message.unique_key for message in decode_records(answer.body)] == ["U1"]


async def test_key_of_no_message_is_not_found(desk: Desk) -> None:
    """Nothing found is QUERY_NOT_FOUND with the same header fields, which clients require."""
    answer = await desk.ask_waiting(RequestCode.QUERY_MESSAGE, by_key("nokey"))

    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.ext.keys() == {"indexLastUpdatePhyoffset", "indexLastUpdateTimestamp"}


async def test_answer_holds_as_many_records_as_fit_a_frame(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large messages under one key do not make a frame that clients refuse: those beyond it are left out."""
    for _ in range(3):
        desk.put("T1", body=bytes(1000), KEYS="k1")
    await desk.settled()
    monkeypatch.setattr(queries, "ANSWER_BYTES_MAX", 2500)

    answer = await desk.ask_waiting(RequestCode.QUERY_MESSAGE, by_key("k1"))

    assert len(list(decode_records(answer.body))) == 2


async def test_message_is_read_by_its_position(desk: Desk) -> None:
    """A physical offset of a message gives its record; any other number gives an error."""
    desk.put("T1", body=b"one")
    offset = desk.put("T1", body=b"two")

    found = desk.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    inside = desk.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset + 1})
    beyond = desk.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 10**9})

    assert [message.body for message in decode_records(found.body)] == [b"two"]
    assert inside.code == beyond.code == ResponseCode.SYSTEM_ERROR


async def test_queue_entries_are_shown_with_what_a_filter_makes_of_them(desk: Desk) -> None:
    """Entries have position, size and tags code; with a living group, whether its filter lets them pass."""
    first = desk.put("T1", TAGS="TagA")
    second = desk.put("T1", TAGS="TagB")
    await desk.settled()
    desk.consumer("g1", "T1")

    asked = {"topic": "T1", "queueId": 0, "index": 0, "count": 10}
    plain = desk.read(RequestCode.QUERY_CONSUME_QUEUE, asked)
    filtered = desk.read(RequestCode.QUERY_CONSUME_QUEUE, asked | {"consumerGroup": "g1"})

    assert (plain["minQueueIndex"], plain["maxQueueIndex"]) == (0, 2)
    assert [entry["physicOffset"] for entry in plain["queueData"]] == [first, second]
    assert "subscriptionData" not in plain
    assert [entry["eval"] for entry in filtered["queueData"]] == [True, False]
    assert filtered["subscriptionData"]["topic"] == "T1"


async def test_queue_that_was_never_written_is_an_error(desk: Desk) -> None:
    """A queue without entries cannot be looked into."""
    answer = desk.ask(RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T1", "queueId": 1, "index": 0, "count": 1})

    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_searches_for_a_common_key_take_turns(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """All newer entries of a key are read before the wanted one, some of them in each turn, whoever else searches."""
    desk.put("T1", body=b"first", KEYS="k")
    await desk.settled()
    stored_ms = desk.broker.store.store_time("T1", 0, 0)
    index = desk.broker.store.index
    assert index is not None
    index.put_batch([("T1", "", "k", 1_000_000 + n, stored_ms + 60_000 + n) for n in range(2000)])
    monkeypatch.setattr(IndexSearch.step, "__defaults__", (100,))
    steps = 0
    step = IndexSearch.step

    def counting(search: IndexSearch) -> bool:
        nonlocal steps
        steps += 1
        return step(search)

    monkeypatch.setattr(IndexSearch, "step", counting)

    early = by_key("k") | {"endTimestamp": stored_ms + 1000}
    with counted(lambda: steps) as turns:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(found_by, desk, early)

    assert (steps, turns.most) == (3 * 21, 1)


async def found_by(desk: Desk, query: dict[str, str | int]) -> None:
    """Search on a connection of one's own; exactly the first message must be found."""
    own = Desk(desk.broker, connection_from(50_001))
    answer = await own.ask_waiting(RequestCode.QUERY_MESSAGE, query)
    assert [message.body for message in decode_records(answer.body)] == [b"first"]
