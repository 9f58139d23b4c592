"""What pages know of topics, groups and messages, from a real broker."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio

from ledgermq import ConsumeFrom, open_consumer
from ledgermq.cli.dashboard import facts
from ledgermq.cli.dashboard.survey import Survey
from ledgermq.client.admin import open_admin
from ledgermq.client.admin.errors import NoSuchGroup
from ledgermq.message.message import MessageQueue
from ledgermq.message.units import QueueId
from ledgermq.testing.embedded import StartedEmbedded, start_embedded

from .conftest import HOSTILE_KEY, fill


@asynccontextmanager
async def surveyed(cluster: StartedEmbedded) -> AsyncGenerator[Survey]:
    async with open_admin(cluster.namesrv) as admin:
        survey = await Survey.begin(admin)
        yield survey
        assert survey.complete


async def test_topics_of_applications_are_listed_with_what_they_hold(cluster: StartedEmbedded) -> None:
    async with surveyed(cluster) as survey:
        (row,) = (await facts.list_topics(survey, "", 1)).rows
        none = await facts.list_topics(survey, "no such", 1)

    assert (row.topic, row.queues, row.messages) == ("orders", 1, 42)
    assert none.rows == []


async def test_the_group_furthest_behind_comes_first(cluster: StartedEmbedded) -> None:
    async with surveyed(cluster) as survey:
        page, asked = await facts.list_groups(survey, "", 1)
        lags = await facts.lags_in_topic(survey, "orders")
        found, _ = await facts.list_groups(survey, "idl", 1)

    assert [(row.group, row.lag, row.letters) for row in page.rows] == [("slow", 32, True), ("idle", 0, False)]
    assert asked == 2
    assert lags == [("slow", 32)]
    assert [row.group for row in found.rows] == ["idle"]


async def test_only_so_many_groups_are_asked_how_far_they_are_behind(
    cluster: StartedEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "REQUESTS_MAX", 1)
    monkeypatch.setattr(facts, "ROWS_PER_PAGE", 1)
    async with surveyed(cluster) as survey:
        page, asked = await facts.list_groups(survey, "", 1)

    assert asked == 1
    assert {row.group: row.lag for row in page.rows} == {"idle": 0, "slow": None}


async def test_a_member_says_which_queues_it_reads(cluster: StartedEmbedded) -> None:
    async with (
        open_consumer(cluster.namesrv, "online", "orders", consume_from=ConsumeFrom.FIRST) as consumer,
        surveyed(cluster) as survey,
    ):
        assert await consumer.get_one(30) is not None
        found = await facts.ask_group(survey, "online")

    assert [member.client_id for member in found.members] == list(set(found.owners.values()))
    assert MessageQueue("orders", "broker-a", QueueId(0)) in found.owners


async def test_a_group_that_no_broker_has_is_an_error(cluster: StartedEmbedded) -> None:
    async with surveyed(cluster) as survey:
        with pytest.raises(NoSuchGroup):
            await facts.ask_group(survey, "nobody")


async def test_dead_letters_are_listed_newest_first(cluster: StartedEmbedded) -> None:
    async with surveyed(cluster) as survey:
        page, left = await facts.ask_letters(survey, "slow", 1)
        none, nothing = await facts.ask_letters(survey, "idle", 1)

    assert [(letter.message.body, letter.origin, letter.redriven) for letter in page.rows] == [
        (b"order 4", "orders", False),
        (b"order 3", "orders", False),
    ]
    assert left == 2
    assert (none.count, nothing) == (0, 0)


@pytest.mark.parametrize("key", ["order-3", HOSTILE_KEY, "large"])
async def test_a_message_is_found_by_its_key_and_by_its_ids(cluster: StartedEmbedded, key: str) -> None:
    async with surveyed(cluster) as survey:
        ((broker, message),) = await facts.find_messages(survey, "orders", key)
        again = [await facts.find_messages(survey, "orders", str(text)) for text in (message.unique_key, message.message_id)]

    assert broker == "broker-a"
    assert message.keys == [key]
    assert again == [[(broker, message)], [(broker, message)]]


async def test_the_way_of_a_message_leads_to_the_dead_letters(cluster: StartedEmbedded) -> None:
    async with surveyed(cluster) as survey:
        ways = {
            key: await facts.ask_way(survey, *(await facts.find_messages(survey, "orders", key))[0])
            for key in ("order-0", "order-3", "order-39")
        }

    slow = {key: next(reader for reader in readers if reader.group == "slow") for key, readers in ways.items()}
    assert {key: (reader.position, reader.dead) for key, reader in slow.items()} == {
        "order-0": (10, 0),
        "order-3": (10, 1),
        "order-39": (10, 0),
    }


async def test_nothing_is_found_by_what_is_no_key(cluster: StartedEmbedded) -> None:
    async with surveyed(cluster) as survey:
        assert await facts.find_messages(survey, "orders", "nothing") == []


@pytest.mark.parametrize(("number", "rows"), [(0, [0, 1]), (1, [0, 1]), (2, [2, 3]), (3, [4]), (99, [4])])
def test_a_page_beyond_the_end_is_the_last_one(number: int, rows: list[int]) -> None:
    page = facts.paged(range(5), number, size=2)

    assert (list(page.rows), page.pages, page.count) == (rows, 3, 5)


async def test_messages_are_found_where_the_new_master_has_them() -> None:
    """A dashboard runs for months: routes that it learned once must not lead it to a broker that is gone."""
    with start_embedded(mode="dledger", nodes=3) as group:
        await trio.to_thread.run_sync(trio.run, fill, group.namesrv)
        async with open_admin(group.namesrv) as admin:
            before, _ = await facts.ask_letters(await Survey.begin(admin), "slow", 1)
            await trio.to_thread.run_sync(group.kill, group.master())
            await trio.to_thread.run_sync(group.master)
            survey = await Survey.begin(admin)
            after, left = await facts.ask_letters(survey, "slow", 1)

    assert [letter.message.body for letter in after.rows] == [letter.message.body for letter in before.rows]
    assert left == 2
    assert survey.complete
