"""Encoded entries of a table."""

from __future__ import annotations

import orjson
import pytest
import trio

from ledgermq.broker import entries as module
from ledgermq.broker.entries import ENTRY_BYTES_MAX, EncodedEntries, TableFull
from ledgermq.remoting.errors import RequestRefused


def test_entries_are_one_json_object() -> None:
    """All of them, or those that are named and there."""
    entries = EncodedEntries("the table")
    entries.put({"a": {"x": 1}, "b\u4e3b": None})
    entries.put({"a": {"x": 2}})

    assert orjson.loads(entries.joined()) == {"a": {"x": 2}, "b\u4e3b": None}
    assert orjson.loads(entries.joined(["a", "nowhere"])) == {"a": {"x": 2}}
    assert entries.size == len(entries.joined()) - len("{,}")
    entries.forget("a")
    entries.forget("nowhere")
    assert orjson.loads(entries.joined()) == {"b\u4e3b": None}


async def test_many_entries_are_joined_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are in the first turn, whatever changes meanwhile."""
    monkeypatch.setattr(module, "ENTRIES_PER_TURN", 10)
    entries = EncodedEntries("the table")
    entries.put({f"g{number}": number for number in range(95)})
    expected, turns = dict(orjson.loads(entries.joined())), 0
    entries.put({"g0": 0})

    async def change() -> None:
        nonlocal turns
        while True:
            turns += 1
            entries.put({f"g{turns}": "changed"})
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        joined = entries.joined_in_slices()
        nursery.start_soon(change)
        found = await joined
        nursery.cancel_scope.cancel()

    assert orjson.loads(found) == expected
    assert turns >= 8
    assert orjson.loads(entries.joined())["g1"] == "changed"


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    """What is there may be changed as long as it does not grow; forgetting makes room."""
    entries = EncodedEntries("the table", size_max=20)
    entries.put({"a": "1234567890"})
    before = entries.joined()

    with pytest.raises(TableFull, match="the table is full"):
        entries.check_room({"b": 1, "c": "1234"})

    assert entries.joined() == before
    entries.put({"a": "123456789"})
    entries.forget("a")
    assert entries.size == 0
    entries.put({"b": 1, "c": "1234"})


def test_a_file_or_a_master_may_hold_more() -> None:
    """A start or a copy must not fail for the bound; only what is new is refused."""
    entries = EncodedEntries("the table", size_max=20)
    entries.put({"a": "1234567890", "b": "1234567890"})

    with pytest.raises(TableFull):
        entries.check_room({"c": 1})
    entries.put({"b": 1})
    assert orjson.loads(entries.joined()) == {"a": "1234567890", "b": 1}


def test_an_entry_has_a_bound_of_its_own() -> None:
    """In a DLedger group it must fit a record of the log; a file or a master may contain a larger one."""
    entries = EncodedEntries("the table")
    large = "x" * ENTRY_BYTES_MAX

    with pytest.raises(RequestRefused, match=r"an entry of the table has at most 262144 bytes \(got 262154 for 'large'\)"):
        entries.check_room({"small": 1, "large": large})

    assert entries.size == 0
    entries.put({"large": large})
