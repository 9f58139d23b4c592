"""`ledgermq group redrive`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from ledgermq import ConsumeFrom, open_consumer

from .processes import Run, never


async def _fail_every_delivery(namesrv: str, group: str, count: int) -> None:
    async with open_consumer(namesrv, group, group, consume_from=ConsumeFrom.FIRST, reconsume_times_max=0) as consumer:
        for _ in range(count):
            message = await consumer.get_one()
            assert message is not None
            await message.retry()


def test_dead_letters_go_to_their_group_again(ledgermq: Run, as_json: Callable[..., Any], namesrv: str) -> None:
    """Once, with tag, keys and properties, and to no other group; a second command finds nothing left."""
    bodies = {f"letter {number}" for number in range(3)}
    ledgermq("topic", "create", "redriven", "--queues", "1")
    ledgermq("group", "create", "redriven")
    for body in sorted(bodies):
        ledgermq("send", "redriven", body, "--tag", "t", "--key", "k")
    trio.run(_fail_every_delivery, namesrv, "redriven", len(bodies))

    assert ledgermq("group", "redrive", "redriven", "--max", "1").stdout == "1 dead letters of redriven go to it again\n"
    assert as_json("group", "redrive", "redriven") == {"group": "redriven", "messages": 2}
    assert as_json("group", "redrive", "redriven")["messages"] == 0

    delivered = [
        json.loads(line) for line in ledgermq("consume", "redriven", "--group", "redriven", "--json").stdout.splitlines()
    ]
    assert {message["body"] for message in delivered} == bodies
    assert {(message["topic"], message["tag"], tuple(message["keys"])) for message in delivered} == {("redriven", "t", ("k",))}
    assert len(ledgermq("consume", "redriven", "--from-beginning").stdout.splitlines()) == len(bodies), (
        "the topic has them once"
    )


def test_a_broker_that_gives_no_dead_letters_is_an_error(ledgermq: Run, namesrv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how many were handed out before."""
    ledgermq("send", "Silent", "letter")
    trio.run(_fail_every_delivery, namesrv, "Silent", 1)
    monkeypatch.setattr("ledgermq.client.fetch.Fetcher.run", never)
    monkeypatch.setattr("ledgermq.cli.reading.STALL_SECONDS", 0.5)

    refused = ledgermq("group", "redrive", "Silent", status=1).stderr

    assert "%DLQ%Silent@broker-a:0, and not all was read; 0 dead letters were handed out" in refused


def test_a_group_without_dead_letters_has_nothing_to_redrive(ledgermq: Run) -> None:
    """Its dead letters have no topic yet; a group that nobody knows is most likely misspelt."""
    ledgermq("group", "create", "healthy")

    assert ledgermq("group", "redrive", "healthy").stdout == "0 dead letters of healthy go to it again\n"
    assert "there is no group 'strangers'" in ledgermq("group", "redrive", "strangers", status=1).stderr
