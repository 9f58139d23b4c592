"""Positions of groups that are changed on several brokers, one after the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock

from ledgermq.client.admin import Admin, groups, open_admin
from ledgermq.client.admin.errors import NoSuchGroup
from ledgermq.client.errors import NoRoute, Unreachable
from ledgermq.client.queue_calls import commit_offset
from ledgermq.client.session import Session
from ledgermq.message.message import MessageQueue
from ledgermq.testing.embedded import open_virtual


@asynccontextmanager
async def two_brokers() -> AsyncGenerator[tuple[Admin, str, str]]:
    """An admin client and the names of two brokers, which have the topic `t` with two queues each."""
    async with open_virtual(nodes=2) as cluster, open_admin(cluster.namesrv, world=cluster.world) as admin:
        first, second = await admin.create_topic("t", queues=2)
        yield admin, first, second


def dies_at(monkeypatch: pytest.MonkeyPatch, dying: MessageQueue) -> None:
    """Let the broker of a queue be gone when an offset is committed there."""

    async def commit(session: Session, group: str, queue: MessageQueue, offset: int) -> None:
        if queue == dying:
            raise Unreachable(queue.broker_name, "it has died")
        await commit_offset(session, group, queue, offset)

    monkeypatch.setattr(groups, "commit_offset", commit)


async def test_a_reset_without_members_that_fails_half_way_says_where_it_was_made(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets are set queue by queue then, so the broker that failed may have some of them."""
    async with two_brokers() as (admin, first, second):
        await admin.create_group("g")
        dies_at(monkeypatch, MessageQueue("t", second, 1))

        with pytest.raises(Unreachable) as caught:
            await admin.reset_offsets("g", "t", 0)

    assert caught.value.__notes__ == [f"Changed on {first}; {second} may have the change; not asked: none."]


async def test_a_group_is_reset_on_the_brokers_that_have_it(autojump_clock: MockClock) -> None:
    """The others have no positions of it; only a group that none has is an error."""
    async with two_brokers() as (admin, first, second):
        await admin.create_group("g", broker=second)

        moved = await admin.reset_offsets("g", "t", 0)

        assert moved == {MessageQueue("t", second, 0): 0, MessageQueue("t", second, 1): 0}
        assert await admin.offset_of("g", MessageQueue("t", first, 0)) is None
        with pytest.raises(NoSuchGroup, match="there is no group 'h'"):
            await admin.reset_offsets("h", "t", 0)


async def test_a_clone_that_fails_half_way_says_where_it_was_made(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_brokers() as (admin, first, second):
        for name in (first, second):
            for number in range(2):
                await admin.set_offset("source", MessageQueue("t", name, number), 0)
        dies_at(monkeypatch, MessageQueue("t", second, 0))
        with pytest.raises(Unreachable) as at_once:
            await admin.clone_offsets("source", "target", "t")
        dies_at(monkeypatch, MessageQueue("t", second, 1))
        with pytest.raises(Unreachable) as later:
            await admin.clone_offsets("source", "target", "t")

    assert at_once.value.__notes__ == [f"Changed on {first}; {second} was not changed; not asked: none."]
    assert later.value.__notes__ == [f"Changed on {first}; {second} may have the change; not asked: none."]


async def test_a_clone_returns_what_it_has_copied(autojump_clock: MockClock) -> None:
    """A position at the beginning is one; a topic that does not exist, or in which the group has none, copies nothing."""
    async with two_brokers() as (admin, first, _):
        queue = MessageQueue("t", first, 1)
        await admin.create_topic("other", queues=1)
        await admin.create_group("source")
        await admin.set_offset("source", queue, 0)

        assert await admin.clone_offsets("source", "target", "t") == {queue: 0}
        assert await admin.offset_of("target", queue) == 0
        assert await admin.clone_offsets("source", "target", "other") == {}
        with pytest.raises(NoRoute):
            await admin.clone_offsets("source", "target", "mistyped")
