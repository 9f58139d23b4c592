"""Every kind of client of ours at a broker that wants signed requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ledgermq import Credentials, aio, blocking
from ledgermq.client import environment
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import InvalidArgument, NoPermission
from ledgermq.client.producer import open_producer
from ledgermq.client.pull import open_pull_consumer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.remoting.channel import connected
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import Embedded, open_virtual, start_embedded
from ledgermq.world.address import Address

ADMIN, ALICE = Credentials("admin", "swordfish"), Credentials("alice", "hush")
SECURED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
}
RIGHTS = [
    {"resource": resource, "actions": actions, "decision": "Allow"}
    for resource, actions in (("Topic:T", ["Pub", "Sub"]), ("Group:g*", ["Sub"]))
]


async def give_rights(cluster: Embedded) -> None:
    """Create the topic T and the user alice, who may send to it and consume it with groups that begin with g."""
    requests = (
        RemotingCommand(3001, {"username": "alice"}, b'{"password":"hush"}'),
        RemotingCommand(3006, {"subject": "User:alice"}, json.dumps({"policies": [{"entries": RIGHTS}]}).encode()),
    )
    async with connected(Address.parse(cluster.addresses[0]), network=cluster.world.network, credentials=ADMIN) as channel:
        for request in requests:
            assert (await channel.call(request, 5)).code == 0
    async with open_admin(cluster.namesrv, credentials=ADMIN, world=cluster.world) as admin:
        await admin.create_topic("T", queues=2)


@asynccontextmanager
async def open_secured(settings: Mapping[str, str] = SECURED) -> AsyncGenerator[Embedded]:
    async with open_virtual(settings=settings) as cluster:
        await give_rights(cluster)
        yield cluster


async def test_clients_with_rights_send_and_consume(autojump_clock: trio.testing.MockClock) -> None:
    """One by one, in batches, without an answer, and pulled; what they do around it is signed, too."""
    async with open_secured() as cluster:
        world, namesrv = cluster.world, cluster.namesrv
        async with open_producer(namesrv, credentials=ALICE, world=world) as producer:
            await producer.send(Message("T", b"one"))
            await producer.send_batch([Message("T", b"two"), Message("T", b"three")])
            await producer.send_oneway(Message("T", b"four"))
            await producer.send_many([Message("T", b"five")])
        received: set[bytes] = set()
        async with open_consumer(
            namesrv, "g1", "T", consume_from=ConsumeFrom.FIRST, credentials=ALICE, world=world
        ) as consumer:
            with trio.fail_after(60):
                while len(received) < 5:
                    async with consumer.take() as batch:
                        received |= {message.body for message in batch}
        async with open_pull_consumer(namesrv, "g2", credentials=ALICE, world=world) as pull:
            queues = await pull.queues("T")

    assert received == {b"one", b"two", b"three", b"four", b"five"}
    assert len(queues) == 2


async def test_clients_without_rights_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    """With the broker's reason in the error; a client without a name, with another password, and with other rights."""
    async with open_secured() as cluster:
        reasons: list[str] = []
        for credentials in (None, Credentials("alice", "guess"), Credentials("mallory", "x")):
            async with open_producer(cluster.namesrv, credentials=credentials, world=cluster.world) as producer:
                with pytest.raises(NoPermission) as refused:
                    await producer.send(Message("T", b"x"))
            reasons.append(str(refused.value))
        async with open_admin(cluster.namesrv, credentials=ALICE, world=cluster.world) as admin:
            with pytest.raises(NoPermission, match="Topic:Mine"):
                await admin.create_topic("Mine", queues=1)

    assert "username cannot be null." in reasons[0]
    assert "check signature failed." in reasons[1]
    assert "User:mallory is not found." in reasons[2]


def test_threads_and_tasks_of_asyncio_sign_too() -> None:
    with start_embedded(settings=SECURED) as cluster:
        trio.run(give_rights, cluster)
        with blocking.open_producer(cluster.namesrv, credentials=ALICE) as producer:
            producer.send(Message("T", b"from a thread"))
        with blocking.open_producer(cluster.namesrv) as stranger, pytest.raises(NoPermission):
            stranger.send(Message("T", b"x"))

        async def consume() -> set[bytes]:
            received: set[bytes] = set()
            async with (
                aio.open_producer(cluster.namesrv, credentials=ALICE) as own,
                aio.open_consumer(cluster.namesrv, "g1", "T", consume_from=ConsumeFrom.FIRST, credentials=ALICE) as consumer,
            ):
                await own.send(Message("T", b"from a task"))
                async for message in consumer:
                    received.add(message.body)
                    if len(received) == 2:
                        return received
            return received

        assert asyncio.run(asyncio.wait_for(consume(), 60)) == {b"from a thread", b"from a task"}


def test_credentials_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The password from a variable or a file; one that is given counts more, and half of them is a mistake."""
    file = tmp_path / "password"
    file.write_text("hush\n")
    assert environment.credentials_of(None) is None
    monkeypatch.setenv("LEDGERMQ_ACCESS_KEY", "alice")
    with pytest.raises(InvalidArgument, match="LEDGERMQ_SECRET_KEY"):
        environment.credentials_of(None)
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY_FILE", str(file))
    from_file = environment.credentials_of(None)
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY", "other")
    from_variable = environment.credentials_of(None)

    assert (from_file, from_variable) == (ALICE, Credentials("alice", "other"))
    assert environment.credentials_of(ADMIN) is ADMIN


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_file_without_a_password_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("LEDGERMQ_SECRET_KEY_FILE", str(file))

    with pytest.raises(InvalidArgument, match="LEDGERMQ_SECRET_KEY_FILE"):
        environment.credentials_of(None)


async def test_something_else_for_credentials_is_refused_without_being_shown() -> None:
    with pytest.raises(InvalidArgument, match=r"Credentials\(user, password\) \(got a tuple\)") as refused:
        async with open_admin("127.0.0.1:1", credentials=("alice", "hush")):  # type: ignore[arg-type]
            pass

    assert "hush" not in str(refused.value)
