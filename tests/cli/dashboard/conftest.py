"""A cluster with messages, a group that lags and dead letters; and a browser without a window of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import pytest
import trio

from ledgermq import ConsumeFrom, Credentials, Message, open_consumer, open_producer
from ledgermq.cli.dashboard.app import Dashboard
from ledgermq.client.admin import open_admin
from ledgermq.client.errors import ClientError
from ledgermq.message.message import DLQ_PREFIX
from ledgermq.testing.embedded import StartedEmbedded, start_embedded

HOSTILE = "<script>alert('body')</script>\u202e & co"
HOSTILE_KEY = "\"><script>alert('key')</script>"


async def _when_led(change: Callable[[], Awaitable[object]]) -> None:
    """Repeat a change that a group refuses while it elects: a busy machine may delay the heartbeats of its first leader."""
    with trio.fail_after(30):
        while True:
            try:
                await change()
            except ClientError:
                await trio.sleep(0.1)
            else:
                return


async def fill(namesrv: str) -> None:
    """Send 40 messages, let a group read 10 of them and fail on 2, and send what is hostile."""
    async with open_admin(namesrv) as admin:
        await _when_led(lambda: admin.create_topic("orders", queues=1))
        await _when_led(lambda: admin.create_group("slow", retryMaxTimes=0))
        await _when_led(lambda: admin.create_group("idle"))
        async with open_producer(namesrv) as producer:
            for number in range(40):
                await producer.send(Message("orders", b"order %d" % number, keys=[f"order-{number}"], tag="new"))
        async with open_consumer(namesrv, "slow", "orders", ack="explicit", consume_from=ConsumeFrom.FIRST) as consumer:
            for number in range(10):
                message = await consumer.get_one(30)
                assert message is not None
                await (message.retry() if number in (3, 4) else message.ack())
        async with open_producer(namesrv) as producer:
            await producer.send(Message("orders", HOSTILE.encode(), keys=[HOSTILE_KEY], properties={"<b>": "<i>"}))
            await producer.send(Message("orders", b"\xff" * 100_000, keys=["large"]))
        letters = await admin.topic_stats(DLQ_PREFIX + "slow")
        assert sum(each.max_offset for each in letters.values()) == 2


ADMIN = Credentials("admin", "swordfish")
USER_PASSWORD = "alices password"  # noqa: S105 - of a test


async def fill_secured(namesrv: str) -> None:
    """Create two users with rights, and give a group one dead letter; `ADMIN` signs."""
    async with open_admin(namesrv, credentials=ADMIN) as admin:
        await admin.create_topic("orders", queues=1)
        await admin.create_group("slow", retryMaxTimes=0)
        await admin.create_user("alice", USER_PASSWORD)
        await admin.set_right("alice", "Topic:orders", ["Pub", "Sub"], sources=["127.0.0.1", "10.1.0.0/16"])
        await admin.set_right("alice", "Topic:salaries", ["All"], allow=False)
        await admin.create_user("bob", USER_PASSWORD)
    async with open_producer(namesrv, credentials=ADMIN) as producer:
        await producer.send(Message("orders", b"an order"))
    async with open_consumer(namesrv, "slow", "orders", ack="explicit", credentials=ADMIN) as consumer:
        message = await consumer.get_one(30)
        assert message is not None
        await message.retry()


@pytest.fixture(scope="module")
def cluster() -> Generator[StartedEmbedded]:
    """One broker, filled."""
    with start_embedded() as embedded:
        trio.run(fill, embedded.namesrv)
        yield embedded


Visit = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def visit(cluster: StartedEmbedded) -> Visit:
    """Opens a dashboard of the cluster, with the given attributes, for a client that keeps its session."""

    @asynccontextmanager
    async def opened(namesrv: str = cluster.namesrv, **options: Any) -> AsyncGenerator[httpx.AsyncClient]:
        async with open_admin(namesrv) as admin:
            application = Dashboard(admin, namesrv, **options).application()
            transport = httpx.ASGITransport(application)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                yield client

    return opened


async def send_form(client: httpx.AsyncClient, page: str, path: str, fields: Mapping[str, str]) -> httpx.Response:
    """Fill in a form as a browser does: with the token that the page gave."""
    text = (await client.get(page)).text
    token = text.partition('name="token" value="')[2].partition('"')[0]
    return await client.post(path, data={"token": token, **fields})
